"""Importance weights from the sampler to the trainer; may import torch and errors."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbrl.errors import ConfigError, unknown_name
from nbrl.functional.logprobs import EXPONENT_CLAMP
from nbrl.functional.reductions import at_least_float32, masked_mean


@torch.no_grad()
def importance_weights(
    old_logprobs: Float[Tensor, "N T"],
    rollout_logprobs: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    kind: str = "tis",
    *,
    low: float = 0.5,
    high: float = 5.0,
) -> Float[Tensor, "N T"]:
    """Weights that a policy loss is multiplied by, token by token; constants, no gradient.

    With ``r = exp(old_logprobs - rollout_logprobs)``, trainer over sampler, the exponent within
    [-20, 20]:

    - ``tis``: ``clamp(r, low, high)`` (Yao et al. 2025; theirs has no lower bound: ``low=0``)
    - ``icepop``: ``r`` where ``low <= r <= high``, else 0 (Ling Team 2025)
    - ``seq-mask-tis``: ``r`` for all tokens of a sequence whose geometric mean of ``r`` lies in
      ``[low, high]``, else 0 for all. The token weights of a kept sequence are *not* clamped, as
      in OpenRLHF's code (its documentation says otherwise).

    Places are selected, not multiplied, so that an overflowing ratio never makes ``0 * inf``.
    Masked places are 0. Zeroed tokens still count in the loss's denominator.

    Args:
        old_logprobs: The trainer's, at the version that sampled.
        rollout_logprobs: The engine's.
        mask: What counts.
        kind: A name in :data:`CORRECTIONS`.
        low: >= 0, smallest ratio inside the interval.
        high: > ``low``, largest.

    Raises:
        ConfigError: Unknown kind, or an empty interval.
    """
    if kind not in CORRECTIONS:
        raise unknown_name("correction", kind, CORRECTIONS)
    if not 0 <= low < high:
        raise ConfigError(f"correction needs 0 <= low < high; got low={low!r}, high={high!r}.")
    difference = at_least_float32(old_logprobs) - at_least_float32(rollout_logprobs)
    log_ratio = torch.where(mask, difference, 0.0).clamp(-EXPONENT_CLAMP, EXPONENT_CLAMP)
    return torch.where(mask, CORRECTIONS[kind](log_ratio, mask, low, high), 0.0)


def _tis(log_ratio: Tensor, _: Tensor, low: float, high: float) -> Tensor:
    return log_ratio.exp().clamp(low, high)


def _icepop(log_ratio: Tensor, _: Tensor, low: float, high: float) -> Tensor:
    ratio = log_ratio.exp()
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


def _seq_mask_tis(log_ratio: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    mean = masked_mean(log_ratio, mask, 1).exp()
    kept = (mean >= low) & (mean <= high)
    return torch.where(kept.unsqueeze(1), log_ratio.exp(), 0.0)


CORRECTIONS: dict[str, Callable[[Tensor, Tensor, float, float], Tensor]] = {
    "tis": _tis,
    "icepop": _icepop,
    "seq-mask-tis": _seq_mask_tis,
}
