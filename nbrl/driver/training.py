"""The verbs that ask the trainer: annotate, compute_advantages, probe, train_step.

May import ``stages``, ``backends.interrupts`` and what ``runtime`` may.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.backends.interrupts import guarded, held_interrupts
from nbrl.config import KL, PolicyLoss, Shaping, check_config, kl_problems, to_spec, wants_reference
from nbrl.driver.foresight import loss_needs
from nbrl.driver.freshness import check_batch, is_current, is_foreign
from nbrl.driver.keeping import keep
from nbrl.driver.lineage import batch_spec
from nbrl.driver.metrics import batch_metrics, merge_terms, token_table
from nbrl.driver.plan import loss_columns, micro_batches, step_plan, trains_critic
from nbrl.driver.runtime import Runtime, Stopwatch
from nbrl.errors import StepError
from nbrl.protocols import ANNOTATIONS, LossTerms, MicroBatch
from nbrl.rules import among, is_whole, kind_problems, shown, whole_problems
from nbrl.stages import advantages as stage
from nbrl.stages.batching import make_batches, scatter
from nbrl.types import Advantaged, Probe, Rollouts, Scored, StepResult
from nbrl.types.columns import ragged, row_at

COMPUTED_BY = {
    "old_logprobs": "the policy",
    "entropy": "the policy",
    "ref_logprobs": "the reference",
    "values": "the critic",
}


def annotate(runtime: Runtime, rollouts: Rollouts, wanted: Sequence[str]) -> Rollouts:
    """The rollouts with these token columns added, computed by the trainer as it is now.

    Raises:
        ConfigError: A column that nobody computes, ``values`` without a critic, or
            ``old_logprobs`` of samples that an older policy drew (those can no longer be computed).
        StepError: A model says NaN or infinity, as one does that has diverged.
    """
    check_config(
        f"annotate {shown(wanted)}", extra=list(_annotation_problems(runtime, rollouts, wanted))
    )
    if not len(rollouts):
        return rollouts
    batches = make_batches(
        rollouts, {}, max_tokens=runtime.micro_batch_tokens, packed=runtime.packs_rows
    )
    # Held: struck half-way, a model could keep its adapter switched off.
    with (
        held_interrupts() as held,
        runtime.progress.phase("annotate", len(rollouts), "samples") as advance,
    ):
        found = runtime.trainer.annotate(batches, tuple(wanted), guarded(advance, held.check))
    columns = {n: scatter(batches, found[n], rollouts) for n in wanted}
    _check_finite(runtime, rollouts, columns)
    return rollouts.with_columns(columns)


def _annotation_problems(runtime: Runtime, rollouts: Any, wanted: Any) -> Iterator[str]:
    yield from kind_problems({"rollouts": (rollouts, Rollouts)})
    if not isinstance(wanted, list | tuple) or not wanted:
        known = ", ".join(ANNOTATIONS)
        yield f"columns must be a list of names among {known}; got {shown(wanted)}"
        return
    for name in wanted:
        yield from among("token column", name, ANNOTATIONS)
    if "values" in wanted and not runtime.has_critic:
        yield "values need a critic; connect with trainer=Trainer(critic=Critic())"
    if not isinstance(rollouts, Rollouts):
        return
    if "old_logprobs" in wanted and not is_current(runtime, rollouts):
        yield (
            "old_logprobs are those of the policy that sampled, and that is not this policy as it "
            f"is now, at version {runtime.version}. Annotate before training on others"
        )


def _check_finite(
    runtime: Runtime, rollouts: Rollouts, columns: Mapping[str, pa.ListArray]
) -> None:
    for name, column in columns.items():
        flat, offsets = ragged(column)
        bad = np.flatnonzero(~np.isfinite(flat))
        if len(bad):
            row = row_at(offsets, bad[0])
            raise StepError(
                f"annotate {name!r} at version {runtime.version}: {flat[bad[0]]} for sample "
                f"{rollouts.table.column('sample_id')[row].as_py()!r}, and {len(bad)} of "
                f"{len(flat)} numbers are not finite: {COMPUTED_BY[name]} has diverged. Go back to "
                "weights from before (load a checkpoint, or connect again), and train with a lower "
                "learning rate."
            )


def compute_advantages(
    runtime: Runtime, scored: Scored, estimator: Any, *, kl: KL | None, shaping: Shaping | None
) -> Advantaged:
    """The pure stage, after fetching the reference log-probs and values that it needs."""
    watch = Stopwatch()
    # What can be refused is refused before the model is asked for columns.
    problems = stage.request_problems(scored, estimator, kl=kl, shaping=shaping)
    missing: list[str] = []
    if isinstance(scored, Scored):
        there = scored.rollouts.table.column_names
        missing += [n for n in stage.columns_asked(estimator, kl) if n not in there]
        problems += _annotation_problems(runtime, scored.rollouts, missing) if missing else []
    settings = [c for c in (kl, shaping) if isinstance(c, KL | Shaping)]
    check_config(f"compute_advantages({shown(estimator)})", *settings, extra=problems)
    if missing:
        rollouts = annotate(runtime, scored.rollouts, missing)
        scored = dataclasses.replace(scored, rollouts=rollouts)
    runtime.last_scored = scored
    done = stage.compute_advantages(scored, estimator, kl=kl, shaping=shaping)
    return dataclasses.replace(done, spec={**done.spec, "seconds": {"advantages": watch.read()}})


def probe(
    runtime: Runtime, batch: Advantaged, losses: Mapping[str, PolicyLoss]
) -> dict[str, Probe]:
    """What each loss would do to the batch, on one shared forward pass; nothing changes."""
    named = dict(losses) if isinstance(losses, Mapping) else {}
    kinds = {"batch": (batch, Advantaged), "losses": (losses, Mapping)}
    each = {f"loss {n!r}": (loss, PolicyLoss) for n, loss in named.items()}
    problems = [*kind_problems(kinds), *kind_problems(each)]
    problems += [f"a loss's name must be a text; got {n!r}" for n in named if not _is_text(n)]
    if isinstance(losses, Mapping) and not losses:
        problems.append("there is no loss; pass at least one, e.g. {'ppo': PolicyLoss()}")
    if isinstance(batch, Advantaged) and not len(batch):
        problems.append("the batch holds no samples; roll out more prompts")
    good = [loss for loss in named.values() if isinstance(loss, PolicyLoss)]
    problems += [p for loss in good for p in _loss_problems(runtime, batch, loss)]
    check_config("probe", *good, extra=dict.fromkeys(problems))
    batch = _with_reference(runtime, batch, any(wants_reference(x.kl) for x in losses.values()))
    resolved = {name: _resolved(loss, batch) for name, loss in losses.items()}
    passes = _passes(runtime, batch, resolved)
    found: dict[str, Probe] = {}
    with (
        held_interrupts() as held,
        runtime.progress.phase("probe", len(batch) * len(passes), "samples") as advance,
    ):
        ask = guarded(advance, held.check)
        for together in passes:
            corrected = any(loss.correction is not None for loss in together.values())
            columns = loss_columns(runtime, batch, corrected=corrected)
            batches = micro_batches(runtime, batch, columns)
            for name, terms in runtime.trainer.probe(batches, together, ask).items():
                found[name] = _probe(runtime, batch, batches, terms, (name, resolved[name]))
    return {name: found[name] for name in losses}


def _is_text(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip())


def _passes(
    runtime: Runtime, batch: Advantaged, losses: Mapping[str, PolicyLoss]
) -> list[dict[str, PolicyLoss]]:
    """The losses that can share a forward pass and its columns: all, if the batch is current.

    On other samples a correction changes what the ratio runs from, so those losses go apart.
    """
    if is_current(runtime, batch.scored.rollouts):
        return [dict(losses)]
    plain = {name: loss for name, loss in losses.items() if loss.correction is None}
    corrected = {name: loss for name, loss in losses.items() if loss.correction is not None}
    return [together for together in (plain, corrected) if together]


def _probe(
    runtime: Runtime,
    batch: Advantaged,
    batches: Sequence[MicroBatch],
    terms: LossTerms,
    named: tuple[str, PolicyLoss],
) -> Probe:
    assert terms.sketch is not None
    return Probe(
        name=named[0],
        version=runtime.version,
        metrics=terms.metrics,
        tokens=token_table(batch, [batches], [terms]),
        sketch=terms.sketch,
        spec={"loss": to_spec(named[1]), **batch_spec(runtime, batch)},
    )


def train_step(
    runtime: Runtime,
    batch: Advantaged,
    *,
    loss: PolicyLoss,
    minibatches: int = 1,
    epochs: int = 1,
    expect_version: int | None = None,
    again: bool = False,
) -> StepResult:
    """One update: all optimizer steps of the batch, or none.

    Raises:
        ConfigError: The settings cannot work; all problems are listed.
        StepError: The batch was trained on before, is stale, or holds nothing to train on.
    """
    kinds = {"batch": (batch, Advantaged), "loss": (loss, PolicyLoss), "again": (again, bool)}
    counts = {"minibatches": (minibatches, 1), "epochs": (epochs, 1)}
    if expect_version is not None:
        counts["expect_version"] = (expect_version, 0)
    problems = [*kind_problems(kinds), *whole_problems(counts)]
    samples = len(batch) if isinstance(batch, Advantaged) else None
    if samples is not None and is_whole(minibatches) and minibatches > max(samples, 1):
        problems.append(f"minibatches={minibatches} is more than the {samples} samples")
    judged = loss if isinstance(loss, PolicyLoss) else None
    problems += _loss_problems(runtime, batch, loss) if judged else []
    check_config("train_step", judged, extra=problems)
    digest = check_batch(runtime, batch, loss, expect_version, again)
    watch, minibatches, epochs = Stopwatch(), int(minibatches), int(epochs)
    batch = _with_reference(runtime, batch, wants_reference(loss.kl))
    columns = loss_columns(runtime, batch, corrected=loss.correction is not None)
    resolved, warnings = _resolved(loss, batch), _warnings(runtime, batch)
    plan = step_plan(runtime, batch, columns, minibatches, epochs)
    passes = {"minibatches": minibatches, "epochs": epochs}
    spec = {"loss": to_spec(resolved), **passes, **batch_spec(runtime, batch)}
    with (
        held_interrupts() as held,
        runtime.progress.phase("train_step", len(batch) * epochs, "samples") as advance,
    ):
        held.check()
        terms = runtime.trainer.step(plan, resolved, guarded(advance, held.check))
        before, runtime.version = runtime.version, runtime.version + 1
        runtime.trained[digest] = before
        runtime.engine.load_weights(runtime.weights_to_send(), runtime.version)
        result = StepResult(
            version_before=before,
            version_after=runtime.version,
            metrics={**merge_terms(terms), **batch_metrics(batch)},
            tokens=token_table(batch, plan, terms),
            seconds={**_seconds(batch), "train": watch.read()},
            spec=spec,
            warnings=warnings,
        )
        return keep(runtime, result, batch)


def _loss_problems(runtime: Runtime, batch: Any, loss: PolicyLoss) -> list[str]:
    """What this batch and this loss cannot do together."""
    if not isinstance(batch, Advantaged):
        return []
    in_reward = batch.spec.get("kl")
    length = batch.scored.rollouts.spec.get("sampling", {}).get("max_new_tokens")
    trains = trains_critic(runtime, batch)
    return [
        *kl_problems(KL(**in_reward) if in_reward else None, loss),
        *loss_needs(loss, trains_critic=trains, max_new_tokens=length),
    ]


def _resolved(loss: PolicyLoss, batch: Advantaged) -> PolicyLoss:
    """The loss with its open constant filled in from the rollouts' settings."""
    if loss.aggregation != "seq-mean-token-sum-norm" or loss.norm_length is not None:
        return loss
    sampling = batch.scored.rollouts.spec["sampling"]
    return dataclasses.replace(loss, norm_length=sampling["max_new_tokens"])


