"""pass@k, bootstrap intervals and paired differences."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError, DataError
from nbrl.functional.statistics import bootstrap_interval, paired_difference, pass_at_k
from tests import naive


def double(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_pass_at_k_by_hand():
    got = pass_at_k(4, torch.tensor([0, 1, 2, 4]), 2)
    torch.testing.assert_close(got, double(0, 0.5, 1 - 1 / 6, 1))


def test_b21_rows_with_the_same_text_are_their_own_prompts():
    assert pass_at_k(torch.tensor([2, 2]), torch.tensor([1, 2]), 1).tolist() == [0.5, 1.0]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_the_binomial_formula(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    got = pass_at_k(torch.tensor([n]), torch.tensor([c]), k).item()
    assert got == pytest.approx(naive.pass_at_k(n, c, k), abs=1e-9)
    assert pass_at_k(n, torch.tensor([c]), 1).item() == pytest.approx(c / n)


def test_pass_at_k_does_not_overflow():
    got = pass_at_k(100_000, torch.tensor([1]), 1000)
    assert got.item() == pytest.approx(0.01)


def test_pass_at_k_refuses_what_cannot_be_drawn():
    with pytest.raises(ConfigError, match="k=5, smallest n=4"):
        pass_at_k(4, torch.tensor([1]), 5)
    with pytest.raises(ConfigError, match="k=0"):
        pass_at_k(4, torch.tensor([1]), 0)
    with pytest.raises(DataError, match="0 <= c <= n"):
        pass_at_k(4, torch.tensor([5]), 1)


def test_the_interval_is_set_by_its_seed_and_holds_the_mean():
    x = torch.randn(40, generator=torch.Generator().manual_seed(0))
    low, high = bootstrap_interval(x, seed=3)
    assert (low, high) == bootstrap_interval(x, seed=3)
    assert (low, high) != bootstrap_interval(x, seed=4)
    assert low < x.mean() < high


def test_the_interval_has_the_width_of_the_normal_approximation():
    x = torch.randn(400, generator=torch.Generator().manual_seed(1))
    for level, z in ((0.95, 1.96), (0.8, 1.2816)):
        low, high = bootstrap_interval(x, level=level, resamples=4000)
        wanted = 2 * z * x.std().item() / math.sqrt(len(x))
        assert high - low == pytest.approx(wanted, rel=0.1)


def test_the_interval_covers_as_often_as_it_says():
    generator = torch.Generator().manual_seed(2)
    hits = 0
    for _ in range(120):
        low, high = bootstrap_interval(torch.randn(50, generator=generator) + 1, resamples=200)
        hits += low < 1 < high
    assert 0.87 < hits / 120 < 0.995


def test_one_number_and_equal_numbers_have_no_width():
    assert bootstrap_interval(double(0.5)) == (0.5, 0.5)
    assert bootstrap_interval(double(0.25, 0.25, 0.25)) == (0.25, 0.25)


def test_chunks_do_not_change_the_interval_of_long_data():
    x = torch.rand(30_000, generator=torch.Generator().manual_seed(0))
    low, high = bootstrap_interval(x, resamples=300)
    assert high - low == pytest.approx(2 * 1.96 * x.std().item() / math.sqrt(len(x)), rel=0.2)


def test_pairing_takes_the_spread_of_the_items_out():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(100, generator=generator) * 10
    b = a + 0.1 + 0.01 * torch.randn(100, generator=generator)
    mean, low, high = paired_difference(a, b)
    assert mean == pytest.approx(0.1, abs=0.01)
    assert 0 < low < mean < high
    assert paired_difference(b, a)[0] == pytest.approx(-mean)
    low_b, _ = bootstrap_interval(b)
    _, high_a = bootstrap_interval(a)
    assert low_b < high_a


def test_the_paired_difference_is_the_interval_of_the_differences():
    a, b = double(1, 2, 3), double(2, 2, 5)
    assert paired_difference(a, b, seed=7) == (1.0, *bootstrap_interval(b - a, seed=7))


def test_numbers_that_cannot_be_resampled_are_refused():
    with pytest.raises(DataError, match="at least one number"):
        bootstrap_interval(double())
    with pytest.raises(DataError, match="all finite"):
        bootstrap_interval(double(1, float("nan")))
    with pytest.raises(ConfigError, match="0 < level < 1"):
        bootstrap_interval(double(1), level=95.0)
