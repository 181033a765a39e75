"""How two judges of the same items agree: rank correlations, Cohen's kappa; may import torch."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def spearman(a: Float[Tensor, " N"], b: Float[Tensor, " N"]) -> float:
    """The Pearson correlation of the ranks, in [-1, 1] (Spearman 1904); ties share their mean rank.

    NaN for fewer than two items, or where one side is constant: there is no order to agree with.
    """
    x, y = (ranks - ranks.mean() for ranks in (_mean_ranks(a), _mean_ranks(b)))
    scale = math.sqrt(float((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale > 0 else float("nan")


def kendall(a: Float[Tensor, " N"], b: Float[Tensor, " N"]) -> float:
    """Kendall's tau-b, in [-1, 1] (Kendall 1945).

    ``(C - D) / sqrt((C + D + A) (C + D + B))``: over all pairs of items, C are ordered alike by
    both, D the other way round, A are tied in ``a`` alone and B in ``b`` alone. Counted in
    N log N steps. NaN where one side is constant.
    """
    order_a, order_b = _order(a), _order(b)
    pairs = len(a) * (len(a) - 1) // 2
    tied_a, tied_b = _tied(order_a), _tied(order_b)
    tied_both = _tied(order_a * (len(a) + 1) + order_b)
    discordant = _inversions(order_b[torch.argsort(order_a * (len(a) + 1) + order_b)])
    concordant = pairs - tied_a - tied_b + tied_both - discordant
    scale = math.sqrt((pairs - tied_a) * (pairs - tied_b))
    return (concordant - discordant) / scale if scale > 0 else float("nan")


def cohens_kappa(a: Bool[Tensor, " N"], b: Bool[Tensor, " N"]) -> float:
    """Agreement beyond chance, ``(p - e) / (1 - e)`` (Cohen 1960), 1 where both always agree.

    ``p`` is the share of items on which both say the same, ``e`` what two judges with the same
    shares of True would agree on by chance. NaN without items, and where chance alone would make
    them agree on all: both say the same thing of every item.
    """
    if not len(a):
        return float("nan")
    share_a, share_b = float(a.double().mean()), float(b.double().mean())
    observed = float((a == b).double().mean())
    chance = share_a * share_b + (1 - share_a) * (1 - share_b)
    return (observed - chance) / (1 - chance) if chance < 1 else float("nan")


def _order(x: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The rank of each value among the distinct ones, from 0."""
    return torch.unique(x, return_inverse=True)[1]


def _mean_ranks(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    _, at, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return (counts.cumsum(0).double() - (counts.double() - 1) / 2)[at]


def _tied(order: Int[Tensor, " N"]) -> int:
    """Pairs of items with the same value."""
    counts = torch.unique(order, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(order: Int[Tensor, " N"]) -> int:
    """Pairs of items of which the earlier has the larger value.

    Two values differ first in one bit, from the highest on. So at each bit, among items that are
    equal above it and stand in their first order, the pairs of an earlier 1 and a later 0 are
    those that this bit decides.
    """
    found = 0
    for bit in reversed(range(int(order.max()).bit_length() if len(order) else 0)):
        group = order >> (bit + 1)
        placed = torch.argsort(group, stable=True)
        ones = (order[placed] >> bit) & 1
        before = ones.cumsum(0) - ones
        starts = torch.searchsorted(group[placed], group[placed])
        found += int(((before - before[starts]) * (1 - ones)).sum())
    return found
