"""What a trainer makes of a micro-batch: one scalar with a gradient, and metrics that add up.

All denominators are counts over the whole optimizer step, so that the shares of its micro-batches
add up to the same loss, gradient and metrics under any split.
"""

from nbrl.backends.trainers.objectives.policy import objective
from nbrl.backends.trainers.objectives.shares import Share, finished
from nbrl.backends.trainers.objectives.table import (
    OBJECTIVES,
    Objective,
    check_columns,
    compute,
    counted,
    merge,
    prepare,
    row_of,
)

__all__ = [
    "OBJECTIVES",
    "Objective",
    "Share",
    "check_columns",
    "compute",
    "counted",
    "finished",
    "merge",
    "objective",
    "prepare",
    "row_of",
]
