"""The verbs that ask the trainer: annotate, compute_advantages, probe, train_step.

May import ``stages`` and what ``runtime`` may.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.config import (
    KL,
    PolicyLoss,
    Shaping,
    check_config,
    is_changed,
    kl_problems,
    to_spec,
    wants_reference,
)
from nbrl.driver.interrupts import cooperative_interrupts, guarded
from nbrl.driver.metrics import batch_metrics, merge_terms, step_record, token_table
from nbrl.driver.rollout import check_same_policy
from nbrl.driver.runtime import Runtime, Stopwatch
from nbrl.driver.seeds import derive
from nbrl.errors import ConfigError, StepError, StoreError, unknown_name
from nbrl.protocols import ANNOTATIONS, LossTerms, MicroBatch
from nbrl.stages import advantages as stage
from nbrl.stages.batching import make_batches, scatter, split_minibatches
from nbrl.types import Advantaged, Probe, Rollouts, Scored, StepResult


def annotate(runtime: Runtime, rollouts: Rollouts, wanted: Sequence[str]) -> Rollouts:
    """The rollouts with these token columns added, computed by the trainer as it is now.

    Raises:
        UnknownNameError: A column that nobody computes.
        ConfigError: ``values`` without a critic, or ``old_logprobs`` of samples that an older
            policy drew (those can no longer be computed).
    """
    for name in wanted:
        if name not in ANNOTATIONS:
            raise unknown_name("token column", name, ANNOTATIONS)
    check_config(f"annotate {list(wanted)}", extra=_annotation_problems(runtime, rollouts, wanted))
    if not len(rollouts):
        return rollouts
    batches = make_batches(rollouts, {}, max_tokens=runtime.micro_batch_tokens)
    with runtime.progress.phase("annotate", len(rollouts), "samples") as advance:
        found = runtime.trainer.annotate(batches, tuple(wanted), advance)
    return rollouts.with_columns({n: scatter(batches, found[n], rollouts) for n in wanted})


def _annotation_problems(runtime: Runtime, rollouts: Rollouts, wanted: Sequence[str]) -> list[str]:
    problems = []
    if "values" in wanted and not runtime.has_critic:
        problems.append("values need a critic; connect with trainer=Trainer(critic=Critic())")
    oldest = rollouts.table.column("version_min").to_numpy().min(initial=runtime.version)
    if "old_logprobs" in wanted and oldest != runtime.version:
        problems.append(
            "old_logprobs are those of the policy that sampled; the samples are of version "
            f"{oldest}, the policy is at {runtime.version}. Annotate before training on others"
        )
    return problems


def compute_advantages(
    runtime: Runtime, scored: Scored, estimator: Any, *, kl: KL | None, shaping: Shaping | None
) -> Advantaged:
    """The pure stage, after fetching the reference log-probs and values that it needs."""
    check_config("compute_advantages", kl, shaping)
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
    if not losses:
        raise ConfigError("probe needs at least one loss, e.g. {'ppo': PolicyLoss()}; got none.")
    problems = [p for loss in losses.values() for p in _loss_problems(runtime, batch, loss)]
    check_config("probe", *losses.values(), extra=dict.fromkeys(problems))
    check_same_policy(batch.scored.rollouts, runtime, "probe")
    batch = _with_reference(runtime, batch, any(wants_reference(x.kl) for x in losses.values()))
    columns = _loss_columns(runtime, batch, any(x.correction for x in losses.values()))
    resolved = {name: _resolved(loss, batch) for name, loss in losses.items()}
    batches = _batches(runtime, batch, columns, None)
    with runtime.progress.phase("probe", len(batch), "samples") as advance:
        found = runtime.trainer.probe(batches, resolved, advance)
    return {
        name: Probe(
            name=name,
            version=runtime.version,
            metrics=found[name].metrics,
            tokens=token_table(batch, [batches], [found[name]]),
            sketch=_sketch(found[name]),
            spec={"loss": to_spec(resolved[name])},
        )
        for name in losses
    }


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
    problems = [
        f"{n} must be >= 1; got {v}"
        for n, v in (("minibatches", minibatches), ("epochs", epochs))
        if v < 1
    ]
    if minibatches > max(len(batch), 1):
        problems.append(f"minibatches={minibatches} is more than the {len(batch)} samples")
    check_config("train_step", loss, extra=[*problems, *_loss_problems(runtime, batch, loss)])
    digest = _check_batch(runtime, batch, loss, expect_version, again)
    watch = Stopwatch()
    batch = _with_reference(runtime, batch, wants_reference(loss.kl))
    columns = _loss_columns(runtime, batch, loss.correction is not None)
    resolved = _resolved(loss, batch)
    plan = _plan(runtime, batch, columns, minibatches, epochs)
    with (
        cooperative_interrupts() as check,
        runtime.progress.phase("train_step", len(batch) * epochs, "samples") as advance,
    ):
        check()
        terms = runtime.trainer.step(plan, resolved, guarded(advance, check))
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
            warnings=_warnings(batch, before),
        )
        return _recorded(runtime, result)


def _check_batch(
    runtime: Runtime, batch: Advantaged, loss: PolicyLoss, expect_version: int | None, again: bool
) -> str:
    """The batch's digest, if it may be trained on."""
    if not len(batch):
        dropped = batch.spec.get("dropped", {})
        raise StepError(
            f"train_step: the batch holds no samples (dropped: {dropped}). Roll out more prompts, "
            "or widen Shaping.reward_range."
        )
    check_same_policy(batch.scored.rollouts, runtime, "train_step")
    digest = batch_digest(batch)
    if digest in runtime.trained and not again:
        raise StepError(
            f"train_step: this batch was trained on already, at version {runtime.trained[digest]} "
            f"(the policy is at {runtime.version}). Roll out again, or pass again=True if it is "
            "meant."
        )
    if digest not in runtime.trained:
        _check_staleness(runtime, batch, loss, expect_version)
    return digest


