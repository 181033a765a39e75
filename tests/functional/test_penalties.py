"""Length penalties and group filtering against known values and a slow loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError
from nbrl.functional.estimators import scalar_advantages
from nbrl.functional.penalties import groups_inside, overlong_penalty, stop_properly
from tests import naive
from tests.strategies import batches


def double(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_b22_the_overlong_penalty_is_bounded_and_comes_before_the_baseline():
    lengths = torch.tensor([80, 81, 90, 100, 130])
    penalty = overlong_penalty(lengths, max_new_tokens=100, buffer=20)
    torch.testing.assert_close(penalty, double(0, -0.05, -0.5, -1, -1))
    rewards = torch.ones(4) + penalty[[0, 2, 3, 4]]
    got = scalar_advantages("dr_grpo", rewards, torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(got, double(0.625, 0.125, -0.375, -0.375))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.integers(1, 100), st.integers(0, 100), st.floats(0.1, 3))
def test_the_overlong_penalty_is_the_published_formula(length, buffer, more, factor):
    limit = buffer + more
    got = overlong_penalty(
        torch.tensor([length]), max_new_tokens=limit, buffer=buffer, factor=factor
    )
    over = min(length - (limit - buffer), buffer)
    wanted = -factor * over / buffer if over > 0 else 0.0
    assert got.item() == pytest.approx(wanted)


def test_a_penalty_out_of_range_is_refused():
    for buffer in (0, 101):
        with pytest.raises(ConfigError, match="buffer must be in"):
            overlong_penalty(torch.tensor([5]), max_new_tokens=100, buffer=buffer)
    with pytest.raises(ConfigError, match="factor must be > 0"):
        overlong_penalty(torch.tensor([5]), max_new_tokens=100, buffer=5, factor=0.0)


@pytest.mark.parametrize(("coef", "wanted"), [(0.2, 0.2), (-0.5, -0.5), (0.0, 0.0), (1.0, 1.0)])
def test_b10_a_cut_answer_pays_the_stop_penalty(coef, wanted):
    got = stop_properly(double(1, 1, -2), torch.tensor([True, False, True]), coef)
    torch.testing.assert_close(got, double(wanted, 1, -2 * coef if coef >= 0 else coef))


def test_stopping_late_is_never_paid_for():
    with pytest.raises(ConfigError, match="must be <= 1"):
        stop_properly(double(1), torch.tensor([True]), 1.5)


def test_b24_the_interval_is_open_at_both_ends():
    scores, ids = double(0, 0, 1, 1, 0, 1), torch.tensor([0, 0, 1, 1, 2, 2])
    assert groups_inside(scores, ids, 0.0, 1.0).tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_a_mean_on_the_bound_is_outside_in_every_dtype(dtype, value):
    scores = torch.full((3,), value, dtype=dtype)
    bound = scores[0].item()
    ids = torch.zeros(3, dtype=torch.long)
    assert not groups_inside(scores, ids, bound, 1.0).any()
    assert not groups_inside(scores, ids, 0.0, bound).any()
    assert groups_inside(scores, ids, 0.0, 1.0).all()


@settings(max_examples=50, deadline=None)
@given(batches())
def test_filtering_is_the_slow_loop(batch):
    low, high = -0.25, 0.5
    got = groups_inside(batch.rewards, batch.group_ids, low, high).tolist()
    for i, group in enumerate(batch.group_ids):
        mean = naive.mean(batch.rewards[batch.group_ids == group].tolist())
        if abs(mean - low) > 1e-9 and abs(mean - high) > 1e-9:
            assert got[i] == (low < mean < high)


def test_no_rows_and_empty_intervals():
    assert groups_inside(torch.zeros(0), torch.zeros(0, dtype=torch.long), 0.0, 1.0).tolist() == []
    with pytest.raises(ConfigError, match="low < high"):
        groups_inside(double(1), torch.tensor([0]), 1.0, 1.0)
