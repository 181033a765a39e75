"""Steps that lie ahead beside the learning-rate schedule: what cannot be, and what may surprise.

May import what ``runtime`` may.
"""

import warnings
from collections.abc import Iterator

from nbrl.config.checks import ENDING_SCHEDULES
from nbrl.driver.runtime import Runtime


def room_problems(runtime: Runtime, steps: int) -> Iterator[str]:
    """Why so many more optimizer steps of the policy cannot be taken."""
    optimizer = runtime.spec["trainer"]["optimizer"]
    total, taken = optimizer["total_steps"], _taken(runtime)
    if total is not None and taken + steps > total:
        yield (
            f"{steps} optimizer steps lie ahead and {taken} are taken, but the schedule "
            f"{optimizer['schedule']!r} ends at Optimizer.total_steps={total}. Connect with "
            f"total_steps={taken + steps}, or take fewer epochs or larger batches"
        )


def tell_pace(runtime: Runtime, steps: int) -> None:
    """Warn where so many steps end before the schedule has come to where it leads."""
    optimizer = runtime.spec["trainer"]["optimizer"]
    total, warmup, last = optimizer["total_steps"], optimizer["warmup_steps"], _taken(runtime)
    last += steps
    if optimizer["schedule"] != "constant" and warmup >= last:
        warnings.warn(
            f"fit: its last step is optimizer step {last}, and the learning rate rises until step "
            f"{warmup + 1} (Optimizer.warmup_steps={warmup}): the peak is never reached.",
            stacklevel=2,
        )
    elif optimizer["schedule"] in ENDING_SCHEDULES and total > last:
        warnings.warn(
            f"fit: its last step is optimizer step {last} of Optimizer.total_steps={total}: the "
            "learning rate has not come down by then, unless more steps follow.",
            stacklevel=2,
        )


def _taken(runtime: Runtime) -> int:
    taken = runtime.trainer.describe()["updates"]
    assert isinstance(taken, int)
    return taken
