"""Cuts ragged rollouts into tight micro-batches and carries results back to rows.

The one place where lists become tensors. May import ``protocols``, ``types`` and ``errors``, and
numpy, pyarrow and torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nbrl.errors import ConfigError, DataError
from nbrl.protocols import MicroBatch
from nbrl.types import SOURCE_POLICY, Rollouts
from nbrl.types import columns as arrow

MICRO_BATCH_COST = 256
"""What one more forward and backward pass costs, in padded tokens; no cut saves less."""

MOST_BLOCKS = 1024
"""Blocks of rows that the search for the best cuts looks at; its time grows with their square."""

Column: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ragged:
    """All rows as flat arrays: row ``i`` is ``flat[offsets[i]:offsets[i + 1]]``, prompt first."""

    token_ids: np.ndarray
    policy: np.ndarray
    offsets: Int[np.ndarray, " N1"]
    prompt: Int[np.ndarray, " N"]
    response: Int[np.ndarray, " N"]


def make_batches(
    rollouts: Rollouts,
    columns: Mapping[str, Column],
    *,
    mask: Column | None = None,
    rows: Int[np.ndarray, " n"] | None = None,
    max_tokens: int,
    packed: bool = False,
) -> list[MicroBatch]:
    """Micro-batches of at most ``max_tokens`` tokens that hold every row asked for once.

    Rows are sorted by length and cut where the padding saved is worth one more forward pass; for a
    trainer that packs rows, padding costs nothing, and they are cut where the bound is reached.
    Prompts are padded on the left, responses on the right; a response begins at the first policy
    token and goes on to the row's end, environment tokens included, whose mask is False. Only
    lengths say what is padding: an id that pads and also ends answers stays a token where it was
    sampled. A row without policy tokens comes along with an empty mask. Nothing is dropped and
    nothing is cut: a row longer than ``max_tokens`` is a micro-batch of its own.

    Args:
        rollouts: The samples.
        columns: Token columns by name, as long as ``token_ids`` in every row.
        mask: True on tokens that count; ``None`` counts every policy token.
        rows: Which rows, as indices into ``rollouts``; ``None`` takes all. A micro-batch's
            ``rows`` are indices into ``rollouts`` in either case.
        max_tokens: Bound of rows x width, at least 1; of tokens alone where they are packed.
        packed: The trainer computes on rows laid end to end, without padding.

    Raises:
        DataError: A row starts with a policy token (nothing predicts it), a column's rows have
            other lengths, or the mask is True on a token that the policy did not sample.
    """
    ragged = _ragged(rollouts)
    flat = {name: _flat(name, column, ragged.offsets) for name, column in columns.items()}
    counted = ragged.policy if mask is None else _flat("mask", mask, ragged.offsets).astype(bool)
    chosen = np.arange(len(rollouts)) if rows is None else rows
    _check(rollouts, ragged, counted, chosen)
    temperature = rollouts.table.column("temperature").to_numpy()
    heat = np.where(temperature > 0, temperature, 1.0).astype(np.float32)
    parts_of = full_parts if packed else tight_parts
    return [
        micro_batch(ragged, flat, counted, part, torch.from_numpy(heat[part]))
        for part in parts_of(ragged.prompt, ragged.response, chosen, max_tokens)
    ]


def scatter(
    batches: Sequence[MicroBatch], tensors: Sequence[Tensor], rollouts: Rollouts
) -> pa.ListArray:
    """A token column of ``rollouts`` from one ``[n, T]`` tensor a micro-batch.

    Policy tokens of the micro-batches' rows get their value, counted by a mask or not; all
    other tokens, and rows in no micro-batch, hold 0 (or False). The column is bool, int64 or
    float32 as the tensors are.

    Args:
        batches: What :func:`make_batches` made of ``rollouts``.
        tensors: One tensor a micro-batch, in the same order.
        rollouts: The samples that ``rows`` of the micro-batches count in.
    """
    ragged = _ragged(rollouts)
    dtype, arrow_type = _storage(tensors)
    flat = flat_values(ragged, batches, tensors, dtype)
    return arrow.ragged_column(flat, ragged.offsets, arrow_type)


def flat_values(
    ragged: Ragged, batches: Sequence[MicroBatch], tensors: Sequence[Tensor], dtype: np.dtype
) -> np.ndarray:
    """One value a token of ``ragged``, from one ``[n, T]`` tensor a micro-batch.

    Tokens that are not the policy's, and rows in no micro-batch, hold 0 (or False).
    """
    out = np.zeros(len(ragged.token_ids), dtype)
    for batch, tensor in zip(batches, tensors, strict=True):
        inside, at = _places(ragged, batch.rows, tensor.shape[1])
        inside &= ragged.policy[at]
        out[at[inside]] = tensor.detach().cpu().numpy().astype(dtype, copy=False)[inside]
    return out


def split_minibatches(n: int, parts: int, seed: int) -> list[Int[np.ndarray, " m"]]:
    """Row indices of ``parts`` minibatches: every row in exactly one, sizes differ by at most 1.

    Args:
        n: Rows.
        parts: Minibatches, 1 to ``n``.
        seed: Decides which rows go together; the same seed, the same split.

    Raises:
        ConfigError: There are more minibatches than rows.
    """
    if not 1 <= parts <= n:
        raise ConfigError(
            f"minibatches={parts} of a batch of {n} samples: each needs at least one sample. "
            f"Pass minibatches between 1 and {n}."
        )
    order = np.random.default_rng(seed).permutation(n)
    return [np.sort(part) for part in np.array_split(order, parts)]


def _ragged(rollouts: Rollouts) -> Ragged:
    token_ids, offsets = arrow.ragged(rollouts.table.column("token_ids"))
    policy = arrow.ragged(rollouts.table.column("source"))[0] == SOURCE_POLICY
    return ragged_rows(token_ids, policy, offsets)


def ragged_rows(token_ids: np.ndarray, policy: np.ndarray, offsets: np.ndarray) -> Ragged:
    """Rows whose prompt is what precedes their first policy token.

    Args:
        token_ids: Of all rows, flat.
        policy: True on tokens that are sampled, or learned; as long.
        offsets: Where rows begin, and the end, ``[N + 1]``.
    """
    lengths = np.diff(offsets)
    at = np.flatnonzero(policy)
    # The first policy token at or after the row's start is the row's own unless it lies beyond it.
    first = np.append(at, len(policy))[np.searchsorted(at, offsets[:-1])]
    prompt = np.minimum(first - offsets[:-1], lengths)
    return Ragged(
        token_ids=token_ids,
        policy=policy,
        offsets=offsets,
        prompt=prompt,
        response=lengths - prompt,
    )


def _flat(name: str, column: Column, offsets: np.ndarray) -> np.ndarray:
    values, own = arrow.ragged(
        pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    )
    if not np.array_equal(own, offsets):
        rows = f"{len(own) - 1} rows" if len(own) != len(offsets) else "rows of other lengths"
        raise DataError(
            f"token column {name!r} has {rows}, token_ids has {len(offsets) - 1} rows of "
            f"{offsets[-1]} tokens in all. Give one value for every token of every row."
        )
    return values


def _check(rollouts: Rollouts, ragged: Ragged, counted: np.ndarray, chosen: np.ndarray) -> None:
    ids = rollouts.table.column("sample_id")
    bare = chosen[(ragged.prompt[chosen] == 0) & (ragged.response[chosen] > 0)]
    if len(bare):
        raise DataError(
            f"{len(bare)} samples start with a policy token, e.g. {ids[int(bare[0])].as_py()!r}; "
            "nothing predicts it. Give every prompt at least one token, e.g. a BOS token."
        )
    stray = np.flatnonzero(counted & ~ragged.policy)
    if len(stray):
        row = arrow.row_at(ragged.offsets, stray[0])
        raise DataError(
            f"mask is True on {len(stray)} tokens that the policy did not sample, first in "
            f"{ids[row].as_py()!r} at {int(stray[0] - ragged.offsets[row])}. Mask prompt and "
            "environment tokens out."
        )


def tight_parts(
    prompt: np.ndarray, response: np.ndarray, chosen: np.ndarray, max_tokens: int
) -> list[np.ndarray]:
    """The chosen rows cut into micro-batches, by the sort order that pads least."""
    p, t = prompt[chosen], response[chosen]
    best: tuple[float, list[np.ndarray]] = (np.inf, [])
    for order in (np.lexsort((p, t)), np.lexsort((t, p)), np.lexsort((p, t, p + t))):
        cost, cuts = _cheapest_cuts(p[order], t[order], max_tokens)
        if cost < best[0]:
            best = (cost, [chosen[part] for part in np.split(order, cuts) if len(part)])
    return best[1]


def full_parts(
    prompt: np.ndarray, response: np.ndarray, chosen: np.ndarray, max_tokens: int
) -> list[np.ndarray]:
    """The chosen rows by length, cut where one more row's tokens would be over the bound."""
    lengths = prompt[chosen] + response[chosen]
    order = np.argsort(lengths, kind="stable")
    cuts, room = [], max_tokens
    for at, length in enumerate(lengths[order].tolist()):
        if at and length > room:
            cuts.append(at)
            room = max_tokens
        room -= length
    return [chosen[part] for part in np.split(order, cuts) if len(part)]


