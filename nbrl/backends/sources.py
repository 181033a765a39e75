"""Where a session's next prompts come from: a cursor over epochs in a seeded order.

May import ``splitmix``, ``types`` and ``errors``. The cursor is one integer, kept by whoever draws;
the same source, cursor and count give the same prompts, whatever was drawn before.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.backends.splitmix import GAMMA, mixed
from nbrl.errors import ConfigError
from nbrl.types import Prompts
from nbrl.types.columns import with_columns
from nbrl.types.schemas import PROMPT_COLUMNS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PromptSource:
    """Something that prompts are drawn from.

    ``size`` is the number of prompts in an epoch, ``None`` where every index is a new prompt.
    ``fingerprint`` is a hash of the data: the same one means the same prompts.

    Example: ``prompts_source(prompts, seed=0).take(8, cursor=16)`` gives the eight prompts at
    places 16..23 of the shuffled epochs; the next cursor is 24.
    """

    name: str
    fingerprint: str
    size: int | None
    seed: int
    draw: Callable[[int, int], Prompts]
    """``draw(k, cursor)``: the prompts at these places; called by :meth:`take` only."""

    def take(self, k: int, cursor: int) -> Prompts:
        """The prompts at places ``cursor .. cursor + k - 1``; the next cursor is ``cursor + k``.

        Raises:
            ConfigError: ``k`` is not in 1..size, or the cursor is negative.
        """
        if k < 1 or cursor < 0:
            raise ConfigError(
                f"{k} prompts from cursor {cursor} of {self.name!r}: k must be >= 1 and the "
                "cursor >= 0."
            )
        if self.size is not None and k > self.size:
            raise ConfigError(
                f"{k} prompts were asked for at once, {self.name!r} has {self.size}; "
                f"ask for at most {self.size}."
            )
        return self.draw(k, cursor)

    def __repr__(self) -> str:
        size = "endless" if self.size is None else f"{self.size} prompts an epoch"
        return f"PromptSource({self.name!r}, {size}, seed {self.seed})"


def prompts_source(prompts: Prompts, *, seed: int, name: str = "prompts") -> PromptSource:
    """A source that walks the rows of ``prompts`` epoch after epoch, each in its own shuffle.

    Every prompt comes once an epoch. A draw over the end of an epoch takes what is left of it
    and goes on in the next one, so nothing is lost; where that brings a prompt twice into one
    draw, the later one's id gets the suffix ``+<epoch>``, so that the two are two groups.
    """
    size = len(prompts)
    if size == 0:
        raise ConfigError(f"{name!r} has no prompts to draw from; load some rows first.")

    def draw(k: int, cursor: int) -> Prompts:
        places = np.arange(cursor, cursor + k)
        epochs = places // size
        order = {e: seeded_order(size, f"{seed}/{e}") for e in np.unique(epochs).tolist()}
        rows = np.array([order[e][p % size] for e, p in zip(epochs, places, strict=True)])
        if len(np.unique(rows)) == k:
            return prompts.take(rows)
        return Prompts(table=_marked(prompts.table, rows, epochs), spec=prompts.spec)

    return PromptSource(
        name=name, fingerprint=fingerprint(prompts), size=size, seed=seed, draw=draw
    )


def seeded_order(count: int, key: str) -> np.ndarray:
    """A permutation of ``0 .. count - 1`` that depends on the key only.

    Sorts the indices by a hash of key and index, so that it is the same on every machine and with
    every version of numpy.
    """
    start = np.uint64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):
        z = start + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * GAMMA
    return np.argsort(mixed(z), kind="stable")


def fingerprint(prompts: Prompts) -> str:
    """A sha256 over ids, texts and labels, in order."""
    digest = hashlib.sha256()
    for name in PROMPT_COLUMNS.names:
        for text in prompts.table.column(name).to_pylist():
            digest.update(b"\x00" if text is None else b"\x01" + text.encode("utf-8", "replace"))
        digest.update(b"\x02")
    return digest.hexdigest()


def prompts_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The table of :class:`~nbrl.types.Prompts` from one mapping a prompt."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=PROMPT_COLUMNS)


def _marked(table: pa.Table, rows: np.ndarray, epochs: np.ndarray) -> pa.Table:
    """These rows, with the ids of those that come a second time made distinct."""
    drawn = table.take(pa.array(rows, pa.int64()))
    ids, seen = [], set()
    for prompt_id, row, epoch in zip(
        drawn.column("prompt_id").to_pylist(), rows.tolist(), epochs.tolist(), strict=True
    ):
        ids.append(f"{prompt_id}+{epoch}" if row in seen else prompt_id)
        seen.add(row)
    return with_columns(drawn, {"prompt_id": pa.array(ids, pa.string())})
