"""Which samples are trained on, with what reward; may import L1, functional, torch, numpy.

Pure: takes values, gives arrays; counts everything that it leaves out.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbrl.config import Shaping
from nbrl.functional import penalties
from nbrl.rules import is_whole
from nbrl.types import SOURCE_POLICY, Rollouts, Scored, columns

GROUP_OF_ONE = "group of one"
OUTSIDE_RANGE = "group outside reward_range"
_NOT_TRAINED = ("error", "interrupted")


def group_index(rollouts: Rollouts) -> Int[Tensor, " N"]:
    """An integer for each sample's ``group_id``: equal ids, equal integers, wherever they stand."""
    encoded = rollouts.table.column("group_id").combine_chunks().dictionary_encode()
    return torch.from_numpy(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def shaping_problems(scored: Scored, shaping: Shaping) -> Iterator[str]:
    """What cannot work about these settings on these samples, in words."""
    limit = _max_new_tokens(scored.rollouts)
    yield from shaping_needs(shaping, max_new_tokens=limit, n=largest_group(scored))


def shaping_needs(shaping: Shaping, *, max_new_tokens: int | None, n: int) -> Iterator[str]:
    """What cannot work about these settings on groups of at most ``n`` answers of this length."""
    buffer = shaping.overlong_buffer
    if is_whole(buffer, 1) and max_new_tokens is None:
        yield (
            "Shaping.overlong_buffer needs Sampling.max_new_tokens, and there is none; "
            "pass sampling=Sampling(max_new_tokens=...) or drop it"
        )
    elif is_whole(buffer, 1) and is_whole(max_new_tokens) and buffer > max_new_tokens:
        yield f"Shaping.overlong_buffer must be <= max_new_tokens={max_new_tokens}; got {buffer}"
    if shaping.reward_range is not None and n == 1:
        yield (
            "Shaping.reward_range filters groups and needs n >= 2 rollouts a prompt; got n=1. "
            "Pass rollout(..., n=2) or more, or drop it"
        )


def largest_group(scored: Scored) -> int:
    """How many samples the largest group has, bad ones counted; 0 where there are none."""
    return int(np.bincount(group_index(scored.rollouts).numpy()).max(initial=0))


def trained_rows(
    scored: Scored, shaping: Shaping, *, pairs: bool
) -> tuple[Int[np.ndarray, " kept"], dict[str, int]]:
    """The rows that are trained on, and how many were left out for each reason.

    Left out are, in this order: samples whose reward could not be had (``reward error``, ``reward
    timeout``, ...: by their status); those whose generation failed or was interrupted; all of a
    group whose mean raw reward is not strictly inside ``reward_range``; and, where ``pairs`` are
    wanted, the last one left of a group. What is left out is not in any baseline.
    """
    dropped: dict[str, int] = {}
    status = np.array(scored.table.column("status").to_pylist(), dtype=object)
    finish = np.array(scored.rollouts.table.column("finish_reason").to_pylist(), dtype=object)
    keep = np.ones(len(scored), dtype=bool)
    for name in sorted(set(status.tolist()) - {"ok"}, key=str):
        keep = _left(keep, status == name, f"reward {name}", dropped)
    for name in _NOT_TRAINED:
        keep = _left(keep, finish == name, f"rollout {name}", dropped)
    scores, groups = filter_scores(scored), group_index(scored.rollouts)
    if shaping.reward_range is not None:
        rows = torch.from_numpy(np.flatnonzero(keep))
        low, high = map(float, shaping.reward_range)
        inside = penalties.groups_inside(scores[rows], groups[rows], low, high)
        outside = np.zeros(len(scored), dtype=bool)
        outside[rows[~inside].numpy()] = True
        keep = _left(keep, outside, OUTSIDE_RANGE, dropped)
    if pairs:
        sizes = np.bincount(groups.numpy(), weights=keep, minlength=1)[groups.numpy()]
        keep = _left(keep, sizes == 1, GROUP_OF_ONE, dropped)
    return np.flatnonzero(keep), dropped


def filter_scores(scored: Scored) -> Float[Tensor, " N"]:
    """What groups are filtered by: ``score`` where a reward gave one (0 is one), else the total."""
    totals = raw_rewards(scored)
    if "score" not in scored.table.column_names:
        return totals
    given = np.array(scored.table.column("score").to_numpy(), dtype=np.float64)
    scores = torch.from_numpy(given)
    return torch.where(torch.isnan(scores), totals, scores)


def raw_rewards(scored: Scored) -> Float[Tensor, " N"]:
    """The totals, float64, NaN where there is none."""
    totals = scored.table.column("total").to_numpy()
    return torch.from_numpy(np.array(totals, dtype=np.float64))


def shaped_rewards(scored: Scored, shaping: Shaping) -> Float[Tensor, " N"]:
    """Totals with the overlong penalty added, then the stop-properly rule applied.

    The length of an answer is the number of its policy tokens.
    """
    rewards = raw_rewards(scored)
    limit = _max_new_tokens(scored.rollouts)
    if shaping.overlong_buffer is not None and limit is not None:
        rewards = rewards + penalties.overlong_penalty(
            policy_lengths(scored.rollouts),
            max_new_tokens=limit,
            buffer=shaping.overlong_buffer,
            factor=shaping.overlong_penalty,
        )
    if shaping.stop_properly is not None:
        cut = scored.rollouts.table.column("truncated").to_numpy()
        truncated = torch.from_numpy(np.array(cut, dtype=bool))
        rewards = penalties.stop_properly(rewards, truncated, shaping.stop_properly)
    return rewards


def policy_lengths(rollouts: Rollouts) -> Int[Tensor, " N"]:
    """How many tokens of each sample the policy sampled."""
    source, offsets = columns.ragged(rollouts.table.column("source"))
    return torch.from_numpy(columns.row_sums(source == SOURCE_POLICY, offsets))


def _left(keep: np.ndarray, out: np.ndarray, reason: str, dropped: dict[str, int]) -> np.ndarray:
    """What is kept after ``out`` is left out; its count goes to ``dropped``."""
    count = int(np.count_nonzero(keep & out))
    if count:
        dropped[reason] = count
    return keep & ~out


def _max_new_tokens(rollouts: Rollouts) -> int | None:
    return (rollouts.spec.get("sampling") or {}).get("max_new_tokens")
