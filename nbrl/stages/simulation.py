"""What a run would take with other settings: its own records, played through ``buffer``. Pure.

Time is counted, not spent: samples take as long as they took in the record, ``slots`` of them at
once, and steps and syncs as long as they took. What cannot be seen so: that a sample is quicker
when fewer are under way, and that engines and trainer slow each other on shared devices.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from nbrl.errors import DataError
from nbrl.frozen import frozen
from nbrl.stages.buffer import Plan, advance, begin
from nbrl.stages.messages import (
    Admit,
    Decision,
    Drop,
    Event,
    GroupComplete,
    SampleFinished,
    StepDone,
    Sync,
    Train,
    WeightsSynced,
)
from nbrl.types import Rollouts

Sample = tuple[int, int]


@frozen()
class Durations:
    """How long the parts of a run take, in seconds.

    ``samples`` holds the seconds of each sample by group; group ``k`` of a simulated run takes
    those of row ``k`` modulo their number. ``slots`` samples are generated at once, over all
    engines; ``step`` is a training step of one batch, ``sync`` a transfer of weights.

    Example: ``Durations(samples=((1.0, 4.0), (2.0, 2.0)), step=1.5, sync=0.1, slots=4)``.
    """

    samples: tuple[tuple[float, ...], ...]
    step: float
    sync: float = 0.0
    slots: int = 256

    def __post_init__(self) -> None:
        sizes = sorted({len(group) for group in self.samples})
        if len(sizes) != 1 or not sizes[0]:
            raise DataError(
                "Durations.samples needs groups of one size, each with a sample; got groups of "
                f"{sizes or 'none'}. Leave incomplete groups out."
            )
        numbers = [*(s for group in self.samples for s in group), self.step, self.sync]
        if not all(np.isfinite(s) and s >= 0 for s in numbers) or self.slots < 1:
            raise DataError(
                "Durations need finite seconds >= 0 and slots >= 1; got "
                f"step={self.step!r}, sync={self.sync!r}, slots={self.slots!r}, samples from "
                f"{min(numbers)!r} to {max(numbers)!r}."
            )


@frozen(eq=False)
class Simulation:
    """A run that was counted through.

    ``seconds`` for ``steps`` steps; ``staleness`` counts trained groups by their age in versions;
    ``counts`` those of the machine; ``timeline`` has a row a span: ``role`` (``engines``,
    ``trainer``, ``sync``), ``start``, ``end``, in seconds. ``busy`` is each role's share of the
    time: of the engines, the mean share of slots that hold a sample.
    """

    seconds: float
    steps: int
    staleness: Mapping[int, int]
    counts: Mapping[str, int]
    busy: Mapping[str, float]
    timeline: pd.DataFrame

    def __repr__(self) -> str:
        busy = ", ".join(f"{role} {share:.0%}" for role, share in self.busy.items())
        return f"Simulation({self.steps} steps in {self.seconds:.3g} s; busy: {busy})"


def durations(
    rollouts: Rollouts, *, step: float, sync: float = 0.0, slots: int | None = None
) -> Durations:
    """The durations of recorded samples: column ``seconds``, by group.

    Args:
        rollouts: Of one or more steps; every group of the same size.
        step: Seconds of a training step on one batch.
        sync: Seconds of a transfer of weights.
        slots: How many samples are generated at once; by default as many as there are rows.

    Raises:
        DataError: Groups differ in size, or a time is missing.
    """
    table = rollouts.table
    groups: dict[str, list[float]] = {}
    columns = (table.column(name).to_pylist() for name in ("group_id", "seconds"))
    for group, seconds in zip(*columns, strict=True):
        groups.setdefault(group, []).append(float("nan") if seconds is None else seconds)
    samples = tuple(tuple(group) for group in groups.values())
    return Durations(samples=samples, step=step, sync=sync, slots=slots or max(len(rollouts), 1))


def simulate(recorded: Durations, plan: Plan) -> Simulation:
    """The run that ``plan`` would give with these durations; every group is live.

    Raises:
        DataError: The record's groups have another size than the plan's.
    """
    if len(recorded.samples[0]) != plan.n:
        raise DataError(
            f"simulate: the plan asks for n={plan.n} samples a group, the record has groups of "
            f"{len(recorded.samples[0])}. Give both the same."
        )
    clock = _Clock(recorded=recorded)
    state, decided = begin(plan)
    _obey(clock, decided)
    while clock.heap or clock.running:
        event = _next(clock)
        state, decided = advance(plan, state, event)
        _obey(clock, decided)
        if isinstance(event, SampleFinished):
            for group in [g for g, left in clock.missing.items() if not left]:
                del clock.missing[group]
                state, decided = advance(plan, state, GroupComplete(group=group))
                _obey(clock, decided)
    return _summary(clock, state.version, state.counts)


def compare_plans(recorded: Durations, plans: Mapping[str, Plan]) -> pd.DataFrame:
    """One row a plan, the first being the yardstick.

    Columns: ``seconds_per_step``, ``samples_per_second`` (trained ones), ``speedup`` against the
    first plan, ``staleness`` (mean age in versions of a trained group) and ``oldest``,
    ``engines_busy``, ``trainer_busy`` (shares of the time), ``dropped`` groups.
    """
    rows = {}
    for name, plan in plans.items():
        run = simulate(recorded, plan)
        ages = np.repeat(list(run.staleness), list(run.staleness.values()))
        rows[name] = {
            "seconds_per_step": run.seconds / max(run.steps, 1),
            "samples_per_second": len(ages) * plan.n / run.seconds if run.seconds else np.inf,
            "staleness": ages.mean() if len(ages) else np.nan,
            "oldest": int(ages.max(initial=0)),
            "engines_busy": run.busy["engines"],
            "trainer_busy": run.busy["trainer"],
            "dropped": sum(run.counts[reason] for reason in ("stale", "surplus", "dead")),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("plan")
    speed = table["samples_per_second"]
    table.insert(2, "speedup", speed / speed.iloc[0] if len(speed) else speed)
    return table


# ---- a clock that is moved, not waited for ------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class _Clock:
    """What is under way. ``heap`` holds ends of steps and syncs, ``running`` those of samples."""

    recorded: Durations
    now: float = 0.0
    slot_seconds: float = 0.0
    heap: list[tuple[float, int, Event]] = field(default_factory=list)
    running: dict[Sample, float] = field(default_factory=dict)
    queue: deque[Sample] = field(default_factory=deque)
    missing: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    version: int = 0
    ages: Counter[int] = field(default_factory=Counter)
    spans: list[tuple[str, float, float]] = field(default_factory=list)


def _next(clock: _Clock) -> Event:
    """Move to the next end of anything, and say what it was."""
    first = min(clock.running, key=clock.running.__getitem__) if clock.running else None
    if first is None or (clock.heap and clock.heap[0][0] <= clock.running[first]):
        end, _, event = heapq.heappop(clock.heap)
        _move(clock, end)
        clock.version += isinstance(event, StepDone)
        return event
    _move(clock, clock.running[first])
    del clock.running[first]
    clock.missing[first[0]] -= 1
    _fill(clock)
    return SampleFinished(group=first[0], sample=first[1])


def _move(clock: _Clock, to: float) -> None:
    held = len(clock.running)
    clock.slot_seconds += held * (to - clock.now)
    if held and to > clock.now:
        last = clock.spans[-1] if clock.spans else None
        clock.spans.append(("engines", clock.now, to))
        if last and last[0] == "engines" and last[2] == clock.now:
            clock.spans[-2:] = [("engines", last[1], to)]
    clock.now = to


def _obey(clock: _Clock, decided: Sequence[Decision]) -> None:
    for decision in decided:
        act = _ACTS.get(type(decision))
        if act:
            act(clock, decision)
    _fill(clock)


def _admit(clock: _Clock, decision: Admit) -> None:
    n = len(clock.recorded.samples[0])
    clock.queue.extend((decision.group, sample) for sample in range(n))
    clock.missing[decision.group] = n
    clock.versions[decision.group] = decision.version


def _drop(clock: _Clock, decision: Drop) -> None:
    clock.queue = deque(s for s in clock.queue if s[0] != decision.group)
    for sample in [s for s in clock.running if s[0] == decision.group]:
        del clock.running[sample]
    clock.missing.pop(decision.group, None)


def _train(clock: _Clock, decision: Train) -> None:
    for group in decision.groups:
        clock.ages[clock.version - clock.versions[group]] += 1
    _begin(clock, "trainer", clock.recorded.step, StepDone())


def _sync(clock: _Clock, _: Sync) -> None:
    # samples under way keep their place and stand still
    for sample in clock.running:
        clock.running[sample] += clock.recorded.sync
    _begin(clock, "sync", clock.recorded.sync, WeightsSynced())


_ACTS = {Admit: _admit, Drop: _drop, Train: _train, Sync: _sync}


def _begin(clock: _Clock, role: str, seconds: float, event: Event) -> None:
    end = clock.now + seconds
    clock.spans.append((role, clock.now, end))
    heapq.heappush(clock.heap, (end, len(clock.spans), event))


def _fill(clock: _Clock) -> None:
    groups = clock.recorded.samples
    while clock.queue and len(clock.running) < clock.recorded.slots:
        group, sample = clock.queue.popleft()
        clock.running[group, sample] = clock.now + groups[group % len(groups)][sample]


def _summary(clock: _Clock, steps: int, counts: Mapping[str, int]) -> Simulation:
    timeline = pd.DataFrame(clock.spans, columns=["role", "start", "end"])
    total = clock.now or np.inf
    busy = {
        role: sum(end - start for part, start, end in clock.spans if part == role) / total
        for role in ("trainer", "sync")
    }
    busy = {"engines": clock.slot_seconds / (total * clock.recorded.slots), **busy}
    return Simulation(
        seconds=clock.now,
        steps=steps,
        staleness=dict(sorted(clock.ages.items())),
        counts=counts,
        busy=busy,
        timeline=timeline.sort_values("start", kind="stable", ignore_index=True),
    )
