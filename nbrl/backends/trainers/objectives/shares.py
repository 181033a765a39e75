"""What a micro-batch adds to a step's metrics; sums and counts, so that any split adds up.

May import ``protocols``, ``types``, ``functional``, ``errors`` and torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nbrl.backends.trainers.devices import brought_back
from nbrl.errors import StepError
from nbrl.functional.reductions import Totals, masked_sum
from nbrl.protocols import LossTerms, MicroBatch
from nbrl.types import Metric


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sum:
    """A total over some of a micro-batch, over how many, and of what."""

    total: Tensor
    count: int
    of: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Share:
    """A micro-batch's part of a step's metrics, without gradient.

    ``means`` add up over the micro-batches of a step, of ``peaks`` the largest counts, and
    ``tokens`` are the columns of :class:`~nbrl.protocols.LossTerms`. ``sums`` are metrics that
    bring their own denominators.
    """

    means: Mapping[str, Tensor]
    peaks: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    sums: Mapping[str, Sum] = field(default_factory=dict)


def sum_of(values: Tensor, of: str) -> Sum:
    """The sum of a vector, one value a thing."""
    return Sum(total=values.detach().double().sum(), count=values.numel(), of=of)


def token_mean(terms: Tensor, batch: MicroBatch, total: Totals) -> Tensor:
    """The micro-batch's share of a mean over all tokens of the step."""
    return masked_sum(terms, batch.mask) / max(total.tokens, 1)


def balance_share(balance: Tensor, batch: MicroBatch, total: Totals) -> tuple[Tensor, Sum]:
    """The balance of experts as part of a mean over the rows of the step, and as a metric."""
    rows = len(batch.rows)
    weighed = Sum(total=balance.detach().double() * rows, count=rows, of="sequences")
    return balance * (rows / max(total.sequences, 1)), weighed


def merge_sums(shares: Sequence[Share]) -> dict[str, Metric]:
    """The means of all sums; one that nothing was counted for is left out.

    ``<name>_square`` beside ``<name>`` becomes ``<name>_std``, the sample's.
    """
    found: dict[str, Metric] = {}
    for name in dict.fromkeys(n for share in shares for n in share.sums):
        parts = [share.sums[name] for share in shares if name in share.sums]
        count = sum(part.count for part in parts)
        if count:
            value = float(torch.stack([part.total for part in parts]).sum()) / count
            found[name] = Metric(value=value, count=count, of=parts[0].of)
    for name in [n for n in found if n.endswith("_square")]:
        square, mean = found.pop(name), found[name.removesuffix("_square")]
        if mean.count > 1:
            spread = max(square.value - mean.value**2, 0.0) * mean.count / (mean.count - 1)
            std = Metric(value=math.sqrt(spread), count=mean.count, of=mean.of)
            found[name.removesuffix("_square") + "_std"] = std
    return found


def finished(
    shares: Sequence[Share],
    metrics: Mapping[str, Metric],
    *,
    place: str,
    sketch: np.ndarray | None = None,
) -> LossTerms:
    """The answer to the driver, if loss and gradient norms are finite.

    Raises:
        StepError: They are not; the message starts with ``place``.
    """
    decisive = ("loss", "grad_norm", "critic_grad_norm")
    found = {name: metrics[name].value for name in decisive if name in metrics}
    if not all(math.isfinite(value) for value in found.values()):
        said = ", ".join(f"{name} {value}" for name, value in found.items())
        raise StepError(
            f"{place}: {said}; all must be finite. Nothing was changed. Look for NaN or "
            "infinity in rewards, advantages and log-probs, or lower the learning rate."
        )
    tokens = [brought_back(share.tokens) for share in shares]
    return LossTerms(metrics=metrics, tokens=tokens, sketch=sketch)
