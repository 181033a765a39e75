"""Notebooks without a window: executed headless through papermill, with what came of them.

May import ``errors`` and, inside functions, papermill. A notebook that can be run so has one cell
tagged ``parameters`` that sets ``run_folder`` among others, and its last cell writes
``summary.json`` there: ``reward_before``, ``reward_after``, ``run_folder`` and ``plots``, a list of
files.
"""

import argparse
import ast
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.errors import ConfigError, DataError, NbrlError, all_problems

SUMMARY = "summary.json"
SUMMARY_KEYS = {"reward_before", "reward_after", "run_folder", "plots"}
RECORD = "done.json"
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """An executed notebook and what its last cell wrote down.

    Example: ``Executed(notebook=Path("runs/demo/01_first_step.ipynb"), run_folder=Path(
    "runs/demo/run-1"), summary={"reward_before": 0.4, "reward_after": 0.8, ...}, seconds=31.5)``.
    """

    notebook: Path
    run_folder: Path
    summary: Mapping[str, Any]
    seconds: float


def execute(
    notebook: Path, folder: Path, *, parameters: Mapping[str, Any] | None = None
) -> Executed:
    """The notebook, executed into ``folder`` from top to bottom.

    It runs where it stands, as in JupyterLab, so that relative paths mean the same. Its run folder
    is a new one, ``folder/run-1`` and up. The executed notebook is saved after every cell; where a
    cell raises, papermill's error passes through and the notebook keeps the traceback.

    Args:
        notebook: What to execute.
        folder: Where the results go; made where missing.
        parameters: New values for names that the notebook's parameters cell sets.

    Raises:
        ConfigError: Parameters that the notebook does not have; nothing is executed.
        DataError: The notebook has no parameters cell, or wrote no summary.
    """
    import papermill

    given = dict(parameters or {})
    check_parameters(notebook, given)
    output = folder / notebook.name
    if output.resolve() == notebook.resolve():
        raise ConfigError(
            f"{notebook} would be overwritten by its executed copy; pass another folder than "
            f"{folder}."
        )
    run_folder = _new_run_folder(folder)
    start = time.monotonic()
    papermill.execute_notebook(
        str(notebook),
        str(output),
        parameters=given | {"run_folder": str(run_folder.resolve())},
        cwd=str(notebook.resolve().parent),
        kernel_name="python3",
        language="python",
        autosave_cell_every=5,
    )
    seconds = time.monotonic() - start
    return Executed(
        notebook=output,
        run_folder=run_folder,
        summary=_read_summary(run_folder),
        seconds=seconds,
    )


def parameters_of(notebook: Path) -> dict[str, str]:
    """The names that the parameters cell sets, each with the source of its default.

    Raises:
        DataError: It is no notebook, or has not exactly one cell tagged ``parameters``.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{notebook} is not a notebook: {error!r}.") from error
    tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise DataError(
            f"{notebook} needs exactly one cell tagged 'parameters'; it has {len(tagged)}."
        )
    found = {}
    for statement in ast.parse("".join(tagged[0]["source"])).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {
                t.id: ast.unparse(statement.value) for t in targets if isinstance(t, ast.Name)
            }
    return found


def check_parameters(notebook: Path, given: Mapping[str, Any]) -> None:
    """Raise a ConfigError that lists every parameter which the notebook does not have."""
    known = parameters_of(notebook)
    settable = ", ".join(f"{k}={v}" for k, v in known.items() if k != "run_folder")
    problems = [
        f"{name!r} is no parameter of the notebook; it has {settable}"
        for name in given
        if name not in known
    ]
    if "run_folder" not in known:
        problems.append("its parameters cell does not set run_folder; add it")
    if "run_folder" in given:
        problems.append("run_folder is chosen here; drop it")
    if problems:
        raise all_problems(f"execute {notebook.name}", problems)


def _new_run_folder(folder: Path) -> Path:
    """The first of ``run-1``, ``run-2``, ... that is not there; earlier runs stay."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (folder / f"run-{number}").exists():
        number += 1
    return folder / f"run-{number}"


def _read_summary(run_folder: Path) -> dict[str, Any]:
    file = run_folder / SUMMARY
    if not file.is_file():
        raise DataError(f"the notebook wrote no {file}; its last cell must.")
    summary = json.loads(file.read_text(encoding="utf-8"))
    missing = sorted(SUMMARY_KEYS - set(summary))
    if missing:
        raise DataError(f"{file} lacks {missing}; the notebook's last cell must write them.")
    return summary


def _digest(notebook: Path, parameters: Mapping[str, Any]) -> str:
    """A hash of all that decides what an execution does: notebook, parameters, this package."""
    seen = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for file in [notebook, *sorted(PACKAGE.rglob("*.py"))]:
        seen.update(file.read_bytes())
    return seen.hexdigest()


def _execute_once(
    notebook: Path, folder: Path, parameters: Mapping[str, Any], again: bool
) -> Executed:
    """What an equal call left in ``folder``, or else a new execution."""
    record, digest = folder / RECORD, _digest(notebook, parameters)
    if record.is_file() and not again:
        done = json.loads(record.read_text(encoding="utf-8"))
        if done["digest"] == digest:
            print(f"{notebook} was executed before and nothing changed; --again runs it once more.")
            return Executed(
                notebook=folder / notebook.name,
                run_folder=folder / done["run"],
                summary=_read_summary(folder / done["run"]),
                seconds=done["seconds"],
            )
    executed = execute(notebook, folder, parameters=parameters)
    done = {"digest": digest, "run": executed.run_folder.name, "seconds": executed.seconds}
    record.write_text(json.dumps(done), encoding="utf-8")
    return executed


def report(executed: Executed) -> str:
    """What came of it, one line a fact."""
    summary = executed.summary
    lines = [
        ("executed notebook", executed.notebook),
        ("run folder", executed.run_folder),
        *(("plot", executed.run_folder / plot) for plot in summary["plots"]),
        ("reward", f"{summary['reward_before']:.3f} before, {summary['reward_after']:.3f} after"),
        ("time", f"{executed.seconds:.0f} s"),
    ]
    return "\n".join(f"{name:<18} {value}" for name, value in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute a notebook headless and say what came of it.

    The exit status is 0 where it ran, 1 where it failed, 2 where it could not be begun.
    """
    from papermill.exceptions import PapermillExecutionError

    parser = argparse.ArgumentParser(prog="python -m nbrl.notebook.batch")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path, help="where the results go")
    parser.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--again", action="store_true", help="also where nothing changed")
    options = parser.parse_args(arguments)
    try:
        parameters = dict(_parameter(text) for text in options.parameter)
        check_parameters(options.notebook, parameters)
    except NbrlError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        executed = _execute_once(options.notebook, options.folder, parameters, options.again)
    except (NbrlError, PapermillExecutionError) as error:
        print(f"{error}\n{options.folder / options.notebook.name} shows it.", file=sys.stderr)
        return 1
    print(report(executed))
    return 0


def _parameter(text: str) -> tuple[str, Any]:
    """A name and its value: JSON where it reads as such, the text itself elsewhere."""
    name, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"-p takes NAME=VALUE; got {text!r}.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main())
