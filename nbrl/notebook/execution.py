"""One notebook, executed headless in a folder of its own, with an exit code that says how it went.

May import ``driver.store``, ``errors`` and, inside functions, papermill. A run's folder holds
``run.json`` (what was asked), ``status.json`` (how it stands), the executed notebook, the results
that cells recorded, and ``run/`` for what the notebook writes.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbrl.driver.store.environment import environment
from nbrl.driver.store.files import read_lines, write_json
from nbrl.driver.store.folder import RunFolder
from nbrl.errors import DataError, StoreError
from nbrl.notebook.parameters import RUN_FOLDER, parameters_of
from nbrl.notebook.results import FOLDER_VARIABLE

OK, RAISED, REFUSED, UNREACHABLE, DIED, TOO_LONG = range(6)
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit codes: what a shell or a scheduler learns of a run."""
CLUSTER_ERRORS = ("ClusterError", "ClusterUnreachable", "ConnectionError", "ConnectionRefusedError")
GRACE_SECONDS = 20.0
REQUEST, STATUS, SUMMARY = "run.json", "status.json", "summary.json"
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run went.

    ``cell`` is the number of the failing code cell, counted from 1, ``error`` its last line.
    ``run_folder`` is where the notebook wrote, None where it has no such parameter; ``made_by`` is
    the digest that an equal request has.

    Example: ``Outcome(code=1, folder="runs/a", seconds=3.1, cell=4, error="ValueError: x",
    results={})``.
    """

    code: int
    folder: str
    notebook: str
    run_folder: str | None
    made_by: str
    parameters: Mapping[str, Any]
    seconds: float
    cell: int | None
    error: str | None
    results: Mapping[str, Any]

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), default=str)


def execute_run(
    notebook: Path, folder: Path, parameters: Mapping[str, Any], timeout: float | None = None
) -> Outcome:
    """The notebook, executed into ``folder`` from top to bottom, whatever ends it.

    It runs where it stands, as in JupyterLab. Ctrl-C and SIGTERM interrupt the running cell, so
    that its ``finally`` blocks run, save the notebook and end the kernel.

    Args:
        notebook: What to execute.
        folder: The run's own; made where missing.
        parameters: Values that :func:`~nbrl.notebook.parameters.checked` has passed.
        timeout: Seconds that one cell may take.
    """
    folder, made_by = folder.resolve(), digest(notebook, parameters)
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).results_path.unlink(missing_ok=True)
    asked = {"notebook": str(notebook.resolve()), "parameters": dict(parameters)}
    write_json(folder / REQUEST, asked)
    write_json(folder / STATUS, {"state": "running", "pid": os.getpid(), "started": time.time()})
    output = folder / notebook.name
    given = dict(parameters)
    if RUN_FOLDER in parameters_of(notebook):
        given[RUN_FOLDER] = str(_fresh(folder / "run"))
    start = time.monotonic()
    with _kernel_environment(folder), _stoppable() as stopped:
        code, cell, error = _executed(notebook, output, given, timeout)
    if stopped:
        code = 128 + stopped[0]
    try:
        results = _results(folder, given.get(RUN_FOLDER))
    except (DataError, StoreError) as damaged:
        code, error, results = code or RAISED, error or str(damaged), {}
    outcome = Outcome(
        code=code,
        folder=str(folder),
        notebook=str(output),
        run_folder=given.get(RUN_FOLDER),
        made_by=made_by,
        parameters=dict(parameters),
        seconds=round(time.monotonic() - start, 3),
        cell=cell,
        error=error,
        results=results,
    )
    _annotate(output, outcome)
    write_json(folder / STATUS, {"state": "done", **asdict(outcome)})
    return outcome


def digest(notebook: Path, parameters: Mapping[str, Any]) -> str:
    """A hash of all that decides what a run does: notebook, parameters, this package."""
    seen = hashlib.sha256(json.dumps(parameters, sort_keys=True, default=str).encode())
    for file in [notebook, *sorted(PACKAGE.rglob("*.py"))]:
        seen.update(file.read_bytes())
    return seen.hexdigest()


def summary_of(run_folder: str | None) -> dict[str, Any]:
    """What the notebook wrote to ``summary.json`` in its run folder; nothing where it did not.

    Raises:
        DataError: It is no JSON object.
    """
    file = None if run_folder is None else Path(run_folder) / SUMMARY
    if file is None or not file.is_file():
        return {}
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}; the notebook's last cell wrote it.") from (
            error
        )
    if not isinstance(summary, dict):
        raise DataError(f"{file} must hold an object; it holds {type(summary).__name__}.")
    return summary


def _executed(
    notebook: Path, output: Path, parameters: Mapping[str, Any], timeout: float | None
) -> tuple[int, int | None, str | None]:
    """Exit code, failing code cell and error."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    try:
        papermill.execute_notebook(
            str(notebook),
            str(output),
            parameters=dict(parameters),
            cwd=str(notebook.resolve().parent),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            autosave_cell_every=5,
            # Of itself a kernel says only that loopback is not encrypted; its messages are signed.
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            execution_timeout=None if timeout is None else int(timeout),
        )
    except PapermillExecutionError as raised:
        said = f"{raised.ename}: {raised.evalue}"
        # papermill puts a cell with the injected parameters into the copy
        cell = raised.exec_count
        if raised.ename == "SystemExit":
            return (int(raised.evalue) if raised.evalue.isdigit() else RAISED), cell, said
        return (UNREACHABLE if raised.ename in CLUSTER_ERRORS else RAISED), cell, said
    except CellTimeoutError as raised:
        return TOO_LONG, None, str(raised).splitlines()[0]
    except DeadKernelError as raised:
        return DIED, None, f"{raised}: the kernel died; the machine may have run out of memory"
    except KeyboardInterrupt:
        return INTERRUPTED, None, "interrupted"
    return OK, None, None


