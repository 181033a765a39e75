"""Sharing prompts changes the work, not the logits or the gradients."""

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays
from hypothesis.strategies import integers

from nbrl.backends import forward, prefix
from nbrl.backends.models import LoadedModel, load_policy
from nbrl.config import Lora, Model
from nbrl.protocols import MicroBatch


def grouped_batch(lengths: list[int], n: int = 4, longest: int = 6) -> MicroBatch:
    """``n`` answers of 1 to ``longest`` tokens to one prompt of each of these lengths, mixed."""
    rng = np.random.default_rng(0)
    width, rows = max(lengths), []
    for length in lengths:
        prompt = rng.integers(2, 98, length)
        for _ in range(n):
            answer = rng.integers(2, 98, rng.integers(1, longest + 1))
            rows.append(np.pad(np.r_[prompt, answer], (width - length, longest - len(answer))))
    order = rng.permutation(len(rows))
    ids = torch.from_numpy(np.stack(rows)[order])
    return MicroBatch(
        rows=order,
        input_ids=ids,
        attention_mask=ids > 0,
        prompt_width=width,
        mask=ids[:, width:] > 0,
        temperature=torch.ones(len(rows)),
    )


def repeated_batch(lengths: list[int], n: int = 4) -> MicroBatch:
    """As :func:`grouped_batch`, with the answers of every prompt of two kinds, and other ends."""
    batch = grouped_batch(lengths, n=n, longest=5)
    width = batch.prompt_width
    ids = batch.input_ids.clone()
    for row in range(len(ids)):
        kind = row % 2
        ids[row, width:] = torch.tensor([5, 6, 7 + row, 0, 0] if kind else [5, 8, 9, 10, 11])
    return dataclasses.replace(
        batch, input_ids=ids, attention_mask=ids > 0, mask=ids[:, width:] > 0
    )


def answers_fed(batch: MicroBatch) -> int:
    """How many rows differ before their last token."""
    return len({tuple(row[row > 0].tolist()[:-1]) for row in batch.input_ids})


def shared(module: torch.nn.Module, batch: MicroBatch) -> torch.Tensor | None:
    return prefix.shared_logits(module, batch, lambda inputs: module(**inputs).logits)


def scored(module: torch.nn.Module, batch: MicroBatch) -> tuple[torch.Tensor, dict]:
    """The log-probs that count, and the gradient of a weighted sum of them."""
    module.zero_grad()
    found = forward.response_logprobs(module, batch)[batch.mask]
    (found * torch.linspace(-1, 1, len(found))).sum().backward()
    named = module.named_parameters()
    return found.detach(), {n: p.grad.clone() for n, p in named if p.grad is not None}


def rows_fed(module: torch.nn.Module) -> list[tuple[int, int]]:
    """Grows by rows and columns of what each pass sends through the first layer."""
    fed: list[tuple[int, int]] = []
    layer = cast(Any, module).model.layers[0]
    layer.register_forward_pre_hook(lambda _, given: fed.append(tuple(given[0].shape[:2])))
    return fed


@pytest.mark.parametrize("lengths", [[7, 7, 7], [9, 4, 1, 6]])
@pytest.mark.parametrize("longest", [1, 6])
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_shared_prompts_give_the_plain_logprobs_and_gradients(
    random_checkpoint: str,
    lengths: list[int],
    longest: int,
    lora: Lora | None,
    monkeypatch: pytest.MonkeyPatch,
):
    module = load_policy(Model(random_checkpoint, lora=lora)).module
    batch = grouped_batch(lengths, longest=longest)
    assert shared(module, batch) is None
    plain, plain_gradient = scored(module, batch)
    monkeypatch.setattr(prefix, "WORTH_TOKENS", 0)
    assert shared(module, batch) is not None
    logprobs, shared_gradient = scored(module, batch)
    torch.testing.assert_close(logprobs, plain, atol=1e-4, rtol=1e-5)
    assert shared_gradient.keys() == plain_gradient.keys()
    for name, gradient in plain_gradient.items():
        torch.testing.assert_close(shared_gradient[name], gradient, atol=1e-3, rtol=1e-4)


def test_equal_answers_give_the_plain_logprobs_and_gradients(
    random_policy: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    module, batch = random_policy.module, repeated_batch([9, 4, 1, 6])
    plain, plain_gradient = scored(module, batch)
    monkeypatch.setattr(prefix, "WORTH_TOKENS", 0)
    fed = rows_fed(module)
    logprobs, gradient = scored(module, batch)
    # the last token is not fed, so answers that differ in it alone are one
    assert fed == [(4, 9), (answers_fed(batch), 4)]
    assert answers_fed(batch) <= 8
    torch.testing.assert_close(logprobs, plain, atol=1e-4, rtol=1e-5)
    for name, one in plain_gradient.items():
        torch.testing.assert_close(gradient[name], one, atol=1e-3, rtol=1e-4)


@given(arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=integers(0, 2)))
def test_distinct_rows_are_in_order_of_first_sight(table: np.ndarray):
    first, of = prefix.distinct(torch.from_numpy(table))
    rows = [tuple(row) for row in table.tolist()]
    assert [rows[i] for i in first.tolist()] == list(dict.fromkeys(rows))
    assert [rows[first[i]] for i in of.tolist()] == rows


def test_each_prompt_goes_through_the_layers_once(
    random_policy: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prefix, "WORTH_TOKENS", 0)
    batch, fed = grouped_batch([7, 7, 7]), rows_fed(random_policy.module)
    forward.response_logits(random_policy.module, batch)
    # three prompts, then the answers without their last token
    assert fed == [(3, 7), (answers_fed(batch), 5)]


def test_the_plain_pass_is_taken_where_sharing_would_not_do(
    random_policy: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prefix, "WORTH_TOKENS", 0)
    module = random_policy.module
    assert shared(module, grouped_batch([5, 6, 7], n=1)) is None  # nothing shared
    assert shared(module, grouped_batch([5, 6])) is not None
    module.gradient_checkpointing_enable()
    assert shared(module, grouped_batch([5, 6])) is None
