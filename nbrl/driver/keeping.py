"""What a step leaves behind: its metrics, its samples, and now and then a checkpoint.

May import what ``runtime`` may.
"""

import dataclasses
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.driver.checkpointing import save, write_metrics
from nbrl.driver.metrics import step_record
from nbrl.driver.runtime import Runtime
from nbrl.errors import StoreError
from nbrl.types import Advantaged, Scored, StepResult


def keep(
    runtime: Runtime,
    result: StepResult,
    batch: Advantaged | None,
    more: Mapping[str, float] | None = None,
) -> StepResult:
    """The result, with all that the run folder keeps of the step; ``more`` goes into its record.

    A disk that refuses is a warning of the step, for the step was taken; no metrics are lost: what
    it refused is tried again first, so that the lines keep their order.
    """
    record = {**step_record(result), **(more or {})}
    runtime.records.append(record)
    runtime.unwritten.append(record)
    said = []
    try:
        write_metrics(runtime)
    except StoreError as error:
        versions = [held["version"] for held in runtime.unwritten]
        said.append(
            f"{error}. The step was taken; session.history holds the records of versions "
            f"{versions}, and the next step writes them too if the disk lets it"
        )
    runtime.recorder.mirror(record, result.version_after)
    if batch is not None:
        runtime.rewards = dict(batch.scored.spec.get("fingerprints", {}))
        runtime.recorder.samples(_whole(runtime, batch), result.version_after)
    every = runtime.recorder.settings.save_every
    if every is not None and runtime.version % every == 0:
        try:
            save(runtime, None)
        except StoreError as error:
            said.append(f"{error}. The step was taken")
    said += runtime.recorder.said()
    return dataclasses.replace(result, warnings=[*result.warnings, *said]) if said else result


def _whole(runtime: Runtime, batch: Advantaged) -> Scored:
    """The batch's samples, with those that a filter on rewards left out of it."""
    before, ids = runtime.last_scored, batch.table.column("sample_id")
    if before is None or len(before) <= len(batch):
        return batch.scored
    known: pa.ChunkedArray = before.table.column("sample_id")
    options = pc.SetLookupOptions(value_set=known.combine_chunks())
    inside = pc.call_function("is_in", [ids], options)
    return before if pc.call_function("all", [inside]).as_py() else batch.scored
