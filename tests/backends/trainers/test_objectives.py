"""The scalar and the metrics of a loss are those of a loop over single tokens, under any split."""

import dataclasses

import pytest
import torch

from nbrl.backends.trainers.objectives import (
    check_columns,
    counted,
    finished,
    merge,
    objective,
)
from nbrl.backends.trainers.passes import Said
from nbrl.config import KL, PolicyLoss
from nbrl.errors import StepError
from nbrl.functional.reductions import totals
from nbrl.types import Metric
from tests.backends.trainers.small import make_batch, split

ALL = ("advantages", "returns", "values", "old_logprobs", "rollout_logprobs", "ref_logprobs")


def said_of(batch, seed=1):
    torch.manual_seed(seed)
    shape = batch.mask.shape
    near = batch.columns.get("old_logprobs", torch.full(shape, -4.0))
    return Said(
        logprobs=(near + 0.3 * torch.randn(shape)).requires_grad_(),
        entropy=torch.rand(shape).requires_grad_(),
        values=torch.randn(shape).requires_grad_(),
    )


def evaluated(said, batch, loss):
    total = totals(batch.mask)
    value, share = objective(said, batch, loss, total)
    return value, merge([share], total, loss), share


def fixed(terms, mask, loss, returns=None, **columns):
    """A batch whose policy terms are given: REINFORCE with log-prob 1 and advantage -terms."""
    batch = make_batch([mask.shape[1]] * mask.shape[0])
    columns = {"advantages": -terms, **columns}
    return dataclasses.replace(batch, mask=mask, columns=columns), Said(
        logprobs=torch.ones_like(terms), entropy=torch.zeros_like(terms)
    )


def test_a_loss_is_the_sum_of_its_four_terms_by_hand():
    # One token: ratio 1.5 clipped to 1.2, A = 1; KL k2 of 0.4; entropy 0.5; value 1 for return 2.
    batch = make_batch([1], columns=ALL)
    one = torch.ones(1, 1)
    columns = {
        "advantages": one,
        "old_logprobs": -one,
        "ref_logprobs": (-1 + torch.log(torch.tensor(1.5)) - 0.4) * one,
        "rollout_logprobs": -one,
        "values": one,
        "returns": 2 * one,
    }
    batch = dataclasses.replace(batch, columns=columns)
    said = Said(logprobs=(-1 + torch.log(torch.tensor(1.5))) * one, entropy=0.5 * one, values=one)
    loss = PolicyLoss(kl=KL(coef=0.1, kind="k2"), entropy_coef=0.01, value_coef=2.0)
    value, metrics, share = evaluated(said, batch, loss)
    assert value.item() == pytest.approx(-1.2 + 0.1 * 0.08 - 0.01 * 0.5 + 2.0 * 0.5, abs=1e-6)
    assert metrics["policy_loss"].value == pytest.approx(-1.2)
    assert metrics["kl"].value == pytest.approx(0.08)
    assert metrics["entropy"] == Metric(value=0.5, count=1, of="tokens")
    assert metrics["value_loss"].value == pytest.approx(0.5)
    assert metrics["clip_fraction"].value == 1.0
    assert metrics["ratio_max"].value == pytest.approx(1.5)
    assert metrics["approx_kl"].value == pytest.approx(-0.405465, abs=1e-6)
    assert share.tokens["clipped"].tolist() == [[True]]


def test_short_micro_batches_do_not_weigh_too_much():
    # B38: four tokens of loss 2 in one, one token of loss 10 in the other.
    loss = PolicyLoss(surrogate="reinforce")
    first, says = fixed(torch.full((1, 4), 2.0), torch.ones(1, 4, dtype=torch.bool), loss)
    second, told = fixed(torch.full((1, 1), 10.0), torch.ones(1, 1, dtype=torch.bool), loss)
    total = totals(first.mask) + totals(second.mask)
    parts = [objective(s, b, loss, total) for s, b in ((says, first), (told, second))]
    assert sum(value.item() for value, _ in parts) == pytest.approx(3.6)
    metrics = merge([share for _, share in parts], total, loss)
    metric = metrics["loss"]
    assert (metric.value, metric.count, metric.of) == (pytest.approx(3.6), 5, "tokens")


