"""Statistics over groups against plain loops over their members."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.functional import groups as g
from tests import naive
from tests.strategies import batches


def double(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_group_statistics_by_hand():
    x, groups = double(1, 10, 3, 20, 5), g.grouped(torch.tensor([7, 3, 7, 3, 7]))
    assert groups.index.tolist() == [1, 0, 1, 0, 1]
    assert groups.sizes.tolist() == [3, 2, 3, 2, 3]
    assert g.group_sum(x, groups).tolist() == [9, 30, 9, 30, 9]
    assert g.group_min(x, groups).tolist() == [1, 10, 1, 10, 1]
    assert g.group_mean(x, groups).tolist() == [3, 15, 3, 15, 3]
    assert g.residuals(x, groups).tolist() == [-2, -5, 0, 5, 2]
    assert g.leave_one_out_residuals(x, groups).tolist() == [-3, -10, 0, 10, 3]
    assert g.group_std(x, groups).tolist() == [2, 50**0.5, 2, 50**0.5, 2]
    loo = g.leave_one_out_std(x, groups)
    torch.testing.assert_close(loo, double(2**0.5, 0, 8**0.5, 0, 2**0.5))


@settings(max_examples=80, deadline=None)
@given(batches(), st.sampled_from([0, 1]))
def test_group_statistics_are_the_slow_loop(batch, ddof):
    groups = g.grouped(batch.group_ids)
    x, ids = batch.rewards, batch.group_ids.tolist()
    got = {
        "mean": g.group_mean(x, groups),
        "std": g.group_std(x, groups, ddof=ddof),
        "others_mean": x - g.leave_one_out_residuals(x, groups),
        "others_std": g.leave_one_out_std(x, groups, ddof=ddof),
        "constant": g.constant(x, groups),
    }
    for i, mine in enumerate(ids):
        group = [r for r, other in zip(x.tolist(), ids, strict=True) if other == mine]
        others = [r for j, r in enumerate(x.tolist()) if ids[j] == mine and j != i]
        wanted = {
            "mean": naive.mean(group),
            "std": naive.std(group, ddof),
            "others_mean": naive.mean(others),
            "others_std": naive.std(others, ddof),
            "constant": max(group) == min(group),
        }
        assert {k: v[i].item() for k, v in got.items()} == pytest.approx(wanted, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_equal_weights_are_no_weights(batch):
    groups = g.grouped(batch.group_ids)
    same = g.weighted_residuals(batch.rewards, torch.full_like(batch.rewards, 3.0), groups)
    torch.testing.assert_close(same, g.residuals(batch.rewards, groups))


def test_a_group_without_weight_has_no_baseline():
    groups = g.grouped(torch.tensor([0, 0]))
    assert g.weighted_residuals(double(1, 4), double(0, 0), groups).tolist() == [1, 4]


def test_one_large_group_keeps_its_digits():
    x = torch.rand(20_000, generator=torch.Generator().manual_seed(0)) + 1e4
    groups = g.one_group(x)
    assert g.group_std(x, groups)[0].item() == pytest.approx(x.double().std().item(), rel=1e-9)
    row = 12_345
    others = torch.cat([x[:row], x[row + 1 :]]).double()
    got = g.leave_one_out_std(x, groups)[row].item()
    assert got == pytest.approx(others.std().item(), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_differs_by_more_than_rounding_is_not_constant(dtype):
    unit = torch.finfo(dtype).eps
    groups = g.grouped(torch.tensor([0, 0]))
    for step, same in ((1, True), (2, True), (4, False), (1000, False)):
        x = torch.tensor([1.0, 1.0 + step * unit], dtype=dtype)
        assert g.constant(x, groups).all() == same
