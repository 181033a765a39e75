"""What trainers ask of a request before they work, and bring to the later minibatches of a step.

May import ``protocols``, ``config``, ``errors`` and torch.
"""

import dataclasses
from collections.abc import Callable, Sequence

from torch import Tensor

from nbrl.config import Loss, PolicyLoss
from nbrl.errors import StepError, unknown_name
from nbrl.protocols import ANNOTATIONS, MicroBatch


def check_annotations(wanted: Sequence[str]) -> None:
    """Raise for a token column that no trainer computes.

    Raises:
        UnknownNameError: Names those that there are.
    """
    for name in wanted:
        if name not in ANNOTATIONS:
            raise unknown_name("token column", name, ANNOTATIONS)


def check_room(updates: int, *, taken: int, total: int | None) -> None:
    """Raise where so many more optimizer steps lie beyond the schedule's end.

    Args:
        updates: Steps that are asked for.
        taken: Steps taken before.
        total: ``Optimizer.total_steps``.

    Raises:
        StepError: They do; some schedules would rise again there, others stay at 0.
    """
    if total is not None and taken + updates > total:
        raise StepError(
            f"{updates} more optimizer steps lie beyond Optimizer.total_steps={total}, of which "
            f"{taken} are taken. Connect with more total_steps, or with a schedule that does not "
            "end."
        )


def with_old_logprobs(
    minibatches: Sequence[Sequence[MicroBatch]],
    loss: Loss,
    compute: Callable[[Sequence[MicroBatch]], Sequence[Tensor]],
) -> list[list[MicroBatch]]:
    """The minibatches; those after the first get the log-probs that the first one changes.

    Args:
        minibatches: All of a step, in order; one that comes twice is computed once.
        loss: Only a policy loss compares with old log-probs.
        compute: ``old_logprobs`` of some micro-batches by the weights as they are.
    """
    if not isinstance(loss, PolicyLoss):
        return [list(batches) for batches in minibatches]
    later = {id(batch): batch for batches in minibatches[1:] for batch in batches}
    lacking = [batch for batch in later.values() if "old_logprobs" not in batch.columns]
    found = compute(lacking) if lacking else ()
    done = {
        id(batch): dataclasses.replace(batch, columns={**batch.columns, "old_logprobs": column})
        for batch, column in zip(lacking, found, strict=True)
    }
    return [[done.get(id(batch), batch) for batch in batches] for batches in minibatches]