def _cheapest_cuts(
    prompt: np.ndarray, response: np.ndarray, max_tokens: int
) -> tuple[float, np.ndarray]:
    """Where to cut sorted rows so that padded tokens plus the cost of each pass are least.

    ``best[j]``, the cost of the first ``j`` blocks, is the least over ``i < j`` of ``best[i]``
    plus the cost of a micro-batch of blocks ``i..j-1``.
    """
    n, edges = len(prompt), _block_edges(prompt, response, max_tokens)
    wide_prompt = np.maximum.reduceat(prompt, edges[:-1]) if n else prompt
    wide_response = np.maximum.reduceat(response, edges[:-1]) if n else response
    blocks = len(edges) - 1
    best, cut_at = np.zeros(blocks + 1), np.zeros(blocks + 1, dtype=np.int64)
    for j in range(1, blocks + 1):
        width = np.maximum.accumulate(wide_prompt[:j][::-1])
        width = np.maximum(width + np.maximum.accumulate(wide_response[:j][::-1]), 1)
        tokens = (edges[j] - edges[:j][::-1]) * width
        fits = max(1, int(np.searchsorted(tokens, max_tokens, side="right")))
        costs = tokens[:fits] + best[j - fits : j][::-1] + MICRO_BATCH_COST
        taken = int(np.argmin(costs)) + 1
        best[j], cut_at[j] = costs[taken - 1], j - taken
    cuts, j = [], blocks
    while j > 0:
        j = int(cut_at[j])
        cuts.append(int(edges[j]))
    return float(best[blocks]), np.array(cuts[::-1], dtype=np.int64)


