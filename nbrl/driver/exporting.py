"""The verb ``export``: the trained model as a folder. May import what verbs may."""

import os
from contextlib import nullcontext
from pathlib import Path

from nbrl.backends.interrupts import held_interrupts
from nbrl.config import RewardLoss, check_config
from nbrl.driver.averaging import averaged_policy, averaging_problems
from nbrl.driver.fitting import scale_of
from nbrl.driver.learning import prepared, resolve, tools_of
from nbrl.driver.runtime import Runtime
from nbrl.rules import kind_problems
from nbrl.types import Examples


def export(
    runtime: Runtime,
    path: str | os.PathLike,
    *,
    adapter: bool,
    scale_on: Examples | None,
    averaged: bool = False,
) -> Path:
    """The folder, with the model in the form that transformers loads; it is whole or not there.

    Raises:
        ConfigError: There is no adapter, no average of the weights, or a scale is asked of a model
            that gives no scores.
        StoreError: Something is there already, or it cannot be written.
    """
    kinds = {"path": (path, str | os.PathLike), "adapter": (adapter, bool)}
    problems = list(kind_problems(kinds))
    tools = tools_of(runtime, "export")
    if scale_on is not None and tools.head != "reward":
        problems.append("scale_on is for the scores of a reward model; drop it")
    problems += averaging_problems(runtime, averaged)
    if averaged is True and tools.head == "reward" and scale_on is None:
        problems.append("averaged weights give other scores than the trained ones; pass scale_on")
    check_config("export", extra=problems)
    folder, scale = Path(path), runtime.score_scale
    with averaged_policy(runtime) if averaged else nullcontext():
        if scale_on is not None:
            objective = resolve(runtime, scale_on, RewardLoss(), "export, scale_on")
            scale = scale_of(runtime, prepared(runtime, scale_on, objective), objective, "named")
        with held_interrupts():
            tools.export(folder, adapter, scale)
    return folder
