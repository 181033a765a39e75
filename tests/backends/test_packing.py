"""Rows packed into one: positions, who sees whom, and the same loss as rows apart."""

import numpy as np
import pytest
import torch

from nbrl.backends import forward
from nbrl.backends.models import ValueModel
from nbrl.backends.packing import pack, refuse_leaks, visible
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import SFT, Optimizer
from nbrl.errors import ConfigError
from nbrl.protocols import ANNOTATIONS
from tests.backends.trainers.small import make_batch, make_policy, part, still


def test_b64_positions_begin_anew_and_no_document_sees_another():
    packed = pack(make_batch([1, 2], prompt_widths=[1, 1]))
    # a row's last token scores nothing and is not fed
    assert packed.positions.tolist() == [0, 0, 1]
    assert packed.documents.tolist() == [0, 1, 1]
    assert packed.ends.at.tolist() == [0, 1, 3]
    assert packed.ends.lengths == (1, 2)
    assert visible(packed.documents).int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    # three targets, not four: the first token of the second document is none
    assert packed.places.tolist() == [[0, -1], [1, 2]]


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
@pytest.mark.parametrize("lengths", [[1, 2], [5, 1, 3], [4], [0, 3], [2, 0]])
def test_b64_packed_logits_are_those_of_the_rows_apart(lengths, attention):
    policy, batch = make_policy(), make_batch(lengths)
    plain = [forward.response_logits(policy, part(batch, [row]))[0] for row in range(len(lengths))]
    policy.set_attn_implementation(attention)
    got = forward.response_logits(policy, batch, packed=True)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(got[row, :length], plain[row][:length], atol=1e-5, rtol=1e-5)


def test_a_change_in_one_document_does_not_reach_another():
    policy, batch = make_policy(), make_batch([3, 4])
    before = forward.response_logits(policy, batch, packed=True)
    batch.input_ids[0] = (batch.input_ids[0] + 1) % 50
    after = forward.response_logits(policy, batch, packed=True)
    kept = batch.mask[1]
    torch.testing.assert_close(after[1][kept], before[1][kept])
    assert not torch.allclose(after[0], before[0])


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_b64_every_column_of_packed_rows_is_that_of_the_padded_ones(attention):
    wanted, found = list(ANNOTATIONS), []
    batch = make_batch([5, 1, 3, 2])
    for packed in (False, True):
        policy = make_policy()
        critic = ValueModel(make_policy(seed=2).base_model, 64, seed=3)
        reference = make_policy(seed=4)
        if packed:
            for model in (policy, critic.backbone, reference):
                model.set_attn_implementation(attention)
        trainer = LocalTrainer(
            policy,
            optimizer=Optimizer(),
            critic=critic,
            critic_optimizer=Optimizer(),
            reference=lambda reference=reference: reference,
            packed=packed and attention == "sdpa",
        )
        found.append(trainer.annotate([batch], wanted, still))
    for name in wanted:
        one, two = (torch.where(batch.mask, columns[name][0], 0.0) for columns in found)
        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-5, msg=name)
        assert one.abs().sum() > 0


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_the_last_value_of_a_packed_row_is_that_of_the_row_alone(attention):
    scorer, batch = ValueModel(make_policy().base_model, 64, seed=3), make_batch([5, 1, 3, 2])
    alone = torch.cat([forward.last_values(scorer, part(batch, [row])) for row in range(4)])
    scorer.backbone.set_attn_implementation(attention)
    got = forward.last_values(scorer, batch, packed=True)
    torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "see a window"),
        ({"layer_types": None, "sliding_window": 8}, "see a window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "carry a state"),
    ],
)
def test_layers_that_a_mask_over_pairs_does_not_reach_are_refused(changes, said):
    policy = make_policy()
    refuse_leaks(policy)
    for name, value in changes.items():
        setattr(policy.config, name, value)
    with pytest.raises(ConfigError, match=said):
        refuse_leaks(policy)


def test_decay_pulls_matrices_only():
    policy = make_policy()
    before = {n: p.detach().clone() for n, p in policy.named_parameters()}
    trainer = LocalTrainer(
        policy, optimizer=Optimizer(lr=1e-9, weight_decay=1e8, eps=1.0, max_grad_norm=1e-9)
    )
    trainer.step([[make_batch([2, 2])]], SFT(), still)
    for name, weight in trainer.weights():
        shrunk = float((weight / before[name]).median()) if weight.ndim > 1 else 1.0
        assert shrunk == pytest.approx(0.9 if weight.ndim > 1 else 1.0, abs=1e-3), name
        if weight.ndim == 1:
            assert np.allclose(weight, before[name], atol=1e-6), name
