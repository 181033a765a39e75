"""Every objective as a row of one table: what it needs, how it is computed, what it is a mean over.

May import this room, ``protocols``, ``types``, ``config``, ``functional``, ``errors`` and torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nbrl.backends.trainers.objectives.policy import compute_policy, merge_policy, policy_needs
from nbrl.backends.trainers.objectives.preference import (
    compute_dpo,
    compute_kto,
    compute_reward,
    with_baseline,
)
from nbrl.backends.trainers.objectives.shares import Share, merge_sums
from nbrl.backends.trainers.objectives.supervised import (
    compute_distillation,
    compute_process_reward,
    compute_sft,
)
from nbrl.backends.trainers.passes import Models
from nbrl.config import (
    DPO,
    KTO,
    SFT,
    Distillation,
    Loss,
    PolicyLoss,
    ProcessReward,
    RewardLoss,
)
from nbrl.errors import StepError, unknown_name
from nbrl.functional.reductions import Totals, totals
from nbrl.protocols import MicroBatch
from nbrl.types import Metric

Needs = Mapping[str, str]
Compute = Callable[[Models, MicroBatch, Any, Totals], tuple[Tensor, Share]]
Prepare = Callable[[Models, Sequence[MicroBatch], Any], Sequence[MicroBatch]]


def _nothing(loss: Any) -> Needs:
    return {}


def _reference(loss: Any) -> Needs:
    return {"ref_logprobs": f"{type(loss).__name__}, which compares with the reference,"}


def _as_they_are(models: Models, batches: Sequence[MicroBatch], loss: Any) -> Sequence[MicroBatch]:
    return batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """One row of :data:`OBJECTIVES`.

    ``compute`` gives a micro-batch's share of the step's loss, with gradient. ``prepare`` is called
    once an optimizer step, on all its micro-batches, with the weights before it. ``of`` is what the
    loss is a mean over, and ``head`` what kind of model it trains.
    """

    compute: Compute
    of: str
    needs: Callable[[Any], Needs] = _nothing
    prepare: Prepare = _as_they_are
    head: str = "lm"


OBJECTIVES: Mapping[type, Objective] = {
    PolicyLoss: Objective(compute=compute_policy, of="tokens", needs=policy_needs),
    SFT: Objective(compute=compute_sft, of="tokens"),
    RewardLoss: Objective(compute=compute_reward, of="pairs", head="reward"),
    DPO: Objective(compute=compute_dpo, of="pairs", needs=_reference),
    KTO: Objective(compute=compute_kto, of="sequences", needs=_reference, prepare=with_baseline),
    Distillation: Objective(compute=compute_distillation, of="tokens"),
    ProcessReward: Objective(compute=compute_process_reward, of="tokens"),
}
"""The objectives by the class of their settings."""


def row_of(loss: Loss) -> Objective:
    """The row of an objective.

    Raises:
        UnknownNameError: The settings are of no known objective.
    """
    if type(loss) not in OBJECTIVES:
        raise unknown_name("objective", loss, (kind.__name__ for kind in OBJECTIVES))
    return OBJECTIVES[type(loss)]


def compute(models: Models, batch: MicroBatch, loss: Loss, total: Totals) -> tuple[Tensor, Share]:
    """The micro-batch's share of the step's loss, with gradient, and of its metrics."""
    return row_of(loss).compute(models, batch, loss, total)


def prepare(models: Models, batches: Sequence[MicroBatch], loss: Loss) -> Sequence[MicroBatch]:
    """The micro-batches that are learned from, with what the loss must know of all of them."""
    return row_of(loss).prepare(models, batches, loss)


def merge(shares: Sequence[Share], total: Totals, loss: Loss) -> dict[str, Metric]:
    """The metrics of a whole step, each with what it is a mean over."""
    if isinstance(loss, PolicyLoss):
        return merge_policy(shares, total, loss)
    counts = {
        "tokens": total.tokens,
        "sequences": total.sequences,
        "pairs": total.sequences // 2,
    }
    of = "sequences" if isinstance(loss, SFT) and "seq" in loss.aggregation else row_of(loss).of
    value = float(torch.stack([share.means["loss"].double() for share in shares]).sum())
    plain = {name: Metric(value=float(counts[name])) for name in ("tokens", "sequences")}
    return {
        "loss": Metric(value=value, count=counts[of], of=of),
        **merge_sums(shares),
        **plain,
    }


def check_columns(batches: Sequence[MicroBatch], loss: Loss) -> None:
    """Raise where micro-batches lack a column that the loss needs, or differ in their columns.

    Raises:
        StepError: Names the loss's choice and the column.
    """
    if any(batch.columns.keys() != batches[0].columns.keys() for batch in batches):
        found = sorted({tuple(sorted(batch.columns)) for batch in batches})
        raise StepError(f"micro-batches of one step must have the same token columns; got {found}.")
    for name, why in row_of(loss).needs(loss).items():
        if any(name not in batch.columns for batch in batches):
            raise StepError(
                f"{why} needs the token column {name!r}; given: {sorted(batches[0].columns)}. "
                "Annotate the rollouts with it before the step."
            )


def counted(minibatches: Sequence[Sequence[MicroBatch]], losses: Sequence[Loss]) -> list[Totals]:
    """The denominators of each minibatch, if all of it can be trained on.

    Raises:
        StepError: No token counts in one, or a column is missing.
    """
    counts = []
    for index, batches in enumerate(minibatches):
        learned = [batch for batch in batches if "mismatched" not in batch.per_row]
        count = sum((totals(batch.mask) for batch in learned), Totals(tokens=0, sequences=0))
        if count.tokens == 0:
            raise StepError(
                f"no token counts in minibatch {index + 1} of {len(minibatches)}: the mask is "
                f"False on all tokens of its {sum(len(b.rows) for b in batches)} samples. Nothing "
                "was changed. Leave samples without policy tokens out, or use fewer minibatches."
            )
        for loss in losses:
            check_columns(batches, loss)
        counts.append(count)
    return counts