def _check_staleness(
    runtime: Runtime, batch: Advantaged, loss: PolicyLoss, expect_version: int | None
) -> None:
    table = batch.scored.rollouts.table
    oldest, newest = (table.column(c).to_numpy() for c in ("version_min", "version_max"))
    if expect_version is not None:
        if oldest.min() != expect_version or newest.max() != expect_version:
            raise StepError(
                f"train_step: expect_version={expect_version}, but the samples are of versions "
                f"{oldest.min()} to {newest.max()}. Pass the version that sampled them."
            )
    elif oldest.min() < runtime.version and loss.correction is None:
        raise StepError(
            f"train_step: the samples are of version {oldest.min()}, the policy is at "
            f"{runtime.version}. Pass expect_version={oldest.min()} to accept that, or declare a "
            "correction, e.g. PolicyLoss(correction='tis'), or roll out again."
        )


def batch_digest(batch: Advantaged) -> str:
    """What identifies a batch, wherever it was loaded from: its samples and their advantages."""
    digest = hashlib.blake2b(digest_size=16)
    for sample_id in batch.table.column("sample_id").to_pylist():
        digest.update(sample_id.encode() + b"\0")
    for chunk in batch.table.column("advantages").chunks:
        digest.update(
            np.ascontiguousarray(chunk.flatten().to_numpy(zero_copy_only=False)).tobytes()
        )
    return digest.hexdigest()


def _loss_problems(runtime: Runtime, batch: Advantaged, loss: PolicyLoss) -> list[str]:
    """What this batch and this loss cannot do together."""
    in_reward = batch.spec.get("kl")
    problems = list(kl_problems(KL(**in_reward) if in_reward else None, loss))
    has_values = "values" in batch.scored.rollouts.table.column_names
    if is_changed(loss, "value_coef", "value_clip") and not (has_values and runtime.has_critic):
        problems.append(
            "value_coef and value_clip have no effect without a critic's values; drop them"
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


def _loss_columns(
    runtime: Runtime, batch: Advantaged, corrected: bool
) -> dict[str, pa.ChunkedArray | pa.Array]:
    """The token columns of a loss.

    ``old_logprobs`` are left out where the trainer's own forward pass gives them: samples of the
    current version, and stale ones under a correction, whose weight then runs from the sampler to
    the policy as it is. Stale samples without a correction are compared with what the engine
    recorded when it drew them.
    """
    rollouts = batch.scored.rollouts.table
    columns: dict[str, pa.ChunkedArray | pa.Array] = {
        name: batch.table.column(name) for name in ("advantages", "returns")
    }
    columns["rollout_logprobs"] = rollouts.column("rollout_logprobs")
    present = [n for n in ("ref_logprobs", "values") if n in rollouts.column_names]
    columns |= {
        name: rollouts.column(name) for name in present if name != "values" or runtime.has_critic
    }
    stale = rollouts.column("version_min").to_numpy().min() < runtime.version
    if "old_logprobs" in rollouts.column_names and stale:
        columns["old_logprobs"] = rollouts.column("old_logprobs")
    elif stale and not corrected:
        columns["old_logprobs"] = rollouts.column("rollout_logprobs")
    return columns


def _batches(
    runtime: Runtime, batch: Advantaged, columns: Mapping[str, Any], rows: np.ndarray | None
) -> list[MicroBatch]:
    """Micro-batches of the chosen rows, or of all."""
    return make_batches(
        batch.scored.rollouts,
        columns,
        mask=batch.table.column("mask"),
        rows=rows,
        max_tokens=runtime.micro_batch_tokens,
    )


def _plan(
    runtime: Runtime, batch: Advantaged, columns: Mapping[str, Any], minibatches: int, epochs: int
) -> list[list[MicroBatch]]:
    """The minibatches of all epochs, each cut into micro-batches; every sample once an epoch."""
    if minibatches == 1:
        return [_batches(runtime, batch, columns, None)] * epochs
    plan = []
    for epoch in range(epochs):
        seed = derive(runtime.seed, "minibatches", runtime.version, epoch)
        for rows in split_minibatches(len(batch), minibatches, seed):
            plan.append(_batches(runtime, batch, columns, rows))
    return plan


def _sketch(terms: LossTerms) -> np.ndarray:
    assert terms.sketch is not None
    return terms.sketch


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


def _warnings(batch: Advantaged, version: int) -> list[str]:
    """What a reader of the step should know, in words."""
    said = []
    live = batch.table.column("live").to_numpy()
    if not live.any():
        said.append("every group has equal rewards: a group estimator has no signal in this batch")
    stale = batch.scored.rollouts.table.column("version_min").to_numpy() < version
    if stale.any():
        said.append(
            f"{stale.mean():.0%} of the samples were drawn by an older version of the policy"
        )
    dropped = sum(batch.spec.get("dropped", {}).values())
    if dropped:
        said.append(f"{dropped} samples were dropped before the step: {batch.spec['dropped']}")
    return said


def _recorded(runtime: Runtime, result: StepResult) -> StepResult:
    """The result, with its line in the run folder; a disk that refuses is a warning, no loss."""
    record = step_record(result)
    runtime.records.append(record)
    try:
        runtime.folder.append_metrics(record)
    except StoreError as error:
        return dataclasses.replace(result, warnings=[*result.warnings, str(error)])
    return result
