"""From a training batch to the micro-batches that a loss is computed on.

May import ``stages`` and what ``runtime`` may.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.driver.freshness import is_current
from nbrl.driver.runtime import Runtime
from nbrl.driver.seeds import derive
from nbrl.protocols import MicroBatch
from nbrl.stages.batching import make_batches, split_minibatches
from nbrl.types import Advantaged

Columns = dict[str, pa.ChunkedArray | pa.Array]


def trains_critic(runtime: Runtime, batch: Advantaged) -> bool:
    """Whether the batch's returns are what the critic's values should be.

    Those of a critic-free estimator are not, even where somebody annotated values.
    """
    row = batch.spec.get("estimator")
    looks_at_values = row["credit"] == "gae" if isinstance(row, Mapping) else True
    has_values = "values" in batch.scored.rollouts.table.column_names
    return runtime.has_critic and has_values and looks_at_values


def loss_columns(runtime: Runtime, batch: Advantaged, *, corrected: bool) -> Columns:
    """The token columns of a loss.

    ``old_logprobs`` are left out where the trainer's own forward pass gives them: for samples of
    the policy as it is, and for others under a correction, whose weight runs from the sampler to
    that policy (as in OpenRLHF). Other samples without a correction are compared with what was
    recorded when they were drawn: the trainer's annotation where there is one, else the engine's.
    """
    rollouts = batch.scored.rollouts
    table = rollouts.table
    columns: Columns = {name: batch.table.column(name) for name in ("advantages", "returns")}
    columns["rollout_logprobs"] = table.column("rollout_logprobs")
    if "ref_logprobs" in table.column_names:
        columns["ref_logprobs"] = table.column("ref_logprobs")
    if trains_critic(runtime, batch):
        columns["values"] = table.column("values")
    if not corrected and not is_current(runtime, rollouts):
        annotated = "old_logprobs" in table.column_names
        columns["old_logprobs"] = table.column("old_logprobs" if annotated else "rollout_logprobs")
    return columns


def micro_batches(
    runtime: Runtime,
    batch: Advantaged,
    columns: Mapping[str, Any],
    rows: np.ndarray | None = None,
) -> list[MicroBatch]:
    """Micro-batches of the chosen rows, or of all."""
    return make_batches(
        batch.scored.rollouts,
        columns,
        mask=batch.table.column("mask"),
        rows=rows,
        max_tokens=runtime.micro_batch_tokens,
        packed=runtime.packs_rows,
    )


def step_plan(
    runtime: Runtime, batch: Advantaged, columns: Mapping[str, Any], minibatches: int, epochs: int
) -> list[list[MicroBatch]]:
    """The minibatches of all epochs, each cut into micro-batches; every sample once an epoch."""
    if minibatches == 1:
        return [micro_batches(runtime, batch, columns)] * epochs
    plan = []
    for epoch in range(epochs):
        seed = derive(runtime.seed, "minibatches", runtime.version, epoch)
        for rows in split_minibatches(len(batch), minibatches, seed):
            plan.append(micro_batches(runtime, batch, columns, rows))
    return plan
