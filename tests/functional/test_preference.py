"""Supervised, preference and process losses: by hand, against plain loops, beside TRL."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError
from nbrl.functional.logprobs import token_logprobs
from nbrl.functional.preference import (
    distillation_loss,
    dpo_loss,
    ipo_loss,
    kto_baseline,
    kto_loss,
    process_reward_loss,
    reward_model_loss,
    sft_nll,
)
from nbrl.functional.reductions import aggregate
from tests import naive
from tests.strategies import floats, masks, token_tensors

LOG2 = math.log(2)
SUMS = st.floats(-60, 0, width=32)
BETAS = st.sampled_from([0.01, 0.1, 0.5, 2.0])


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@st.composite
def sums(draw, count):
    rows = draw(st.integers(1, 5))
    return [floats(draw, rows, numbers=SUMS) for _ in range(count)]


# ---- supervised -------------------------------------------------------------


def test_sft_is_the_negative_log_prob_of_what_counts():
    logprobs = torch.tensor([[-1.0, -math.inf, -3.0]])
    mask = torch.tensor([[True, False, True]])
    assert sft_nll(logprobs, mask).tolist() == [[1.0, 0.0, 3.0]]
    assert aggregate(sft_nll(logprobs, mask), mask).item() == 2.0


@settings(max_examples=40, deadline=None)
@given(token_tensors(1))
def test_sft_is_the_slow_loop_and_masked_tokens_get_no_gradient(drawn):
    mask, logprobs = drawn
    leaf = logprobs.clone().requires_grad_()
    loss = aggregate(sft_nll(leaf, mask), mask)
    wanted = -naive.masked_mean(logprobs.tolist(), mask.tolist())
    assert loss.item() == pytest.approx(wanted, abs=1e-9)
    loss.backward()
    assert leaf.grad is not None
    assert not leaf.grad[~mask].any()


# ---- reward model -----------------------------------------------------------


def test_reward_model_loss_by_hand():
    loss = reward_model_loss(vector(2.0, 0.0), vector(1.0, 0.0))
    assert loss.tolist() == pytest.approx([math.log1p(math.exp(-1)), LOG2])
    with_margin = reward_model_loss(vector(2.0), vector(1.0), margin=vector(1.0))
    assert with_margin.item() == pytest.approx(LOG2)


def test_reward_model_loss_does_not_overflow():
    chosen = torch.tensor([0.0, 300.0], requires_grad=True)
    loss = reward_model_loss(chosen, torch.tensor([300.0, 0.0]))
    assert loss.tolist() == pytest.approx([300.0, 0.0])
    loss.sum().backward()
    assert chosen.grad is not None
    assert chosen.grad.tolist() == pytest.approx([-1.0, 0.0])


def test_reward_model_loss_of_bfloat16_scores_is_float32():
    wide, narrow = torch.tensor([3.0]), torch.tensor([3.0], dtype=torch.bfloat16)
    torch.testing.assert_close(
        reward_model_loss(narrow, 0 * narrow), reward_model_loss(wide, 0 * wide)
    )


@settings(max_examples=60, deadline=None)
@given(sums(3))
def test_reward_model_loss_is_the_slow_loop(drawn):
    chosen, rejected, margin = drawn
    got = reward_model_loss(chosen, rejected, margin=-margin)
    rows = zip(chosen.tolist(), rejected.tolist(), margin.tolist(), strict=True)
    assert got.tolist() == pytest.approx([-naive.log_sigmoid(c - r + m) for c, r, m in rows])


@settings(max_examples=40, deadline=None)
@given(sums(2), BETAS)
def test_dpo_is_a_reward_model_loss_on_implicit_rewards(drawn, beta):
    chosen, rejected = drawn
    reference = torch.full_like(chosen, -7.0)
    implicit = reward_model_loss(beta * (chosen - reference), beta * (rejected - reference))
    torch.testing.assert_close(
        dpo_loss(chosen, rejected, reference, reference, beta=beta), implicit
    )


# ---- DPO, cDPO, IPO ---------------------------------------------------------


def test_b54_equal_answers_are_log_2_and_have_no_gradient():
    same = vector(-5.0).requires_grad_()
    loss = dpo_loss(same, same, vector(-5.0), vector(-5.0))
    assert loss.item() == pytest.approx(0.693147, abs=2e-6)
    loss.sum().backward()
    assert same.grad is not None
    assert same.grad.item() == 0


def test_b56_each_loss_type_has_its_own_value():
    by_sums = vector(-4.0), vector(-10.0), vector(0.0), vector(0.0)
    assert dpo_loss(*by_sums, beta=0.1).item() == pytest.approx(0.437488, abs=2e-6)
    assert ipo_loss(*by_sums, beta=0.1).item() == pytest.approx(1.0)
    means = [x / 3 for x in by_sums]
    assert ipo_loss(*means, beta=0.1).item() == pytest.approx(9.0)
    two = vector(-1.0), vector(-3.0), vector(0.0), vector(0.0)
    smooth = dpo_loss(*two, beta=0.1, label_smoothing=0.1)
    assert smooth.item() == pytest.approx(0.618139, abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(sums(4), BETAS, st.sampled_from([0.0, 0.1, 0.3]))
def test_dpo_and_ipo_are_the_slow_loops(drawn, beta, smoothing):
    rows = list(zip(*(x.tolist() for x in drawn), strict=True))
    got = dpo_loss(*drawn, beta=beta, label_smoothing=smoothing)
    assert got.tolist() == pytest.approx([naive.dpo(r, beta, smoothing) for r in rows])
    assert ipo_loss(*drawn, beta=beta).tolist() == pytest.approx([naive.ipo(r, beta) for r in rows])


@settings(max_examples=40, deadline=None)
@given(sums(4), BETAS)
def test_smoothing_mixes_a_pair_with_its_swap(drawn, beta):
    chosen, rejected, ref_chosen, ref_rejected = drawn
    swapped = dpo_loss(rejected, chosen, ref_rejected, ref_chosen, beta=beta)
    mixed = 0.8 * dpo_loss(*drawn, beta=beta) + 0.2 * swapped
    torch.testing.assert_close(dpo_loss(*drawn, beta=beta, label_smoothing=0.2), mixed)


def test_the_reference_gets_no_gradient():
    leaves = [vector(-1.0).requires_grad_() for _ in range(4)]
    (dpo_loss(*leaves) + ipo_loss(*leaves)).sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == [True, True, False, False]


@pytest.mark.parametrize(("loss", "wrong"), [(dpo_loss, {"beta": 0.0}), (ipo_loss, {"beta": -1.0})])
def test_beta_must_be_positive(loss, wrong):
    with pytest.raises(ConfigError, match="beta must be > 0"):
        loss(*[vector(0.0)] * 4, **wrong)


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, 1.0])
def test_smoothing_that_turns_labels_round_is_refused(smoothing):
    with pytest.raises(ConfigError, match=r"\[0, 0.5\)"):
        dpo_loss(*[vector(0.0)] * 4, label_smoothing=smoothing)


# ---- KTO --------------------------------------------------------------------


def flags(*values):
    return torch.tensor(values)


def test_b61_one_class_and_both():
    kl = vector(-5.0), vector(-7.0)
    wanted = kto_loss(vector(-10.0), vector(-11.0), flags(True), *kl)
    unwanted = kto_loss(vector(-20.0), vector(-18.0), flags(False), *kl)
    both = kto_loss(vector(-10.0, -20.0), vector(-11.0, -18.0), flags(True, False), *kl)
    assert wanted.item() == pytest.approx(0.524979, abs=2e-6)
    assert unwanted.item() == pytest.approx(0.401312, abs=2e-6)
    assert both.mean().item() == pytest.approx(0.463146, abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(sums(4), BETAS, st.sampled_from([(1.0, 1.0), (1.33, 1.0), (0.0, 2.0)]), st.data())
def test_kto_is_the_slow_loop(drawn, beta, weights, data):
    policy, reference, policy_kl, reference_kl = drawn
    desirable = masks(data.draw, 1, len(policy))[0]
    got = kto_loss(
        policy, reference, desirable, policy_kl, reference_kl,
        beta=beta, desirable_weight=weights[0], undesirable_weight=weights[1],
    )  # fmt: skip
    rows = list(zip(policy.tolist(), reference.tolist(), desirable.tolist(), strict=True))
    mismatched = list(zip(policy_kl.tolist(), reference_kl.tolist(), strict=True))
    assert got.tolist() == pytest.approx(naive.kto(rows, mismatched, beta, weights), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(sums(2))
def test_the_baseline_is_never_negative_and_a_constant(drawn):
    policy, reference = (x.requires_grad_() for x in drawn)
    baseline = kto_baseline(policy, reference)
    assert baseline.item() == pytest.approx(max(0.0, (policy - reference).mean().item()))
    assert not baseline.requires_grad


def test_flipping_the_label_flips_the_loss():
    args = vector(-3.0, -9.0), vector(-4.0, -4.0)
    kl = vector(-1.0), vector(-2.0)
    good = kto_loss(*args, flags(True, True), *kl)
    bad = kto_loss(*args, flags(False, False), *kl)
    torch.testing.assert_close(good + bad, vector(1.0, 1.0))


def test_kto_without_a_mismatched_row_is_refused():
    none = vector()
    with pytest.raises(ConfigError, match="mismatched"):
        kto_loss(vector(-1.0), vector(-1.0), flags(True), none, none)
    with pytest.raises(ConfigError, match="weights"):
        kto_loss(vector(-1.0), vector(-1.0), flags(True), *[vector(0.0)] * 2, desirable_weight=-1.0)


# ---- distillation and process reward ----------------------------------------


def test_distillation_by_hand():
    logits = torch.tensor([[[0.0, 0.0]]])
    sure = torch.tensor([[[0.0, -math.inf]]])
    mask = torch.tensor([[True]])
    assert distillation_loss(logits, sure, mask).item() == pytest.approx(LOG2)
    assert distillation_loss(sure, sure, mask).item() == pytest.approx(0.0)


@st.composite
def scored(draw, classes):
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    small = st.floats(-3, 3, width=32)
    both = [floats(draw, rows, width, classes, numbers=small) for _ in range(2)]
    return masks(draw, rows, width), *both


@settings(max_examples=40, deadline=None)
@given(scored(3))
def test_distillation_is_the_slow_loop(drawn):
    mask, student, teacher = drawn
    got = distillation_loss(student, teacher, mask)
    for at in mask.nonzero().tolist():
        i, t = at
        wanted = naive.cross_entropy(naive.softmax(teacher[i, t].tolist()), student[i, t].tolist())
        assert got[i, t].item() == pytest.approx(wanted)
    assert not got[~mask].any()


@settings(max_examples=30, deadline=None)
@given(scored(4))
def test_distillation_from_a_sure_teacher_is_supervised_training(drawn):
    mask, student, _ = drawn
    tokens = student.argmin(-1)
    sure = torch.full_like(student, -math.inf).scatter(-1, tokens.unsqueeze(-1), 0.0)
    wanted = sft_nll(token_logprobs(student, tokens), mask)
    torch.testing.assert_close(distillation_loss(student, sure, mask), wanted)


def test_process_reward_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]]])
    mask = torch.tensor([[False, True]])
    hard = process_reward_loss(logits, torch.tensor([[0, 1]]), mask)
    assert hard.tolist()[0] == pytest.approx([0.0, math.log(4)])
    soft = process_reward_loss(logits, torch.tensor([[0.0, 0.5]]), mask)
    assert soft.tolist()[0] == pytest.approx([0.0, 0.5 * math.log(4 / 3) + 0.5 * math.log(4)])


@settings(max_examples=40, deadline=None)
@given(scored(2), st.data())
def test_process_reward_is_the_slow_loop(drawn, data):
    mask, logits, _ = drawn
    share = floats(data.draw, *mask.shape, numbers=st.floats(0, 1, width=32))
    got = process_reward_loss(logits, share, mask)
    for i, t in mask.nonzero().tolist():
        p = share[i, t].item()
        wanted = naive.cross_entropy([p, 1 - p], logits[i, t].tolist())
        assert got[i, t].item() == pytest.approx(wanted, abs=1e-9)
    assert not got[~mask].any()


@settings(max_examples=30, deadline=None)
@given(scored(2), st.data())
def test_hard_labels_are_soft_ones_that_are_sure(drawn, data):
    mask, logits, _ = drawn
    bad = masks(data.draw, *mask.shape)
    hard = process_reward_loss(logits, bad.long(), mask)
    torch.testing.assert_close(hard, process_reward_loss(logits, 1.0 - bad.double(), mask))


def test_soft_labels_need_two_reward_tokens():
    with pytest.raises(ConfigError, match="exactly two"):
        process_reward_loss(torch.zeros(1, 1, 3), torch.zeros(1, 1), torch.ones(1, 1).bool())
