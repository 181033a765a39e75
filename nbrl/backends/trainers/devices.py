"""Micro-batches on the device of the model that reads them.

May import ``protocols``, numpy and torch. The driver makes micro-batches in main memory and reads
answers from there; what lies between is the trainer's.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nbrl.protocols import MicroBatch


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters are."""
    return next(module.parameters()).device


def placed(
    minibatches: Sequence[Sequence[MicroBatch]], device: torch.device
) -> list[list[MicroBatch]]:
    """The micro-batches with their tensors on the device; one that comes twice is moved once."""
    done: dict[int, MicroBatch] = {}
    for batch in (b for batches in minibatches for b in batches):
        if id(batch) not in done:
            there = batch.input_ids.device == device
            done[id(batch)] = batch if there else mapped(batch, lambda x: x.to(device))
    return [[done[id(batch)] for batch in batches] for batches in minibatches]


def brought_back(tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Token columns in main memory, where the driver reads them."""
    return {name: column.cpu() for name, column in tokens.items()}


def random_devices(modules: Iterable[nn.Module]) -> list[torch.device]:
    """The devices beside the processor whose random state the modules draw from."""
    found = {device_of(module) for module in modules}
    return [device for device in found if device.type == "cuda"]


def mapped(
    batch: MicroBatch, change: Callable[[Tensor], Tensor], *, rows: np.ndarray | None = None
) -> MicroBatch:
    """The micro-batch with each of its tensors changed in the same way.

    Args:
        batch: It stays as it is.
        change: What to do to each tensor.
        rows: Where the samples stand that are left, where a change takes some away.
    """
    return dataclasses.replace(
        batch,
        rows=batch.rows if rows is None else rows,
        input_ids=change(batch.input_ids),
        attention_mask=change(batch.attention_mask),
        mask=change(batch.mask),
        temperature=change(batch.temperature),
        columns={name: change(column) for name, column in batch.columns.items()},
        per_row={name: change(column) for name, column in batch.per_row.items()},
    )
