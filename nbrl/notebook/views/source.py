"""What a browser asks for: the index, texts of a page, one sample's tokens, a search.

Reads frozen values only, so that it may be asked from any thread. May import ``types``,
``errors`` and its neighbours.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.notebook.reprs import summaries
from nbrl.notebook.views.chain import Samples, chain_of
from nbrl.notebook.views.index import index_columns
from nbrl.notebook.views.token_columns import token_columns
from nbrl.notebook.views.tokens import Decode, spans_of

MOST_TEXT = 200
MOST_LONG = 20_000
MOST_TOKENS = 16_000
SEARCHED = ("sample_id", "response", "error")
ASKED = ("prompt", "label")


class SampleSource:
    """A value as a browser sees it."""

    def __init__(
        self,
        value: Samples,
        *,
        columns: Mapping[str, np.ndarray],
        step: pa.Table | None,
        decode: Decode | None,
    ) -> None:
        """Take the value; its index is made when it is first asked for.

        Args:
            value: What to show.
            columns: Further numbers, one a sample each.
            step: Token columns of a step or a probe, joined by ``sample_id``.
            decode: Ids to text; None shows the ids.
        """
        self.value = value
        self.chain = chain_of(value)
        self._added = columns
        self._step = step
        self._decode = decode

    @functools.cached_property
    def index(self) -> list[tuple[dict[str, Any], np.ndarray]]:
        """Column descriptions and arrays, one entry a sample."""
        return index_columns(self.chain, self._added)

    def header(self, plot: tuple[str, str] | None = None) -> dict[str, Any]:
        """Everything that the page must know before its first row."""
        names = [description["name"] for description, _ in self.index]
        return {
            "title": repr(self.value),
            "count": len(self.value),
            "columns": [description for description, _ in self.index],
            "best": next((n for n in ("total", "reward") if n in names), ""),
            "colour": "logprob",
            "warnings": self.concerns(),
            "plot": dict(zip("xy", plot, strict=True)) if plot else None,
        }

    def buffers(self) -> list[bytes]:
        """The index's arrays, little-endian."""
        return [array.tobytes() for _, array in self.index]

    def concerns(self) -> list[str]:
        """What a reader should know, in words."""
        said = list(summaries.rollout_concerns(self.chain.rollouts)) if len(self.value) else []
        if self.chain.scored is not None:
            said += summaries.scored_concerns(self.chain.scored)
        return [text[:600] for text in said]

    def texts(self, rows: Sequence[int], most: int = MOST_TEXT) -> list[dict[str, Any]]:
        """Id, prompt, answer, label and error of these rows, in this order, cut."""
        some = self.chain.rollouts.take(np.asarray(rows, np.int64))
        table = some.to_arrow()
        errors = table.column("error").to_pylist()
        if self.chain.scored is not None:
            taken = self.chain.scored.table.column("error").take(pa.array(rows, pa.int64()))
            errors = [b or a for a, b in zip(errors, taken.to_pylist(), strict=True)]
        listed = [table.column(n).to_pylist() for n in ("sample_id", "prompt", "response", "label")]
        return [
            {
                "row": int(row),
                "id": cut(sample, most),
                "prompt": cut(prompt, most),
                "response": cut(response, most),
                "label": cut(label, most),
                "error": cut(error, most),
            }
            for row, sample, prompt, response, label, error in zip(
                rows, *listed, errors, strict=True
            )
        ]

    def samples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Samples whole: facts, rewards, spans of text, and every number of their tokens."""
        records = self.value.take(np.asarray(rows, np.int64)).to_arrow().to_pylist()
        return [self._sample(int(r), record) for r, record in zip(rows, records, strict=True)]

    def _sample(self, row: int, record: dict[str, Any]) -> dict[str, Any]:
        ids = record["token_ids"][:MOST_TOKENS]
        notes = []
        if len(record["token_ids"]) > MOST_TOKENS:
            notes.append(f"the first {MOST_TOKENS:,} of {len(record['token_ids']):,} tokens")
        if self._decode is None:
            notes.append("token ids in brackets: no tokenizer is known; pass browse(decode=...)")
        return {
            "row": row,
            "id": record["sample_id"],
            "facts": _facts(record),
            "rewards": self._rewards(record),
            "ids": ids,
            "source": record["source"][:MOST_TOKENS],
            "spans": spans_of(ids, self._decode),
            "columns": token_columns(record, self._step_row(record["sample_id"]), MOST_TOKENS),
            "note": "; ".join(notes),
        }

    def search(self, text: str) -> np.ndarray:
        """A flag a sample: the text stands in its id, prompt, answer, label or error."""
        rollouts = self.chain.rollouts
        found = np.zeros(len(self.value), bool)
        for name in SEARCHED:
            found |= _contains(rollouts.table.column(name), text)
        if self.chain.scored is not None:
            found |= _contains(self.chain.scored.table.column("error"), text)
        asked = np.zeros(len(rollouts.prompts), bool)
        for name in ASKED:
            asked |= _contains(rollouts.prompts.table.column(name), text)
        ids = rollouts.prompts.table.column("prompt_id").filter(pa.array(asked))
        options = pc.SetLookupOptions(value_set=ids.combine_chunks())
        hit = pc.call_function("is_in", [rollouts.table.column("prompt_id")], options)
        return found | hit.to_numpy().astype(bool)

    def select(self, rows: Sequence[int]) -> Any:
        """A value of the same type with these rows."""
        return self.value.take(np.asarray(sorted(rows), np.int64))

    def _rewards(self, record: dict[str, Any]) -> list[list[Any]]:
        if self.chain.scored is None:
            return []
        names = summaries.reward_names(self.chain.scored)
        rows = []
        for name in names:
            # an Advantaged has a column "reward" of its own
            value = record[f"scored.{name}"] if f"scored.{name}" in record else record[name]
            texts = [cut(record[f"{name}.{part}"], MOST_LONG) for part in ("error", "extras")]
            status, seconds = record[f"{name}.status"], record[f"{name}.seconds"]
            rows.append([name, value, status, texts[0], seconds, texts[1]])
        if len(names) != 1:
            error = cut(record["error"], MOST_LONG)
            rows.append(["total", record["total"], record["status"], error, None, None])
        return rows

    def _step_row(self, sample_id: str) -> dict[str, Any]:
        if self._step is None or sample_id not in self._step_rows:
            return {}
        return self._step.slice(self._step_rows[sample_id], 1).to_pylist()[0]

    @functools.cached_property
    def _step_rows(self) -> dict[str, int]:
        ids = [] if self._step is None else self._step.column("sample_id").to_pylist()
        return {sample: row for row, sample in enumerate(ids)}


def cut(text: str | None, most: int) -> str | None:
    """The text, cut with its length said."""
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]} ... ({len(text):,} characters)"


def _facts(record: dict[str, Any]) -> list[tuple[str, Any]]:
    shown = [("prompt", cut(record["prompt"], MOST_LONG)), ("answer", record["response"])]
    shown += [(name, record[name]) for name in ("label", "finish_reason", "num_turns")]
    low, high = record["version_min"], record["version_max"]
    shown += [
        ("policy version", str(low) if low == high else f"{low} to {high}"),
        ("temperature", record["temperature"]),
        ("seconds", record["seconds"]),
        ("group", record["group_id"]),
    ]
    if "live" in record:
        shown += [(n, record[n]) for n in ("reward", "group_mean", "group_std", "live")]
    if record["metadata"] not in (None, "{}"):
        shown.append(("metadata", record["metadata"]))
    if record.get("rollout.error", record["error"]):
        shown.append(("error", record.get("rollout.error", record["error"])))
    return [
        (name, cut(value, MOST_LONG) if isinstance(value, str) else value)
        for name, value in shown
        if value is not None
    ]


def _contains(column: pa.ChunkedArray, text: str) -> np.ndarray:
    options = pc.MatchSubstringOptions(text, ignore_case=True)
    found = pc.call_function("match_substring", [column], options)
    return found.fill_null(False).to_numpy().astype(bool)


def to_json(content: object) -> str:
    """JSON that JavaScript reads: numbers that are not finite become null."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))
