"""Numbers of a step: the trainer's terms merged, the batch's own counts, one record a step.

May import ``stages`` and what ``runtime`` may.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from nbrl.protocols import LossTerms, MicroBatch
from nbrl.stages.batching import scatter
from nbrl.stages.shaping import policy_lengths
from nbrl.types import Advantaged, Metric, StepResult
from nbrl.types.columns import ragged


def merge_terms(terms: Sequence[LossTerms]) -> dict[str, Metric]:
    """The metrics over all optimizer steps of an update.

    Means are weighted by their counts, plain numbers are averaged, but for those of ``OVER_STEPS``.
    """
    names = dict.fromkeys(name for t in terms for name in t.metrics)
    found = {name: [t.metrics[name] for t in terms if name in t.metrics] for name in names}
    return {name: OVER_STEPS.get(name, _mean)(metrics) for name, metrics in found.items()}


def _sum(metrics: Sequence[Metric]) -> Metric:
    return replace(metrics[0], value=float(sum(m.value for m in metrics)))


def _largest(metrics: Sequence[Metric]) -> Metric:
    return max(metrics, key=lambda m: m.value)


OVER_STEPS: Mapping[str, Callable[[Sequence[Metric]], Metric]] = {
    "tokens": _sum,
    "sequences": _sum,
    "ratio_max": _largest,
}


def _mean(metrics: Sequence[Metric]) -> Metric:
    counts = np.array([m.count for m in metrics], dtype=np.float64)
    values = np.array([m.value for m in metrics])
    weight = counts if counts.sum() > 0 else np.ones_like(counts)
    mean = float((values * weight).sum() / weight.sum())
    return Metric(value=mean, count=int(counts.sum()), of=metrics[0].of)


def batch_metrics(batch: Advantaged) -> dict[str, Metric]:
    """Rewards, lengths, groups and the KL in the reward: what the batch itself says.

    All are over the samples that are trained on; a filter on rewards shows in them.
    """
    rollouts = batch.scored.rollouts.table
    n = len(batch)
    total = batch.scored.table.column("total").to_numpy()
    shaped = batch.table.column("reward").to_numpy()
    lengths = policy_lengths(batch.scored.rollouts).numpy()
    truncated = rollouts.column("truncated").to_numpy()
    groups, first = np.unique(rollouts.column("group_id").to_numpy(), return_index=True)
    live = batch.table.column("live").to_numpy()[first]
    std = batch.table.column("group_std").to_numpy()[first]
    penalty = {} if batch.spec.get("kl") is None else {"reward_kl": _token_mean(batch, "kl")}
    return penalty | {
        "reward": Metric(value=float(total.mean()), count=n, of="samples"),
        "shaped_reward": Metric(value=float(shaped.mean()), count=n, of="samples"),
        "group_reward_std": Metric(value=float(std.mean()), count=len(groups), of="groups"),
        "live_groups": Metric(value=float(live.mean()), count=len(groups), of="groups"),
        "response_length": Metric(value=float(lengths.mean()), count=n, of="samples"),
        "truncated": Metric(value=float(truncated.mean()), count=n, of="samples"),
    }


def _token_mean(batch: Advantaged, name: str) -> Metric:
    """The mean of a token column over the tokens that count."""
    mask, _ = ragged(batch.table.column("mask"))
    counted = ragged(batch.table.column(name))[0][mask]
    mean = float(counted.mean(dtype=np.float64)) if len(counted) else 0.0
    return Metric(value=mean, count=len(counted), of="tokens")


def token_table(
    batch: Advantaged, plan: Sequence[Sequence[MicroBatch]], terms: Sequence[LossTerms]
) -> pa.Table:
    """The token terms of each sample, by its id; of several epochs, the last one's."""
    rollouts = batch.scored.rollouts
    batches = [micro for minibatch in plan for micro in minibatch]
    tokens = [columns for t in terms for columns in t.tokens]
    seen = {int(row): b for b, micro in enumerate(batches) for row in micro.rows}
    last = sorted(set(seen.values()))
    kept = [batches[b] for b in last]
    columns: dict[str, pa.Array | pa.ChunkedArray] = {"sample_id": batch.table.column("sample_id")}
    for name in tokens[0]:
        columns[name] = scatter(kept, [tokens[b][name] for b in last], rollouts)
    return pa.table(columns)


def step_record(result: StepResult) -> dict[str, float | int]:
    """One flat record of a step: version, each metric's value, each phase's seconds."""
    record: dict[str, float | int] = {"version": result.version_after}
    record |= {name: metric.value for name, metric in result.metrics.items()}
    return record | {f"seconds_{phase}": s for phase, s in result.seconds.items()}
