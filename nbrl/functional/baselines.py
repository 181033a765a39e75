"""The choices that estimators are made of: baselines, scales, whitenings; may import torch."""

from collections.abc import Callable

import torch
from torch import Tensor

from nbrl.frozen import frozen
from nbrl.functional import groups as g
from nbrl.functional.groups import Groups
from nbrl.functional.reductions import whiten


@frozen()
class Divisor:
    """What a scale adds to its divisor, and which standard deviation it takes (1: n - 1)."""

    eps: float = 0.0
    ddof: int = 1


@frozen()
class Baseline:
    """One row of :data:`BASELINES`: (rewards, groups, lengths) to rewards minus the baseline."""

    of: Callable[[Tensor, Groups, Tensor], Tensor]
    over_group: bool
    uses_lengths: bool = False


@frozen()
class Scale:
    """One row of :data:`SCALES`: (residuals, rewards, groups, divisor) to scaled residuals."""

    of: Callable[[Tensor, Tensor, Groups, Divisor], Tensor]
    over_group: bool


def _divided(residuals: Tensor, std: Tensor, eps: float) -> Tensor:
    """Residuals over ``std + eps``, left unscaled where the standard deviation is 0."""
    return torch.where(std > 0, residuals / torch.where(std > 0, std + eps, 1.0), residuals)


def _over_mean(residuals: Tensor, x: Tensor, groups: Groups, divisor: Divisor) -> Tensor:
    mean = g.group_mean(x, groups)
    positive = mean > g.rounding_of(x, groups)
    return torch.where(positive, residuals / torch.where(positive, mean + divisor.eps, 1.0), 0.0)


def _over_signed_mean(residuals: Tensor, x: Tensor, groups: Groups, divisor: Divisor) -> Tensor:
    mean = g.group_mean(x, groups) + divisor.eps
    return torch.where(mean != 0, residuals / torch.where(mean != 0, mean, 1.0), 0.0)


def _over_live_share(residuals: Tensor, x: Tensor, groups: Groups, _: Divisor) -> Tensor:
    live = int((~g.constant(x, groups)).sum())
    return residuals * (len(x) / max(live, 1))


def _batch_std(x: Tensor, ddof: int) -> Tensor:
    return g.group_std(x, g.one_group(x), ddof=ddof)


BASELINES: dict[str, Baseline] = {
    "none": Baseline(of=lambda x, _, __: x.double(), over_group=False),
    "batch-mean": Baseline(of=lambda x, _, __: g.residuals(x, g.one_group(x)), over_group=False),
    "group-mean": Baseline(of=lambda x, groups, _: g.residuals(x, groups), over_group=True),
    "leave-one-out": Baseline(
        of=lambda x, groups, _: g.leave_one_out_residuals(x, groups), over_group=True
    ),
    "length-weighted": Baseline(
        of=lambda x, groups, lengths: g.weighted_residuals(x, lengths.double(), groups),
        over_group=True,
        uses_lengths=True,
    ),
}
"""What is subtracted: nothing, a mean over the batch or the group, the mean of the group's other
rows, or the group's mean weighted by response lengths."""

SCALES: dict[str, Scale] = {
    "none": Scale(of=lambda residuals, *_: residuals, over_group=False),
    "group-std": Scale(
        of=lambda d, x, groups, divisor: _divided(
            d, g.group_std(x, groups, ddof=divisor.ddof), divisor.eps
        ),
        over_group=True,
    ),
    "batch-std": Scale(
        of=lambda d, x, _, divisor: _divided(d, _batch_std(x, divisor.ddof), divisor.eps),
        over_group=False,
    ),
    "leave-one-out-std": Scale(
        of=lambda d, x, groups, divisor: _divided(
            d, g.leave_one_out_std(x, groups, ddof=divisor.ddof), divisor.eps
        ),
        over_group=True,
    ),
    "group-mean": Scale(of=_over_mean, over_group=True),
    "signed-group-mean": Scale(of=_over_signed_mean, over_group=True),
    "live-share": Scale(of=_over_live_share, over_group=True),
}
"""What the rest is divided by. A standard deviation of 0 leaves its rows unscaled. ``group-mean``
gives 0 where the mean is not positive; ``signed-group-mean`` has no such guard. ``live-share`` is
the share of rows whose group is not constant."""

WHITENINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda x, _: x,
    "centre": lambda x, mask: whiten(x, mask, scale=False),
    "population": whiten,
    "sample": lambda x, mask: whiten(x, mask, ddof=1),
}
"""Nothing; minus the mean; over the population standard deviation too; or over the sample one."""