def _block_edges(prompt: np.ndarray, response: np.ndarray, max_tokens: int) -> np.ndarray:
    """Where blocks of sorted rows begin, and the end; no block is wider than ``max_tokens``.

    A block is a run of rows of one shape, which no good cut divides, or some neighbours where
    there are more than a thousand runs.
    """
    n, widest = len(prompt), int((prompt + response).max(initial=1))
    most = max(1, max_tokens // widest)
    changes = np.flatnonzero((np.diff(prompt) != 0) | (np.diff(response) != 0)) + 1
    starts = np.union1d(np.arange(0, n, most), changes)
    if len(starts) > MOST_BLOCKS:
        starts = np.arange(0, n, max(1, min(n // MOST_BLOCKS, most)))
    return np.append(starts, n)


def micro_batch(
    ragged: Ragged,
    flat: Mapping[str, np.ndarray],
    counted: np.ndarray,
    rows: np.ndarray,
    temperature: Tensor,
) -> MicroBatch:
    """These rows as tensors, prompts padded on the left and responses on the right."""
    prompt, response = ragged.prompt[rows], ragged.response[rows]
    # At least one column each, so that a micro-batch of empty rows is still a rectangle.
    left, right = max(1, int(prompt.max())), max(1, int(response.max()))
    column = np.arange(left + right) - left
    inside = (column >= -prompt[:, None]) & (column < response[:, None])
    at = np.where(inside, (ragged.offsets[rows] + prompt)[:, None] + column, 0)
    tail, spot = inside[:, left:], at[:, left:]
    return MicroBatch(
        rows=rows,
        input_ids=torch.from_numpy(
            np.where(inside, _take(ragged.token_ids, at), 0).astype(np.int64)
        ),
        attention_mask=torch.from_numpy(inside),
        prompt_width=left,
        mask=torch.from_numpy(np.where(tail, _take(counted, spot), False)),
        temperature=temperature,
        columns={
            name: torch.from_numpy(np.where(tail, _take(values, spot), 0).astype(np.float32))
            for name, values in flat.items()
        },
    )


def _take(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    return values[at] if len(values) else np.zeros(at.shape, values.dtype)


def _places(
    ragged: Ragged, rows: np.ndarray, width: int
) -> tuple[Bool[np.ndarray, "n T"], Int[np.ndarray, "n T"]]:
    """Which cells of a ``[n, T]`` tensor are tokens, and where in the flat arrays they are."""
    column = np.arange(width)
    inside = column < ragged.response[rows][:, None]
    start = ragged.offsets[rows] + ragged.prompt[rows]
    return inside, np.where(inside, start[:, None] + column, 0)


def _storage(tensors: Sequence[Tensor]) -> tuple[np.dtype, pa.DataType]:
    dtype = tensors[0].dtype if tensors else torch.float32
    if dtype == torch.bool:
        return np.dtype(bool), pa.bool_()
    if dtype.is_floating_point:
        return np.dtype(np.float32), pa.float32()
    return np.dtype(np.int64), pa.int64()
