"""What a reader wants of a value before its rows: distributions, and concerns in words.

Everything is computed on whole columns: a hundred thousand samples take milliseconds. May import
``types`` and ``text`` beside it.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.notebook.reprs.text import spark
from nbrl.types import SOURCE_POLICY, Advantaged, Rollouts, Scored
from nbrl.types.columns import ragged, row_sums

DISTRIBUTION = ("of", "count", "mean", "least", "median", "most", "shape")
MUCH_TRUNCATED = 0.2
MUCH_MISMATCH = 0.05
"""Mean absolute difference of log-probs between sampler and trainer; rounding is 100 times less."""


def distribution(name: str, values: np.ndarray) -> tuple[object, ...]:
    """A row of :data:`DISTRIBUTION` for the finite values."""
    good = values[np.isfinite(values)]
    if not len(good):
        return (name, 0, None, None, None, None, "")
    return (
        name,
        len(good),
        float(good.mean()),
        float(good.min()),
        float(np.median(good)),
        float(good.max()),
        spark(good),
    )


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers as float64, nan where it is null."""
    return column.cast(pa.float64()).to_numpy().astype(float)


def sampled_tokens(rollouts: Rollouts) -> np.ndarray:
    """How many tokens the policy drew for each sample."""
    source, offsets = ragged(rollouts.table.column("source"))
    return row_sums(source == SOURCE_POLICY, offsets)


def reward_names(scored: Scored) -> list[str]:
    """The reward components, in the order of their columns."""
    return [c.removesuffix(".status") for c in scored.table.column_names if c.endswith(".status")]


def group_codes(rollouts: Rollouts) -> tuple[np.ndarray, int]:
    """Each sample's group as a number from 0, and how many groups there are."""
    coded = rollouts.table.column("group_id").combine_chunks().dictionary_encode()
    return coded.indices.to_numpy(), len(coded.dictionary)


def dead_groups(totals: np.ndarray, codes: np.ndarray, groups: int) -> tuple[int, int]:
    """Groups in which all rewards are equal, and groups with at least two rewards."""
    good = np.isfinite(totals)
    count = np.bincount(codes[good], minlength=groups)
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, codes[good], totals[good])
    np.maximum.at(high, codes[good], totals[good])
    several = count > 1
    return int(np.count_nonzero(several & (low == high))), int(np.count_nonzero(several))


def rollout_concerns(value: Rollouts) -> list[str]:
    """Truncation, failed or interrupted samples, empty answers, sampler against trainer."""
    if not len(value):
        return ["no samples"]
    said = []
    cut = float(np.mean(value.table.column("truncated").to_numpy()))
    if cut >= MUCH_TRUNCATED:
        said.append(f"{cut:.0%} of the answers were cut at the length limit")
    reasons = counts(value.table.column("finish_reason"))
    for reason in ("error", "interrupted"):
        if reasons.get(reason):
            said.append(f"{reasons[reason]:,} samples ended by {reason}")
    empty = int(np.count_nonzero(sampled_tokens(value) == 0))
    if empty:
        said.append(f"{empty:,} samples have no sampled token")
    gap = sampler_gap(value)
    if gap is not None and gap > MUCH_MISMATCH:
        said.append(
            f"sampler and trainer disagree: their log-probs differ by {gap:.3g} on average, "
            f"where {MUCH_MISMATCH} is already much"
        )
    return said


def scored_concerns(value: Scored) -> list[str]:
    """Replays, excluded samples with their first errors, dead groups, a constant reward."""
    said = []
    if value.spec.get("replayed"):
        said.append(
            f"{', '.join(value.spec['replayed'])} depends on the world and was asked again about "
            "stored samples"
        )
    bad = pc.call_function("not_equal", [value.table.column("status"), pa.scalar("ok")])
    excluded = value.table.filter(bad)
    if excluded.num_rows:
        errors = excluded.column("error").drop_null()
        first = f"; first error: {errors[0].as_py()}" if len(errors) else ""
        said.append(f"{excluded.num_rows:,} of {len(value):,} samples have no reward{first}")
    totals = floats(value.table.column("total"))
    good = totals[np.isfinite(totals)]
    dead, several = dead_groups(totals, *group_codes(value.rollouts))
    if len(good) > 1 and good.min() == good.max():
        said.append(f"every sample has the same reward, {good[0]:.4g}: nothing can be learnt")
    elif dead:
        said.append(
            f"{dead:,} of {several:,} groups are dead: all their rewards are equal, so a group "
            "estimator gives them no signal"
        )
    return said


def advantaged_concerns(value: Advantaged) -> list[str]:
    """Dead groups, dropped samples, no token that counts."""
    said = []
    codes, groups = group_codes(value.scored.rollouts)
    live = np.zeros(groups, bool)
    live[codes[value.table.column("live").to_numpy()]] = True
    dead = groups - int(live.sum())
    if dead:
        said.append(f"{dead:,} of {groups:,} groups are dead: all their rewards are equal")
    dropped = value.spec.get("dropped", {})
    if isinstance(dropped, Mapping) and any(dropped.values()):
        said.append(f"samples were dropped: {dict(dropped)}")
    if len(value) and not ragged(value.table.column("mask"))[0].any():
        said.append("no token counts")
    return said


def sampler_gap(value: Rollouts) -> float | None:
    """The mean absolute difference of ``old_logprobs`` and ``rollout_logprobs`` where both are."""
    if "old_logprobs" not in value.table.column_names:
        return None
    source, _ = ragged(value.table.column("source"))
    drawn = source == SOURCE_POLICY
    ours = ragged(value.table.column("old_logprobs"))[0]
    theirs = ragged(value.table.column("rollout_logprobs"))[0]
    gap = np.abs(ours[drawn].astype(float) - theirs[drawn].astype(float))
    good = gap[np.isfinite(gap)]
    return float(good.mean()) if len(good) else None


def counts(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each word of a column stands there, the most frequent first."""
    found = {c["values"]: c["counts"] for c in column.value_counts().to_pylist()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def counts_text(column: pa.ChunkedArray) -> str:
    """:func:`counts` in words: ``stop 12, length 4``."""
    return ", ".join(f"{name} {count:,}" for name, count in counts(column).items())
