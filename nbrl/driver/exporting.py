"""The verb ``export``: the trained model as a folder. May import what verbs may."""

import os
from pathlib import Path

from nbrl.backends.interrupts import held_interrupts
from nbrl.config import RewardLoss, check_config, kind_problems
from nbrl.driver.fitting import scale_of
from nbrl.driver.learning import prepared, resolve, tools_of
from nbrl.driver.runtime import Runtime
from nbrl.types import Examples


def export(
    runtime: Runtime, path: str | os.PathLike, *, adapter: bool, scale_on: Examples | None
) -> Path:
    """The folder, with the model in the form that transformers loads; it is whole or not there.

    Raises:
        ConfigError: There is no adapter, or a scale is asked of a model that gives no scores.
        StoreError: Something is there already, or it cannot be written.
    """
    kinds = {"path": (path, str | os.PathLike), "adapter": (adapter, bool)}
    problems = list(kind_problems(kinds))
    tools = tools_of(runtime, "export")
    if scale_on is not None and tools.head != "reward":
        problems.append("scale_on is for the scores of a reward model; drop it")
    check_config("export", extra=problems)
    scale = runtime.score_scale
    if scale_on is not None:
        objective = resolve(runtime, scale_on, RewardLoss(), "export, scale_on")
        scale = scale_of(runtime, prepared(runtime, scale_on, objective), objective, "named")
    folder = Path(path)
    with held_interrupts():
        tools.export(folder, adapter, scale)
    return folder
