"""The four values on the path from prompts to a training batch.

Each is frozen, columnar, and *contains* the one before it. A token column has one entry for
every token of its row: ``len(token_ids)``; outside policy tokens it holds 0 (or False).
Token ids are the record; the text columns are a view of them. Joined tables call a parent's
column ``prompt.x``, ``rollout.x`` or ``scored.x`` where the value has a column ``x`` of its own.

May import ``errors``, and ``columns``, ``schemas`` and ``storage`` beside it.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from nbrl.errors import DataError
from nbrl.frozen import frozen
from nbrl.types import columns, storage
from nbrl.types.schemas import (
    ADVANTAGED_COLUMNS,
    FINISH_REASONS,
    PROMPT_COLUMNS,
    ROLLOUT_COLUMNS,
    SCORED_COLUMNS,
    STATUSES,
)


@frozen(eq=False)
class Prompts:
    """Questions, one a row, each with an id that no other row of the data has.

    Two rows with the same text are two prompts: ids come from the row, not from the text.
    ``messages`` and ``metadata`` hold JSON; ``label`` is what the reward compares with.
    A column ``token_ids`` may be there where the tokenizer is known.

    Example: ``7+5=`` with label ``12`` is the row ``{"prompt_id": "arithmetic-0",
    "prompt": "7+5=", "messages": None, "label": "12", "metadata": "{}"}``.
    """

    table: pa.Table
    spec: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns.check_columns(self.table, PROMPT_COLUMNS, "Prompts")
        columns.check_unique(self.table, "prompt_id", "Prompts")

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, rows: columns.Rows) -> "dict[str, Any] | Prompts":
        return columns.picked(self, rows)

    def take(self, indices: np.ndarray) -> "Prompts":
        """These rows, in this order."""
        return dataclasses.replace(self, table=self.table.take(pa.array(indices, pa.int64())))

    def filter(self, keep: columns.Keep) -> "Prompts":
        """The rows where a mask is True, or a predicate on the row's dict."""
        return self.take(columns.rows_kept(keep, len(self), self.to_arrow))

    def select(self, ids: Sequence[str]) -> "Prompts":
        """The rows with these prompt ids, in this order."""
        return self.take(columns.indices_of(self.table.column("prompt_id"), ids))

    def to_arrow(self) -> pa.Table:
        """All columns."""
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a frame."""
        return self.to_arrow().to_pandas()

    def links(self) -> storage.Links:
        """Table and spec of this value and its parents, first parent first."""
        return {"prompts": (self.table, self.spec)}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        labelled = len(self) - self.table.column("label").null_count
        return f"Prompts({len(self)} prompts, {labelled} with a label)"


@frozen(eq=False)
class Rollouts:
    """Sampled answers, one a row, with the prompts they answer.

    ``finish_reason`` is ``stop``, ``length``, ``interrupted`` or ``error``; ``truncated`` is
    True where the answer was cut (not where it ended with EOS at the limit). ``source`` marks
    each token as prompt (0), policy (1) or environment (2). ``rollout_logprobs`` are the
    engine's, float32, at ``temperature``: that of sampling, and 1 for greedy answers.
    ``annotate`` adds ``old_logprobs``, ``ref_logprobs``, ``values`` and ``entropy``.
    ``stored`` says that they were read from a disk and not sampled by this process.

    Example: the prompt ``7+5=`` (4 tokens) answered with ``12`` and EOS is a row with
    ``token_ids`` of length 7, ``source`` ``[0,0,0,0,1,1,1]``, ``sample_id``
    ``"arithmetic-0@3#1"``: prompt, policy version 3, sample 1 of group ``"arithmetic-0@3"``.
    """

    table: pa.Table
    prompts: Prompts
    spec: Mapping[str, Any] = field(default_factory=dict)
    stored: bool = False

    def __post_init__(self) -> None:
        columns.check_columns(self.table, ROLLOUT_COLUMNS, "Rollouts")
        columns.check_unique(self.table, "sample_id", "Rollouts")
        columns.check_among(self.table, "finish_reason", FINISH_REASONS, "Rollouts")
        columns.check_present(self.table, ["prompt_id", "group_id", "token_ids"], "Rollouts")
        per_token = columns.list_columns(self.table)
        columns.check_same_lengths(self.table, per_token, self.table, "Rollouts")
        columns.indices_of(self.prompts.table.column("prompt_id"), self.table.column("prompt_id"))

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, rows: columns.Rows) -> "dict[str, Any] | Rollouts":
        return columns.picked(self, rows)

    def take(self, indices: np.ndarray) -> "Rollouts":
        """These rows, in this order, with only the prompts that they answer."""
        table = self.table.take(pa.array(indices, pa.int64()))
        used = self.prompts.select(table.column("prompt_id").unique().to_pylist())
        return dataclasses.replace(self, table=table, prompts=used)

    def filter(self, keep: columns.Keep) -> "Rollouts":
        """The rows where a mask is True, or a predicate on the row's dict."""
        return self.take(columns.rows_kept(keep, len(self), self.to_arrow))

    def select(self, ids: Sequence[str]) -> "Rollouts":
        """The rows with these sample ids, in this order."""
        return self.take(columns.indices_of(self.table.column("sample_id"), ids))

    def with_columns(self, added: Mapping[str, pa.Array | pa.ChunkedArray]) -> "Rollouts":
        """The same rows with columns added or replaced."""
        return dataclasses.replace(self, table=columns.with_columns(self.table, added))

    def to_arrow(self) -> pa.Table:
        """All columns, each prompt's own ones repeated beside its samples."""
        at = columns.indices_of(
            self.prompts.table.column("prompt_id"), self.table.column("prompt_id")
        )
        asked = self.prompts.table.take(pa.array(at))
        return columns.beside(self.table, asked, "prompt", keys=["prompt_id"])

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a frame."""
        return self.to_arrow().to_pandas()

    def links(self) -> storage.Links:
        """Table and spec of this value and its parents, first parent first."""
        return {**self.prompts.links(), "rollouts": (self.table, self.spec)}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        cut = np.count_nonzero(self.table.column("truncated").to_numpy())
        share = f", {cut / len(self):.0%} truncated" if len(self) else ""
        return f"Rollouts({len(self)} samples of {len(self.prompts)} prompts{share})"


@frozen(eq=False)
class Scored:
    """Rewards, one row a sample, in the order of the rollouts they belong to.

    ``total`` is what training uses; it is null where ``status`` is not ``ok`` (``error``,
    ``timeout``, ``unparsed``, ``excluded``). A component named ``c`` has the columns ``c``,
    ``c.status``, ``c.error``, ``c.seconds`` and ``c.extras`` (JSON). A list column
    ``token_rewards`` may be there, and ``score``, by which groups are filtered in place of
    ``total``. ``spec["fingerprints"]`` holds a hash of each reward's source, ``spec["replayed"]``
    the rewards that depend on the world and were asked about stored samples.

    Example: ``{"sample_id": "arithmetic-0@3#1", "total": 1.0, "status": "ok", "error": None,
    "reward": 1.0, "reward.status": "ok", ...}``.
    """

    table: pa.Table
    rollouts: Rollouts
    spec: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns.check_columns(self.table, SCORED_COLUMNS, "Scored")
        _check_same_ids(self.table, self.rollouts.table, "Scored")
        columns.check_among(self.table, "status", STATUSES, "Scored")
        _check_totals(self.table)
        per_token = [n for n in columns.list_columns(self.table) if n == "token_rewards"]
        columns.check_same_lengths(self.table, per_token, self.rollouts.table, "Scored")

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, rows: columns.Rows) -> "dict[str, Any] | Scored":
        return columns.picked(self, rows)

    def take(self, indices: np.ndarray) -> "Scored":
        """These rows, in this order."""
        table = self.table.take(pa.array(indices, pa.int64()))
        return dataclasses.replace(self, table=table, rollouts=self.rollouts.take(indices))

    def filter(self, keep: columns.Keep) -> "Scored":
        """The rows where a mask is True, or a predicate on the row's dict."""
        return self.take(columns.rows_kept(keep, len(self), self.to_arrow))

    def select(self, ids: Sequence[str]) -> "Scored":
        """The rows with these sample ids, in this order."""
        return self.take(columns.indices_of(self.table.column("sample_id"), ids))

    def to_arrow(self) -> pa.Table:
        """All columns, the rollouts' beside the rewards'."""
        return columns.beside(self.table, self.rollouts.to_arrow(), "rollout", keys=["sample_id"])

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a frame."""
        return self.to_arrow().to_pandas()

    def links(self) -> storage.Links:
        """Table and spec of this value and its parents, first parent first."""
        return {**self.rollouts.links(), "scored": (self.table, self.spec)}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        total = self.table.column("total").to_numpy()
        good = total[np.isfinite(total)]
        mean = f"mean reward {good.mean():.3f}" if len(good) else "no reward"
        bad = f", {len(self) - len(good)} excluded" if len(good) < len(self) else ""
        return f"Scored({len(self)} samples, {mean}{bad})"


@frozen(eq=False)
class Advantaged:
    """A training batch: advantages for every policy token of the scored samples it contains.

    ``reward`` is the shaped reward before the baseline, ``group_mean`` and ``group_std``
    (sample std, n - 1) describe its group, ``live`` is False where all rewards of the group are
    equal. ``mask`` is True on tokens that count. ``kl`` is the per-token KL to the reference
    (0 where none was asked for).

    Example: one prompt, rewards 1, 0, 0, 0, ``grpo``: ``group_mean`` 0.25, ``group_std`` 0.5,
    advantages 1.5 on each token of the first answer and -0.5 on the others'.
    """

    table: pa.Table
    scored: Scored
    spec: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns.check_columns(self.table, ADVANTAGED_COLUMNS, "Advantaged")
        _check_same_ids(self.table, self.scored.table, "Advantaged")
        per_token = columns.list_columns(self.table)
        columns.check_same_lengths(self.table, per_token, self.scored.rollouts.table, "Advantaged")

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, rows: columns.Rows) -> "dict[str, Any] | Advantaged":
        return columns.picked(self, rows)

    def take(self, indices: np.ndarray) -> "Advantaged":
        """These rows, in this order; advantages stay as they were computed in their groups."""
        table = self.table.take(pa.array(indices, pa.int64()))
        return dataclasses.replace(self, table=table, scored=self.scored.take(indices))

    def filter(self, keep: columns.Keep) -> "Advantaged":
        """The rows where a mask is True, or a predicate on the row's dict."""
        return self.take(columns.rows_kept(keep, len(self), self.to_arrow))

    def select(self, ids: Sequence[str]) -> "Advantaged":
        """The rows with these sample ids, in this order."""
        return self.take(columns.indices_of(self.table.column("sample_id"), ids))

    def to_arrow(self) -> pa.Table:
        """All columns, the rewards' and the rollouts' beside the advantages'."""
        return columns.beside(self.table, self.scored.to_arrow(), "scored", keys=["sample_id"])

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a frame."""
        return self.to_arrow().to_pandas()

    def links(self) -> storage.Links:
        """Table and spec of this value and its parents, first parent first."""
        return {**self.scored.links(), "advantaged": (self.table, self.spec)}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        live = np.count_nonzero(self.table.column("live").to_numpy())
        name = self.spec.get("estimator_name", "custom")
        return f"Advantaged({len(self)} samples, {name}, {live} in live groups)"


def _check_same_ids(table: pa.Table, parent: pa.Table, owner: str) -> None:
    if not table.column("sample_id").equals(parent.column("sample_id")):
        raise DataError(
            f"{owner}: sample_id must equal its parent's, row by row; got {table.num_rows} rows "
            f"beside {parent.num_rows}. Reorder by id before building the value."
        )


def _check_totals(table: pa.Table) -> None:
    """Raise where an ok row has no finite total, or another row has one."""
    total = table.column("total").to_numpy()
    ok = np.array(table.column("status").to_pylist(), dtype=object) == "ok"
    wrong = np.flatnonzero(np.where(ok, ~np.isfinite(total), table.column("total").is_valid()))
    if len(wrong):
        row = {n: table.column(n)[int(wrong[0])].as_py() for n in ("sample_id", "total", "status")}
        raise DataError(
            f"Scored: total must be finite where status is 'ok' and null elsewhere; "
            f"{len(wrong)} of {len(table)} rows are not so, e.g. {row}."
        )
