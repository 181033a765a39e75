"""The machine of asynchronous training: bounds that hold under every order of events."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.config import Overlap
from nbrl.errors import ConfigError, StepError
from nbrl.stages.buffer import Buffer, Plan, advance, begin
from nbrl.stages.messages import (
    Admit,
    Continued,
    Drop,
    EngineLost,
    Finish,
    GroupComplete,
    Interrupted,
    Resume,
    SampleFinished,
    StepDone,
    Sync,
    Train,
    Wait,
    WeightsSynced,
)


class World:
    """Engines, trainer and rewards that answer in an order somebody else chooses."""

    def __init__(self, plan):
        self.plan = plan
        self.samples, self.verdicts, self.events, self.trains = set(), set(), [], []
        self.admitted, self.dropped, self.finished, self.waits = {}, {}, False, []
        self.step, self.sync, self.version, self.served = False, False, 0, 0
        self.state, decided = begin(plan)
        self.take(decided)

    def send(self, event):
        self.events.append(event)
        self.state, decided = advance(self.plan, self.state, event)
        self.take(decided)

    def take(self, decided):
        assert decided, "the machine must always say something"
        for d in decided:
            getattr(self, f"on_{type(d).__name__.lower()}")(d)

    def on_admit(self, d):
        assert d.group == len(self.admitted), "prompts are drawn in order, each once"
        assert d.version == self.served
        assert not self.sync
        self.admitted[d.group] = d.version
        self.samples |= {(d.group, i) for i in range(self.plan.n)}

    def on_resume(self, d):
        assert {(d.group, s) for s in d.samples} <= self.samples

    def on_drop(self, d):
        assert d.group in self.admitted
        assert d.group not in self.dropped
        self.dropped[d.group] = d.reason
        self.samples = {s for s in self.samples if s[0] != d.group}
        self.verdicts.discard(d.group)

    def on_train(self, d):
        assert not self.step
        assert not self.sync
        ages = [self.version - self.admitted[g] for g in d.groups]
        assert d.staleness == max(ages) <= self.plan.overlap.max_staleness
        assert not any(s[0] in d.groups for s in self.samples), "a group is whole"
        assert not set(d.groups) & self.dropped.keys()
        self.trains.append(d.groups)
        self.step = True

    def on_sync(self, d):
        assert not self.step
        assert not self.sync
        assert d.version == self.version > self.served
        if not self.plan.partial:
            assert not self.samples, "a cohort is of one version"
        self.sync = True

    def on_wait(self, d):
        self.waits.append(d.reasons)
        assert set(d.reasons) == self.outstanding() | ({"continue"} & set(d.reasons))

    def on_finish(self, d):
        self.finished = True
        assert not self.outstanding()

    def outstanding(self):
        kinds = {
            "samples": self.samples,
            "verdicts": self.verdicts,
            "step": self.step,
            "sync": self.sync,
        }
        return {name for name, there in kinds.items() if there}

    def answer(self, kind, pick, live):
        """Let one outstanding thing happen."""
        if kind == "samples":
            group, sample = sorted(self.samples)[pick % len(self.samples)]
            self.samples.discard((group, sample))
            if not any(s[0] == group for s in self.samples):
                self.verdicts.add(group)
            self.send(SampleFinished(group=group, sample=sample))
        elif kind == "verdicts":
            group = sorted(self.verdicts)[pick % len(self.verdicts)]
            self.verdicts.discard(group)
            self.send(GroupComplete(group=group, live=live))
        elif kind == "step":
            self.step, self.version = False, self.version + 1
            self.send(StepDone())
        else:
            self.sync, self.served = False, self.version
            self.send(WeightsSynced())


plans = st.builds(
    Plan,
    num_groups=st.integers(1, 3),
    n=st.integers(1, 2),
    steps=st.integers(1, 5),
    prompts=st.none() | st.integers(1, 12),
    partial=st.booleans(),
    overlap=st.builds(
        Overlap,
        max_staleness=st.integers(0, 3),
        queue_size=st.integers(1, 3),
        over_sampling=st.sampled_from([0.0, 0.5, 1.0]),
        min_groups=st.sampled_from([None, 1]),
    ),
)


def run(plan, choose, limit=2000):
    """Answer what is outstanding in the order that ``choose`` says, up to the end."""
    world = World(plan)
    for _ in range(limit):
        if world.finished:
            return world
        waiting = sorted(world.outstanding())
        assert waiting, f"deadlock: {world.state}"
        world.answer(*choose(waiting))
    raise AssertionError(f"no end after {limit} events: {world.state}")


seeds = st.integers(0, 2**32).map(random.Random)


def drawn(rng, dead=0.1):
    """A choice at random; this share of the verdicts is dead."""

    def choose(waiting):
        return rng.choice(waiting), rng.randrange(8), rng.random() >= dead

    return choose


@settings(max_examples=150, deadline=None)
@given(plans, seeds)
def test_no_group_is_trained_twice_lost_or_too_old(plan, rng):
    world = run(plan, drawn(rng))
    trained = [g for groups in world.trains for g in groups]
    assert len(trained) == len(set(trained))
    left = {g.number for g in (*world.state.ready, *world.state.flying)}
    assert set(trained) | world.dropped.keys() | left == set(world.admitted)
    assert not set(trained) & world.dropped.keys()
    counts = world.state.counts
    assert counts["trained"] == len(trained)
    reasons = Counter(world.dropped.values())
    assert reasons == {r: counts[r] for r in ("stale", "surplus", "dead") if counts[r]}
    assert world.served == world.version == len(world.trains)
    if plan.prompts is None:
        assert len(world.trains) == plan.steps
        assert all(len(groups) == plan.num_groups for groups in world.trains)
    else:
        assert len(world.admitted) <= plan.prompts
        least = plan.overlap.min_groups or plan.num_groups
        short = len(world.trains) < plan.steps
        assert not short or (len(left) < least and len(world.admitted) == plan.prompts)


@settings(max_examples=80, deadline=None)
@given(plans, seeds)
def test_without_over_sampling_nobody_grows_stale_where_steps_wait(plan, rng):
    plan = replace(plan, overlap=replace(plan.overlap, over_sampling=0.0))
    world = run(plan, drawn(rng))
    assert world.state.counts["stale"] == 0


@settings(max_examples=60, deadline=None)
@given(plans, seeds)
def test_dropping_bounds_age_too(plan, rng):
    plan = replace(plan, partial=True, overlap=replace(plan.overlap, stale="drop"))
    world = run(plan, drawn(rng))
    ages = [
        version - world.admitted[group]
        for version, groups in enumerate(world.trains)
        for group in groups
    ]
    assert max(ages, default=0) <= plan.overlap.max_staleness


@settings(max_examples=60, deadline=None)
@given(plans, seeds)
def test_interrupts_and_lost_engines_lose_nothing(plan, rng):
    def choose_with_trouble(world):
        trouble = rng.randrange(10)
        if trouble == 0:
            groups = tuple(sorted({g for g, _ in world.samples}))
            world.send(EngineLost(groups=groups))
        elif trouble == 1:
            before = world.state
            world.send(Interrupted())
            assert "continue" in world.waits[-1]
            while world.outstanding() and rng.random() < 0.5:
                world.answer(*drawn(rng)(sorted(world.outstanding())))
            assert world.state.begun == before.begun, "nothing begins while stopped"
            assert world.state.drawn == before.drawn
            world.send(Continued())

    world = World(plan)
    for _ in range(400):
        if world.finished:
            break
        choose_with_trouble(world)
        waiting = sorted(world.outstanding())
        if not world.finished and waiting:
            world.answer(*drawn(rng)(waiting))
    trained = [g for groups in world.trains for g in groups]
    assert world.finished
    assert len(trained) == len(set(trained))


@settings(max_examples=40, deadline=None)
@given(plans, seeds)
def test_equal_events_give_equal_decisions(plan, rng):
    world = run(plan, drawn(rng))
    state, decided = begin(plan)
    for event in world.events:
        state, decided = advance(plan, state, event)
    assert state == world.state
    assert decided[-1] == Finish()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.booleans(), seeds)
def test_a_bound_of_0_takes_turns(groups, n, steps, partial, rng):
    overlap = Overlap(max_staleness=0)
    plan = Plan(num_groups=groups, n=n, steps=steps, partial=partial, overlap=overlap)
    world = run(plan, drawn(rng, dead=0.0))
    expected = [tuple(range(i * groups, (i + 1) * groups)) for i in range(steps)]
    assert world.trains == expected
    assert [world.admitted[g[0]] for g in expected] == list(range(steps))


def test_one_batch_ahead_by_hand():
    plan = Plan(num_groups=1, n=2, steps=2)
    state, decided = begin(plan)
    assert decided == (Admit(group=0, version=0),)
    state, decided = advance(plan, state, SampleFinished(group=0, sample=1))
    assert decided == (Wait(reasons=("samples",)),)
    state, decided = advance(plan, state, SampleFinished(group=0, sample=0))
    assert decided == (Wait(reasons=("verdicts",)),)
    state, decided = advance(plan, state, GroupComplete(group=0))
    assert decided == (Train(groups=(0,), staleness=0), Admit(group=1, version=0))
    state, decided = advance(plan, state, StepDone())
    assert decided == (Wait(reasons=("samples",)),), "the cohort under way is of one version"
    for sample in (0, 1):
        state, _ = advance(plan, state, SampleFinished(group=1, sample=sample))
    state, decided = advance(plan, state, GroupComplete(group=1))
    assert decided == (Sync(version=1),)
    state, decided = advance(plan, state, WeightsSynced())
    assert decided == (Train(groups=(1,), staleness=1),)
    state, decided = advance(plan, state, StepDone())
    assert decided == (Sync(version=2),)
    state, decided = advance(plan, state, WeightsSynced())
    assert decided[-1] == Finish()
    assert state.counts == {"trained": 2, "stale": 0, "surplus": 0, "dead": 0, "retried": 0}


def test_partial_rollout_syncs_under_way():
    plan = Plan(num_groups=1, n=1, steps=3, partial=True)
    state, decided = begin(plan)
    assert decided == (Admit(group=0, version=0), Admit(group=1, version=0))
    state, _ = advance(plan, state, SampleFinished(group=0, sample=0))
    state, decided = advance(plan, state, GroupComplete(group=0))
    assert decided == (Train(groups=(0,), staleness=0),)
    state, decided = advance(plan, state, StepDone())
    assert decided == (Sync(version=1),), "group 1 is under way"
    state, decided = advance(plan, state, WeightsSynced())
    assert decided == (Admit(group=2, version=1),)
    # group 2 comes first, but group 1 would be too old after a step on it
    state, _ = advance(plan, state, SampleFinished(group=2, sample=0))
    state, decided = advance(plan, state, GroupComplete(group=2))
    assert decided == (Wait(reasons=("samples",)),)
    state, _ = advance(plan, state, SampleFinished(group=1, sample=0))
    state, decided = advance(plan, state, GroupComplete(group=1))
    assert decided == (Train(groups=(1,), staleness=1),)


def test_over_sampling_trains_the_first_to_come():
    plan = Plan(num_groups=2, n=1, steps=1, overlap=Overlap(over_sampling=0.5))
    state, decided = begin(plan)
    assert [d.group for d in decided] == [0, 1, 2]
    for group in (2, 0):
        state, _ = advance(plan, state, SampleFinished(group=group, sample=0))
        state, decided = advance(plan, state, GroupComplete(group=group))
    assert decided == (Drop(group=1, reason="surplus"), Train(groups=(0, 2), staleness=0))
    state, decided = advance(plan, state, SampleFinished(group=1, sample=0))
    assert decided == (Wait(reasons=("step",)),), "a sample of a dropped group changes nothing"


def test_a_dead_group_is_replaced_until_the_prompts_run_out():
    plan = Plan(num_groups=2, n=1, steps=1, prompts=3, overlap=Overlap(min_groups=1))
    state, decided = begin(plan)
    assert [d.group for d in decided] == [0, 1]
    state, _ = advance(plan, state, SampleFinished(group=0, sample=0))
    state, decided = advance(plan, state, GroupComplete(group=0, live=False))
    assert decided == (Drop(group=0, reason="dead"), Admit(group=2, version=0))
    for group in (1, 2):
        state, _ = advance(plan, state, SampleFinished(group=group, sample=0))
    state, _ = advance(plan, state, GroupComplete(group=1, live=False))
    state, decided = advance(plan, state, GroupComplete(group=2))
    assert decided == (Train(groups=(2,), staleness=0),)


def test_an_engine_that_is_lost_gets_its_missing_samples_again():
    plan = Plan(num_groups=2, n=2, steps=1)
    state, _ = begin(plan)
    state, _ = advance(plan, state, SampleFinished(group=0, sample=1))
    state, decided = advance(plan, state, EngineLost(groups=(0,)))
    assert decided == (Resume(group=0, samples=(0,)),)
    assert state.counts["retried"] == 1
    state, decided = advance(plan, state, Interrupted())
    assert decided == (Wait(reasons=("continue", "samples")),)
    state, decided = advance(plan, state, Continued())
    assert decided == (Resume(group=0, samples=(0,)), Resume(group=1, samples=(0, 1)))


@pytest.mark.parametrize("event", [StepDone(), WeightsSynced(), GroupComplete(group=0)])
def test_events_that_cannot_come_are_refused(event):
    plan = Plan(num_groups=1, n=1, steps=1)
    state, _ = begin(plan)
    with pytest.raises(StepError, match=r"was begun|cannot be complete"):
        advance(plan, state, event)


def test_a_plan_names_all_its_problems():
    with pytest.raises(ConfigError) as caught:
        Plan(
            num_groups=0,
            n=1,
            steps=1,
            overlap=Overlap(max_staleness=-1, queue_size=0, stale="keep"),
        )
    for part in ("4 problems", "num_groups", "max_staleness", "queue_size", "stale 'keep'"):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match="has no effect where a batch is of one version"):
        Plan(num_groups=1, n=1, steps=1, overlap=Overlap(stale="drop"))
    with pytest.raises(ConfigError, match="min_groups=3 is more than the 2"):
        Plan(num_groups=2, n=1, steps=1, overlap=Overlap(min_groups=3))


def test_a_run_goes_on_from_a_kept_state():
    plan = Plan(num_groups=1, n=1, steps=2)
    state, _ = begin(plan)
    state, _ = advance(plan, state, Interrupted())
    again, decided = begin(plan, state)
    assert again == state
    assert decided == (Wait(reasons=("continue", "samples")),)
    assert begin(plan, Buffer())[1] == (Admit(group=0, version=0),)
