"""Runs that are counted through: hand-computed times, bounds, what overlap is worth."""

import numpy as np
import pyarrow as pa
import pytest

from nbrl.config import Overlap
from nbrl.errors import DataError
from nbrl.stages.buffer import Plan
from nbrl.stages.simulation import Durations, compare_plans, durations, simulate
from tests.values import make_prompts, make_rollouts

ONE = Durations(samples=((4.0,),), step=2.0, sync=1.0, slots=1)


def plan(staleness, *, partial=False, groups=1, n=1, steps=3, **overlap):
    how = Overlap(max_staleness=staleness, **overlap)
    return Plan(num_groups=groups, n=n, steps=steps, partial=partial, overlap=how)


def test_taking_turns_by_hand():
    run = simulate(ONE, plan(0))
    assert run.seconds == 3 * (4 + 2 + 1)
    assert run.staleness == {0: 3}
    assert run.busy == pytest.approx({"engines": 12 / 21, "trainer": 6 / 21, "sync": 3 / 21})


def test_one_batch_ahead_by_hand():
    # generate 0-4; train 4-6 beside generate 4-8; sync 8-9; train 9-11 beside 9-13; sync 13-14;
    # train 14-16; sync 16-17
    run = simulate(ONE, plan(1))
    assert run.seconds == 17
    assert run.staleness == {0: 1, 1: 2}
    trainer = run.timeline[run.timeline["role"] == "trainer"]
    assert trainer[["start", "end"]].to_numpy().tolist() == [[4, 6], [9, 11], [14, 16]]
    engines = run.timeline[run.timeline["role"] == "engines"]
    assert engines["start"].iloc[0] == 0
    assert (engines["end"] - engines["start"]).sum() == 12


def test_partial_rollout_pauses_what_is_under_way():
    # groups 0 and 1 from 0 to 4 and 5; the step on 0 is 4-6, sync 6-7, the step on 1 is 7-9;
    # group 2 begins at 7, stands still while weights are synced from 9 to 10, and comes at 12
    two = Durations(samples=((4.0,), (5.0,), (4.0,)), step=2.0, sync=1.0, slots=2)
    run = simulate(two, plan(1, partial=True))
    assert run.timeline[run.timeline["role"] == "trainer"]["start"].tolist() == [4, 7, 12]
    assert run.seconds == 15
    assert run.staleness == {0: 1, 1: 2}


def test_slots_bound_what_runs_at_once():
    four = Durations(samples=((1.0, 2.0),), step=0.5, slots=1)
    assert simulate(four, plan(0, groups=2, n=2, steps=1)).seconds == 6.5
    eight = Durations(samples=((1.0, 2.0),), step=0.5, slots=8)
    assert simulate(eight, plan(0, groups=2, n=2, steps=1)).seconds == 2.5


def long_tailed(groups=400, n=2):
    rng = np.random.default_rng(0)
    samples = rng.lognormal(0.0, 1.0, (groups, n)).clip(max=8)
    return Durations(samples=tuple(map(tuple, samples.tolist())), step=4.0, sync=0.1, slots=32)


def test_overlap_is_worth_most_where_lengths_have_long_tails():
    table = compare_plans(
        long_tailed(),
        {
            "sync": plan(0, groups=16, n=2, steps=20),
            "async": plan(2, groups=16, n=2, steps=20),
            "partial": plan(2, partial=True, groups=16, n=2, steps=20),
        },
    )
    assert list(table["speedup"]) == sorted(table["speedup"])
    assert table.loc["async", "speedup"] > 1.5
    assert table.loc["partial", "speedup"] > 1.8
    assert table["oldest"].tolist()[0] == 0
    assert table["oldest"].max() <= 2
    assert (table["dropped"] == 0).all()
    # nothing is faster than the trainer without a pause
    assert (table["seconds_per_step"] >= 4.0).all()


def test_over_sampling_cuts_the_tail_and_counts_what_it_drops():
    plain, over = (
        simulate(long_tailed(), plan(0, groups=8, n=2, steps=10, over_sampling=share))
        for share in (0.0, 0.5)
    )
    assert over.seconds < plain.seconds
    assert over.counts["surplus"] == 10 * 4
    assert over.counts["trained"] == plain.counts["trained"] == 80


def test_durations_are_those_of_recorded_samples():
    rollouts = make_rollouts(make_prompts(2), [2, 2, 2, 2], n=2)
    rollouts = rollouts.with_columns({"seconds": pa.array([1.0, 2.0, 3.0, 4.0])})
    made = durations(rollouts, step=0.5)
    assert made == Durations(samples=((1.0, 2.0), (3.0, 4.0)), step=0.5, slots=4)
    with pytest.raises(DataError, match=r"groups of \[1, 2\]"):
        durations(rollouts[:3], step=0.5)


def test_records_that_are_none_are_refused():
    with pytest.raises(DataError, match="finite seconds"):
        Durations(samples=((float("nan"),),), step=1.0)
    with pytest.raises(DataError, match="groups of none"):
        Durations(samples=(), step=1.0)
    with pytest.raises(DataError, match="the plan asks for n=2"):
        simulate(ONE, plan(0, n=2))
