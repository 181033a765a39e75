"""Padding, batching and dtype must not change what a model says of a token."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from nbrl.backends import forward
from nbrl.backends.models import ValueModel
from nbrl.protocols import MicroBatch

VOCABULARY = 50


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return Qwen2ForCausalLM(config).eval()


def batch_of(rows, temperature=1.0):
    """A micro-batch from (prompt ids, response ids) a row."""
    left = max(1, *(len(p) for p, _ in rows))
    right = max(1, *(len(r) for _, r in rows))
    n = len(rows)
    ids = torch.zeros(n, left + right, dtype=torch.int64)
    present = torch.zeros(n, left + right, dtype=torch.bool)
    for i, (prompt, response) in enumerate(rows):
        place = slice(left - len(prompt), left + len(response))
        ids[i, place] = torch.tensor([*prompt, *response])
        present[i, place] = True
    return MicroBatch(
        rows=np.arange(n),
        input_ids=ids,
        attention_mask=present,
        prompt_width=left,
        mask=present[:, left:],
        temperature=torch.full((n,), temperature),
    )


ROWS = [([3, 4, 5], [6, 7]), ([8], [9, 10, 11, 12]), ([13, 14, 15, 16, 17], [18]), ([19, 20], [])]


def test_logits_are_those_of_the_whole_sequence(module):
    row = ([3, 4, 5], [6, 7])
    with torch.no_grad():
        whole = module(input_ids=torch.tensor([[3, 4, 5, 6, 7]])).logits
        got = forward.response_logits(module, batch_of([row]))
    torch.testing.assert_close(got, whole[:, 2:4])


def test_padding_does_not_change_logprobs_and_values(module):
    critic = ValueModel(module.base_model, 64, seed=1)
    batch = batch_of(ROWS)
    with torch.no_grad():
        together = forward.response_logprobs(module, batch)
        values = forward.response_values(critic, batch)
        for i, (prompt, response) in enumerate(ROWS):
            if not response:
                continue
            whole = torch.tensor([[*prompt, *response]])
            logp = module(input_ids=whole).logits[0, :-1].log_softmax(-1)
            alone = logp[range(len(whole[0]) - 1), whole[0, 1:]][len(prompt) - 1 :]
            value = critic(whole)[0, len(prompt) - 1 : -1]
            torch.testing.assert_close(together[i, : len(response)], alone, atol=1e-5, rtol=0)
            torch.testing.assert_close(values[i, : len(response)], value, atol=1e-5, rtol=0)


def gradients(module, batch):
    module.zero_grad()
    logprobs = forward.response_logprobs(module, batch)
    torch.where(batch.mask, logprobs, 0.0).sum().backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    return found


def test_padding_does_not_change_gradients(module):
    together = gradients(module, batch_of(ROWS))
    singly = [gradients(module, batch_of([row])) for row in ROWS if row[1]]
    for name, gradient in together.items():
        expected = sum(one[name] for one in singly)
        torch.testing.assert_close(gradient, expected, atol=2e-5, rtol=1e-4)


def test_rows_that_are_all_padding_do_no_harm(module):
    together = gradients(module, batch_of([*ROWS, ([], [])]))
    before = gradients(module, batch_of(ROWS))
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, before[name], atol=2e-5, rtol=1e-4)


def test_right_padding_needs_no_mask_and_left_padding_does():
    assert set(forward._inputs(batch_of([([3], [4, 5]), ([6], [7])]))) == {"input_ids"}
    inputs = forward._inputs(batch_of([([3, 4], [5]), ([6], [7])]))
    assert inputs["position_ids"].tolist() == [[0, 1], [0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [0, 1]]


class FixedLogits(nn.Module):
    """A language model that says the same at every position."""

    def __init__(self, logits, dtype=torch.float32):
        nn.Module.__init__(self)
        self.head = nn.Linear(1, len(logits), bias=False, dtype=dtype)
        self.head.weight = nn.Parameter(torch.tensor(logits).view(-1, 1).to(dtype))

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, use_cache, logits_to_keep):
        hidden = torch.ones(*input_ids.shape, 1, dtype=self.head.weight.dtype)
        logits = self.head(hidden[:, -logits_to_keep:])
        return type("Output", (), {"logits": logits})()


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.018150), (1.0, -0.126928)])
def test_temperature_divides_the_logits(temperature, expected):
    # B47: logits [2, 0].
    batch = batch_of([([1], [0])], temperature)
    logprobs = forward.response_logprobs(FixedLogits([2.0, 0.0]), batch)
    assert logprobs.item() == pytest.approx(expected, abs=2e-6)


def test_each_row_has_its_own_temperature():
    batch = batch_of([([1], [0]), ([1], [0])])
    batch.temperature.copy_(torch.tensor([0.5, 1.0]))
    logprobs = forward.response_logprobs(FixedLogits([2.0, 0.0]), batch)
    torch.testing.assert_close(
        logprobs[:, 0], torch.tensor([-0.018150, -0.126928]), atol=2e-6, rtol=0
    )


def test_a_bfloat16_module_has_a_float32_head():
    # B49: the weights 17.03 and 17.0 round to the same bfloat16; their sums with a hidden state of
    # more than one unit do not, so the head is given two units.
    module = FixedLogits([0.0, 0.0], torch.bfloat16)
    module.head = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    module.head.weight.data = torch.tensor([[17.0, 0.03], [17.0, 0.0]], dtype=torch.bfloat16)
    module.forward = lambda input_ids, use_cache, logits_to_keep: type(
        "Output", (), {"logits": module.head(torch.ones(1, 1, 2, dtype=torch.bfloat16))}
    )()
    logprobs = forward.response_logprobs(module, batch_of([([1], [0])]))
    assert logprobs.dtype == torch.float32
    assert logprobs.item() == pytest.approx(-0.678260, abs=1e-4)


def test_a_bfloat16_model_gets_gradients_through_its_float32_head(module):
    narrow = Qwen2ForCausalLM(module.config).to(torch.bfloat16).eval()
    narrow.load_state_dict(module.state_dict())
    wide = Qwen2ForCausalLM(module.config).eval()
    wide.load_state_dict(narrow.state_dict())
    batch = batch_of(ROWS)
    expected = gradients(wide, batch)["lm_head.weight"]
    got = gradients(narrow, batch)["lm_head.weight"]
    assert got.dtype == torch.bfloat16
    assert torch.cosine_similarity(got.float().flatten(), expected.flatten(), 0) > 0.99
    assert forward.response_logits(narrow, batch).dtype == torch.float32


def test_entropy_is_in_nats_and_takes_impossible_tokens():
    uniform = torch.full((1, 1, 4), 0.25).log()
    impossible = torch.tensor([[[0.5, 0.5, 0.0, 0.0]]]).log()
    found = torch.cat([forward.entropy(uniform), forward.entropy(impossible)]).flatten()
    torch.testing.assert_close(found, torch.tensor([np.log(4.0), np.log(2.0)]).float())
