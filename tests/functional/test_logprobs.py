"""Log-probs, entropy and KL estimates against plain loops and known values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError, UnknownNameError
from nbrl.functional.logprobs import KL_KINDS, entropy, kl, kl_unbiased, token_logprobs
from tests import naive
from tests.strategies import floats, token_tensors

SMALL = st.floats(-5, 5, width=32)


def row(*numbers):
    return torch.tensor([numbers], dtype=torch.float64)


@st.composite
def scored_logits(draw):
    rows, width, vocabulary = draw(st.integers(1, 2)), draw(st.integers(1, 3)), 4
    logits = floats(draw, rows, width, vocabulary, numbers=SMALL)
    drawn = draw(
        st.lists(st.integers(0, vocabulary - 1), min_size=rows * width, max_size=rows * width)
    )
    temperature = floats(draw, rows, numbers=st.floats(0.25, 2, width=32))
    return logits, torch.tensor(drawn).reshape(rows, width), temperature


def test_token_logprobs_and_entropy_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]]])
    got = token_logprobs(logits, torch.tensor([[1, 0]]))
    torch.testing.assert_close(got, torch.tensor([[0.5, 0.75]]).log())
    wanted = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(entropy(logits), torch.tensor([[math.log(2), wanted]]))


@settings(max_examples=50, deadline=None)
@given(scored_logits())
def test_token_logprobs_and_entropy_are_the_slow_loop(drawn):
    logits, tokens, temperature = drawn
    scores, spread = (
        token_logprobs(logits, tokens, temperature=temperature),
        entropy(logits, temperature=temperature),
    )
    for i, line in enumerate(logits.tolist()):
        for t, z in enumerate(line):
            wanted = naive.log_softmax(z, temperature[i].item())[tokens[i, t]]
            assert scores[i, t].item() == pytest.approx(wanted, abs=1e-9)
            assert spread[i, t].item() == pytest.approx(
                naive.entropy(z, temperature[i].item()), abs=1e-9
            )


@settings(max_examples=30, deadline=None)
@given(scored_logits())
def test_entropy_is_the_mean_surprise_over_the_vocabulary(drawn):
    logits, _, temperature = drawn
    each = [
        token_logprobs(logits, torch.full(logits.shape[:2], v), temperature=temperature)
        for v in range(4)
    ]
    wanted = -sum(p.exp() * p for p in each)
    torch.testing.assert_close(entropy(logits, temperature=temperature), wanted)


def test_one_temperature_is_that_temperature_in_every_row():
    logits = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([[0, 1], [2, 3], [4, 0]])
    one = token_logprobs(logits, tokens, temperature=0.7)
    torch.testing.assert_close(
        token_logprobs(logits, tokens, temperature=torch.full((3,), 0.7)), one
    )
    torch.testing.assert_close(token_logprobs(logits / 0.7, tokens), one)


def test_b47_temperature_divides_the_logits():
    logits, token = torch.tensor([[[2.0, 0.0]]]), torch.tensor([[0]])
    assert token_logprobs(logits, token, temperature=0.5).item() == pytest.approx(
        -0.018150, abs=2e-6
    )
    assert token_logprobs(logits, token).item() == pytest.approx(-0.126928, abs=2e-6)


def test_b49_float32_logits_keep_their_digits():
    got = token_logprobs(torch.tensor([[[17.03, 17.0]]]), torch.tensor([[0]]))
    assert got.item() == pytest.approx(-0.678260, abs=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_b49_the_softmax_of_narrow_logits_is_float32(dtype):
    logits = (torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1)) * 8).to(dtype)
    tokens = torch.arange(6).reshape(2, 3)
    got = token_logprobs(logits, tokens, temperature=0.7)
    wanted = (logits.double() / 0.7).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    assert got.dtype == torch.float32
    assert (got - wanted).abs().max() < 1e-5
    assert entropy(logits).dtype == torch.float32


def test_a_forbidden_token_adds_no_entropy_and_no_nan_gradient():
    logits = torch.tensor([[[0.0, 0.0, -torch.inf]]], requires_grad=True)
    spread = entropy(logits)
    spread.sum().backward()
    assert spread.item() == pytest.approx(math.log(2))
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, torch.tensor([1.0, 0.0])])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    logits, tokens = torch.zeros(2, 1, 3), torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(ConfigError, match="temperature must be > 0"):
        token_logprobs(logits, tokens, temperature=temperature)


def test_b28_kl_estimates_and_their_sign():
    logp, ref = row(-1.0, -1.5), row(-1.5, -1.0)
    assert kl(logp, ref, "k1").tolist() == [[0.5, -0.5]]
    assert kl(logp, ref, "k2").tolist() == [[0.125, 0.125]]
    torch.testing.assert_close(kl(logp, ref, "k3"), row(0.106531, 0.148721), atol=2e-6, rtol=0)


@settings(max_examples=50, deadline=None)
@given(token_tensors(2), st.sampled_from(sorted(KL_KINDS)), st.sampled_from([None, 0.5, 10.0]))
def test_kl_is_the_slow_loop(drawn, kind, clamp):
    _, logp, ref = drawn
    got = kl(logp, ref, kind, clamp=clamp)
    for a, b, value in zip(
        logp.flatten().tolist(), ref.flatten().tolist(), got.flatten().tolist(), strict=True
    ):
        assert value == pytest.approx(naive.kl(a, b, kind, clamp), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(token_tensors(2))
def test_k3_is_never_negative_and_agrees_with_k2_nearby(drawn):
    _, logp, ref = drawn
    assert (kl(logp, ref, "k3") >= 0).all()
    near = logp + (ref - logp) * 1e-3
    torch.testing.assert_close(kl(logp, near, "k3"), kl(logp, near, "k2"), atol=1e-7, rtol=1e-2)


def test_k1_and_k3_have_the_kl_as_their_mean():
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = (policy * (policy / reference).log()).sum()
    for kind in ("k1", "k3"):
        estimates = kl(policy.log()[None], reference.log()[None], kind)
        torch.testing.assert_close((policy * estimates[0]).sum(), exact)


@pytest.mark.parametrize("kind", sorted(KL_KINDS))
@pytest.mark.parametrize("gap", [-500.0, -90.0, -30.0, 30.0, 500.0])
def test_large_gaps_are_clamped_with_finite_gradients(kind, gap):
    logp = torch.tensor([[gap]], requires_grad=True)
    estimate = kl(logp, torch.zeros(1, 1), kind)
    estimate.sum().backward()
    assert abs(estimate.item()) == 10
    assert logp.grad is not None
    assert logp.grad.item() == 0


def test_without_a_clamp_values_are_as_large_as_they_are():
    assert kl(row(-30.0), row(0.0), "k1", clamp=None).item() == -30
    assert kl(row(-30.0), row(0.0), "k3", clamp=None).item() == pytest.approx(math.exp(30) - 31)
    assert torch.isfinite(kl(torch.tensor([[-500.0]]), torch.zeros(1, 1), "k3", clamp=None)).all()


@pytest.mark.parametrize("kind", sorted(KL_KINDS))
def test_the_unbiased_gradient_is_the_reverse_kls_whatever_the_kind(kind):
    logp = row(-1.0, -2.0, -0.5).requires_grad_()
    ref, old = row(-1.5, -1.0, -0.5), row(-1.2, -2.0, -9.0)
    value = kl_unbiased(logp, ref, old, kind)
    value.sum().backward()
    torch.testing.assert_close(value.detach(), kl(logp.detach(), ref, kind))
    weights = row(math.exp(0.2), 1.0, 10.0)
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, weights * (logp.detach() - ref))


def test_the_mean_unbiased_gradient_is_that_of_the_exact_kl():
    logits = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    logp = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits)
    logp = logits.log_softmax(-1)
    terms = kl_unbiased(logp[None], reference[None], logp.detach()[None], "k1")[0]
    (got,) = torch.autograd.grad((logp.detach().exp() * terms).sum(), logits)
    torch.testing.assert_close(got, exact)


def test_kl_refuses_unknown_kinds_and_clamps():
    with pytest.raises(UnknownNameError, match="k1, k2, k3"):
        kl(row(0.0), row(0.0), "k4")
    with pytest.raises(ConfigError, match="clamp must be > 0"):
        kl(row(0.0), row(0.0), clamp=0.0)
