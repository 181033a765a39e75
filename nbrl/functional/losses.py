"""Per-token policy and value losses, never reduced; may import torch and errors.

A surrogate is two choices: which ratio (of the token, or of the sequence) and which objective.
Correction, KL term and aggregation are other files, multiplied and added by the caller.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbrl.errors import ConfigError, unknown_name
from nbrl.frozen import frozen
from nbrl.functional.logprobs import EXPONENT_CLAMP
from nbrl.functional.reductions import at_least_float32, masked_mean

DEFAULT_EPS = 0.2
SAPO_TAU_POSITIVE, SAPO_TAU_NEGATIVE = 1.0, 1.05


@frozen()
class Bounds:
    """Where a surrogate stops rewarding a moved policy; see :func:`surrogate`."""

    eps_low: float = DEFAULT_EPS
    eps_high: float = DEFAULT_EPS
    dual_clip: float | None = None


@frozen()
class Surrogate:
    """One row of :data:`SURROGATES`: ratio, objective, where it is cut, and what it listens to."""

    log_ratio: Callable[[Tensor, Tensor, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor, Tensor, Bounds], Tensor]
    clipped: Callable[[Tensor, Tensor, Bounds], Tensor]
    uses_eps: bool
    uses_dual_clip: bool


def surrogate(  # noqa: PLR0913 - the four choices' one entry, as published
    kind: str,
    logprobs: Float[Tensor, "N T"],
    old_logprobs: Float[Tensor, "N T"],
    advantages: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    *,
    eps_low: float = DEFAULT_EPS,
    eps_high: float = DEFAULT_EPS,
    dual_clip: float | None = None,
) -> Float[Tensor, "N T"]:
    """Per-token policy losses (to minimise); masked places are 0 and get zero gradient.

    With ``rho = exp(logprobs - old_logprobs)``, the exponent clamped to [-20, 20]:

    - ``ppo``: ``-min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A)`` (Schulman et al. 2017,
      eq. 7). Clip-higher (DAPO, Yu et al. 2025) is ``eps_high > eps_low``. ``dual_clip = c > 1``
      bounds it by ``-c A`` where ``A < 0`` (Ye et al. 2020, eq. 5).
    - ``gspo``: the same with the sequence's ratio ``exp(mean_t (logprobs - old_logprobs))`` on
      each of its tokens (Zheng et al. 2025, eq. 5-7). Nothing is detached: every token's gradient
      goes through the whole sequence, so its own aggregation is a sequence mean. The variant that
      detaches all but the token's own log-prob (GSPO-token) has the same gradient under that
      mean where the advantage is constant along the sequence.
    - ``cispo``: ``-sg(clip(rho, 1 - eps_low, 1 + eps_high)) A logprobs`` (MiniMax-M1 2025,
      eq. 4-5): no token loses its gradient. ``eps_low >= 1`` leaves only the upper bound.
    - ``sapo``: ``-(4 / tau) sigmoid(tau (rho - 1)) A`` with tau 1 where ``A > 0`` and 1.05
      elsewhere (Gao et al. 2025): a soft gate in the place of the clip, of slope 1 at ``rho = 1``.
    - ``reinforce``: ``-A logprobs`` (Williams 1992); ``old_logprobs`` serve its metrics only.

    Args:
        kind: A name in :data:`SURROGATES`.
        logprobs: Of the policy now; gradients flow into these only.
        old_logprobs: Of the policy that the advantages belong to.
        advantages: One a token.
        mask: What counts.
        eps_low: > 0, how far below 1 the ratio counts.
        eps_high: > 0, how far above.
        dual_clip: > 1, for ``ppo`` and ``gspo``.

    Raises:
        ConfigError: Unknown kind, a bound out of its range or without effect for this kind.
    """
    row, bounds = _checked(kind, Bounds(eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip))
    policy = torch.where(mask, at_least_float32(logprobs), 0.0)
    old = torch.where(mask, at_least_float32(old_logprobs).detach(), 0.0)
    weights = torch.where(mask, at_least_float32(advantages).detach(), 0.0)
    ratio = row.log_ratio(policy, old, mask).clamp(-EXPONENT_CLAMP, EXPONENT_CLAMP).exp()
    return torch.where(mask, row.loss(ratio, weights, policy, bounds), 0.0)


@torch.no_grad()
def ratio_and_clipped(  # noqa: PLR0913 - called with what surrogate is called with
    kind: str,
    logprobs: Float[Tensor, "N T"],
    old_logprobs: Float[Tensor, "N T"],
    advantages: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    *,
    eps_low: float = DEFAULT_EPS,
    eps_high: float = DEFAULT_EPS,
    dual_clip: float | None = None,
) -> tuple[Float[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """The ratio of each token, and whether a bound holds it; for metrics, without gradient.

    ``clipped`` is True where the bound decides: for ``ppo`` and ``gspo`` where the gradient is cut
    (a ratio beyond the clip on the side that its advantage pushes to, or beyond the dual clip), for
    ``cispo`` where the weight is capped, never for ``sapo`` and ``reinforce``. Masked places are
    (1, False).

    Raises:
        ConfigError: As :func:`surrogate`.
    """
    row, bounds = _checked(kind, Bounds(eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip))
    policy = torch.where(mask, at_least_float32(logprobs), 0.0)
    old = torch.where(mask, at_least_float32(old_logprobs), 0.0)
    weights = torch.where(mask, at_least_float32(advantages), 0.0)
    log_ratio = torch.where(mask, row.log_ratio(policy, old, mask), 0.0)
    ratio = log_ratio.clamp(-EXPONENT_CLAMP, EXPONENT_CLAMP).exp()
    return ratio, row.clipped(ratio, weights, bounds) & mask


def value_loss(
    values: Float[Tensor, "N T"],
    old_values: Float[Tensor, "N T"],
    returns: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    *,
    clip: float | None = 0.5,
) -> Float[Tensor, "N T"]:
    """Per-token critic losses: ``1/2 max((V - G)^2, (V_clip - G)^2)``; masked places are 0.

    ``V_clip = V_old + clamp(V - V_old, -clip, clip)``. The *larger* square counts, so that a value
    that has moved far is not rewarded for it (as in OpenAI baselines' PPO; OpenRLHF has the same
    half and default). ``clip=None`` is the plain square.

    Raises:
        ConfigError: A clip that is not positive.
    """
    if clip is not None and not clip > 0:
        raise ConfigError(f"value clip must be > 0 or None; got {clip!r}.")
    new = torch.where(mask, at_least_float32(values), 0.0)
    target = torch.where(mask, at_least_float32(returns).detach(), 0.0)
    square = (new - target).square()
    if clip is not None:
        old = torch.where(mask, at_least_float32(old_values).detach(), 0.0)
        near = old + (new - old).clamp(-clip, clip)
        square = torch.maximum(square, (near - target).square())
    return torch.where(mask, square / 2, 0.0)


def _checked(kind: str, bounds: Bounds) -> tuple[Surrogate, Bounds]:
    if kind not in SURROGATES:
        raise unknown_name("surrogate", kind, SURROGATES)
    row, dual = SURROGATES[kind], bounds.dual_clip
    if not (bounds.eps_low > 0 and bounds.eps_high > 0):
        raise ConfigError(
            f"eps_low and eps_high must be > 0; got {bounds.eps_low!r}, {bounds.eps_high!r}."
        )
    if not row.uses_eps and (bounds.eps_low, bounds.eps_high) != (DEFAULT_EPS, DEFAULT_EPS):
        raise ConfigError(f"eps_low, eps_high have no effect with surrogate {kind!r}; drop them.")
    if dual is not None and not row.uses_dual_clip:
        able = ", ".join(name for name, s in SURROGATES.items() if s.uses_dual_clip)
        raise ConfigError(
            f"dual_clip has no effect with surrogate {kind!r}; drop it or use one of: {able}."
        )
    if dual is not None and not dual > 1:
        raise ConfigError(f"dual_clip must be > 1; got {dual!r}.")
    return row, bounds


def _token_log_ratio(policy: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    return policy - old


def _sequence_log_ratio(policy: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(policy - old, mask, 1).unsqueeze(1).expand_as(policy)


def _clip_loss(ratio: Tensor, advantages: Tensor, _: Tensor, bounds: Bounds) -> Tensor:
    inside = ratio.clamp(1 - bounds.eps_low, 1 + bounds.eps_high)
    objective = torch.minimum(ratio * advantages, inside * advantages)
    if bounds.dual_clip is not None:
        floor = bounds.dual_clip * advantages
        objective = torch.where(advantages < 0, torch.maximum(objective, floor), objective)
    return -objective


def _clip_clipped(ratio: Tensor, advantages: Tensor, bounds: Bounds) -> Tensor:
    up = (ratio > 1 + bounds.eps_high) & (advantages > 0)
    down = (ratio < 1 - bounds.eps_low) & (advantages < 0)
    if bounds.dual_clip is None:
        return up | down
    return up | down | ((ratio > bounds.dual_clip) & (advantages < 0))


def _cispo_loss(ratio: Tensor, advantages: Tensor, policy: Tensor, bounds: Bounds) -> Tensor:
    return -ratio.detach().clamp(1 - bounds.eps_low, 1 + bounds.eps_high) * advantages * policy


def _cispo_clipped(ratio: Tensor, _: Tensor, bounds: Bounds) -> Tensor:
    return (ratio > 1 + bounds.eps_high) | (ratio < 1 - bounds.eps_low)


def _sapo_loss(ratio: Tensor, advantages: Tensor, _: Tensor, __: Bounds) -> Tensor:
    tau = torch.full_like(advantages, SAPO_TAU_NEGATIVE)
    tau = tau.masked_fill(advantages > 0, SAPO_TAU_POSITIVE)
    return -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages


def _reinforce_loss(_: Tensor, advantages: Tensor, policy: Tensor, __: Bounds) -> Tensor:
    return -advantages * policy


def _never_clipped(ratio: Tensor, _: Tensor, __: Bounds) -> Tensor:
    return torch.zeros_like(ratio, dtype=torch.bool)


def _row(
    log_ratio: Callable, loss: Callable, clipped: Callable, *, eps: bool = True, dual: bool = False
) -> Surrogate:
    return Surrogate(
        log_ratio=log_ratio, loss=loss, clipped=clipped, uses_eps=eps, uses_dual_clip=dual
    )


SURROGATES: dict[str, Surrogate] = {
    "ppo": _row(_token_log_ratio, _clip_loss, _clip_clipped, dual=True),
    "gspo": _row(_sequence_log_ratio, _clip_loss, _clip_clipped, dual=True),
    "cispo": _row(_token_log_ratio, _cispo_loss, _cispo_clipped),
    "sapo": _row(_token_log_ratio, _sapo_loss, _never_clipped, eps=False),
    "reinforce": _row(_token_log_ratio, _reinforce_loss, _never_clipped, eps=False),
}
