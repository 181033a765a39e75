"""A notebook over a grid of parameters and seeds: each run in its folder, one table over all.

May import ``errors`` and its neighbours. A sweep that is called again skips what is done.
"""

import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbrl.driver.store.files import read_json, write_json, write_whole
from nbrl.errors import ConfigError, DataError
from nbrl.notebook.execution import OK, RAISED, REQUEST, STATUS
from nbrl.notebook.parameters import checked, parameters_of

if TYPE_CHECKING:
    import pandas as pd

SEEDS = re.compile(r"(\d+)\.\.(\d+)")
SUMMARY = "summary.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run of a sweep.

    ``point`` is where in the grid it stands. The folder's name ends with a hash of the notebook and
    all parameters, so that another notebook or value is another run.
    """

    folder: Path
    parameters: Mapping[str, Any]
    point: Mapping[str, Any]
    seed: int | None


def read_grid(path: Path) -> dict[str, list[Any]]:
    """The values of each parameter, from a YAML or JSON file of lists.

    Raises:
        DataError: It is not that.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"grid {path}: {error}.") from error
    if not isinstance(found, dict) or not found:
        raise DataError(f"grid {path} must map parameters to lists of values, e.g. 'lr: [1, 2]'.")
    wrong = [name for name, values in found.items() if not isinstance(values, list) or not values]
    if wrong:
        raise DataError(f"grid {path}: {wrong} must be lists with at least one value.")
    return found


def read_seeds(text: str) -> list[int]:
    """The seeds of ``0..9`` or ``0,3,7``.

    Raises:
        ConfigError: Neither of them.
    """
    span = SEEDS.fullmatch(text)
    if span and int(span[1]) <= int(span[2]):
        return list(range(int(span[1]), int(span[2]) + 1))
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ConfigError(f"seeds {text!r}: pass a span 0..9 or a list 0,3,7.")
    return [int(part) for part in parts]


def cells_of(
    notebook: Path,
    out: Path,
    fixed: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None,
) -> list[Cell]:
    """The runs of a sweep, every one of them checked before the first one starts.

    Raises:
        ConfigError: A parameter that the notebook does not have, or of another type; a parameter
            that is fixed and in the grid; seeds for a notebook without ``seed``.
    """
    twice = sorted(set(fixed) & set(grid))
    if twice:
        raise ConfigError(f"run {notebook.name}: {twice} are both fixed and in the grid; drop one.")
    known = parameters_of(notebook)
    name = next((n for n in ("seed", "seeds") if n in known), None)
    if seeds is not None and (name is None or name in {**fixed, **grid}):
        raise ConfigError(
            f"run {notebook.name}: --seeds sets the parameter 'seed' or 'seeds'; the notebook has "
            f"{sorted(known)}, and it must not be set otherwise too."
        )
    found = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        for seed in [None] if seeds is None else seeds:
            chosen = {} if seed is None else {str(name): [seed] if name == "seeds" else seed}
            parameters = checked(notebook, {**fixed, **point, **chosen})
            digest = _digest(notebook, parameters)
            told = {**point, **({} if seed is None else {"seed": seed})}
            folder = out / f"{_word(told)}-{digest[:8]}"
            found.append(Cell(folder=folder, parameters=parameters, point=point, seed=seed))
    return found