@contextmanager
def _kernel_environment(folder: Path) -> Iterator[None]:
    """What the kernel inherits: its run folder, and that nobody looks on."""
    given = {FOLDER_VARIABLE: str(folder), "NBRL_DISPLAY": "static"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Interrupts the kernel's cells once a signal has come; yields the signals that came."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    over = threading.Event()

    def stop() -> None:
        # one interrupt ends one cell; a kernel between two cells would not notice it
        until = time.monotonic() + GRACE_SECONDS
        while not over.wait(0.3):
            _signal_kernels(signal.SIGINT if time.monotonic() < until else signal.SIGKILL)

    def heard(number: int, frame: Any) -> None:
        came.append(number)
        if len(came) == 1:
            threading.Thread(target=stop, daemon=True).start()

    before = {s: signal.signal(s, heard) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_kernels(number: int) -> None:
    """Send a signal to the kernels that this process has started."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            if any("ipykernel" in part for part in child.cmdline()):
                child.send_signal(number)
        except psutil.Error:
            continue


def _fresh(path: Path) -> Path:
    """The path, or with a number where an earlier try stands there."""
    number = 1
    tried = path
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.name}-{number}")
    return tried


def _results(folder: Path, run_folder: str | None) -> dict[str, Any]:
    """What cells recorded, beside the scalars of the notebook's own ``summary.json``."""
    found = {k: v for k, v in summary_of(run_folder).items() if isinstance(v, int | float)}
    recorded = read_lines(RunFolder(folder).results_path)
    return found | {row["name"]: row["value"] for row in recorded}


def _annotate(output: Path, outcome: Outcome) -> None:
    """Write into the executed notebook how it came about; no state of widgets stays in it."""
    if not output.is_file():
        return
    notebook = json.loads(output.read_text(encoding="utf-8"))
    notebook["metadata"].pop("widgets", None)
    made = environment()
    source = made["source"] or {}
    notebook["metadata"]["nbrl"] = {
        "parameters": dict(outcome.parameters),
        "folder": outcome.folder,
        "code": outcome.code,
        "seconds": outcome.seconds,
        "versions": made["versions"],
        "source": {k: source.get(k) for k in ("revision", "dirty", "diff_sha256")},
    }
    write_json(output, notebook)


def main() -> int:
    """The exit code of the run that the folder named on the command line asks for."""
    folder = Path(sys.argv[1])
    asked = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    outcome = execute_run(
        Path(asked["notebook"]), folder, asked["parameters"], asked.get("timeout")
    )
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
