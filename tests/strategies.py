"""Hypothesis strategies for the maths: ragged batches in groups of two to five."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.5]),
    st.floats(-10, 10, allow_nan=False, width=32).map(lambda x: round(x, 3)),
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rewards, groups that may be interleaved, a mask with holes and empty rows, token columns."""

    rewards: Tensor
    group_ids: Tensor
    mask: Tensor
    values: Tensor
    kl: Tensor


def floats(draw: st.DrawFn, *shape: int, numbers: st.SearchStrategy[float] = NUMBERS) -> Tensor:
    """A float64 tensor of drawn numbers."""
    size = torch.Size(shape).numel()
    drawn = draw(st.lists(numbers, min_size=size, max_size=size))
    return torch.tensor(drawn, dtype=torch.float64).reshape(shape)


def masks(draw: st.DrawFn, rows: int, width: int) -> Tensor:
    """Any mask: ragged, with holes, with empty rows."""
    bits = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    return torch.tensor(bits, dtype=torch.bool).reshape(rows, width)


@st.composite
def batches(draw: st.DrawFn, largest_group: int = 5) -> Batch:
    """One to three groups of two to five rows, up to five tokens wide, float64."""
    sizes = draw(st.lists(st.integers(2, largest_group), min_size=1, max_size=3))
    ids = [group * 7 - 3 for group, size in enumerate(sizes) for _ in range(size)]
    ids = draw(st.permutations(ids))
    rows, width = len(ids), draw(st.integers(1, 5))
    return Batch(
        rewards=floats(draw, rows),
        group_ids=torch.tensor(ids),
        mask=masks(draw, rows, width),
        values=floats(draw, rows, width),
        kl=floats(draw, rows, width),
    )


@st.composite
def token_tensors(draw: st.DrawFn, count: int) -> tuple[Tensor, ...]:
    """A mask and ``count`` tensors of its shape, numbers within 3 so that ratios stay finite."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    small = st.floats(-3, 3, width=32)
    return masks(draw, rows, width), *(
        floats(draw, rows, width, numbers=small) for _ in range(count)
    )