def run_sweep(
    notebook: Path,
    cells: Sequence[Cell],
    *,
    jobs: int,
    timeout: float | None,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The outcome of each run, in their order; those that are done already are not run again.

    A run that fails leaves the others running. Ctrl-C and SIGTERM are handed on to the runs, which
    save their notebooks; the rest is not begun.
    """
    waiting = [cell for cell in cells if not is_done(cell)]
    done = len(cells) - len(waiting)
    if done:
        say(f"{done} of {len(cells)} runs are done already")
    running: dict[subprocess.Popen[bytes], Cell] = {}
    came: list[int] = []
    before = _handle(came, running)
    try:
        while running or (waiting and not came):
            while waiting and len(running) < jobs and not came:
                cell = waiting.pop(0)
                running[_start(notebook, cell, jobs, timeout)] = cell
            for process in [p for p in running if p.poll() is not None]:
                cell = running.pop(process)
                done += 1
                say(_told(cell, process.returncode, done, len(cells)))
            time.sleep(0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    stopped = 128 + came[0] if came else None
    return [_outcome(cell, stopped) for cell in cells]


def is_done(cell: Cell) -> bool:
    """Whether an equal run went through before."""
    return _status(cell).get("code") == OK


def summary_table(cells: Sequence[Cell], outcomes: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """One row a point of the grid and result: mean over seeds, interval, difference to the first.

    ``low`` and ``high`` are the 95 % interval of the mean over seeds (Student's t). ``difference``
    is to the first point of the grid, paired by seed, with its own interval. One seed has none.
    """
    # a run that is not a sweep waits for neither
    import pandas as pd

    from nbrl.notebook.plots import mean_interval

    rows = [
        {"point": _word(cell.point), "seed": cell.seed or 0, "result": name, "value": float(value)}
        for cell, outcome in zip(cells, outcomes, strict=True)
        if outcome["code"] == OK
        for name, value in outcome["results"].items()
        if isinstance(value, int | float)
    ]
    columns = ["result", "point", "seeds", "mean", "low", "high"]
    columns += ["difference", "difference_low", "difference_high"]
    if not rows:
        return pd.DataFrame(columns=columns)
    frame = pd.DataFrame(rows)
    table = []
    for name in frame["result"].unique():
        mine = frame[frame["result"] == name]
        wide = mine.pivot_table(index="seed", columns="point", values="value", sort=False)
        first = wide[wide.columns[0]]
        for point in wide.columns:
            values = wide[point].dropna()
            paired = (wide[point] - first).dropna()
            mean, half = mean_interval(values.to_numpy())
            gap, gap_half = mean_interval(paired.to_numpy())
            whole = (mean, mean - half, mean + half, gap, gap - gap_half, gap + gap_half)
            table.append(dict(zip(columns, (name, point, len(values), *whole), strict=True)))
    return pd.DataFrame(table)


def write_summary(out: Path, table: "pd.DataFrame") -> Path:
    """The file that the table was written to."""
    write_whole(out / SUMMARY, table.to_csv(index=False).encode())
    return out / SUMMARY


def exit_code(outcomes: Sequence[Mapping[str, Any]]) -> int:
    """0 where every run went through; the signal's code where one came; else 1."""
    codes = {outcome["code"] for outcome in outcomes}
    signals = sorted(code for code in codes if code >= 128)
    return OK if codes <= {OK} else (signals[0] if signals else RAISED)


def _start(notebook: Path, cell: Cell, jobs: int, timeout: float | None) -> subprocess.Popen[bytes]:
    cell.folder.mkdir(parents=True, exist_ok=True)
    asked = {"notebook": str(notebook.resolve()), "parameters": dict(cell.parameters)}
    write_json(cell.folder / REQUEST, {**asked, "timeout": timeout})
    threads = max((os.cpu_count() or 1) // jobs, 1)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    with (cell.folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "nbrl.notebook.execution", str(cell.folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _handle(came: list[int], running: Mapping[subprocess.Popen[bytes], Cell]) -> dict[int, Any]:
    """Hand signals on to the runs; the handlers that were there before."""
    if threading.current_thread() is not threading.main_thread():
        return {}

    def heard(number: int, frame: Any) -> None:
        came.append(number)
        for process in running:
            process.send_signal(number)

    return {s: signal.signal(s, heard) for s in (signal.SIGINT, signal.SIGTERM)}


def _outcome(cell: Cell, stopped: int | None) -> dict[str, Any]:
    """How a run went; one that was not finished has the code of the signal that stopped it."""
    status = _status(cell)
    if "code" not in status:
        code = RAISED if stopped is None else stopped
        return {"code": code, "results": {}, "folder": str(cell.folder), "error": "not finished"}
    return status


def _status(cell: Cell) -> dict[str, Any]:
    path = cell.folder / STATUS
    return read_json(path) if path.is_file() else {}


def _told(cell: Cell, code: int, done: int, total: int) -> str:
    status = _status(cell)
    where = f", cell {status['cell']}" if status.get("cell") else ""
    error = f": {status.get('error')}{where}" if code != OK else ""
    seconds = status.get("seconds", 0.0)
    return f"{done}/{total} {cell.folder.name} {seconds:.0f} s, code {code}{error}"


def _word(point: Mapping[str, Any]) -> str:
    """A point of the grid as a folder's name."""
    text = ",".join(f"{name}={value}" for name, value in point.items()) or "all"
    return re.sub(r"[^A-Za-z0-9,=._-]+", "_", text)[:80]


def _digest(notebook: Path, parameters: Mapping[str, Any]) -> str:
    """What decides a run: the notebook and its parameters."""
    seen = hashlib.sha256(json.dumps(parameters, sort_keys=True, default=str).encode())
    seen.update(notebook.read_bytes())
    return seen.hexdigest()
