"""Rank correlations and Cohen's kappa, against examples by hand and the loop over all pairs."""

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.functional.agreement import cohens_kappa, kendall, spearman
from tests import naive


def double(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_by_hand_without_ties():
    a, b = double(1, 2, 3, 4), double(1, 3, 2, 4)
    # ranks differ by 0, 1, 1, 0: 1 - 6 * 2 / (4 * 15); five pairs alike, one the other way round
    assert spearman(a, b) == pytest.approx(0.8)
    assert kendall(a, b) == pytest.approx((5 - 1) / 6)


def test_by_hand_with_ties():
    a, b = double(0, 0, 1, 1), double(0, 1, 1, 1)
    # two pairs alike, none the other way; 4 pairs are untied in a, 3 in b
    assert kendall(a, b) == pytest.approx(2 / math.sqrt(4 * 3))
    # of two-valued judges both are the phi coefficient
    assert spearman(a, b) == pytest.approx(kendall(a, b))


LISTS = st.integers(0, 9).map(float)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(LISTS, LISTS), min_size=2, max_size=30))
def test_they_are_the_loop_over_all_pairs(pairs):
    a, b = ([p[i] for p in pairs] for i in (0, 1))
    for ours, slow in ((spearman, naive.spearman), (kendall, naive.kendall)):
        assert ours(double(*a), double(*b)) == pytest.approx(slow(a, b), abs=1e-12, nan_ok=True)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12, unique=True))
def test_only_the_order_counts(a):
    x = double(*a)
    for judge in (spearman, kendall):
        assert judge(x, x) == pytest.approx(1)
        assert judge(x, -x) == pytest.approx(-1)
        assert judge(x, torch.searchsorted(x.sort().values, x).double() ** 3) == pytest.approx(1)


def test_a_constant_side_has_no_order():
    for judge in (spearman, kendall):
        assert math.isnan(judge(double(1, 1, 1), double(1, 2, 3)))
        assert math.isnan(judge(double(1), double(2)))
        assert math.isnan(judge(double(), double()))


def test_many_items_are_quick():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 100_000, generator=generator, dtype=torch.float64)
    started = time.process_time()
    tau, rho = kendall(a, a + b), spearman(a, a + b)
    assert time.process_time() - started < 5
    # of two normals with correlation r = 1/sqrt(2): 2/pi asin r and 6/pi asin(r/2)
    assert tau == pytest.approx(0.5, abs=0.01)
    assert rho == pytest.approx(6 / math.pi * math.asin(math.sqrt(0.5) / 2), abs=0.01)


def test_kappa_by_hand():
    a = torch.tensor([True] * 25 + [False] * 25)
    b = torch.tensor([True] * 20 + [False] * 5 + [True] * 10 + [False] * 15)
    # agree on 35 of 50; by chance 0.5 * 0.6 + 0.5 * 0.4
    assert cohens_kappa(a, b) == pytest.approx((0.7 - 0.5) / (1 - 0.5))
    assert cohens_kappa(a, a) == 1
    assert cohens_kappa(a, ~a) == -1


def test_kappa_says_nothing_where_both_always_say_the_same():
    everything = torch.ones(3, dtype=torch.bool)
    assert math.isnan(cohens_kappa(everything, everything))
    assert math.isnan(cohens_kappa(everything[:0], everything[:0]))
    assert cohens_kappa(everything, ~everything) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=20))
def test_kappa_is_the_order_of_two_values_where_shares_are_equal(pairs):
    """With equal shares of True, kappa is the correlation of the two."""
    a = torch.tensor([p for p, _ in pairs] + [q for _, q in pairs])
    b = torch.tensor([q for _, q in pairs] + [p for p, _ in pairs])
    found = spearman(a.double(), b.double())
    assert cohens_kappa(a, b) == pytest.approx(found, nan_ok=True)
