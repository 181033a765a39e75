"""Tokenized examples to micro-batches: which token rows an objective sees, and which stay together.

May import ``batching`` beside it, ``protocols``, ``types`` and ``errors``, and numpy, pyarrow and
torch.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nbrl.errors import DataError
from nbrl.protocols import MicroBatch
from nbrl.stages.batching import (
    Ragged,
    flat_values,
    full_parts,
    micro_batch,
    ragged_rows,
    tight_parts,
)
from nbrl.types import Examples
from nbrl.types import columns as arrow

REFERENCE = "ref_logprobs"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sequences:
    """Token rows in units of ``unit`` neighbours that an objective needs side by side.

    Row ``i`` belongs to example ``i // unit``. ``per_token`` holds flat columns as long as the
    tokens, ``per_row`` a number a row.

    Example: two pairs are four rows in units of 2: chosen, rejected, chosen, rejected.
    """

    ragged: Ragged
    unit: int
    per_token: Mapping[str, np.ndarray] = field(default_factory=dict)
    per_row: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ragged.prompt)


def sequences_of(examples: Examples) -> list[Sequences]:
    """The token rows of tokenized examples, those that are learned from first.

    Conversations give a row each, pairs two neighbours. Labelled answers give two sets: the rows
    themselves, and the same prompts with another row's answer. Solutions in steps are shifted by
    one and end in a token that is never looked at, so that what *scores* a marked token is read at
    the placeholder itself.

    Raises:
        DataError: The examples have no token columns.
    """
    if not examples.is_tokenized:
        raise DataError(f"{examples!r} has no token columns; call session.tokenize first.")
    return _ROWS[examples.kind](examples)


def sequence_batches(
    sequences: Sequences, units: np.ndarray, *, max_tokens: int, packed: bool = False
) -> list[MicroBatch]:
    """Micro-batches of at most ``max_tokens`` tokens that hold every unit asked for once.

    Args:
        sequences: The token rows.
        units: Which examples, as indices. Rows of a micro-batch are indices into ``sequences``.
        max_tokens: Bound of rows x width, or of tokens alone where they are packed; a unit that is
            larger is a micro-batch of its own.
        packed: The trainer lays rows end to end, without padding.
    """
    ragged, unit = sequences.ragged, sequences.unit
    prompt, response = (x.reshape(-1, unit) for x in (ragged.prompt, ragged.response))
    if packed:
        parts = full_parts(prompt.sum(1), response.sum(1), units, max_tokens)
    else:
        parts = tight_parts(prompt.max(1), response.max(1), units, max(1, max_tokens // unit))
    rows = [(part[:, None] * unit + np.arange(unit)).reshape(-1) for part in parts]
    return [_batch(sequences, some) for some in rows]


def scatter_rows(
    sequences: Sequences, batches: Sequence[MicroBatch], tensors: Sequence[Tensor]
) -> np.ndarray:
    """Flat values, one a token of ``sequences``, from one ``[n, T]`` tensor a micro-batch.

    Tokens that are not learned, and rows in no micro-batch, hold 0.
    """
    return flat_values(sequences.ragged, batches, tensors, np.dtype(np.float32))


def side_columns(
    sequences: Sequences, flat: np.ndarray, sides: Sequence[str], name: str
) -> dict[str, pa.ListArray]:
    """A flat column of neighbours as one list column a side, named ``<side><name>``."""
    rows = arrow.ragged_column(flat, sequences.ragged.offsets, pa.float32())
    unit = len(sides)
    return {
        f"{side}{name}": rows.take(pa.array(np.arange(at, len(sequences), unit), pa.int64()))
        for at, side in enumerate(sides)
    }


def _batch(sequences: Sequences, rows: np.ndarray) -> MicroBatch:
    ragged = sequences.ragged
    made = micro_batch(ragged, sequences.per_token, ragged.policy, rows, torch.ones(len(rows)))
    per_row = {n: torch.from_numpy(x[rows]) for n, x in sequences.per_row.items()}
    return dataclasses.replace(made, per_row=per_row)


def _learned_rows(token_ids: np.ndarray, mask: np.ndarray, offsets: np.ndarray) -> Ragged:
    """Rows with what precedes the first learned token as their prompt, which all must have."""
    ragged = ragged_rows(token_ids, mask, offsets)
    if bool((ragged.prompt == 0).any()):
        row = int(np.argmin(ragged.prompt))
        raise DataError(
            f"row {row} learns its first token, which nothing predicts. Give it a prompt token."
        )
    return ragged


def _sides(
    examples: Examples, sides: Sequence[str], per_row: Mapping[str, np.ndarray]
) -> Sequences:
    """The rows of some sides, interleaved."""
    count, unit = len(examples), len(sides)
    order = pa.array(np.arange(count * unit).reshape(unit, count).T.reshape(-1), pa.int64())

    def interleaved(name: str) -> tuple[np.ndarray, np.ndarray]:
        columns = [examples.table.column(f"{side}{name}").combine_chunks() for side in sides]
        return arrow.ragged(pa.concat_arrays(columns).take(order))

    token_ids, offsets = interleaved("token_ids")
    mask = interleaved("mask")[0].astype(bool)
    has_reference = f"{sides[0]}{REFERENCE}" in examples.table.column_names
    per_token = {REFERENCE: interleaved(REFERENCE)[0]} if has_reference else {}
    return Sequences(
        ragged=_learned_rows(token_ids, mask, offsets),
        unit=unit,
        per_token=per_token,
        per_row={n: np.repeat(x, unit).astype(np.float32) for n, x in per_row.items()},
    )


def _conversations(examples: Examples) -> list[Sequences]:
    return [_sides(examples, ("",), {})]


def _pairs(examples: Examples) -> list[Sequences]:
    margin = examples.table.column("margin").to_numpy()
    return [_sides(examples, examples.sides, {"margin": margin})]


def _labelled(examples: Examples) -> list[Sequences]:
    desirable = examples.table.column("desirable").to_numpy()
    other = _sides(examples, ("mismatched_",), {"mismatched": np.ones(len(examples))})
    return [_sides(examples, ("",), {"desirable": desirable}), other]


def _steps(examples: Examples) -> list[Sequences]:
    token_ids, offsets = arrow.ragged(examples.table.column("token_ids"))
    mask = arrow.ragged(examples.table.column("mask"))[0].astype(bool)
    labels = arrow.ragged(examples.table.column("step_labels"))[0].astype(np.float32)
    # one more place behind each row, and everything but the ids moved on by one
    ends = offsets[1:]
    longer = offsets + np.arange(len(offsets))
    ragged = _learned_rows(
        np.insert(token_ids, ends, 0), np.insert(mask, offsets[:-1], False), longer
    )
    per_token = {"step_labels": np.insert(labels, offsets[:-1], 0.0)}
    return [Sequences(ragged=ragged, unit=1, per_token=per_token)]


_ROWS = {
    "conversations": _conversations,
    "pairs": _pairs,
    "labelled": _labelled,
    "steps": _steps,
}
