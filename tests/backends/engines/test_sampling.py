"""Draws follow the softmax, cut where asked, and depend on seed and position only."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbrl.backends.engines.sampling import draw, uniforms
from nbrl.config import Sampling
from nbrl.errors import RolloutError

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -30.0])


def frequencies(sampling: Sampling, num_draws: int = 40_000) -> np.ndarray:
    uniform = uniforms(np.arange(num_draws), np.zeros(num_draws, int))
    tokens, _ = draw(LOGITS.expand(num_draws, -1), uniform, sampling)
    return np.bincount(tokens.numpy(), minlength=len(LOGITS)) / num_draws


def test_uniforms_are_splitmix64():
    # SplitMix64 seeded with 0 gives 0xE220A8397B1DCDAF first; it is the inner hash of seed 0.
    inner = 0xE220A8397B1DCDAF
    x = (inner + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    x ^= x >> 31
    assert uniforms(np.array([0]), np.array([0]))[0] == (x >> 12) * 2.0**-52


def test_uniforms_are_even_and_unrelated_between_neighbours():
    grid = uniforms(*np.meshgrid(np.arange(300), np.arange(300)))
    assert abs(grid.mean() - 0.5) < 5 / np.sqrt(12 * grid.size)
    counts, _ = np.histogram(grid, bins=50, range=(0, 1))
    assert ((counts - grid.size / 50) ** 2 / (grid.size / 50)).sum() < 100  # 49 degrees of freedom
    for shifted in (np.roll(grid, 1, axis=0), np.roll(grid, 1, axis=1)):
        assert abs(np.corrcoef(grid.ravel(), shifted.ravel())[0, 1]) < 5 / np.sqrt(grid.size)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_the_softmax_at_the_temperature(temperature: float):
    expected = torch.softmax(LOGITS / temperature, -1).numpy()
    observed = frequencies(Sampling(temperature=temperature))
    assert np.all(np.abs(observed - expected) < 4.5 * np.sqrt(expected / 40_000) + 1e-12)


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (2, 1.0, [0, 1]),
        (0, 0.5, [0]),  # the first holds 0.55 at temperature 1
        (0, 0.6, [0, 1]),
        (3, 0.85, [0, 1]),  # of the three that top-k left the first two hold 0.86
        (3, 0.88, [0, 1, 2]),
        (6, 1.0, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_top_k_and_top_p_keep_the_right_tokens(top_k: int, top_p: float, kept: list[int]):
    probs = torch.softmax(LOGITS, -1).numpy()
    expected = np.zeros(len(LOGITS))
    expected[kept] = probs[kept] / probs[kept].sum()
    observed = frequencies(Sampling(top_k=top_k, top_p=top_p))
    assert np.all(np.abs(observed - expected) < 4.5 * np.sqrt(expected / 40_000) + 1e-12)


def test_top_p_sorts_everything_where_the_candidates_hold_too_little():
    logits = torch.zeros(2000, 5000)
    tokens, _ = draw(logits, uniforms(np.arange(2000), np.zeros(2000)), Sampling(top_p=0.9))
    assert len(tokens.unique()) > 1024  # even over 4500 tokens; 1024 candidates would not do


def test_logprobs_are_those_of_the_full_softmax_whatever_is_cut():
    # logits [2, 0] at temperature 0.5: log(1 / (1 + exp(-4))) = -0.018150.
    sampling = Sampling(temperature=0.5, top_k=1)
    tokens, logprobs = draw(torch.tensor([[2.0, 0.0]]), np.array([0.999]), sampling)
    assert tokens.tolist() == [0]
    assert logprobs[0].item() == pytest.approx(-0.018150, abs=2e-6)


def test_greedy_takes_the_largest_and_reports_its_logprob_at_temperature_1():
    tokens, logprobs = draw(LOGITS[None], np.array([0.999]), Sampling(temperature=0.0))
    assert tokens.tolist() == [0]
    assert logprobs[0].item() == pytest.approx(torch.log_softmax(LOGITS, -1)[0].item())


def test_bfloat16_logits_are_cast_before_the_softmax():
    _, logprobs = draw(torch.tensor([[17.0, 17.0]]).bfloat16(), np.array([0.1]), Sampling())
    assert logprobs.dtype == torch.float32
    _, logprobs = draw(torch.tensor([[17.03, 17.0]]), np.array([0.1]), Sampling())
    assert logprobs[0].item() == pytest.approx(-0.678260, abs=2e-6)


@given(st.floats(0, 1 - 2**-52), st.integers(1, 6), st.sampled_from([1.0, 0.7]))
def test_a_token_of_no_probability_is_never_drawn(u: float, num_possible: int, top_p: float):
    logits = torch.full((1, 8), -torch.inf)
    logits[0, 1 : 1 + num_possible] = torch.linspace(0, 3, num_possible)
    token, logprob = draw(logits, np.array([u]), Sampling(top_p=top_p))
    assert 1 <= token.item() <= num_possible
    assert torch.isfinite(logprob).all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(temperature=0.5, top_p=0.9),
        Sampling(top_k=2),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(sampling, place, bad):
    logits = LOGITS.repeat(3, 1)
    logits[1, place] = bad
    with pytest.raises(RolloutError, match="logits of 1 of 3 answers are NaN or infinite"):
        draw(logits, np.array([0.1, 0.5, 0.9]), sampling)


def test_a_token_that_cannot_come_is_no_error():
    logits = LOGITS.repeat(3, 1)
    logits[:, 0] = -np.inf
    tokens, logprobs = draw(logits, np.array([0.0, 0.5, 0.99]), Sampling())
    assert (tokens != 0).all()
    assert logprobs.isfinite().all()
