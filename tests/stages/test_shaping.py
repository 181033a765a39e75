"""Which rows are trained on, and their shaped rewards."""

import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.config import Shaping
from nbrl.stages.shaping import (
    group_index,
    largest_group,
    policy_lengths,
    raw_rewards,
    shaped_rewards,
    shaping_problems,
    trained_rows,
)
from tests.values import make_prompts, make_rollouts, make_scored, rollouts_of


def toy(totals, groups, **columns):
    rollouts = make_rollouts(make_prompts(1), [1] * len(totals), sampling={"max_new_tokens": 8})
    changed = {"group_id": pa.array(groups, pa.string()), **columns}
    return make_scored(rollouts.with_columns(changed), totals)


def test_group_index_joins_equal_ids_wherever_they_stand():
    index = group_index(toy([0.0] * 4, list("abab")).rollouts).tolist()
    assert index[0] == index[2] != index[1] == index[3]


def test_largest_group_counts_bad_samples_too():
    assert largest_group(toy([0.0, None, 1.0], list("aab"))) == 2
    assert largest_group(toy([], [])) == 0


def test_policy_lengths_count_sampled_tokens():
    rollouts = rollouts_of([[0, 1, 2, 1], [0, 0], [], [1, 1, 1]])
    assert policy_lengths(rollouts).tolist() == [2, 0, 0, 3]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.none() | st.sampled_from([0.0, 0.5, 1.0]),
            st.sampled_from(["stop", "length", "error", "interrupted"]),
        ),
        max_size=10,
    ),
    st.booleans(),
    st.booleans(),
)
def test_trained_rows_are_the_slow_loop(rows, filtered, pairs):
    groups, totals, finish = ([row[i] for row in rows] for i in range(3))
    scored = toy(totals, groups, finish_reason=pa.array(finish, pa.string()))
    shaping = Shaping(reward_range=(0.0, 1.0) if filtered else None)
    kept, dropped = trained_rows(scored, shaping, pairs=pairs)
    good = [i for i, (_, t, f) in enumerate(rows) if t is not None and f in ("stop", "length")]
    if filtered:
        good = [i for i in good if 0 < _mean(totals, groups, good, i) < 1]
    if pairs:
        good = [i for i in good if sum(groups[j] == groups[i] for j in good) > 1]
    assert kept.tolist() == good
    assert sum(dropped.values()) == len(rows) - len(good)
    assert all(dropped.values())


def _mean(totals, groups, good, i):
    mine = [totals[j] for j in good if groups[j] == groups[i]]
    return sum(mine) / len(mine)


def test_both_penalties_in_order():
    scored = make_scored(
        make_rollouts(
            make_prompts(1),
            [8, 6, 2],
            sampling={"max_new_tokens": 8},
        ).with_columns({"truncated": pa.array([True, False, True])}),
        [1.0, 1.0, 1.0],
    )
    shaping = Shaping(overlong_buffer=4, overlong_penalty=0.5, stop_properly=0.5)
    assert shaped_rewards(scored, shaping).tolist() == [0.25, 0.75, 0.5]
    assert shaped_rewards(scored, Shaping()).tolist() == [1, 1, 1]


def test_raw_rewards_are_the_totals():
    got = raw_rewards(toy([0.25, None], list("aa")))
    assert got.dtype == torch.float64
    assert got[0] == 0.25
    assert torch.isnan(got[1])


def test_problems_are_words():
    scored = toy([1.0, 0.0], list("ab"))
    shaping = Shaping(overlong_buffer=9, reward_range=(0.0, 1.0))
    too_large, alone = shaping_problems(scored, shaping)
    assert "max_new_tokens=8; got 9" in too_large
    assert "n >= 2" in alone
    assert list(shaping_problems(scored, Shaping())) == []