def test_an_empty_row_is_no_sequence():
    # B41: the other row's loss is 1; a mean over two rows would give 0.5.
    loss = PolicyLoss(surrogate="reinforce", aggregation="seq-mean-token-mean")
    mask = torch.tensor([[True, True], [False, False]])
    batch, says = fixed(torch.ones(2, 2), mask, loss)
    value, metrics, _ = evaluated(says, batch, loss)
    assert value.item() == pytest.approx(1.0)
    assert (metrics["loss"].count, metrics["loss"].of) == (1, "sequences")


@pytest.mark.parametrize("width", [3, 4, 9])
def test_the_constant_length_norm_ignores_padding(width):
    # B43: row sums 4 and 5 over max_new_tokens 8.
    loss = PolicyLoss(surrogate="reinforce", aggregation="seq-mean-token-sum-norm", norm_length=8)
    terms, mask = torch.zeros(2, width), torch.zeros(2, width, dtype=torch.bool)
    terms[0, :2], terms[1, :3] = 2.0, 5 / 3
    mask[0, :2], mask[1, :3] = True, True
    batch, says = fixed(terms, mask, loss)
    assert evaluated(says, batch, loss)[0].item() == pytest.approx(0.5625)


LOSSES = {
    "ppo": PolicyLoss(),
    "sequence mean, kl, entropy": PolicyLoss(
        aggregation="seq-mean-token-mean", kl=KL(coef=0.3, kind="k3"), entropy_coef=0.1
    ),
    "constant length, icepop": PolicyLoss(
        aggregation="seq-mean-token-sum-norm",
        norm_length=16,
        correction="icepop",
        correction_low=0.8,
        correction_high=1.2,
    ),
    "gspo, tis": PolicyLoss(surrogate="gspo", aggregation="seq-mean-token-sum", correction="tis"),
    "unbiased kl": PolicyLoss(kl=KL(coef=0.3, unbiased_gradient=True), value_coef=0.5),
}


def rows_of(said, count):
    """The said columns cut like :func:`split`; they stay parts of the same leaves."""
    sizes = [len(part) for part in torch.arange(len(said.logprobs)).tensor_split(count)]
    cut = [column.split(sizes) for column in (said.logprobs, said.entropy, said.values)]
    return zip(*cut, strict=True)


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_shares_add_up_to_the_whole(loss, count):
    batch = make_batch([5, 1, 3, 4, 2, 5, 1], columns=ALL)
    batch.mask[2] = False
    said = said_of(batch)
    total = totals(batch.mask)
    whole, metrics, _ = evaluated(said, batch, loss)
    leaves = (said.logprobs, said.entropy, said.values)
    expected = torch.autograd.grad(whole, leaves, materialize_grads=True)
    shares, value = [], torch.zeros(())
    for micro, (logprobs, entropy, values) in zip(
        split(batch, count), rows_of(said, count), strict=True
    ):
        width = micro.mask.shape[1]
        cut = Said(
            logprobs=logprobs[:, :width], entropy=entropy[:, :width], values=values[:, :width]
        )
        one, share = objective(cut, micro, loss, total)
        value = value + one
        shares.append(share)
    torch.testing.assert_close(value, whole, atol=1e-6, rtol=1e-6)
    found = torch.autograd.grad(value, leaves, materialize_grads=True)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-7, rtol=1e-5)
    for name, metric in merge(shares, total, loss).items():
        assert metric.value == pytest.approx(metrics[name].value, abs=1e-6), name
        assert (metric.count, metric.of) == (metrics[name].count, metrics[name].of)


def test_masked_places_have_no_influence():
    batch = make_batch([4, 2, 3], columns=ALL)
    said, loss = said_of(batch), LOSSES["sequence mean, kl, entropy"]
    value, metrics, _ = evaluated(said, batch, loss)
    wild = {n: torch.where(batch.mask, c, torch.nan) for n, c in batch.columns.items()}
    other = Said(
        **{
            n: torch.where(batch.mask, getattr(said, n), torch.inf)
            for n in ("logprobs", "entropy", "values")
        }
    )
    again, same, _ = evaluated(other, dataclasses.replace(batch, columns=wild), loss)
    assert again.item() == value.item()
    assert same == metrics
    gradient = torch.autograd.grad(again, other.logprobs)[0]
    assert not gradient[~batch.mask].any()
    assert gradient.isfinite().all()


