"""The verbs that ask the trainer: annotate, compute_advantages, probe, train_step.

May import ``stages``, ``backends.interrupts`` and what ``runtime`` may.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from nbrl.backends.interrupts import guarded, held_interrupts
from nbrl.config import (
    KL,
    PolicyLoss,
    Shaping,
    check_config,
    is_changed,
    kind_problems,
    kl_problems,
    to_spec,
    wants_reference,
    whole_problems,
)
from nbrl.driver.freshness import check_batch, is_current, is_foreign
from nbrl.driver.metrics import batch_metrics, merge_terms, step_record, token_table
from nbrl.driver.plan import loss_columns, micro_batches, step_plan, trains_critic
from nbrl.driver.runtime import Runtime, Stopwatch
from nbrl.errors import ConfigError, StoreError, unknown_name
from nbrl.protocols import ANNOTATIONS, LossTerms, MicroBatch
from nbrl.stages import advantages as stage
from nbrl.stages.batching import make_batches, scatter
from nbrl.stages.shaping import largest_group
from nbrl.types import Advantaged, Probe, Rollouts, Scored, StepResult


def annotate(runtime: Runtime, rollouts: Rollouts, wanted: Sequence[str]) -> Rollouts:
    """The rollouts with these token columns added, computed by the trainer as it is now.

    Raises:
        UnknownNameError: A column that nobody computes.
        ConfigError: ``values`` without a critic, or ``old_logprobs`` of samples that an older
            policy drew (those can no longer be computed).
    """
    check_config("annotate", extra=kind_problems({"rollouts": (rollouts, Rollouts)}))
    for name in wanted:
        if name not in ANNOTATIONS:
            raise unknown_name("token column", name, ANNOTATIONS)
    check_config(f"annotate {list(wanted)}", extra=_annotation_problems(runtime, rollouts, wanted))
    if not len(rollouts):
        return rollouts
    batches = make_batches(rollouts, {}, max_tokens=runtime.micro_batch_tokens)
    # Held: struck half-way, a model could keep its adapter switched off.
    with (
        held_interrupts() as held,
        runtime.progress.phase("annotate", len(rollouts), "samples") as advance,
    ):
        found = runtime.trainer.annotate(batches, tuple(wanted), guarded(advance, held.check))
    return rollouts.with_columns({n: scatter(batches, found[n], rollouts) for n in wanted})


def _annotation_problems(runtime: Runtime, rollouts: Rollouts, wanted: Sequence[str]) -> list[str]:
    problems = []
    if "values" in wanted and not runtime.has_critic:
        problems.append("values need a critic; connect with trainer=Trainer(critic=Critic())")
    if "old_logprobs" in wanted and not is_current(runtime, rollouts):
        problems.append(
            "old_logprobs are those of the policy that sampled, and that is not this policy as it "
            f"is now, at version {runtime.version}. Annotate before training on others"
        )
    return problems


def compute_advantages(
    runtime: Runtime, scored: Scored, estimator: Any, *, kl: KL | None, shaping: Shaping | None
) -> Advantaged:
    """The pure stage, after fetching the reference log-probs and values that it needs."""
    check_config("compute_advantages", extra=kind_problems({"scored": (scored, Scored)}))
    # What can be refused is refused before the model is asked for columns.
    alone = stage.estimator_problems(estimator, largest_group(scored))
    check_config("compute_advantages", kl, shaping, extra=alone)
    watch = Stopwatch()
    needed = stage.columns_needed(estimator, kl)
    missing = [n for n in needed if n not in scored.rollouts.table.column_names]
    if missing:
        rollouts = annotate(runtime, scored.rollouts, missing)
        scored = dataclasses.replace(scored, rollouts=rollouts)
    done = stage.compute_advantages(scored, estimator, kl=kl, shaping=shaping)
    return dataclasses.replace(done, spec={**done.spec, "seconds": {"advantages": watch.read()}})


def probe(
    runtime: Runtime, batch: Advantaged, losses: Mapping[str, PolicyLoss]
) -> dict[str, Probe]:
    """What each loss would do to the batch, on one shared forward pass; nothing changes."""
    kinds = {"batch": (batch, Advantaged), "losses": (losses, Mapping)}
    check_config("probe", extra=kind_problems(kinds))
    if not losses:
        raise ConfigError("probe needs at least one loss, e.g. {'ppo': PolicyLoss()}; got none.")
    wrong = kind_problems({f"loss {n!r}": (loss, PolicyLoss) for n, loss in losses.items()})
    check_config("probe", extra=wrong)
    problems = [p for loss in losses.values() for p in _loss_problems(runtime, batch, loss)]
    check_config("probe", *losses.values(), extra=dict.fromkeys(problems))
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
        spec={"loss": to_spec(named[1])},
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
    kinds = {"batch": (batch, Advantaged), "loss": (loss, PolicyLoss)}
    counts = {"minibatches": (minibatches, 1), "epochs": (epochs, 1)}
    check_config("train_step", extra=[*kind_problems(kinds), *whole_problems(counts)])
    problems = []
    if minibatches > max(len(batch), 1):
        problems.append(f"minibatches={minibatches} is more than the {len(batch)} samples")
    check_config("train_step", loss, extra=[*problems, *_loss_problems(runtime, batch, loss)])
    digest = check_batch(runtime, batch, loss, expect_version, again)
    watch, minibatches, epochs = Stopwatch(), int(minibatches), int(epochs)
    batch = _with_reference(runtime, batch, wants_reference(loss.kl))
    columns = loss_columns(runtime, batch, corrected=loss.correction is not None)
    resolved, warnings = _resolved(loss, batch), _warnings(runtime, batch)
    plan = step_plan(runtime, batch, columns, minibatches, epochs)
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
            spec=_step_spec(batch, resolved, minibatches, epochs),
            warnings=warnings,
        )
        return _recorded(runtime, result)


def _loss_problems(runtime: Runtime, batch: Advantaged, loss: PolicyLoss) -> list[str]:
    """What this batch and this loss cannot do together."""
    in_reward = batch.spec.get("kl")
    problems = list(kl_problems(KL(**in_reward) if in_reward else None, loss))
    if is_changed(loss, "value_coef", "value_clip") and not trains_critic(runtime, batch):
        problems.append(
            "value_coef and value_clip have no effect on a batch that trains no critic; drop them"
        )
    sampling = batch.scored.rollouts.spec.get("sampling", {})
    norm = loss.norm_length or sampling.get("max_new_tokens")
    if loss.aggregation == "seq-mean-token-sum-norm" and norm is None:
        problems.append(
            "aggregation 'seq-mean-token-sum-norm' needs norm_length, or rollouts with "
            "max_new_tokens"
        )
    return problems


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


def _step_spec(
    batch: Advantaged, loss: PolicyLoss, minibatches: int, epochs: int
) -> dict[str, Any]:
    return {
        "loss": to_spec(loss),
        "minibatches": minibatches,
        "epochs": epochs,
        "advantages": dict(batch.spec),
        "scored": dict(batch.scored.spec),
        "rollouts": dict(batch.scored.rollouts.spec),
    }


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


def _recorded(runtime: Runtime, result: StepResult) -> StepResult:
    """The result, with its line in the run folder; a disk that refuses is a warning, no loss.

    What it refused before is tried again first, so that the lines keep their order.
    """
    record = step_record(result)
    runtime.records.append(record)
    runtime.unwritten.append(record)
    try:
        while runtime.unwritten:
            runtime.folder.append_metrics(runtime.unwritten[0])
            del runtime.unwritten[0]
    except StoreError as error:
        versions = [held["version"] for held in runtime.unwritten]
        said = (
            f"{error}. The step was taken; session.history holds the records of versions "
            f"{versions}, and the next step writes them too if the disk lets it"
        )
        return dataclasses.replace(result, warnings=[*result.warnings, said])
    return result
