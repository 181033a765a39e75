"""Masked reductions, whitening and aggregation against plain loops and known values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError, UnknownNameError
from nbrl.functional.reductions import (
    AGGREGATIONS,
    Totals,
    aggregate,
    masked_mean,
    masked_sum,
    totals,
    whiten,
)
from tests import naive
from tests.strategies import token_tensors

LENGTHS = {"seq-mean-token-sum-norm": 8}


def bools(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, torch.as_tensor(wanted, dtype=got.dtype), atol=atol, rtol=1e-9)


def test_masked_sum_and_mean_by_hand():
    x = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]])
    mask = bools([1, 1, 0], [1, 0, 0])
    assert masked_sum(x, mask) == 7
    assert masked_sum(x, mask, 1).tolist() == [3, 4]
    close(masked_mean(x, mask), 7 / 3, atol=1e-6)
    assert masked_mean(x, mask, 1).tolist() == [1.5, 4]
    assert masked_mean(x, mask, 0).tolist() == [2.5, 2, 0]


def test_an_empty_mask_means_zero_with_a_zero_gradient():
    x = torch.tensor([[3.0, torch.inf], [torch.nan, 1.0]], requires_grad=True)
    mean = masked_mean(x, torch.zeros(2, 2, dtype=torch.bool))
    mean.backward()
    assert mean.item() == 0
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 0], [0, 0]]


def test_masked_infinities_and_nans_have_no_influence():
    x = torch.tensor([[1.0, torch.inf, torch.nan]], requires_grad=True)
    masked_mean(x, bools([1, 0, 0])).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1, 0, 0]]
    assert whiten(x.detach(), bools([1, 0, 0])).tolist() == [[0, 0, 0]]


@settings(max_examples=50, deadline=None)
@given(token_tensors(1))
def test_masked_mean_is_the_slow_loop(drawn):
    mask, x = drawn
    close(masked_mean(x, mask), naive.masked_mean(x.tolist(), mask.tolist()))
    for row in range(len(x)):
        close(
            masked_mean(x, mask, 1)[row], naive.masked_mean([x[row].tolist()], [mask[row].tolist()])
        )


def test_whiten_by_hand():
    x = torch.tensor([[1.0, 3.0, 100.0]])
    mask = bools([1, 1, 0])
    close(whiten(x, mask), [[-1.0, 1.0, 0.0]], atol=1e-6)
    assert whiten(x, mask, scale=False).tolist() == [[-1, 1, 0]]
    close(whiten(x, mask, ddof=1), [[-(0.5**0.5), 0.5**0.5, 0]], atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(token_tensors(1), st.booleans(), st.sampled_from([0, 1]))
def test_whiten_is_the_slow_loop(drawn, scale, ddof):
    mask, x = drawn
    wanted = naive.whiten(x.tolist(), mask.tolist(), scale=scale, ddof=ddof)
    close(whiten(x, mask, scale=scale, ddof=ddof), wanted, atol=1e-7)


@settings(max_examples=50, deadline=None)
@given(token_tensors(1))
def test_whitened_tokens_have_mean_0_and_variance_1(drawn):
    mask, x = drawn
    if mask.sum() < 2 or x[mask].var(correction=0) < 1e-6:
        return
    white = whiten(x, mask)
    close(masked_mean(white, mask), 0.0, atol=1e-7)
    close(masked_mean(white * white, mask), 1.0, atol=1e-7)


@pytest.mark.parametrize("mask", [[1, 0], [0, 0]])
def test_b34_whitening_one_token_or_none_gives_zero(mask):
    assert whiten(torch.tensor([[5.0, 9.0]]), bools(mask)).tolist() == [[0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, -0.3, 7.7, 0.0])
def test_whitening_a_constant_gives_exactly_zero_in_every_dtype(dtype, value):
    x = torch.full((3, 7), value, dtype=dtype)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 2:] = False
    assert torch.count_nonzero(whiten(x, mask)) == 0


def test_whitening_many_tokens_loses_no_digits():
    x = torch.rand(4000, 500) + 3
    mask = torch.ones_like(x, dtype=torch.bool)
    wide = x.double()
    wanted = (wide - wide.mean()) / wide.std(correction=0)
    assert (whiten(x, mask) - wanted).abs().max() < 1e-4


def test_aggregate_by_hand():
    terms = torch.tensor([[2.0, 2.0, 9.0], [5.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = bools([1, 1, 0], [1, 0, 0], [0, 0, 0])
    assert aggregate(terms, mask, "token-mean").item() == 3
    assert aggregate(terms, mask, "seq-mean-token-mean").item() == 3.5
    assert aggregate(terms, mask, "seq-mean-token-sum").item() == 4.5
    assert aggregate(terms, mask, "seq-mean-token-sum-norm", norm_length=8).item() == 0.5625


@settings(max_examples=50, deadline=None)
@given(token_tensors(1), st.sampled_from(sorted(AGGREGATIONS)))
def test_aggregate_is_the_slow_loop(drawn, mode):
    mask, terms = drawn
    got = aggregate(terms, mask, mode, norm_length=LENGTHS.get(mode))
    close(got, naive.aggregate(terms.tolist(), mask.tolist(), mode, LENGTHS.get(mode, 1)))


@settings(max_examples=50, deadline=None)
@given(token_tensors(1), st.sampled_from(sorted(AGGREGATIONS)), st.data())
def test_the_sum_over_any_split_is_the_whole_with_its_gradient(drawn, mode, data):
    mask, terms = drawn
    cut = data.draw(st.integers(0, len(terms)))
    length, counts = LENGTHS.get(mode), totals(mask)
    assert totals(mask[:cut]) + totals(mask[cut:]) == counts
    whole = terms.clone().requires_grad_()
    loss = aggregate(whole, mask, mode, norm_length=length)
    loss.backward()
    apart = terms.clone().requires_grad_()
    parts = [
        aggregate(apart[rows], mask[rows], mode, norm_length=length, totals=counts)
        for rows in (slice(None, cut), slice(cut, None))
    ]
    sum(parts).backward()
    close(sum(parts), loss.item())
    close(apart.grad, whole.grad)


def test_b38_short_micro_batches_do_not_weigh_more():
    first, second = torch.full((1, 4), 2.0), torch.tensor([[10.0, 0.0, 0.0, 0.0]])
    masks = bools([1, 1, 1, 1]), bools([1, 0, 0, 0])
    counts = totals(masks[0]) + totals(masks[1])
    parts = [aggregate(x, m, totals=counts) for x, m in zip((first, second), masks, strict=True)]
    close(sum(parts), 3.6, atol=1e-6)
    close(aggregate(torch.cat([first, second]), torch.cat(masks)), 3.6, atol=1e-6)


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_b41_all_masked_is_zero_with_zero_gradient(mode):
    terms = torch.tensor([[1.0, torch.nan], [torch.inf, 3.0]], requires_grad=True)
    loss = aggregate(terms, bools([0, 0], [0, 0]), mode, norm_length=LENGTHS.get(mode))
    loss.backward()
    assert loss.item() == 0
    assert terms.grad is not None
    assert terms.grad.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum"])
def test_b41_an_empty_row_is_no_sequence(mode):
    assert aggregate(torch.ones(2, 1), bools([1], [0]), mode).item() == 1


@pytest.mark.parametrize("padding", [0, 1, 5])
def test_b43_the_dr_grpo_normaliser_is_a_constant(padding):
    terms = torch.tensor([[2.0, 2.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0]])
    mask = bools([1, 1, 0, 0], [1, 0, 0, 0])
    wide = torch.nn.functional.pad(terms, (0, padding), value=9.0)
    padded = torch.nn.functional.pad(mask, (0, padding))
    got = aggregate(wide, padded, "seq-mean-token-sum-norm", norm_length=8)
    assert got.item() == 0.5625


def test_aggregate_refuses_unknown_modes_and_lengths_without_effect():
    terms, mask = torch.ones(1, 1), bools([1])
    with pytest.raises(UnknownNameError, match="token-mean"):
        aggregate(terms, mask, "mean")
    with pytest.raises(ConfigError, match="no effect"):
        aggregate(terms, mask, "token-mean", norm_length=8)
    with pytest.raises(ConfigError, match="norm_length >= 1; got None"):
        aggregate(terms, mask, "seq-mean-token-sum-norm")


def test_totals_add_up():
    left, right = totals(bools([1, 1], [0, 0])), totals(bools([1, 0]))
    assert left + right == Totals(tokens=3, sequences=2)
