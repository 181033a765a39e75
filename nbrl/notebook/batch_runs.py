"""What ``nbrl run`` asks for, carried out: one run, or a sweep with its table.

May import its neighbours and ``errors``.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbrl.errors import DataError
from nbrl.notebook import sweep
from nbrl.notebook.execution import execute_run
from nbrl.notebook.parameters import checked, parameters_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The command line of ``nbrl run``."""

    notebook: Path
    parameters: Sequence[str]
    grid: Path | None = None
    seeds: str | None = None
    jobs: int = 1
    out: Path | None = None
    timeout: float | None = None


def inspected(notebook: Path) -> str:
    """The parameters of a notebook as JSON."""
    return json.dumps([dataclasses.asdict(p) for p in parameters_of(notebook).values()], indent=2)


def carry_out(asked: Request, say: Callable[[str], None]) -> tuple[int, str]:
    """The exit code and the last line, in JSON.

    Raises:
        ConfigError, DataError: Refused, before a kernel was started.
    """
    given = pairs(asked.parameters)
    if asked.grid is None and asked.seeds is None:
        parameters = checked(asked.notebook, given)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{asked.notebook.stem}"
        folder = asked.out or Path("runs") / name
        say(f"{asked.notebook} -> {folder}")
        outcome = execute_run(asked.notebook, folder, parameters, asked.timeout)
        if outcome.error:
            say(f"cell {outcome.cell}: {outcome.error}\n{outcome.notebook} shows it.")
        return outcome.code, outcome.line()
    grid = {} if asked.grid is None else sweep.read_grid(asked.grid)
    seeds = None if asked.seeds is None else sweep.read_seeds(asked.seeds)
    out = asked.out or Path("runs") / f"{asked.notebook.stem}-sweep"
    cells = sweep.cells_of(asked.notebook, out, given, grid, seeds)
    say(f"{len(cells)} runs of {asked.notebook} -> {out}, {asked.jobs} at a time")
    outcomes = sweep.run_sweep(
        asked.notebook, cells, jobs=asked.jobs, timeout=asked.timeout, say=say
    )
    table = sweep.summary_table(cells, outcomes)
    summary = sweep.write_summary(out, table)
    say(table.to_string(index=False, float_format=lambda x: f"{x:.4g}"))
    code = sweep.exit_code(outcomes)
    failed = [o["folder"] for o in outcomes if o["code"] != 0]
    line = {"code": code, "runs": len(cells), "failed": failed, "summary": str(summary)}
    return code, json.dumps(line)


def pairs(given: Sequence[str]) -> dict[str, str]:
    """The parameters by name, from ``KEY=VALUE`` texts.

    Raises:
        DataError: A text without ``=``, or a name that comes twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise DataError(f"-p takes KEY VALUE or KEY=VALUE; got {text!r}.")
        if name in found:
            raise DataError(f"-p {name} is given twice.")
        found[name] = value
    return found
