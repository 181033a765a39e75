"""A policy loss: a micro-batch to one scalar with a gradient, and to metrics that add up.

May import ``protocols``, ``types``, ``config``, ``functional``, ``errors``, this room and torch. A
loss is a sum of four terms, one function each:

    loss = policy + kl.coef * kl - entropy_coef * entropy + value_coef * value

The policy term is reduced by the loss's ``aggregation``. KL, entropy and value terms are always
means over all tokens that count, whatever the aggregation (as in OpenRLHF). All denominators are
counts over the whole optimizer step, so that the shares of its micro-batches add up to the same
loss, gradient and metrics under any split by rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from nbrl.backends.trainers.objectives.shares import Share, token_mean
from nbrl.backends.trainers.passes import Models, Said, say
from nbrl.config import KL, PolicyLoss, wants_reference
from nbrl.functional.logprobs import EXPONENT_CLAMP, kl, kl_unbiased
from nbrl.functional.losses import ratio_and_clipped, surrogate, value_loss
from nbrl.functional.off_policy import importance_weights
from nbrl.functional.reductions import Totals, aggregate
from nbrl.protocols import MicroBatch
from nbrl.types import Metric

Answer = TypeVar("Answer")


def compute_policy(
    models: Models, batch: MicroBatch, loss: PolicyLoss, total: Totals
) -> tuple[Tensor, Share]:
    """A policy loss's share of the step's loss and metrics, with gradient."""
    entropy = loss.entropy_coef != 0
    said = say(models, batch, entropy_gradient=entropy, critic_gradient=True)
    return objective(said, batch, loss, total)


def objective(
    said: Said, batch: MicroBatch, loss: PolicyLoss, total: Totals
) -> tuple[Tensor, Share]:
    """This micro-batch's share of the step's loss, and of its metrics.

    Without a column ``old_logprobs`` the policy is the one that sampled, and the ratio is 1 with
    the gradient that it has there.

    Args:
        said: The models' columns.
        batch: The micro-batch.
        loss: What to compute.
        total: Counts over all micro-batches of the optimizer step.
    """
    old = batch.columns.get("old_logprobs", said.logprobs.detach())
    terms, weights = _policy_terms(said.logprobs, old, batch, loss)
    parts = {
        "policy_loss": aggregate(
            terms, batch.mask, loss.aggregation, norm_length=loss.norm_length, totals=total
        ),
        "entropy": token_mean(said.entropy, batch, total),
    }
    value = parts["policy_loss"]
    if loss.entropy_coef:
        value = value - loss.entropy_coef * parts["entropy"]
    if wants_reference(loss.kl):
        assert loss.kl is not None
        parts["kl"] = token_mean(_kl_terms(said.logprobs, old, batch, loss.kl), batch, total)
        value = value + loss.kl.coef * parts["kl"]
    if said.values is not None:
        parts["value_loss"] = token_mean(_value_terms(said.values, batch, loss), batch, total)
        value = value + loss.value_coef * parts["value_loss"]
    parts["loss"] = value
    with torch.no_grad():
        ratio, clipped = _by_surrogate(ratio_and_clipped, said.logprobs, old, batch, loss)
        columns = _diagnostics(said, old, batch) | _mismatch(old, batch, weights)
        columns |= {"ratio_mean": ratio, "clip_fraction": clipped.float()}
        means = {name: token_mean(column, batch, total) for name, column in columns.items()}
    return value, Share(
        means=means | {name: part.detach() for name, part in parts.items()},
        peaks={"ratio_max": torch.where(batch.mask, ratio, 0.0).amax()},
        tokens={"ratio": ratio, "clipped": clipped, "loss": terms.detach()},
    )


def _policy_terms(
    logprobs: Tensor, old_logprobs: Tensor, batch: MicroBatch, loss: PolicyLoss
) -> tuple[Tensor, Tensor | None]:
    """Surrogate times correction, per token, and the correction's weights (None without one)."""
    terms = _by_surrogate(surrogate, logprobs, old_logprobs, batch, loss)
    if loss.correction is None:
        return terms, None
    weights = importance_weights(
        old_logprobs,
        batch.columns["rollout_logprobs"],
        batch.mask,
        loss.correction,
        low=loss.correction_low,
        high=loss.correction_high,
    )
    return terms * weights, weights


def _kl_terms(logprobs: Tensor, old_logprobs: Tensor, batch: MicroBatch, penalty: KL) -> Tensor:
    """Per-token KL to the reference, with the gradient that the penalty asks for."""
    reference = batch.columns["ref_logprobs"]
    if penalty.unbiased_gradient:
        return kl_unbiased(logprobs, reference, old_logprobs, penalty.kind, clamp=penalty.clamp)
    return kl(logprobs, reference, penalty.kind, clamp=penalty.clamp)