def _with_reference(runtime: Runtime, batch: Advantaged, wanted: bool) -> Advantaged:
    """The batch with reference log-probs, fetched where they are wanted and missing."""
    if not wanted or "ref_logprobs" in batch.scored.rollouts.table.column_names:
        return batch
    rollouts = annotate(runtime, batch.scored.rollouts, ["ref_logprobs"])
    return dataclasses.replace(batch, scored=dataclasses.replace(batch.scored, rollouts=rollouts))


def _seconds(batch: Advantaged) -> dict[str, float]:
    """The time of the phases that made the batch."""
    values = (batch.scored.rollouts, batch.scored, batch)
    return {phase: s for v in values for phase, s in v.spec.get("seconds", {}).items()}


def _warnings(runtime: Runtime, batch: Advantaged) -> list[str]:
    """What a reader of the step should know, in words; before the step is taken."""
    said = []
    rollouts = batch.scored.rollouts
    if not batch.table.column("live").to_numpy().any():
        said.append("every group has equal rewards: a group estimator has no signal in this batch")
    stale = rollouts.table.column("version_min").to_numpy() < runtime.version
    if is_foreign(runtime, rollouts):
        said.append("the samples were drawn by another run's policy")
    elif stale.any():
        said.append(
            f"{stale.mean():.0%} of the samples were drawn by an older version of the policy"
        )
    dropped = sum(batch.spec.get("dropped", {}).values())
    if dropped:
        said.append(
            f"{dropped} samples were dropped before the step: {dict(batch.spec['dropped'])}"
        )
    return said
