"""Micro-batches go to the model's device, and columns come back."""

import torch

from nbrl.backends.trainers.devices import brought_back, device_of, placed, random_devices
from nbrl.protocols import MicroBatch
from tests.backends.trainers.small import make_batch, make_policy

CPU, META = torch.device("cpu"), torch.device("meta")


def tensors(batch: MicroBatch) -> list[torch.Tensor]:
    """All that a micro-batch holds."""
    named = (batch.input_ids, batch.attention_mask, batch.mask, batch.temperature)
    return [*named, *batch.columns.values(), *batch.per_row.values()]


def test_every_tensor_of_a_micro_batch_goes_along():
    batch = make_batch([3, 2], columns=("advantages", "values"))
    ((there,),) = placed([[batch]], META)
    assert {t.device for t in tensors(there)} == {META}
    assert [(t.shape, t.dtype) for t in tensors(there)] == [
        (t.shape, t.dtype) for t in tensors(batch)
    ]
    assert there.prompt_width == batch.prompt_width
    assert there.rows is batch.rows
    assert {t.device for t in tensors(batch)} == {CPU}


def test_one_that_comes_twice_is_moved_once_and_one_that_is_there_stays():
    first, second = make_batch([3]), make_batch([2])
    moved = placed([[first, second], [first]], META)
    assert moved[0][0] is moved[1][0]
    assert moved[0][1] is not moved[0][0]
    stayed = placed([[first, second], [first]], CPU)
    assert [b for batches in stayed for b in batches] == [first, second, first]


def test_columns_come_back_to_main_memory():
    column = torch.ones(2, 3)
    assert brought_back({"ratio": column})["ratio"] is column


def test_a_model_in_main_memory_draws_from_no_other_device():
    policy = make_policy()
    assert device_of(policy) == CPU
    assert random_devices([policy]) == []
