"""Statistics over groups of rows named by an integer id; may import torch.

Groups may be of any size and lie anywhere in the batch. Everything is measured from the smallest
value of the group in float64, so that a group of equal rewards has a residual and a standard
deviation of exactly 0 in every dtype, and a division by the latter has nothing to blow up.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbrl.frozen import frozen
from nbrl.functional.reductions import at_least_float32

# Values of a group that differ by no more than this many units in the last place are equal: sums
# like 0.1 + 0.2 and 0.3 are the same reward.
_ROUNDING_UNITS = 2


@frozen()
class Groups:
    """Which group each row is in, and how large that group is.

    Example: ids ``[7, 3, 7]`` give ``index [1, 0, 1]``, ``sizes [2, 1, 2]`` and ``count`` 2.
    """

    index: Int[Tensor, " N"]
    sizes: Int[Tensor, " N"]
    count: int


def grouped(group_ids: Int[Tensor, " N"]) -> Groups:
    """The groups that equal ids make."""
    _, index, counts = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return Groups(index=index, sizes=counts[index], count=len(counts))


def one_group(like: Tensor) -> Groups:
    """All rows as one group: the batch."""
    size = like.shape[0]
    index = torch.zeros(size, dtype=torch.long, device=like.device)
    return Groups(index=index, sizes=torch.full_like(index, size), count=1)


def group_sum(x: Float[Tensor, " N"], groups: Groups) -> Float[Tensor, " N"]:
    """Each row's group's sum."""
    return x.new_zeros(groups.count).index_add_(0, groups.index, x)[groups.index]


def group_min(x: Float[Tensor, " N"], groups: Groups) -> Float[Tensor, " N"]:
    """Each row's group's smallest value."""
    lowest = x.new_full((groups.count,), torch.inf)
    return lowest.scatter_reduce_(0, groups.index, x, "amin")[groups.index]


def rounding_of(x: Float[Tensor, " N"], groups: Groups) -> Float[Tensor, " N"]:
    """The largest difference between values of each row's group that is nothing but rounding."""
    unit = torch.finfo(at_least_float32(x).dtype).eps
    return -group_min(-x.abs().double(), groups) * (_ROUNDING_UNITS * unit)


def constant(x: Float[Tensor, " N"], groups: Groups) -> Bool[Tensor, " N"]:
    """Whether all values of the row's group are equal up to two units in the last place."""
    spread = group_min(x, groups) + group_min(-x, groups)
    return -spread <= rounding_of(x, groups)


def heights(x: Float[Tensor, " N"], groups: Groups) -> Float[Tensor, " N"]:
    """Each value above its group's smallest, float64; exactly 0 throughout a constant group."""
    wide = x.double()
    return torch.where(constant(x, groups), 0.0, wide - group_min(wide, groups))


def group_mean(x: Float[Tensor, " N"], groups: Groups) -> Float[Tensor, " N"]:
    """Each row's group's mean, float64."""
    return group_min(x.double(), groups) + group_sum(heights(x, groups), groups) / groups.sizes


def residuals(x: Float[Tensor, " N"], groups: Groups) -> Float[Tensor, " N"]:
    """Each value minus its group's mean, float64."""
    high = heights(x, groups)
    return high - group_sum(high, groups) / groups.sizes


def weighted_residuals(
    x: Float[Tensor, " N"], weights: Float[Tensor, " N"], groups: Groups
) -> Float[Tensor, " N"]:
    """Each value minus its group's weighted mean, float64; a group without weight has mean 0."""
    wide = weights.double()
    total = group_sum(wide, groups)
    high = heights(x, groups)
    mean = group_sum(high * wide, groups) / torch.where(total > 0, total, 1.0)
    return torch.where(total > 0, high - mean, x.double())


def leave_one_out_residuals(x: Float[Tensor, " N"], groups: Groups) -> Float[Tensor, " N"]:
    """Each value minus the mean of the *others* of its group, float64; 0 in a group of one."""
    others = (groups.sizes - 1).clamp(min=1)
    return residuals(x, groups) * groups.sizes / others


def group_std(x: Float[Tensor, " N"], groups: Groups, *, ddof: int = 1) -> Float[Tensor, " N"]:
    """Each row's group's standard deviation, float64; 0 where the group has ``ddof`` rows or fewer.

    ``ddof=1`` is the sample standard deviation (n - 1), ``ddof=0`` the population one.
    """
    squares = group_sum(residuals(x, groups).square(), groups)
    return (squares / (groups.sizes - ddof).clamp(min=1)).sqrt()


def leave_one_out_std(
    x: Float[Tensor, " N"], groups: Groups, *, ddof: int = 1
) -> Float[Tensor, " N"]:
    """The standard deviation of the *others* of each row's group, float64.

    0 where the others are equal, or ``ddof`` or fewer.
    """
    centred = residuals(x, groups)
    others = (groups.sizes - 1).clamp(min=1)
    squares = group_sum(centred.square(), groups) - centred.square() * groups.sizes / others
    std = (squares.clamp(min=0.0) / (groups.sizes - 1 - ddof).clamp(min=1)).sqrt()
    equal = _spread_of_others(x, groups) <= rounding_of(x, groups)
    return torch.where(equal, 0.0, std)


def _spread_of_others(x: Tensor, groups: Groups) -> Tensor:
    """Largest minus smallest value of the others in the row's group; 0 where fewer than two."""
    by_value = x.argsort(stable=True)
    order = by_value[groups.index[by_value].argsort(stable=True)]
    ordered, sizes = x[order].double(), groups.sizes[order]
    place = torch.arange(len(x), device=x.device)
    starts = torch.zeros(groups.count, dtype=torch.long, device=x.device)
    starts = starts.scatter_reduce_(0, groups.index[order], place, "amin", include_self=False)
    first = starts[groups.index[order]]
    last = first + sizes - 1
    lowest = torch.where(place == first, first + 1, first).clamp(max=len(x) - 1)
    highest = torch.where(place == last, last - 1, last).clamp(min=0)
    spread = torch.empty_like(ordered)
    spread[order] = torch.where(sizes > 2, ordered[highest] - ordered[lowest], 0.0)
    return spread
