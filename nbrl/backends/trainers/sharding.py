"""Which rank works on which rows of a step; may import ``protocols``, numpy and torch."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nbrl.backends.trainers.devices import mapped
from nbrl.protocols import MicroBatch

Column = TypeVar("Column")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Some rows of one micro-batch, by its place among the micro-batches; ``start`` is the first.

    ``counts`` is False for work that is done only so that all ranks make the same calls.
    """

    index: int
    start: int
    batch: MicroBatch
    counts: bool = True


def assign(batches: Sequence[MicroBatch], ranks: int) -> list[list[Piece]]:
    """The pieces of each rank: balanced by rows x width, the same number for all.

    Micro-batches are cut by rows where there are fewer than ranks. The largest pieces are given
    out first, each to the rank with the least work; a rank with fewer pieces than another repeats
    one, without its counting.
    """
    pieces = [piece for index, batch in enumerate(batches) for piece in _cut(index, batch, ranks)]
    shares: list[list[Piece]] = [[] for _ in range(ranks)]
    for piece in sorted(pieces, key=_cost, reverse=True):
        min(shares, key=lambda share: sum(map(_cost, share))).append(piece)
    longest = max(len(share) for share in shares)
    for share in shares:
        filler = dataclasses.replace(min(pieces, key=_cost), counts=False)
        share += [filler] * (longest - len(share))
    return shares


def joined(parts: Sequence[tuple[Piece, Tensor]], count: int) -> list[Tensor]:
    """A column of pieces put together again, one tensor for each of ``count`` micro-batches."""
    found: list[list[tuple[int, Tensor]]] = [[] for _ in range(count)]
    for piece, column in parts:
        if piece.counts:
            found[piece.index].append((piece.start, column))
    return [
        torch.cat([column for _, column in sorted(rows, key=lambda row: row[0])]) for rows in found
    ]


def _cost(piece: Piece) -> int:
    return piece.batch.input_ids.numel()


def _cut(index: int, batch: MicroBatch, ranks: int) -> list[Piece]:
    """The micro-batch in up to so many pieces; rows that belong together as pairs stay so."""
    rows = len(batch.rows)
    pairs = 2 if rows % 2 == 0 else 1
    edges = np.linspace(0, rows // pairs, min(ranks, rows // pairs) + 1).astype(int) * pairs
    return [
        Piece(index=index, start=int(low), batch=_rows(batch, slice(int(low), int(high))))
        for low, high in itertools.pairwise(edges)
    ]


def _rows(batch: MicroBatch, rows: slice) -> MicroBatch:
    return mapped(batch, lambda x: x[rows], rows=batch.rows[rows])
