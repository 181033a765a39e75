"""Objectives of preferences: reward model, DPO and its kin, KTO.

Rows of a pair stand side by side in a micro-batch, the chosen one first. May import this room,
``forward``, ``protocols``, ``config``, ``functional`` and torch.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from nbrl.backends import forward
from nbrl.backends.trainers.objectives.shares import Share, Sum, balance_share, sum_of
from nbrl.backends.trainers.passes import Models
from nbrl.config import DPO, KTO, RewardLoss
from nbrl.functional.preference import (
    dpo_loss,
    ipo_loss,
    kto_baseline,
    kto_loss,
    reward_model_loss,
    sft_nll,
)
from nbrl.functional.reductions import Totals, masked_mean, masked_sum
from nbrl.protocols import MicroBatch


def compute_reward(
    models: Models, batch: MicroBatch, loss: RewardLoss, total: Totals
) -> tuple[Tensor, Share]:
    """The pairwise loss of a reward model's scores, a mean over pairs."""
    scores = forward.last_values(models.policy, batch, packed=models.packed)
    chosen, rejected = scores[0::2], scores[1::2]
    margin = batch.per_row["margin"][0::2].to(scores.device) if loss.margin else None
    terms = reward_model_loss(chosen, rejected, margin=margin)
    value = terms.sum() / _pairs(total)
    wide = scores.detach().double()
    sums = {
        "accuracy": sum_of((chosen > rejected).double(), "pairs"),
        "margin": sum_of(chosen - rejected, "pairs"),
        "chosen_score": sum_of(chosen, "pairs"),
        "rejected_score": sum_of(rejected, "pairs"),
        "score": sum_of(wide, "sequences"),
        "score_square": sum_of(wide.square(), "sequences"),
    }
    return value, Share(means={"loss": value.detach()}, sums=sums)


def compute_dpo(
    models: Models, batch: MicroBatch, loss: DPO, total: Totals
) -> tuple[Tensor, Share]:
    """DPO, cDPO or IPO on the pairs, a mean over pairs, plus the NLL of the chosen answers."""
    logprobs, balance = forward.response_logprobs_and_balance(
        models.policy, batch, wanted=loss.aux_coef > 0, packed=models.packed
    )
    reference = batch.columns["ref_logprobs"]
    reduce = masked_mean if loss.kind == "ipo" and loss.length == "mean" else masked_sum
    policy_sums, ref_sums = reduce(logprobs, batch.mask, 1), reduce(reference, batch.mask, 1)
    sides = policy_sums[0::2], policy_sums[1::2], ref_sums[0::2], ref_sums[1::2]
    if loss.kind == "ipo":
        terms = ipo_loss(*sides, beta=loss.beta)
    else:
        terms = dpo_loss(*sides, beta=loss.beta, label_smoothing=loss.label_smoothing)
    value = terms.sum() / _pairs(total)
    rewards = loss.beta * (policy_sums - ref_sums).detach()
    sums = _pair_sums(rewards[0::2], rewards[1::2], policy_sums.detach())
    if loss.nll_coef:
        nll = masked_mean(sft_nll(logprobs, batch.mask), batch.mask, 1)[0::2]
        value = value + loss.nll_coef * nll.sum() / _pairs(total)
        sums["nll"] = sum_of(nll, "pairs")
    if balance is not None:
        part, sums["aux_loss"] = balance_share(balance, batch, total)
        value = value + loss.aux_coef * part
    log_ratio = torch.where(batch.mask, logprobs.detach() - reference, 0.0)
    return value, Share(means={"loss": value.detach()}, tokens={"log_ratio": log_ratio}, sums=sums)


def compute_kto(
    models: Models, batch: MicroBatch, loss: KTO, total: Totals
) -> tuple[Tensor, Share]:
    """KTO on the rows of either class, a mean over rows.

    Metrics of a class that has no row are left out.
    """
    logprobs = forward.response_logprobs(models.policy, batch, packed=models.packed)
    reference = batch.columns["ref_logprobs"]
    policy_sums, ref_sums = (masked_sum(x, batch.mask, 1) for x in (logprobs, reference))
    desirable = batch.per_row["desirable"].to(logprobs.device) > 0
    baseline = batch.per_row["baseline"][:1].to(logprobs.device)
    terms = kto_loss(
        policy_sums,
        ref_sums,
        desirable,
        baseline,
        torch.zeros_like(baseline),
        beta=loss.beta,
        desirable_weight=loss.desirable_weight,
        undesirable_weight=loss.undesirable_weight,
    )
    value = terms.sum() / max(total.sequences, 1)
    rewards = loss.beta * (policy_sums - ref_sums).detach()
    sums = {
        "desirable_reward": sum_of(rewards[desirable], "sequences"),
        "undesirable_reward": sum_of(rewards[~desirable], "sequences"),
        "kl_baseline": sum_of(batch.per_row["baseline"], "sequences"),
    }
    log_ratio = torch.where(batch.mask, logprobs.detach() - reference, 0.0)
    return value, Share(means={"loss": value.detach()}, tokens={"log_ratio": log_ratio}, sums=sums)


@torch.no_grad()
def with_baseline(models: Models, batches: Sequence[MicroBatch], loss: KTO) -> Sequence[MicroBatch]:
    """The micro-batches of KTO's own rows, each told the reference point of all of them.

    It is taken over the rows of the step that pair a prompt with another one's answer.
    """
    policy, reference = [], []
    for batch in (b for b in batches if "mismatched" in b.per_row):
        logprobs = forward.response_logprobs(models.policy, batch, packed=models.packed)
        policy.append(masked_sum(logprobs, batch.mask, 1))
        reference.append(masked_sum(batch.columns["ref_logprobs"], batch.mask, 1))
    baseline = kto_baseline(torch.cat(policy), torch.cat(reference)).cpu()
    return [
        dataclasses.replace(
            batch, per_row={**batch.per_row, "baseline": baseline.expand(len(batch.rows))}
        )
        for batch in batches
        if "mismatched" not in batch.per_row
    ]


def _pairs(total: Totals) -> int:
    return max(total.sequences // 2, 1)


def _pair_sums(chosen: Tensor, rejected: Tensor, sums: Tensor) -> dict[str, Sum]:
    """What is logged of pairs; a tie is no win."""
    return {
        "accuracy": sum_of((chosen > rejected).double(), "pairs"),
        "margin": sum_of(chosen - rejected, "pairs"),
        "chosen_reward": sum_of(chosen, "pairs"),
        "rejected_reward": sum_of(rejected, "pairs"),
        "chosen_logprob": sum_of(sums[0::2], "pairs"),
        "rejected_logprob": sum_of(sums[1::2], "pairs"),
    }
