"""The key-value cache of a batch that shrinks and is refilled; imports torch, transformers.

Every row starts at column 0, whatever its length, so rows of different ages stand side by side.
The rows in use are always the first ones: a finished row's place is taken by the last row, which
costs a copy of that row only. Memory is reserved once and cleared as the answers grow into it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

CLEARED_AHEAD = 8
"""Columns that are cleared together with the one that is needed."""


class Cursor:
    """Where the next token of each row goes; one object that all layers of a cache share.

    ``lengths`` int64 ``[B]`` counts the cached tokens of the rows in use, ``width`` columns are in
    view once the next token is written, ``uniform`` says that all rows are equally long.
    """

    def __init__(self) -> None:
        """An empty batch."""
        self.lengths = torch.zeros(0, dtype=torch.int64)
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.width = 0
        self.uniform = True

    def point(self, lengths: Tensor) -> None:
        """Stand after these many tokens in each row."""
        self.lengths = lengths
        self.rows = torch.arange(len(lengths), device=lengths.device)
        self.width = int(lengths.max()) + 1
        self.uniform = int(lengths.min()) + 1 == self.width

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """An additive mask ``[B, 1, 1, width]`` that hides columns past a row's end, if any are."""
        if self.uniform:
            return None
        columns = torch.arange(self.width, device=self.lengths.device)
        past = columns[None, :] > self.lengths[:, None]
        hidden = torch.zeros(past.shape, dtype=dtype, device=past.device)
        return hidden.masked_fill_(past, torch.finfo(dtype).min)[:, None, None, :]


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values ``[rows, heads, columns, size]``, for transformers' interface."""

    is_sliding = False
    is_compileable = False
    keys: Any
    values: Any

    def __init__(self, cursor: Cursor, like: CacheLayerMixin, rows: int, columns: int) -> None:
        """Memory for this many rows and columns, shaped like a prefilled layer."""
        self.cursor = cursor
        self.is_initialized = True
        self.keys = _room(_tensor(like.keys), rows, columns)
        self.values = _room(_tensor(like.values), rows, columns)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: memory is there from the start."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token a row; the view of all columns that any row has reached."""
        at, rows = self.cursor, len(self.cursor.rows)
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            if at.uniform:
                held[:rows, :, at.width - 1] = new[:, :, 0]
            else:
                held[at.rows, :, at.lengths] = new[:, :, 0]
        return self.keys[:rows, :, : at.width], self.values[:rows, :, : at.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The width in view and its offset, for models that make their own mask."""
        return self.cursor.width - 1 + query_length, 0

    def get_seq_length(self) -> int:
        """The columns in use before the next token."""
        return self.cursor.width - 1

    def get_max_length(self) -> int:
        """The columns there are."""
        return int(self.keys.shape[2])


class SlotCache:
    """The layers of a batch and the moves between its rows."""

    def __init__(self, prefilled: Sequence[CacheLayerMixin], rows: int, columns: int) -> None:
        """Room for this many rows and columns, shaped like prefilled layers."""
        self.cursor = Cursor()
        self.layers = [SlotLayer(self.cursor, layer, rows, columns) for layer in prefilled]
        self.cache = Cache(layers=[*self.layers])
        self.cleared = 0

    @property
    def columns(self) -> int:
        """The columns there are."""
        return self.layers[0].get_max_length()

    @property
    def nbytes(self) -> int:
        """The memory reserved."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)

    def admit(self, prefilled: Sequence[CacheLayerMixin], sources: Tensor, first: int) -> None:
        """Copy row ``sources[i]`` of the prefilled layers to row ``first + i``."""
        rows = slice(first, first + len(sources))
        self.reserve(_tensor(prefilled[0].keys).shape[2])
        for layer, ready in zip(self.layers, prefilled, strict=True):
            pairs = ((layer.keys, ready.keys), (layer.values, ready.values))
            for held, new in pairs:
                fresh = _tensor(new).index_select(0, sources)
                held[rows, :, : fresh.shape[2]] = fresh

    def move(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Copy the first ``width`` columns of some rows over others; no row is both."""
        for layer in self.layers:
            for held in (layer.keys, layer.values):
                held[targets, :, :width] = held[sources, :, :width]

    def reserve(self, columns: int) -> None:
        """Make at least this many columns ready; memory grows by half, so that growing is rare.

        Ready columns hold no garbage in any row: what a mask hides still meets a weight of 0, and
        0 * nan is nan.
        """
        if columns <= self.cleared:
            return
        if columns > self.columns:
            wanted = max(columns, self.columns * 3 // 2)
            for layer in self.layers:
                layer.keys = _widened(layer.keys, wanted, self.cleared)
                layer.values = _widened(layer.values, wanted, self.cleared)
        fresh = slice(self.cleared, min(self.columns, columns + CLEARED_AHEAD))
        for layer in self.layers:
            layer.keys[:, :, fresh] = 0
            layer.values[:, :, fresh] = 0
        self.cleared = fresh.stop


def _tensor(held: Tensor | None) -> Tensor:
    assert held is not None, "a prefilled layer holds tensors"
    return held


def _room(like: Tensor, rows: int, columns: int) -> Tensor:
    return like.new_empty(rows, like.shape[1], columns, like.shape[3])


def _widened(held: Tensor, columns: int, used: int) -> Tensor:
    fresh = _room(held, held.shape[0], columns)
    fresh[:, :, :used] = held[:, :, :used]
    return fresh
