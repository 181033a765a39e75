"""The command line, ``nbrl``: one thin function a sub-command, which loads its work when called.

May import ``errors`` and typer; everything else inside the functions, so that help is quick.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from nbrl.errors import NbrlError


def doctor() -> None:
    """Say what is installed, on which devices, and what is missing for what."""
    from nbrl.notebook.doctor import examine, report

    findings = examine()
    typer.echo(report(findings))
    raise typer.Exit(0 if all(f.fine or f.optional for f in findings) else 1)


def new(
    kind: Annotated[
        str, typer.Argument(help="reward, math-reward, multiturn, vlm-multiturn or notebook.")
    ],
    output: Annotated[Path, typer.Option(help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a file to start from, which runs as it stands."""
    from nbrl.notebook.scaffold import create

    typer.echo(f"{kind} -> {create(kind, output, force=force)}")


def serve_reward(
    source: Annotated[
        str, typer.Argument(help="A reward file (file.py:name) or the folder of a reward model.")
    ],
    host: Annotated[str, typer.Option(help="Others than this machine need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 5000,
    batch: Annotated[int, typer.Option(help="Rows scored together at most.")] = 64,
    wait: Annotated[float, typer.Option(help="Seconds a batch waits for more requests.")] = 0.005,
    normalize: Annotated[
        bool, typer.Option(help="By the mean and std that training left.")
    ] = False,
) -> None:
    """Serve a reward over HTTP, in OpenRLHF's form; the token is NBRL_REWARD_TOKEN."""
    from nbrl.backends.rewards.places import need

    need("nbrl serve-reward", ("fastapi", "uvicorn", "prometheus_client"), "serve")
    from nbrl.backends.rewards import server

    settings = server.ServerSettings(
        host=host,
        port=port,
        token=os.environ.get("NBRL_REWARD_TOKEN") or None,
        batch=batch,
        wait=wait,
    )
    server.check_settings(settings)
    score = server.scorer_of(source, normalize=normalize)
    server.serve(score, settings, Path(source).name, said=typer.echo)


def run(  # noqa: PLR0913 -- one parameter an option
    notebook: Annotated[Path, typer.Argument(help="The notebook to execute.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", help="KEY VALUE or KEY=VALUE; may come again."),
    ] = None,
    grid: Annotated[
        Path | None, typer.Option(help="A YAML file of lists: every combination is run.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="0..9 or 0,3,7: every point with each.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Where runs go; under runs/ by default.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a cell may take.")] = None,
    once: Annotated[
        bool, typer.Option("--once/--again", help="Skip a run that went through in --out before.")
    ] = False,
    inspect: Annotated[bool, typer.Option("--inspect", help="Only list the parameters.")] = False,
) -> None:
    """Execute a notebook headless, once or over a grid; ends with one line of JSON.

    The exit status is 0 where all went through, 1 where a cell raised, 2 where it was refused
    before a kernel started, 3 where no cluster was reached, 4 where the kernel died, 5 where a cell
    took too long, 130 after Ctrl-C, 143 after SIGTERM, and that of sys.exit in a cell.
    """
    from nbrl.notebook import batch_runs

    if inspect:
        typer.echo(batch_runs.inspected(notebook))
        return
    asked = batch_runs.Request(
        notebook=notebook,
        parameters=parameter or [],
        grid=grid,
        seeds=seeds,
        jobs=jobs,
        out=out,
        timeout=timeout,
        once=once,
    )
    code, line = batch_runs.carry_out(asked, lambda text: typer.echo(text, err=True))
    typer.echo(line)
    raise typer.Exit(code)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "doctor": doctor,
    "new": new,
    "run": run,
    "serve-reward": serve_reward,
}
"""The sub-commands by name; one that did not do its work raises ``typer.Exit(1)``."""


def application() -> typer.Typer:
    """The parser of all sub-commands."""
    made = typer.Typer(
        name="nbrl",
        help="A Jupyter-first research kit for RL post-training of language models.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    made.callback()(_root)
    for name, command in COMMANDS.items():
        made.command(name)(command)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of a command: 0 where it worked, 1 where it failed, 2 where it was refused.

    Args:
        arguments: What stands behind ``nbrl``; by default what this process was started with.
    """
    given = _joined(list(sys.argv[1:] if arguments is None else arguments))
    try:
        typer.main.get_command(application()).main(given, prog_name="nbrl")
    except SystemExit as left:
        return int(left.code or 0)
    except NbrlError as error:
        typer.echo(str(error), err=True)
        return 2
    return 0


def _joined(given: list[str]) -> list[str]:
    """The arguments with ``-p KEY VALUE`` as ``-p KEY=VALUE``: the parser takes one value."""
    found: list[str] = []
    rest = iter(given)
    for text in rest:
        found.append(text)
        if text in ("-p", "--parameter") and "run" in found:
            name = next(rest, None)
            value = next(rest, None) if name is not None and "=" not in name else None
            found += [t for t in (name if value is None else f"{name}={value}",) if t is not None]
    return found


def _version(wanted: bool | None) -> None:
    if wanted:
        import nbrl

        typer.echo(nbrl.__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_version, is_eager=True, help="Say the version."),
    ] = None,
) -> None:
    """A Jupyter-first research kit for RL post-training of language models."""


if __name__ == "__main__":
    sys.exit(main())
