"""Attention over rows end to end: each row is as it is alone, with gradients and windows."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from nbrl.backends import forward
from nbrl.backends.machine import machine_problems
from nbrl.backends.models import ValueModel, load_policy
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.backends.varlen import layer_problem, row_ends, varlen_attention
from nbrl.config import Model, Optimizer, PolicyLoss
from nbrl.errors import ConfigError
from tests.backends.trainers.small import make_batch, make_policy, part, still

LENGTHS = [5, 1, 3, 7]


def packing_policy():
    policy = make_policy()
    policy.set_attn_implementation("varlen")
    return policy


@pytest.mark.parametrize("window", [None, 2, 50])
def test_a_row_attends_to_itself_within_its_window(window):
    torch.manual_seed(0)
    lengths = torch.tensor([3, 0, 1, 6])
    query = torch.randn(1, 4, 10, 8)
    key, value = torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8)
    got, _ = varlen_attention(
        nn.Module(), query, key, value, None, row_ends=row_ends(lengths), sliding_window=window
    )
    rows = [0, 0, 0, 1, 2, 2, 2, 2, 2, 2]
    mask = torch.tensor(
        [
            [rows[i] == rows[j] and 0 <= i - j < (window or 100) for j in range(10)]
            for i in range(10)
        ]
    )
    wanted = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(got, wanted.transpose(1, 2), atol=1e-6, rtol=1e-5)


def test_a_critics_values_are_those_of_the_rows_apart():
    batch, policy = make_batch(LENGTHS), packing_policy()
    critic = ValueModel(policy.base_model, 64, seed=3)
    got = forward.response_values(critic, batch)
    policy.set_attn_implementation("sdpa")
    for row, length in enumerate(LENGTHS):
        alone = forward.response_values(critic, part(batch, [row]))[0]
        torch.testing.assert_close(got[row, :length], alone[:length], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_a_step_on_packed_rows_is_that_on_padded_ones(gradient_checkpointing):
    columns = ("advantages", "returns", "values")
    norms, weights = [], []
    for policy in (make_policy(), packing_policy()):
        # an eps beside which a gradient of 0 stays a step of 0
        optimizer = Optimizer(lr=1e-2, eps=1e-2)
        trainer = LocalTrainer(
            policy,
            optimizer=optimizer,
            critic=ValueModel(policy.base_model, 64, seed=3),
            critic_optimizer=optimizer,
            gradient_checkpointing=gradient_checkpointing,
        )
        batch = make_batch(LENGTHS, columns=columns)
        (terms,) = trainer.step([[batch]], PolicyLoss(), still)
        norms.append([terms.metrics[n].value for n in ("grad_norm", "critic_grad_norm")])
        weights.append(dict(trainer.weights()))
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-5, rtol=1e-4)


def test_padding_costs_no_token_of_a_packed_pass():
    fed = []
    policy, batch = packing_policy(), make_batch([1, 30], prompt_widths=[2, 4])
    policy.model.embed_tokens.register_forward_pre_hook(lambda _, ids: fed.append(ids[0].shape))
    forward.response_logits(policy, batch)
    assert fed == [(1, 2 + 33)]


def test_a_model_that_keeps_the_ends_to_itself_is_found_out():
    ends = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    rows = torch.randn(1, 2, 4, 8)
    with pytest.raises(ConfigError, match=r"does not hand on where packed rows end\. Use"):
        varlen_attention(nn.Module(), rows, rows, rows, ends)


def test_scores_shifted_by_the_model_are_refused():
    rows = torch.randn(1, 2, 4, 8)
    with pytest.raises(ConfigError, match="shifts its scores by softcap"):
        varlen_attention(
            nn.Module(), rows, rows, rows, None, row_ends=row_ends(torch.tensor([4])), softcap=30.0
        )


def test_layers_that_carry_a_state_are_refused():
    config = make_policy().config
    assert layer_problem(config) is None
    config.layer_types = ["full_attention", "linear_attention"]
    assert "linear_attention" in layer_problem(config)


def test_a_gpu_that_is_not_there_is_named():
    (problem,) = machine_problems(Model("tiny", device="cuda:99"))
    assert problem.startswith("Model('tiny', device='cuda:99'): torch sees")


def test_the_processor_can_be_asked_for():
    assert next(load_policy(Model("tiny", device="cpu")).module.parameters()).device.type == "cpu"
