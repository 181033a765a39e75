"""Training data that nobody sampled: conversations, preference pairs, labelled answers, steps.

One class for the four kinds, whose columns stand in :data:`KINDS`. Text and messages are the record
until a session's tokenizer adds the token columns. May import ``errors``, and ``columns`` and
``storage`` beside it.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from nbrl.errors import unknown_name
from nbrl.frozen import frozen
from nbrl.types import columns, storage


@frozen(eq=False)
class Kind:
    """What one kind of examples consists of.

    ``sides`` are the prefixes of its token columns: a pair has two answers, and a labelled answer
    a second one, to another prompt, from which KTO takes its reference point.
    """

    one: str
    many: str
    columns: pa.Schema
    needed: tuple[str, ...]
    sides: tuple[str, ...]


def _schema(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    ends = [("example_id", pa.string())], [("metadata", pa.string())]
    return pa.schema([*ends[0], *fields, *ends[1]])


_TEXT = pa.string()
KINDS: Mapping[str, Kind] = {
    "conversations": Kind(
        one="conversation",
        many="conversations",
        columns=_schema(("prompt", _TEXT), ("response", _TEXT), ("messages", _TEXT)),
        needed=("response",),
        sides=("",),
    ),
    "pairs": Kind(
        one="pair",
        many="pairs",
        columns=_schema(
            ("prompt", _TEXT),
            ("chosen", _TEXT),
            ("rejected", _TEXT),
            ("chosen_messages", _TEXT),
            ("rejected_messages", _TEXT),
            ("margin", pa.float64()),
        ),
        needed=("chosen", "rejected", "margin"),
        sides=("chosen_", "rejected_"),
    ),
    "labelled": Kind(
        one="labelled answer",
        many="labelled answers",
        columns=_schema(
            ("prompt", _TEXT), ("response", _TEXT), ("messages", _TEXT), ("desirable", pa.bool_())
        ),
        needed=("response", "desirable"),
        sides=("", "mismatched_"),
    ),
    "steps": Kind(
        one="solution in steps",
        many="solutions in steps",
        columns=_schema(
            ("prompt", _TEXT), ("steps", pa.list_(_TEXT)), ("labels", pa.list_(pa.float64()))
        ),
        needed=("steps", "labels"),
        sides=("",),
    ),
}


@frozen(eq=False)
class Examples:
    """Rows to learn from, one an example, each with an id that no other row of the data has.

    ``prompt`` may be null: the whole text is then learned (pretraining). ``messages`` hold JSON,
    the whole conversation with the answer; where they are null, the texts count. ``margin`` is how
    much better the chosen answer is, ``desirable`` whether an answer is wanted, ``labels`` the
    probability in [0, 1] that each step is right.

    ``session.tokenize`` adds, for each side of the kind (see :data:`KINDS`), the token columns
    ``token_ids`` and ``mask``, True on tokens that are learned, and the session's trainer
    ``ref_logprobs``.

    Example: ``Examples(kind="pairs", ...)[0]`` is ``{"example_id": "sums-0", "prompt": "7+5=",
    "chosen": "12", "rejected": "13", "margin": 0.0, ...}``.
    """

    kind: str
    table: pa.Table
    spec: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("kind of examples", self.kind, KINDS)
        owner = f"Examples({self.kind!r})"
        columns.check_columns(self.table, KINDS[self.kind].columns, owner)
        columns.check_unique(self.table, "example_id", owner)
        columns.check_present(self.table, KINDS[self.kind].needed, owner)

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, rows: columns.Rows) -> "dict[str, Any] | Examples":
        return columns.picked(self, rows)

    @property
    def sides(self) -> tuple[str, ...]:
        """The prefixes of the token columns of this kind."""
        return KINDS[self.kind].sides

    @property
    def is_tokenized(self) -> bool:
        """Whether the token columns are there."""
        return all(f"{side}token_ids" in self.table.column_names for side in self.sides)

    def take(self, indices: np.ndarray) -> "Examples":
        """These rows, in this order."""
        return dataclasses.replace(self, table=self.table.take(pa.array(indices, pa.int64())))

    def filter(self, keep: columns.Keep) -> "Examples":
        """The rows where a mask is True, or a predicate on the row's dict."""
        return self.take(columns.rows_kept(keep, len(self), self.to_arrow))

    def select(self, ids: Sequence[str]) -> "Examples":
        """The rows with these example ids, in this order."""
        return self.take(columns.indices_of(self.table.column("example_id"), ids))

    def with_columns(self, added: Mapping[str, pa.Array | pa.ChunkedArray]) -> "Examples":
        """The same rows with columns added or replaced."""
        return dataclasses.replace(self, table=columns.with_columns(self.table, added))

    def to_arrow(self) -> pa.Table:
        """All columns."""
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a frame."""
        return self.to_arrow().to_pandas()

    def links(self) -> storage.Links:
        """Table and spec under the name of the kind."""
        return {self.kind: (self.table, self.spec)}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        kind = KINDS[self.kind]
        tokens = ", tokenized" if self.is_tokenized else ""
        dropped = len(self.spec.get("dropped", ()))
        left_out = f", {dropped} row{'s' * (dropped > 1)} left out" if dropped else ""
        return (
            f"Examples({len(self)} {kind.one if len(self) == 1 else kind.many}{tokens}{left_out})"
        )
