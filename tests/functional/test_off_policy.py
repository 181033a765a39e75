"""Importance weights against plain loops and known values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError, UnknownNameError
from nbrl.functional.off_policy import CORRECTIONS, importance_weights
from tests import naive
from tests.strategies import token_tensors

EVERY = sorted(CORRECTIONS)


def row(*numbers):
    return torch.tensor([numbers], dtype=torch.float64)


def test_b50_tis_and_icepop_on_the_right_side_of_the_interval():
    trainer, rollout = row(-1.0, -1.0, -1.0, -9.0), row(-1.0, -3.0, -0.1, -1.0)
    mask = torch.tensor([[True, True, True, False]])
    trainer.requires_grad_()
    tis = importance_weights(trainer, rollout, mask, "tis", low=0.5, high=5.0)
    icepop = importance_weights(trainer, rollout, mask, "icepop", low=0.5, high=5.0)
    torch.testing.assert_close(tis, row(1.0, 5.0, 0.5, 0.0))
    torch.testing.assert_close(icepop, row(1.0, 0.0, 0.0, 0.0))
    assert not tis.requires_grad
    assert not icepop.requires_grad


def test_b50_the_direction_is_trainer_over_rollout():
    mask = torch.tensor([[True]])
    got = importance_weights(row(-1.0), row(-2.0), mask)
    torch.testing.assert_close(got, row(1.0).exp())


def test_the_interval_is_closed():
    mask = torch.tensor([[True, True]])
    zero = row(0.0, 0.0)
    for low, high in ((0.5, 1.0), (1.0, 2.0)):
        for kind in ("icepop", "seq-mask-tis"):
            got = importance_weights(zero, zero, mask, kind, low=low, high=high)
            assert got.tolist() == [[1, 1]]


def test_a_kept_sequence_keeps_its_token_weights_unclamped():
    old, rollout = torch.tensor([[0.0, 0.0], [3.0, 3.0]]), torch.tensor([[-3.0, 3.0], [0.0, 0.0]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    got = importance_weights(old, rollout, mask, "seq-mask-tis")
    wanted = torch.tensor([[3.0, -3.0], [0.0, 0.0]]).exp()
    wanted[1] = 0
    torch.testing.assert_close(got, wanted)


@settings(max_examples=60, deadline=None)
@given(token_tensors(2), st.sampled_from(EVERY), st.sampled_from([(0.5, 5.0), (0.0, 2.0)]))
def test_weights_are_the_slow_loop(drawn, kind, interval):
    mask, old, rollout = drawn
    low, high = interval
    got = importance_weights(old, rollout, mask, kind, low=low, high=high)
    for i, weights in enumerate(got.tolist()):
        columns = old[i].tolist(), rollout[i].tolist(), mask[i].tolist()
        wanted = naive.importance_weights(kind, *columns, low, high)
        assert weights == pytest.approx(wanted, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(token_tensors(2))
def test_where_icepop_keeps_a_token_its_weight_is_that_of_tis(drawn):
    mask, old, rollout = drawn
    tis = importance_weights(old, rollout, mask, "tis")
    icepop = importance_weights(old, rollout, mask, "icepop")
    assert torch.equal(icepop[icepop > 0], tis[icepop > 0])


@pytest.mark.parametrize("kind", EVERY)
def test_equal_policies_weigh_one_and_masked_places_nothing(kind):
    nan, inf = float("nan"), float("inf")
    mask = torch.tensor([[True, False, False]])
    got = importance_weights(row(-1.0, nan, inf), row(-1.0, inf, inf), mask, kind)
    assert got.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("kind", EVERY)
def test_overflowing_ratios_never_become_nan_or_infinite(kind):
    mask = torch.ones(1, 2, dtype=torch.bool)
    got = importance_weights(torch.tensor([[1e4, -1e4]]), torch.zeros(1, 2), mask, kind)
    assert torch.isfinite(got).all()


def test_unknown_kinds_and_empty_intervals_are_refused():
    args = row(0.0), row(0.0), torch.tensor([[True]])
    with pytest.raises(UnknownNameError, match="icepop, seq-mask-tis, tis"):
        importance_weights(*args, "mis")
    with pytest.raises(ConfigError, match="0 <= low < high"):
        importance_weights(*args, low=5.0, high=0.5)