def _value_terms(values: Tensor, batch: MicroBatch, loss: PolicyLoss) -> Tensor:
    """Per-token critic losses against the returns, clipped around the values of the rollout."""
    return value_loss(
        values, batch.columns["values"], batch.columns["returns"], batch.mask, clip=loss.value_clip
    )


def policy_needs(loss: PolicyLoss) -> dict[str, str]:
    """The token columns that a policy loss needs, and which of its choices needs them."""
    needs = {"advantages": "every policy loss"}
    if wants_reference(loss.kl):
        needs["ref_logprobs"] = "PolicyLoss.kl"
    if loss.correction is not None:
        needs["rollout_logprobs"] = f"PolicyLoss.correction={loss.correction!r}"
    return needs


def merge_policy(shares: Sequence[Share], total: Totals, loss: PolicyLoss) -> dict[str, Metric]:
    """The metrics of a whole step, each with what it is a mean over.

    ``loss`` and ``policy_loss`` are over tokens or sequences, as the aggregation says. Over
    tokens: ``entropy``, ``kl`` (as in the loss, without coefficient), ``approx_kl``
    (``old_logprobs - logprobs``), ``clip_fraction``, ``ratio_mean``, ``nonzero_advantages``
    (share), ``sampler_kl`` (``rollout_logprobs - old_logprobs``), ``importance_weight``,
    ``importance_filtered`` (share whose weight was clamped or zeroed), ``value_loss``.
    Plain numbers: ``ratio_max``, ``explained_variance`` of the returns by the values before the
    update, ``tokens``, ``sequences``.
    """
    # One transfer for all numbers of the step.
    names = list(shares[0].means)
    table = torch.stack([torch.stack([s.means[n].double() for n in names]) for s in shares])
    found = dict(zip(names, table.sum(0).tolist(), strict=True))
    moments = {n: found.pop(n) for n in list(found) if n.startswith(_MOMENT)}
    metrics = {n: Metric(value=v, count=total.tokens, of="tokens") for n, v in found.items()}
    if loss.aggregation != "token-mean":
        for name in ("loss", "policy_loss"):
            metrics[name] = Metric(value=found[name], count=total.sequences, of="sequences")
    peaks = {n: max(float(s.peaks[n]) for s in shares) for n in shares[0].peaks}
    if moments:
        peaks["explained_variance"] = _explained_variance(moments)
    peaks |= {"tokens": total.tokens, "sequences": total.sequences}
    return metrics | {name: Metric(value=float(value)) for name, value in peaks.items()}


_MOMENT = "moment:"


def _by_surrogate(
    function: Callable[..., Answer],
    logprobs: Tensor,
    old_logprobs: Tensor,
    batch: MicroBatch,
    loss: PolicyLoss,
) -> Answer:
    """What a function of the surrogate's family says of the micro-batch under the loss's clips."""
    return function(
        loss.surrogate,
        logprobs,
        old_logprobs,
        batch.columns["advantages"],
        batch.mask,
        eps_low=loss.eps_low,
        eps_high=loss.eps_high,
        dual_clip=loss.dual_clip,
    )


def _diagnostics(said: Said, old: Tensor, batch: MicroBatch) -> dict[str, Tensor]:
    """Per-token columns that say how the policy moved, and how well the values predict."""
    columns = {
        "approx_kl": old - said.logprobs,
        "nonzero_advantages": (batch.columns["advantages"] != 0).float(),
    }
    if said.values is not None:
        returns = batch.columns["returns"].double()
        left = returns - said.values
        columns |= {f"{_MOMENT}returns": returns, f"{_MOMENT}returns2": returns.square()}
        columns |= {f"{_MOMENT}left": left, f"{_MOMENT}left2": left.square()}
    return columns


def _mismatch(old: Tensor, batch: MicroBatch, weights: Tensor | None) -> dict[str, Tensor]:
    """Per-token columns that compare the trainer with the sampler."""
    if "rollout_logprobs" not in batch.columns:
        return {}
    difference = old - batch.columns["rollout_logprobs"]
    columns = {"sampler_kl": -difference}
    if weights is not None:
        plain = difference.clamp(-EXPONENT_CLAMP, EXPONENT_CLAMP).exp()
        changed = (weights - plain).abs() > 1e-6 * plain
        columns |= {"importance_weight": weights, "importance_filtered": changed.float()}
    return columns


def _explained_variance(moments: Mapping[str, float]) -> float:
    """``1 - Var(returns - values) / Var(returns)``; 0 where the returns do not vary."""
    m = {name.removeprefix(_MOMENT): value for name, value in moments.items()}
    spread = m["returns2"] - m["returns"] ** 2
    return 1 - (m["left2"] - m["left"] ** 2) / spread if spread > 1e-12 else 0.0