def test_without_old_logprobs_the_ratio_is_one_with_its_gradient():
    batch = make_batch([4, 2, 3])
    said = dataclasses.replace(said_of(batch), values=None)
    value, metrics, share = evaluated(said, batch, PolicyLoss())
    gradient = torch.autograd.grad(value, said.logprobs)[0]
    assert metrics["ratio_mean"].value == metrics["ratio_max"].value == 1.0
    assert metrics["approx_kl"].value == metrics["clip_fraction"].value == 0.0
    torch.testing.assert_close(gradient, -batch.columns["advantages"] / 9)
    assert not share.tokens["clipped"].any()


def test_corrections_say_what_they_changed():
    # B50: trainer -1, -1, -1, -9; sampler -1, -3, -0.1, -1; the last token does not count.
    batch = make_batch([4])
    columns = {
        "advantages": torch.ones(1, 4),
        "old_logprobs": torch.tensor([[-1.0, -1.0, -1.0, -9.0]]),
        "rollout_logprobs": torch.tensor([[-1.0, -3.0, -0.1, -1.0]]),
    }
    mask = torch.tensor([[True, True, True, False]])
    batch = dataclasses.replace(batch, mask=mask, columns=columns)
    said = Said(logprobs=columns["old_logprobs"], entropy=torch.zeros(1, 4))
    found = {
        kind: evaluated(said, batch, PolicyLoss(correction=kind))[1] for kind in ("tis", "icepop")
    }
    assert found["tis"]["importance_weight"].value == pytest.approx(6.5 / 3)
    assert found["icepop"]["importance_weight"].value == pytest.approx(1 / 3)
    assert found["tis"]["policy_loss"].value == pytest.approx(-6.5 / 3)
    for metrics in found.values():
        assert metrics["importance_filtered"].value == pytest.approx(2 / 3)
        assert metrics["sampler_kl"].value == pytest.approx((0.0 - 2.0 + 0.9) / 3)


def test_explained_variance_by_hand():
    batch = make_batch([2])
    columns = {
        "advantages": torch.ones(1, 2),
        "returns": torch.tensor([[0.0, 2.0]]),
        "values": torch.tensor([[0.0, 1.0]]),
    }
    batch = dataclasses.replace(batch, columns=columns)
    said = Said(logprobs=-torch.ones(1, 2), entropy=torch.zeros(1, 2), values=columns["values"])
    # Var(returns) = 1, Var(0, 1) = 1/4.
    assert evaluated(said, batch, PolicyLoss())[1]["explained_variance"].value == pytest.approx(
        0.75
    )


def test_missing_columns_and_empty_masks_are_refused():
    batch = make_batch([2, 3])
    with pytest.raises(StepError, match=r"PolicyLoss.kl needs the token column 'ref_logprobs'"):
        check_columns([batch], PolicyLoss(kl=KL()))
    check_columns([batch], PolicyLoss(kl=KL(coef=0.0)))
    with pytest.raises(StepError, match=r"correction='tis' needs .* 'rollout_logprobs'"):
        check_columns([batch], PolicyLoss(correction="tis"))
    other = dataclasses.replace(
        batch, columns={**batch.columns, "values": batch.columns["advantages"]}
    )
    with pytest.raises(StepError, match="must have the same token columns"):
        check_columns([batch, other], PolicyLoss())
    empty = dataclasses.replace(batch, mask=torch.zeros_like(batch.mask))
    with pytest.raises(StepError, match=r"no token counts in minibatch 2 of 2.* its 2 samples"):
        counted([[batch], [empty]], [PolicyLoss()])


def test_a_loss_that_is_not_finite_is_refused():
    metrics = {"loss": Metric(value=float("nan")), "grad_norm": Metric(value=1.0)}
    with pytest.raises(StepError, match=r"here: loss nan, grad_norm 1.0; all must be finite"):
        finished([], metrics, place="here")
