"""Losses of supervised and preference training, never reduced; may import torch and errors.

Pairs and rows come as summed log-probs (or, for IPO, means) that the caller took over the tokens
that count; what a loss averages over, and over how many rows of a step, is the caller's too.
Everything is computed in float32 at least.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from nbrl.errors import ConfigError
from nbrl.functional.reductions import at_least_float32


def sft_nll(logprobs: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """Per-token losses of supervised fine-tuning: ``-logprobs``; masked places are 0.

    Places are selected, not multiplied: a log-prob of -inf at a masked place leaves no NaN.
    """
    return torch.where(mask, -at_least_float32(logprobs), 0.0)


def reward_model_loss(
    chosen: Float[Tensor, " P"],
    rejected: Float[Tensor, " P"],
    *,
    margin: Float[Tensor, " P"] | None = None,
) -> Float[Tensor, " P"]:
    """One loss a pair: ``-log sigmoid(chosen - rejected - margin)``, without overflow.

    Bradley and Terry (1952), as in Stiennon et al. (2020), eq. 1; the margin is Llama 2's (Touvron
    et al. 2023, eq. 2). OpenRLHF's "log-exp" loss ``log(1 + exp(rejected - chosen))`` is this
    function with another overflow, so there is no choice between the two.

    Args:
        chosen: Scores of the answers that were preferred.
        rejected: Scores of the others.
        margin: By how much the preferred one should win; ``None`` is 0.
    """
    gap = at_least_float32(chosen) - at_least_float32(rejected)
    return -logsigmoid(gap if margin is None else gap - margin)


def dpo_loss(
    policy_chosen: Float[Tensor, " P"],
    policy_rejected: Float[Tensor, " P"],
    ref_chosen: Float[Tensor, " P"],
    ref_rejected: Float[Tensor, " P"],
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Float[Tensor, " P"]:
    """One loss a pair: ``-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)``.

    ``h = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected)`` on log-probs *summed*
    over the answer (Rafailov et al. 2023, eq. 7). ``e = label_smoothing`` is the share of labels
    thought to be wrong (cDPO, Mitchell 2023). Equal answers give ``log 2`` and no gradient.

    Raises:
        ConfigError: ``beta`` is not positive, or ``label_smoothing`` not in [0, 0.5).
    """
    _check_beta("dpo_loss", beta)
    if not 0 <= label_smoothing < 0.5:
        raise ConfigError(
            f"dpo_loss: label_smoothing must be in [0, 0.5), the share of wrong labels; got "
            f"{label_smoothing!r}. From 0.5 on, the labels would mean the opposite."
        )
    z = beta * _log_ratio_gap(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -(1 - label_smoothing) * logsigmoid(z) - label_smoothing * logsigmoid(-z)


def ipo_loss(
    policy_chosen: Float[Tensor, " P"],
    policy_rejected: Float[Tensor, " P"],
    ref_chosen: Float[Tensor, " P"],
    ref_rejected: Float[Tensor, " P"],
    *,
    beta: float = 0.1,
) -> Float[Tensor, " P"]:
    """One loss a pair: ``(h - 1 / (2 beta))^2``, with ``h`` as in :func:`dpo_loss`.

    Azar et al. (2023), eq. 17. Libraries differ in what they pass: log-probs summed over the answer
    (OpenRLHF, and the ``DPO`` objective here by default) or their means (TRL); pass either.

    Raises:
        ConfigError: ``beta`` is not positive.
    """
    _check_beta("ipo_loss", beta)
    gap = _log_ratio_gap(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return (gap - 1 / (2 * beta)).square()


@torch.no_grad()
def kto_baseline(
    policy_kl: Float[Tensor, " K"], reference_kl: Float[Tensor, " K"]
) -> Float[Tensor, ""]:
    """KTO's reference point: ``max(0, mean(policy_kl - reference_kl))``, a constant.

    The mean log-ratio of answers to *other* prompts estimates the KL between policy and reference
    (Ethayarajh et al. 2024, section 4.1); the estimate may be negative, the KL cannot.

    Raises:
        ConfigError: There is no row to take the mean of.
    """
    if not len(policy_kl):
        raise ConfigError(
            "kto_baseline needs at least one mismatched row; got none. A batch of one row has no "
            "other prompt to pair its answer with: pass two rows or more."
        )
    gap = at_least_float32(policy_kl) - at_least_float32(reference_kl)
    return gap.mean().clamp(min=0)


def kto_loss(  # noqa: PLR0913 - the published signature
    policy: Float[Tensor, " N"],
    reference: Float[Tensor, " N"],
    desirable: Bool[Tensor, " N"],
    policy_kl: Float[Tensor, " K"],
    reference_kl: Float[Tensor, " K"],
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Tensor, " N"]:
    """One loss a row: ``w_d (1 - sigmoid(beta (u - z)))`` or ``w_u (1 - sigmoid(beta (z - u)))``.

    ``u = policy - reference`` on log-probs summed over the answer, ``z`` is
    :func:`kto_baseline`; the first form is for desirable rows (Ethayarajh et al. 2024, eq. 8). A
    batch of one class is fine. With several micro-batches, compute ``z`` of all of them first.

    Args:
        policy: Summed log-probs of the answers.
        reference: Those of the reference.
        desirable: True where the answer is wanted.
        policy_kl: Summed log-probs of answers to other prompts.
        reference_kl: Those of the reference.
        beta: > 0.
        desirable_weight: >= 0.
        undesirable_weight: >= 0.

    Raises:
        ConfigError: ``beta`` is not positive, a weight is negative, or no mismatched row is given.
    """
    _check_beta("kto_loss", beta)
    if not (desirable_weight >= 0 and undesirable_weight >= 0):
        raise ConfigError(
            "kto_loss: weights must be >= 0; got desirable_weight="
            f"{desirable_weight!r}, undesirable_weight={undesirable_weight!r}."
        )
    z = kto_baseline(policy_kl, reference_kl)
    gain = at_least_float32(policy) - at_least_float32(reference) - z
    sign = torch.where(desirable, torch.ones_like(gain), -torch.ones_like(gain))
    weight = torch.where(desirable, sign * desirable_weight, -sign * undesirable_weight)
    # 1 - sigmoid(x) = sigmoid(-x), without the cancellation
    return weight * torch.sigmoid(-beta * sign * gain)


def distillation_loss(
    logits: Float[Tensor, "N T V"],
    teacher_logits: Float[Tensor, "N T V"],
    mask: Bool[Tensor, "N T"],
) -> Float[Tensor, "N T"]:
    """Per-token cross-entropy to a teacher: ``-sum_v p_teacher(v) log p(v)``; masked places are 0.

    Hinton et al. (2015) at temperature 1. Its gradient is that of the forward KL to the teacher.
    Logits of both sides score the same tokens (already shifted by one), as those of the mask.
    """
    teacher = at_least_float32(teacher_logits).detach().softmax(-1)
    student = at_least_float32(logits).log_softmax(-1)
    # a token that cannot come has log-prob -inf; where the teacher gives it 0, it adds nothing
    floor = torch.finfo(student.dtype).min
    terms = -torch.linalg.vecdot(teacher, student.clamp(min=floor))
    return torch.where(mask, terms, 0.0)


def process_reward_loss(
    logits: Float[Tensor, "N T K"],
    labels: Int[Tensor, "N T"] | Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
) -> Float[Tensor, "N T"]:
    """Per-step cross-entropy of a process reward model; places without a step are 0.

    Lightman et al. (2023): the model names the quality of a step at a placeholder that follows it.
    Logits are read *at* the placeholder, not before it.

    Args:
        logits: Of the ``K`` reward tokens (or of the whole vocabulary), at each place.
        labels: Integers are hard labels, indices into ``K``. Floats in [0, 1] are soft ones, the
            probability of the first of two reward tokens: ``-p log q_0 - (1 - p) log q_1``.
        mask: True at placeholders that have a label.

    Raises:
        ConfigError: Soft labels with another number of reward tokens than two.
    """
    logq = at_least_float32(logits).log_softmax(-1)
    if not labels.is_floating_point():
        at = torch.where(mask, labels, 0).long()
        return torch.where(mask, -logq.gather(-1, at.unsqueeze(-1)).squeeze(-1), 0.0)
    if logits.shape[-1] != 2:
        raise ConfigError(
            "process_reward_loss: soft labels need exactly two reward tokens, the good one first; "
            f"got {logits.shape[-1]}. Pass two, or integer labels."
        )
    p = torch.where(mask, labels, 0.0).to(logq.dtype)
    return torch.where(mask, -p * logq[..., 0] - (1 - p) * logq[..., 1], 0.0)


def _log_ratio_gap(
    policy_chosen: Tensor, policy_rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor
) -> Tensor:
    policy = at_least_float32(policy_chosen) - at_least_float32(policy_rejected)
    return policy - (at_least_float32(ref_chosen) - at_least_float32(ref_rejected)).detach()


def _check_beta(asked: str, beta: float) -> None:
    if not beta > 0:
        raise ConfigError(f"{asked}: beta must be > 0; got {beta!r}.")
