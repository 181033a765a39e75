"""Surrogates and the value loss against plain loops and known values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError, UnknownNameError
from nbrl.functional.losses import SURROGATES, ratio_and_clipped, surrogate, value_loss
from nbrl.functional.reductions import aggregate
from tests import naive
from tests.strategies import token_tensors

CLIPPED = [name for name, row in SURROGATES.items() if row.uses_eps]
DUAL = [name for name, row in SURROGATES.items() if row.uses_dual_clip]
EVERY = sorted(SURROGATES)


def row(*numbers):
    return torch.tensor([numbers], dtype=torch.float64)


def ones(tensor):
    return torch.ones_like(tensor, dtype=torch.bool)


def gradient(kind, logprobs, old, advantages, mask, **bounds):
    leaf = logprobs.clone().requires_grad_()
    surrogate(kind, leaf, old, advantages, mask, **bounds).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_b44_ppo_clips_on_the_right_side():
    ratios, advantages = row(1.5, 0.5, 1.5, 0.5, 5.0), row(1.0, 1.0, -1.0, -1.0, -1.0)
    args = "ppo", ratios.log(), row(0, 0, 0, 0, 0), advantages, ones(ratios)
    torch.testing.assert_close(surrogate(*args), row(-1.2, -0.5, 1.5, 0.8, 5.0))
    ratio, clipped = ratio_and_clipped(*args)
    torch.testing.assert_close(ratio, ratios)
    assert clipped.tolist() == [[True, False, False, True, False]]
    assert gradient(*args).tolist()[0] == pytest.approx([0, -0.5, 1.5, 0, 5.0])


@pytest.mark.parametrize(("clip", "mean"), [(None, 0.25), (0.5, 0.5), (0.2, 0.845)])
def test_b44_the_value_loss_takes_the_larger_square(clip, mean):
    values, old, returns = row(1.0, 2.0), row(0.5, 0.5), row(2.0, 2.0)
    loss = value_loss(values, old, returns, ones(values), clip=clip)
    assert aggregate(loss, ones(values)).item() == pytest.approx(mean)


def test_each_surrogate_by_hand():
    logp, old, advantages = row(-1.0, -2.0), row(-1.0, -2.5), row(2.0, -1.0)
    half = 0.5
    wanted = {
        "ppo": row(-2.0, torch.tensor(half).exp().item()),
        "gspo": row(-2 * 1.2, torch.tensor(half / 2).exp().item()),
        "cispo": row(2.0, 1.2 * -2.0),
        "sapo": row(-4.0, 4 / 1.05 * torch.sigmoid(torch.tensor(1.05 * 0.6487212707)).item()),
        "reinforce": row(2.0, -2.0),
    }
    for kind, terms in wanted.items():
        got = surrogate(kind, logp, old, advantages, ones(logp))
        torch.testing.assert_close(got, terms, atol=1e-6, rtol=0)


@settings(max_examples=80, deadline=None)
@given(token_tensors(3), st.sampled_from(EVERY), st.sampled_from([0.1, 0.2, 0.5]), st.data())
def test_surrogates_are_the_slow_loop(drawn, kind, eps, data):
    mask, logp, old, advantages = drawn
    bounds = {"eps_low": eps, "eps_high": 0.3} if kind in CLIPPED else {}
    dual = data.draw(st.sampled_from([None, 1.5, 3.0])) if kind in DUAL else None
    got = surrogate(kind, logp, old, advantages, mask, dual_clip=dual, **bounds)
    for i, terms in enumerate(got.tolist()):
        columns = tuple(x[i].tolist() for x in (logp, old, advantages, mask))
        wanted = naive.surrogate(kind, columns, eps, 0.3, dual)
        assert terms == pytest.approx(wanted, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(token_tensors(3), st.sampled_from(DUAL))
def test_dual_clip_is_the_plain_clip_where_the_advantage_is_not_negative(drawn, kind):
    mask, logp, old, advantages = drawn
    plain = surrogate(kind, logp, old, advantages, mask)
    dual = surrogate(kind, logp, old, advantages, mask, dual_clip=1.5)
    assert torch.equal(plain[advantages >= 0], dual[advantages >= 0])
    assert (dual <= plain).all()
    assert (dual <= (-1.5 * advantages).clamp(min=0) + plain.clamp(max=0) + 1e-12).all()


def test_dual_clip_bounds_what_a_bad_token_can_do():
    logp, old, advantages = row(3.0), row(0.0), row(-1.0)
    args = "ppo", logp, old, advantages, ones(logp)
    assert surrogate(*args, dual_clip=3.0).item() == pytest.approx(3.0)
    assert gradient(*args, dual_clip=3.0).item() == 0
    assert ratio_and_clipped(*args, dual_clip=3.0)[1].item() is True
    assert ratio_and_clipped(*args)[1].item() is False


@settings(max_examples=40, deadline=None)
@given(token_tensors(3), st.sampled_from(EVERY))
def test_on_policy_all_surrogates_have_the_policy_gradient(drawn, kind):
    mask, logp, _, advantages = drawn
    got = gradient(kind, logp, logp, advantages, mask)
    wanted = torch.where(mask, -advantages, 0.0)
    if kind == "gspo":
        share = mask / mask.sum(1, keepdim=True).clamp(min=1)
        wanted = share * wanted.sum(1, keepdim=True)
    torch.testing.assert_close(got, wanted)


@settings(max_examples=40, deadline=None)
@given(token_tensors(3), st.sampled_from(DUAL))
def test_clipped_says_where_the_gradient_is_cut(drawn, kind):
    mask, logp, old, advantages = drawn
    _, clipped = ratio_and_clipped(kind, logp, old, advantages, mask, dual_clip=2.0)
    if kind == "ppo":
        cut = gradient(kind, logp, old, advantages, mask, dual_clip=2.0) == 0
        live = mask & (advantages != 0)
        assert torch.equal(cut[live], clipped[live])
    assert not clipped[~mask].any()


def test_gspo_gives_every_token_its_sequences_ratio():
    logp, old = row(-1.0, -1.0, 5.0), row(-1.4, -0.8, 0.0)
    mask = torch.tensor([[True, True, False]])
    ratio, _ = ratio_and_clipped("gspo", logp, old, row(1.0, 1.0, 1.0), mask)
    torch.testing.assert_close(ratio, row(0.1, 0.1, 0.0).exp())


def test_gspo_with_its_own_aggregation_is_the_sequence_objective():
    logp = row(-1.0, -1.1, -2.0).requires_grad_()
    old, advantages, mask = row(-1.05, -1.1, -2.0), row(2.0, 2.0, 2.0), ones(logp)
    loss = aggregate(surrogate("gspo", logp, old, advantages, mask), mask, "seq-mean-token-mean")
    (got,) = torch.autograd.grad(loss, logp)
    sequence = -2.0 * (logp - old).mean().exp()
    (wanted,) = torch.autograd.grad(sequence, logp)
    torch.testing.assert_close(loss, sequence)
    torch.testing.assert_close(got, wanted)


def test_cispo_keeps_the_gradient_that_ppo_cuts():
    logp, old, advantages = row(1.0), row(0.0), row(1.0)
    assert gradient("ppo", logp, old, advantages, ones(logp)).item() == 0
    assert gradient("cispo", logp, old, advantages, ones(logp)).item() == pytest.approx(-1.2)


def test_clip_higher_moves_the_upper_bound_only():
    logp, zero, advantages = row(1.0, -1.0), row(0.0, 0.0), row(1.0, -1.0)
    got = surrogate("ppo", logp, zero, advantages, ones(logp), eps_low=0.2, eps_high=0.5)
    torch.testing.assert_close(got, row(-1.5, 0.8))


@pytest.mark.parametrize("kind", EVERY)
def test_masked_places_give_nothing_and_get_no_gradient(kind):
    nan, inf = float("nan"), float("inf")
    logp, old, advantages = row(-1.0, nan, inf), row(-1.1, inf, nan), row(1.0, nan, inf)
    mask = torch.tensor([[True, False, False]])
    clean = row(-1.0, 0.0, 0.0), row(-1.1, 0.0, 0.0), row(1.0, 0.0, 0.0)
    assert torch.equal(surrogate(kind, logp, old, advantages, mask), surrogate(kind, *clean, mask))
    grad = gradient(kind, logp, old, advantages, mask)
    assert torch.equal(grad, gradient(kind, *clean, mask))
    assert grad[0, 1:].tolist() == [0, 0]
    ratio, clipped = ratio_and_clipped(kind, logp, old, advantages, mask)
    assert ratio[0, 1:].tolist() == [1, 1]
    assert clipped.tolist() == [[False, False, False]]


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("gap", [-1e4, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_huge_ratios_stay_finite(kind, gap, advantage):
    args = torch.tensor([[gap]]), torch.zeros(1, 1), torch.tensor([[advantage]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert torch.isfinite(surrogate(kind, *args, mask)).all()
    assert torch.isfinite(gradient(kind, *args, mask)).all()


@pytest.mark.parametrize("kind", EVERY)
def test_gradients_flow_into_the_policy_only(kind):
    logp, old, advantages = (x.requires_grad_() for x in (row(-1.0), row(-1.1), row(1.0)))
    surrogate(kind, logp, old, advantages, ones(logp)).sum().backward()
    assert logp.grad is not None
    assert old.grad is None
    assert advantages.grad is None


def test_bounds_without_effect_are_refused():
    args = row(0.0), row(0.0), row(1.0), ones(row(0.0))
    for kind in EVERY:
        if kind not in DUAL:
            with pytest.raises(ConfigError, match="dual_clip has no effect"):
                surrogate(kind, *args, dual_clip=3.0)
        if kind not in CLIPPED:
            with pytest.raises(ConfigError, match="eps_low, eps_high have no effect"):
                surrogate(kind, *args, eps_high=0.3)
    with pytest.raises(ConfigError, match="dual_clip must be > 1"):
        surrogate("ppo", *args, dual_clip=1.0)
    with pytest.raises(ConfigError, match="must be > 0"):
        surrogate("ppo", *args, eps_low=0.0)
    with pytest.raises(UnknownNameError, match="cispo, gspo, ppo, reinforce, sapo"):
        surrogate("trpo", *args)


@settings(max_examples=50, deadline=None)
@given(token_tensors(3), st.sampled_from([None, 0.2, 0.5]))
def test_value_loss_is_the_slow_loop(drawn, clip):
    mask, values, old, returns = drawn
    got = value_loss(values, old, returns, mask, clip=clip)
    for (i, t), keep in zip(
        torch.cartesian_prod(*map(torch.arange, mask.shape)).view(-1, 2).tolist(),
        mask.flatten().tolist(),
        strict=True,
    ):
        cell = values[i, t].item(), old[i, t].item(), returns[i, t].item()
        wanted = naive.value_loss(*cell, clip) if keep else 0.0
        assert got[i, t].item() == pytest.approx(wanted, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(token_tensors(3))
def test_a_clipped_value_loss_is_never_smaller_and_equal_where_values_did_not_move(drawn):
    mask, values, old, returns = drawn
    plain = value_loss(values, old, returns, mask, clip=None)
    assert (value_loss(values, old, returns, mask, clip=0.2) >= plain).all()
    still = value_loss(values, values, returns, mask, clip=0.2)
    torch.testing.assert_close(still, plain)


def test_value_loss_ignores_masked_places_and_refuses_a_clip_of_zero():
    values = row(1.0, float("nan")).requires_grad_()
    mask = torch.tensor([[True, False]])
    value_loss(values, row(1.0, float("inf")), row(0.0, float("nan")), mask).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[1, 0]]
    with pytest.raises(ConfigError, match="value clip must be > 0"):
        value_loss(values, values, values, mask, clip=0.0)
