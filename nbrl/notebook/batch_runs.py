"""What ``nbrl run`` asks for, carried out: one run, or a sweep with its table.

May import its neighbours and ``errors``.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.driver.store.files import read_json
from nbrl.errors import ConfigError, DataError, StoreError
from nbrl.notebook import sweep
from nbrl.notebook.execution import OK, STATUS, Outcome, digest, execute_run, summary_of
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
    once: bool = False


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
        return _one_run(asked, parameters, say)
    if asked.once:
        raise ConfigError("--once is for one run; a sweep skips what is done in any case. Drop it.")
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


def report(outcome: Outcome) -> str:
    """What came of a run, one line a fact."""
    summary = summary_of(outcome.run_folder)
    lines = [("executed notebook", _near(outcome.notebook))]
    if outcome.run_folder is not None:
        lines.append(("run folder", _near(outcome.run_folder)))
        lines += [("plot", _near(f"{outcome.run_folder}/{p}")) for p in summary.get("plots", ())]
    before, after = summary.get("reward_before"), summary.get("reward_after")
    if isinstance(before, int | float) and isinstance(after, int | float):
        lines.append(("reward", f"{before:.3f} before, {after:.3f} after"))
    lines.append(("time", f"{outcome.seconds:.0f} s"))
    return "\n".join(f"{name:<18} {value}" for name, value in lines)


def done_before(folder: Path, made_by: str, say: Callable[[str], None]) -> Outcome | None:
    """How an equal run in this folder went, if it went through and what it left is there."""
    path = folder / STATUS
    if not path.is_file():
        return None
    try:
        status = read_json(path)
        fields = {f.name: status[f.name] for f in dataclasses.fields(Outcome)}
    except (StoreError, KeyError, TypeError):
        say(f"{path} is damaged or of a run that is not over, so the notebook runs once more.")
        return None
    outcome = Outcome(**fields)
    left = [outcome.notebook, *(() if outcome.run_folder is None else [outcome.run_folder])]
    equal = outcome.code == OK and outcome.made_by == made_by
    return outcome if equal and all(Path(path).exists() for path in left) else None


def _one_run(
    asked: Request, parameters: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[int, str]:
    """Exit code and last line of a run, or of the equal one that was before it."""
    if asked.once and asked.out is None:
        raise ConfigError("--once looks for an equal run in --out; pass --out FOLDER too.")
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{asked.notebook.stem}"
    folder = asked.out or Path("runs") / name
    if (folder / asked.notebook.name).resolve() == asked.notebook.resolve():
        raise ConfigError(
            f"{asked.notebook} would be overwritten by its executed copy; pass another --out than "
            f"{folder}."
        )
    before = done_before(folder, digest(asked.notebook, parameters), say) if asked.once else None
    if before is not None:
        say(f"{asked.notebook} was run before and nothing changed; --again runs it once more.")
        say(report(before))
        return before.code, before.line()
    say(f"{asked.notebook} -> {folder}")
    outcome = execute_run(asked.notebook, folder, parameters, asked.timeout)
    if outcome.error:
        say(f"cell {outcome.cell}: {outcome.error}\n{outcome.notebook} shows it.")
    else:
        say(report(outcome))
    return outcome.code, outcome.line()


def _near(path: str) -> str:
    """A path from here where it lies below, else as it is."""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


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
