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
    tagged = [c for c in _cells(notebook) if "parameters" in c["metadata"].get("tags", ())]
    if len(tagged) != 1:
        raise DataError(
            f"{notebook} needs exactly one cell tagged 'parameters'; it has {len(tagged)}."
        )
    found = {}
    for statement in _parsed(notebook, "".join(tagged[0]["source"])).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {
                t.id: ast.unparse(statement.value) for t in targets if isinstance(t, ast.Name)
            }
    return found


def _cells(notebook: Path) -> list[dict[str, Any]]:
    """The cells of a notebook, each a mapping with metadata and source."""
    # Not at the top: a batch is begun by those who have Jupyter.
    import nbformat

    try:
        text = notebook.read_text(encoding="utf-8")
        nbformat.validate(nbformat.reads(text, as_version=4))
        return json.loads(text)["cells"]
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise DataError(
            f"{notebook} is not a notebook (nbformat 4): {type(error).__name__}: {why}. Pass an "
            ".ipynb file that Jupyter can open."
        ) from error


def _parsed(notebook: Path, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise DataError(
            f"{notebook}: the parameters cell is no Python, line {error.lineno}: {error.msg}: "
            f"{(error.text or '').strip()!r}. Mend the cell; magics have no place in it."
        ) from error


def _kind_problem(name: str, value: Any, default: str) -> str | None:
    """Why a value cannot stand where the notebook has this default; None where it can.

    A whole number may stand for a float; a default of ``None`` or an expression takes anything.
    """
    try:
        own = ast.literal_eval(default)
    except ValueError:
        return None
    kinds = {bool: bool, int: int, float: float | int, str: str, list: list, tuple: list}
    wanted = kinds.get(type(own))
    wrong_bool = isinstance(value, bool) and not isinstance(own, bool)
    if wanted is None or (isinstance(value, wanted) and not wrong_bool):
        return None
    return (
        f"{name} is {type(own).__name__} in the notebook ({name}={default}); got "
        f"{type(value).__name__} {value!r:.80}"
    )


def check_parameters(notebook: Path, given: Mapping[str, Any]) -> None:
    """Raise a ConfigError that lists every parameter which the notebook does not have.

    A value of another kind than the notebook's own default is one of them.
    """
    known = parameters_of(notebook)
    settable = ", ".join(f"{k}={v}" for k, v in known.items() if k != "run_folder")
    problems = [
        f"{name!r} is no parameter of the notebook; it has {settable}"
        for name in given
        if name not in known
    ]
    kinds = (_kind_problem(n, v, known[n]) for n, v in given.items() if n in known)
    problems += [problem for problem in kinds if problem]
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
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}; the notebook's last cell wrote it.") from (
            error
        )
    if not isinstance(summary, dict):
        raise DataError(f"{file} must hold an object; it holds {type(summary).__name__}.")
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
        done = _read_record(record)
        if done is None:
            print(f"{record} is damaged, so the notebook runs once more.", file=sys.stderr)
        elif done["digest"] == digest and (folder / done["run"] / SUMMARY).is_file():
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


def _read_record(record: Path) -> dict[str, Any] | None:
    """What an execution left behind; None where that is damaged."""
    kinds = {"digest": str, "run": str, "seconds": int | float}
    try:
        done = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        return None
    whole = isinstance(done, dict) and all(isinstance(done.get(k), t) for k, t in kinds.items())
    return done if whole else None


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
        known = parameters_of(options.notebook)
        parameters = dict(_parameter(text, known) for text in options.parameter)
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


def _parameter(text: str, known: Mapping[str, str]) -> tuple[str, Any]:
    """A name and its value: JSON where it reads as such, the text itself elsewhere.

    Where the notebook's default is a text, the value is one too: ``-p tag=1`` is ``"1"``.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"-p takes NAME=VALUE; got {text!r}.")
    if _is_text(known.get(name)):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _is_text(default: str | None) -> bool:
    try:
        return default is not None and isinstance(ast.literal_eval(default), str)
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())
