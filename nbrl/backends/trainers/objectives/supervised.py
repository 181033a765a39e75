"""Objectives of supervised data: fine-tuning, distillation, process rewards.

May import this room, ``forward``, ``protocols``, ``config``, ``functional``, ``errors`` and torch.
"""

import torch
from torch import Tensor

from nbrl.backends import forward
from nbrl.backends.trainers.objectives.shares import Share, Sum, balance_share
from nbrl.backends.trainers.passes import Models
from nbrl.config import SFT, Distillation, ProcessReward
from nbrl.errors import StepError
from nbrl.functional.logprobs import token_logprobs
from nbrl.functional.preference import distillation_loss, process_reward_loss, sft_nll
from nbrl.functional.reductions import Totals, aggregate
from nbrl.protocols import MicroBatch


def compute_sft(
    models: Models, batch: MicroBatch, loss: SFT, total: Totals
) -> tuple[Tensor, Share]:
    """The negative log-likelihood of what is learned, plus the balance of experts."""
    logits, balance = forward.response_logits_and_balance(
        models.policy, batch, wanted=loss.aux_coef > 0, packed=models.packed
    )
    tokens = batch.input_ids[:, batch.prompt_width :]
    terms = sft_nll(token_logprobs(logits, tokens), batch.mask)
    value = aggregate(terms, batch.mask, loss.aggregation, totals=total)
    sums = {
        "nll": _masked(terms, batch.mask),
        "token_accuracy": _masked((logits.detach().argmax(-1) == tokens).double(), batch.mask),
    }
    if balance is not None:
        part, sums["aux_loss"] = balance_share(balance, batch, total)
        value = value + loss.aux_coef * part
    return value, Share(means={"loss": value.detach()}, tokens={"loss": terms.detach()}, sums=sums)


def compute_distillation(
    models: Models, batch: MicroBatch, loss: Distillation, total: Totals
) -> tuple[Tensor, Share]:
    """The teacher's distributions mixed with the tokens themselves, a mean over tokens."""
    assert models.teacher is not None
    logits = forward.response_logits(models.policy, batch, packed=models.packed)
    with torch.no_grad():
        taught = forward.response_logits(models.teacher, batch, packed=models.packed)
    if taught.shape[-1] != logits.shape[-1]:
        raise StepError(
            f"the teacher {loss.teacher!r} has {taught.shape[-1]} tokens, the student "
            f"{logits.shape[-1]}; distillation compares distributions over one vocabulary. Pass a "
            "teacher with the student's tokenizer."
        )
    tokens = batch.input_ids[:, batch.prompt_width :]
    nll = sft_nll(token_logprobs(logits, tokens), batch.mask)
    cross = distillation_loss(logits, taught, batch.mask)
    terms = (1 - loss.coef) * nll + loss.coef * cross
    value = aggregate(terms, batch.mask, totals=total)
    sums = {"nll": _masked(nll, batch.mask), "teacher_cross_entropy": _masked(cross, batch.mask)}
    return value, Share(means={"loss": value.detach()}, tokens={"loss": terms.detach()}, sums=sums)


def compute_process_reward(
    models: Models, batch: MicroBatch, loss: ProcessReward, total: Totals
) -> tuple[Tensor, Share]:
    """The cross-entropy of good and bad at each placeholder, a mean over placeholders."""
    assert loss.token_ids is not None
    logits = forward.response_logits(models.policy, batch, packed=models.packed)
    logits = logits[..., list(loss.token_ids)]
    labels = batch.columns["step_labels"]
    terms = process_reward_loss(logits, labels, batch.mask)
    value = aggregate(terms, batch.mask, totals=total)
    with torch.no_grad():
        right = (logits[..., 0] > logits[..., 1]) == (labels > 0.5)
    sums = {"accuracy": _masked(right.double(), batch.mask)}
    return value, Share(means={"loss": value.detach()}, tokens={"loss": terms.detach()}, sums=sums)


def _masked(terms: Tensor, mask: Tensor) -> Sum:
    kept = terms.detach()[mask]
    return Sum(total=kept.double().sum(), count=kept.numel(), of="tokens")
