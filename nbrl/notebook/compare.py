"""Several run folders side by side: a table with lineage, and two branches paired by prompt.

May import everything of the house but widgets.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from nbrl.driver.store.reading import Run, open_run
from nbrl.errors import DataError
from nbrl.frozen import frozen
from nbrl.functional.statistics import paired_difference

UNTOLD = ("run", "versions", "parent", "name", "store", "prompts.fingerprint")
"""Parts of a spec that are no setting of the experiment."""
SHOWN = ("reward", "loss", "grad_norm", "entropy")


def runs(folder: str | os.PathLike = "runs") -> pd.DataFrame:
    """The runs of a folder, one row each, a fork below its parent, newest trees last.

    Columns: ``run`` (indented by generation), ``parent`` as ``name@version``, ``steps``,
    ``version``, the last value of the main metrics, what cells recorded, and the settings in which
    the runs differ. The index is the run folder.

    Raises:
        DataError: There is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"runs: there is no folder {root.absolute()}.")
    found = [open_run(path.parent) for path in sorted(root.rglob("config.json")) if _is_run(path)]
    settings = {run.path: _flat(run.spec) for run in found}
    differing = _differing(list(settings.values()))
    rows = []
    for run, depth in _tree(found):
        parent = run.spec.get("parent")
        records = run.folder.read_metrics()
        last = records[-1] if records else {}
        rows.append(
            {
                "folder": str(run.path),
                "run": "  " * depth + run.path.name,
                "parent": f"{Path(parent['folder']).name}@{parent['version']}" if parent else "",
                "steps": len(records),
                "version": last.get("version", parent["version"] if parent else 0),
                **{name: last[name] for name in SHOWN if name in last},
                **run.results(),
                **{name: settings[run.path].get(name) for name in differing},
            }
        )
    return pd.DataFrame(rows, columns=None if rows else ["folder", "run"]).set_index("folder")


@frozen(eq=False)
class Comparison:
    """Two runs at matched steps, paired by prompt; differences are ``b - a``.

    ``difference`` is the mean over all pairs with its 95 % interval; ``steps`` has one row a step
    and ``prompts`` one row a pair, the largest loss first. Rewards are means over a prompt's
    samples.

    Example: ``nbrl.compare("runs/a", "runs/b").difference`` is ``(0.08, 0.02, 0.14)``.
    """

    difference: tuple[float, float, float]
    steps: pd.DataFrame
    prompts: pd.DataFrame

    def __repr__(self) -> str:
        mean, low, high = self.difference
        return (
            f"Comparison(b - a = {mean:+.4f} [{low:+.4f}, {high:+.4f}], {len(self.steps)} steps, "
            f"{len(self.prompts)} pairs)"
        )


def compare(
    a: Run | str | os.PathLike, b: Run | str | os.PathLike, *, column: str = "total"
) -> Comparison:
    """Two runs at the steps that both have, prompt by prompt.

    Args:
        a: A run or its folder.
        b: Another one, e.g. a fork of the first.
        column: What is compared: a column of the scores.

    Raises:
        DataError: They share no step with a prompt in it.
    """
    one, other = (run if isinstance(run, Run) else open_run(run) for run in (a, b))
    shared = sorted(set(one.steps()) & set(other.steps()))
    pairs = [_paired(one, other, step, column) for step in shared]
    together = pd.concat(pairs, ignore_index=True) if pairs else pd.DataFrame()
    if together.empty:
        raise DataError(
            f"compare: {one.path} has samples of steps {_span(one.steps())}, {other.path} of "
            f"{_span(other.steps())}; no step of both asks the same prompt. Compare runs of the "
            "same prompts and seed of the prompts, e.g. a fork with its parent."
        )
    rows = {step: _summary(frame) for step, frame in together.groupby("step")}
    whole = _summary(together)
    return Comparison(
        difference=(whole["difference"], whole["low"], whole["high"]),
        steps=pd.DataFrame.from_dict(rows, orient="index").rename_axis("step"),
        prompts=together.sort_values("difference", ignore_index=True),
    )


def _paired(one: Run, other: Run, step: int, column: str) -> pd.DataFrame:
    """The prompts that both runs asked in a step, with both mean rewards."""
    frames = [_means(run, step, column) for run in (one, other)]
    both = frames[0].merge(frames[1]["reward"], on="prompt_id", suffixes=("_a", "_b"))
    both = both.reset_index()
    both.insert(0, "step", step)
    both["difference"] = both["reward_b"] - both["reward_a"]
    return both


def _means(run: Run, step: int, column: str) -> pd.DataFrame:
    scored = run.scored(step)
    table = scored.to_arrow()
    if column not in scored.table.column_names:
        raise DataError(
            f"compare: step {step} of {run.path} has no {column!r}; it has "
            f"{scored.table.column_names}."
        )
    frame = table.select(["prompt_id", "prompt", column]).to_pandas()
    grouped = frame.groupby("prompt_id", sort=False)
    return pd.DataFrame({"prompt": grouped["prompt"].first(), "reward": grouped[column].mean()})


def _summary(frame: pd.DataFrame) -> dict[str, float]:
    """Both means, the difference and its interval over pairs."""
    good = frame.dropna(subset=["reward_a", "reward_b"])
    first, second = (torch.tensor(good[n].to_numpy(np.float64)) for n in ("reward_a", "reward_b"))
    mean, low, high = paired_difference(first, second, seed=0) if len(good) > 1 else (np.nan,) * 3
    return {
        "a": float(first.mean()),
        "b": float(second.mean()),
        "difference": float(mean),
        "low": float(low),
        "high": float(high),
        "prompts": len(good),
    }


def _span(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if steps else "none"


def _is_run(config: Path) -> bool:
    return "checkpoints" not in config.parts and (config.parent / "writer.lock").is_file()


def _tree(found: Sequence[Run]) -> list[tuple[Run, int]]:
    """The runs with their generation, each fork after its parent."""
    children: dict[str | None, list[Run]] = {}
    known = {str(run.path) for run in found}
    for run in found:
        parent = (run.spec.get("parent") or {}).get("folder")
        children.setdefault(parent if parent in known else None, []).append(run)

    def below(key: str | None, depth: int) -> list[tuple[Run, int]]:
        rows = []
        for run in children.get(key, []):
            rows += [(run, depth), *below(str(run.path), depth + 1)]
        return rows

    return below(None, 0)


def _flat(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their path, e.g. ``trainer.optimizer.lr``."""
    found: dict[str, Any] = {}
    for key, value in spec.items():
        name = f"{prefix}{key}"
        if name in UNTOLD:
            continue
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.")
        else:
            found[name] = tuple(value) if isinstance(value, list) else value
    return found


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in settings for name in each)
    return [n for n in names if len({repr(each.get(n)) for each in settings}) > 1]
