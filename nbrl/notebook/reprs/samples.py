"""HTML of the four values on the path: distributions, concerns, a few rows, the spec.

May import ``types`` and its neighbours.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nbrl.notebook.reprs import summaries
from nbrl.notebook.reprs.markup import card, table
from nbrl.notebook.reprs.summaries import DISTRIBUTION, distribution, floats
from nbrl.types import KINDS, SOURCE_POLICY, Advantaged, Examples, Prompts, Rollouts, Scored
from nbrl.types.columns import ragged

MOST_SAMPLES = 6
MOST_REWARDS = 12
ROLLOUT = ("sample_id", "prompt", "response", "label", "tokens", "finish_reason")


def prompts_html(value: Prompts) -> str:
    """Some prompts and their labels."""
    return card(
        repr(value), [_samples(value, ("prompt_id", "prompt", "label"), {})], spec=value.spec
    )


def examples_html(value: Examples) -> str:
    """Some examples, how many of their tokens are learned, and which rows were left out."""
    names = [n for n in KINDS[value.kind].columns.names if not n.endswith(("messages", "metadata"))]
    added = {}
    if value.is_tokenized:
        for side in value.sides[: 2 if value.kind == "pairs" else 1]:
            name = f"{side}tokens (learned)"
            added[name] = partial(_learned, side=side)
    parts = [_samples(value, (*names, *added), added)]
    dropped = value.spec.get("dropped", ())
    if dropped:
        note = shown(len(dropped[:MOST_SAMPLES]), len(dropped), "rows").split(";")[0]
        rows = [(row["row"], row["reason"]) for row in dropped[:MOST_SAMPLES]]
        parts.append(table("left out", ("row", "reason"), rows, note))
    return card(repr(value), parts, spec={k: v for k, v in value.spec.items() if k != "dropped"})


def _learned(record: dict, side: str) -> str:
    mask = record[f"{side}mask"]
    return f"{len(mask)} ({sum(mask)})"


def rollouts_html(value: Rollouts) -> str:
    """Lengths, finish reasons and log-probs of all; some answers beside their prompts."""
    parts = [
        _distributions(_rollout_rows(value)),
        _finished(value),
        _samples(value, ROLLOUT, {"tokens": _policy_tokens}),
    ]
    return card(repr(value), parts, warnings=summaries.rollout_concerns(value), spec=value.spec)


def scored_html(value: Scored) -> str:
    """The rewards of all; some answers with theirs, one column a reward where there are several."""
    names = summaries.reward_names(value)[:MOST_REWARDS]
    named = tuple(names) if len(names) > 1 else ()
    rows = [distribution("total", floats(value.table.column("total")))]
    rows += [distribution(n, floats(value.table.column(n))) for n in named]
    columns = (*ROLLOUT, *named, "total", "status")
    parts = [_distributions(rows), _samples(value, columns, {"tokens": _policy_tokens})]
    return card(repr(value), parts, warnings=summaries.scored_concerns(value), spec=value.spec)


def advantaged_html(value: Advantaged) -> str:
    """Rewards and advantages of all; some answers with reward, group mean and mean advantage."""
    added = {"tokens": _policy_tokens, "advantage": _mean_advantage}
    counted = ragged(value.table.column("mask"))[0].astype(bool)
    rows = [distribution("reward", floats(value.table.column("reward")))]
    for name in ("advantages", "kl"):
        flat = ragged(value.table.column(name))[0][counted].astype(float)
        rows.append(distribution(f"{name} (tokens)", flat))
    columns = (*ROLLOUT, "reward", "group_mean", "advantage", "live")
    parts = [_distributions(rows), _samples(value, columns, added)]
    return card(repr(value), parts, warnings=summaries.advantaged_concerns(value), spec=value.spec)


def _rollout_rows(value: Rollouts) -> list[tuple[object, ...]]:
    drawn = ragged(value.table.column("source"))[0] == SOURCE_POLICY
    rows = [distribution("sampled tokens", summaries.sampled_tokens(value).astype(float))]
    for name in ("rollout_logprobs", "old_logprobs", "entropy"):
        if name in value.table.column_names:
            flat = ragged(value.table.column(name))[0][drawn].astype(float)
            rows.append(distribution(f"{name} (tokens)", flat))
    return rows


def _finished(value: Rollouts) -> str:
    table_ = value.table
    low, high = (floats(table_.column(n)) for n in ("version_min", "version_max"))
    facts = [("finish reason", summaries.counts_text(table_.column("finish_reason")))]
    if len(value):
        facts.append(("policy versions", f"{int(low.min())} to {int(high.max())}"))
        facts.append(("most turns", str(int(floats(table_.column("num_turns")).max()))))
    return table("how they ended", ("fact", "value"), facts)


def _distributions(rows: Sequence[tuple[object, ...]]) -> str:
    return table("distributions", DISTRIBUTION, rows)


def _samples(
    value: Any, columns: Sequence[str], added: Mapping[str, Callable[[dict], object]]
) -> str:
    """Rows spread over the whole value, so that different prompts are seen."""
    at = spread(len(value))
    records = value.take(at).to_arrow().to_pylist()
    rows = []
    for index, record in zip(at, records, strict=True):
        made = {name: make(record) for name, make in added.items()}
        rows.append([int(index), *(made[c] if c in made else record[c] for c in columns)])
    return table("samples", ("row", *columns), rows, shown(len(at), len(value), "rows"))


def _policy_tokens(record: dict) -> int:
    return record["source"].count(SOURCE_POLICY)


def _mean_advantage(record: dict) -> float | None:
    counted = [a for a, m in zip(record["advantages"], record["mask"], strict=True) if m]
    return sum(counted) / len(counted) if counted else None


def spread(count: int) -> np.ndarray:
    """Up to six row numbers from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_SAMPLES)).astype(np.int64))


def shown(some: int, count: int, what: str) -> str:
    """A note where a table holds only some of its rows."""
    return f"{some:,} of {count:,} {what}; .to_pandas() has all" if some < count else ""
