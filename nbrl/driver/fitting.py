"""The verb ``fit``: epochs of steps on training data, watched on data that are held out.

May import what the verbs may.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbrl.backends.interrupts import guarded, held_interrupts
from nbrl.config import (
    KTO,
    Distillation,
    HeldOut,
    Objective,
    RewardLoss,
    check_config,
    to_spec,
    wants_reference_logprobs,
)
from nbrl.driver.averaging import averaged_policy, keeps_average
from nbrl.driver.checkpointing import write_metrics
from nbrl.driver.learning import Course, batches_of, prepared, resolve, step, tokenized
from nbrl.driver.pace import room_problems, tell_pace
from nbrl.driver.runtime import Runtime
from nbrl.driver.seeds import derive
from nbrl.errors import ConfigError, StepError, StoreError
from nbrl.protocols import Advance, Measurer, Restorable, Unloading
from nbrl.rules import kind_problems, whole_problems
from nbrl.stages.sequences import Sequences, sequences_of
from nbrl.types import Examples, History, Metric, StepResult


@dataclass(kw_only=True, slots=True)
class _Best:
    """The lowest held-out loss so far, and the weights that had it."""

    loss: float = math.inf
    version: int = 0
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Fit:
    """All that a fit goes by."""

    data: Examples
    sets: list[Sequences]
    objective: Objective
    batches: list[tuple[int, np.ndarray]]
    held_out: HeldOut | None
    unseen: list[Sequences]
    best: _Best


def fit(
    runtime: Runtime,
    data: Examples,
    objective: Objective,
    *,
    epochs: int,
    batch_size: int,
    held_out: HeldOut | Examples | None,
) -> History:
    """Steps over all examples, epoch after epoch in a new order; what was whole where Ctrl-C comes.

    The last batch of an epoch is as short as it is. Reference log-probs are fetched once, and the
    reference is let go before the first step, a teacher after the last one.

    Raises:
        ConfigError: The settings cannot work; nothing was done.
    """
    watched = HeldOut(held_out) if isinstance(held_out, Examples) else held_out
    counts = {"epochs": (epochs, 1), "batch_size": (batch_size, 1)}
    problems = [*whole_problems(counts), *_held_out_problems(runtime, watched)]
    resolved = resolve(runtime, data, objective, "fit", extra=problems)
    if watched is not None:
        check_config("fit", watched)
        resolve(runtime, watched.data, objective, "fit, held_out")
    if isinstance(resolved, KTO) and min(batch_size, len(data)) < 2:
        raise ConfigError(
            "fit: KTO needs batches of 2 rows or more; its reference point is a mean."
        )
    ready = tokenized(runtime, data)
    batches = list(_batches(runtime, len(ready), resolved, epochs, batch_size))
    check_config("fit", extra=room_problems(runtime, len(batches)))
    tell_pace(runtime, len(batches))
    first, start = len(runtime.records), runtime.version
    plan, interrupted = None, False
    try:
        with runtime.progress.phase("fit", len(batches), "steps") as advance:
            plan = _plan(runtime, ready, resolved, batches, watched)
            _run(runtime, plan, advance)
    except KeyboardInterrupt:
        if plan is None:
            raise
        interrupted = True
    finally:
        if isinstance(resolved, Distillation):
            _unload(runtime)
    if watched is not None and watched.keep == "best":
        _put_best_back(runtime, plan.best)
    if isinstance(resolved, RewardLoss) and not interrupted:
        interrupted = _note_scale(runtime, plan)
    spec = {
        "objective": type(resolved).__name__,
        "settings": to_spec(resolved),
        "epochs": epochs,
        "batch_size": batch_size,
        "data": dict(plan.data.spec),
        "version": start,
        "score_scale": runtime.score_scale,
    }
    records = tuple(map(dict, runtime.records[first:]))
    return History(records=records, interrupted=interrupted, spec=spec)


def _plan(
    runtime: Runtime,
    data: Examples,
    objective: Objective,
    batches: list[tuple[int, np.ndarray]],
    held_out: HeldOut | None,
) -> _Fit:
    """All that the steps need, with the log-probs of a reference that is then let go."""
    ready = prepared(runtime, data, objective)
    unseen = [] if held_out is None else sequences_of(prepared(runtime, held_out.data, objective))
    if wants_reference_logprobs(objective):
        _unload(runtime)
    return _Fit(
        data=ready,
        sets=sequences_of(ready),
        objective=objective,
        batches=batches,
        held_out=held_out,
        unseen=unseen,
        best=_Best(),
    )


def _unload(runtime: Runtime) -> None:
    """Free what the trainer holds beside the models it trains, where it can."""
    if isinstance(runtime.trainer, Unloading):
        runtime.trainer.unload()


def _held_out_problems(runtime: Runtime, held_out: object) -> list[str]:
    if held_out is None:
        return []
    problems = list(kind_problems({"held_out": (held_out, HeldOut | Examples)}))
    if not isinstance(runtime.trainer, Measurer):
        problems.append("held_out: this session's trainer cannot measure without learning")
    best = isinstance(held_out, HeldOut) and held_out.keep == "best"
    if best and not isinstance(runtime.trainer, Restorable):
        problems.append("held_out with keep='best': this trainer's state cannot be kept")
    return problems


def _batches(
    runtime: Runtime, count: int, objective: Objective, epochs: int, size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """The epoch and the examples of each step."""
    for epoch in range(epochs):
        seed = derive(runtime.seed, "fit", runtime.version, epoch)
        order = np.random.default_rng(seed).permutation(count)
        for part in np.split(order, _cuts(count, size, objective)):
            yield epoch, part


def _cuts(count: int, size: int, objective: Objective) -> list[int]:
    """Where the examples of an epoch are cut into batches."""
    cuts = list(range(size, count, size))
    if isinstance(objective, KTO) and cuts and count - cuts[-1] < 2:
        # a single row has no reference point: it goes along with the batch before
        cuts.pop()
    return cuts


def _run(runtime: Runtime, plan: _Fit, advance: Advance) -> None:
    """All steps of the plan."""
    total = len(plan.batches)
    epochs = plan.batches[-1][0] + 1
    for at, (epoch, part) in enumerate(plan.batches, start=1):
        ends = at == total or plan.batches[at][0] != epoch
        due = _is_due(plan.held_out, at, ends=ends, last=at == total)

        def look(_: StepResult, at: int = at, due: bool = due) -> Mapping[str, float]:
            seen = _look(runtime, plan) if due else {}
            return {"epoch": epochs * at / total, **seen}

        course = Course(objective=plan.objective, sets=plan.sets, advance=_unheard, look=look)
        result = step(runtime, plan.data, [part], course)
        runtime.progress.note(_note(result.metrics))
        advance(1, int(result.metrics["tokens"].value))


def _unheard(units: int, tokens: int) -> None:
    """Steps are counted, not what they are made of."""


def _is_due(held_out: HeldOut | None, done: int, *, ends: bool, last: bool) -> bool:
    if held_out is None:
        return False
    return last or (ends if held_out.every is None else done % held_out.every == 0)


def measure(
    runtime: Runtime, sets: list[Sequences], objective: Objective, what: str = "held out"
) -> Mapping[str, Metric]:
    """The objective on examples that are not learned from, all of them as one."""
    assert isinstance(runtime.trainer, Measurer)
    units = np.arange(len(sets[0]) // sets[0].unit)
    batches = batches_of(runtime, sets, units)
    with (
        held_interrupts() as held,
        runtime.progress.phase(what, len(sets[0]), "answers") as advance,
    ):
        return runtime.trainer.measure(batches, objective, guarded(advance, held.check))


def _look(runtime: Runtime, plan: _Fit) -> dict[str, float]:
    """What the objective is on the held-out data; the best weights are kept."""
    found = measure(runtime, plan.unseen, plan.objective)
    best, loss = plan.best, found["loss"].value
    assert plan.held_out is not None
    if plan.held_out.keep == "best" and loss < best.loss:
        trainer = runtime.trainer
        assert isinstance(trainer, Restorable)
        best.state, best.version, best.loss = trainer.state(), runtime.version, loss
    seen = {f"held_out_{name}": metric.value for name, metric in found.items()}
    if not keeps_average(runtime):
        return seen
    with averaged_policy(runtime):
        mean = measure(runtime, plan.unseen, plan.objective)
    return seen | {f"held_out_averaged_{name}": metric.value for name, metric in mean.items()}


def _put_best_back(runtime: Runtime, best: _Best) -> None:
    """The weights of the lowest held-out loss, under a version of their own."""
    if best.state is None or best.version == runtime.version:
        return
    trainer = runtime.trainer
    assert isinstance(trainer, Restorable)
    with held_interrupts():
        trainer.load_state(best.state)
        runtime.version += 1
        runtime.engine.load_weights(runtime.weights_to_send(), runtime.version)
        line: dict[str, float | int] = {"version": runtime.version, "best_version": best.version}
        runtime.records.append(line)
        runtime.unwritten.append(line)
        # what the disk refuses stays in line, and the next step tries again and says so
        with contextlib.suppress(StoreError):
            write_metrics(runtime)


def _note_scale(runtime: Runtime, plan: _Fit) -> bool:
    """Note the scale of the scores of the training data; whether Ctrl-C came instead."""
    try:
        runtime.score_scale = scale_of(runtime, plan.data, plan.objective, "training")
    except KeyboardInterrupt:
        return True
    except StepError as error:
        # the steps were taken, so the fit has a result
        warnings.warn(f"fit: no scale is noted: {error}", stacklevel=2)
    return False


def scale_of(runtime: Runtime, pairs: Examples, objective: Objective, role: str) -> dict[str, Any]:
    """Mean and sample std of a reward model's scores of both sides, and what they are of.

    Raises:
        StepError: All scores are equal, so that nothing can be divided by their std.
    """
    found = measure(runtime, sequences_of(pairs), objective, "scale")
    mean, std = found["score"], found["score_std"]
    if not std.value > 0:
        raise StepError(
            f"the reward model gives all {mean.count} answers of {pairs!r} the score {mean.value}; "
            "a scale cannot be taken from that. Train on."
        )
    origin = {"role": role, "data": pairs.spec.get("source"), "scores": mean.count}
    return {"mean": mean.value, "std": std.value, "origin": origin | {"version": runtime.version}}


def _note(metrics: Mapping[str, Metric]) -> str:
    shown = ("loss", "accuracy", "token_accuracy", "grad_norm")
    return ", ".join(f"{name} {metrics[name].value:.3g}" for name in shown if name in metrics)
