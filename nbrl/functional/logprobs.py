"""Log-probs, entropy and KL estimates of tokens; may import torch and errors.

Everything is computed in float32 at least, whatever the logits come in: the softmax of bfloat16
logits loses the second digit of a log-prob.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbrl.errors import ConfigError, unknown_name
from nbrl.functional.reductions import at_least_float32

EXPONENT_CLAMP = 20.0
"""Ratios are ``exp`` of log-ratios within this of 0: exp(20) = 4.9e8 lies outside any interval that
ratios are held to, and is finite in every product."""
# exp(80) is finite in float32, and so is its product with the 0 that a clamp sends back.
_EXPONENT_GUARD = 80.0
_UNBIASED_WEIGHT_CAP = 10.0


def token_logprobs(
    logits: Float[Tensor, "N T V"],
    tokens: Int[Tensor, "N T"],
    *,
    temperature: float | Float[Tensor, " N"] = 1.0,
) -> Float[Tensor, "N T"]:
    """Log-probs of the given tokens: ``z[token] - logsumexp(z)`` with ``z = logits / temperature``.

    Sampler and trainer must divide by the same temperature, or the ratio between them is not 1
    under equal weights.

    Args:
        logits: Those that score ``tokens``, i.e. already shifted by one.
        tokens: Token ids.
        temperature: > 0, one for all or one a row. For greedy samples pass 1.

    Raises:
        ConfigError: A temperature that is not positive.
    """
    z = _scaled(logits, temperature)
    return z.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)


def entropy(
    logits: Float[Tensor, "N T V"], *, temperature: float | Float[Tensor, " N"] = 1.0
) -> Float[Tensor, "N T"]:
    """Entropy in nats of ``softmax(logits / temperature)``; a logit of -inf has probability 0.

    Raises:
        ConfigError: A temperature that is not positive.
    """
    logp = _scaled(logits, temperature).log_softmax(-1)
    floor = torch.finfo(logp.dtype).min
    return -(logp.exp() * logp.clamp(min=floor)).sum(-1)


def kl(
    logprobs: Float[Tensor, "N T"],
    ref_logprobs: Float[Tensor, "N T"],
    kind: str = "k1",
    *,
    clamp: float | None = 10.0,
) -> Float[Tensor, "N T"]:
    """Per-token estimates of ``KL(policy || reference)`` at tokens sampled from the policy.

    With ``d = logprobs - ref_logprobs``: ``k1 = d``, ``k2 = d^2 / 2``, ``k3 = exp(-d) - 1 + d``
    (Schulman 2020, http://joschu.net/blog/kl-approx.html). k1 is unbiased and may be negative; k3
    is unbiased and >= 0; k2 is biased with low variance.

    The estimate is clamped to ``[-clamp, clamp]``, 10 by default (as OpenRLHF), and gradients are
    zero outside; ``clamp=None`` turns it off. k3's exponent is bounded by 80 in any case, so that
    its backward pass never meets ``0 * inf``.

    Raises:
        ConfigError: Unknown kind, or a clamp that is not positive.
    """
    if kind not in KL_KINDS:
        raise unknown_name("KL kind", kind, KL_KINDS)
    if clamp is not None and not clamp > 0:
        raise ConfigError(f"kl clamp must be > 0 or None; got {clamp!r}.")
    estimate = KL_KINDS[kind](at_least_float32(logprobs) - at_least_float32(ref_logprobs))
    return estimate if clamp is None else estimate.clamp(-clamp, clamp)


def kl_unbiased(
    logprobs: Float[Tensor, "N T"],
    ref_logprobs: Float[Tensor, "N T"],
    old_logprobs: Float[Tensor, "N T"],
    kind: str = "k1",
    *,
    clamp: float | None = 10.0,
) -> Float[Tensor, "N T"]:
    """The value of :func:`kl` with the gradient of the reverse KL, whatever the kind.

    Forward: ``kl(...)``. Backward: ``w d^2 / 2`` with ``w = min(exp(logprobs - old_logprobs), 10)``
    held constant, i.e. ``w d`` times the gradient of the log-prob. Differentiating k1 itself
    gives a term of mean 0, and k3 gives the gradient of the forward KL.

    Raises:
        ConfigError: As :func:`kl`.
    """
    value = kl(logprobs, ref_logprobs, kind, clamp=clamp).detach()
    policy = at_least_float32(logprobs)
    d = policy - at_least_float32(ref_logprobs).detach()
    log_weight = (policy - at_least_float32(old_logprobs)).detach()
    weight = log_weight.clamp(max=_EXPONENT_GUARD).exp().clamp(max=_UNBIASED_WEIGHT_CAP)
    carrier = weight * d * d / 2
    return value + carrier - carrier.detach()


def _scaled(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Logits in float32 at least, over the temperature; not copied where it is 1."""
    z = at_least_float32(logits)
    lowest = temperature if isinstance(temperature, float | int) else temperature.amin().item()
    if not lowest > 0:
        raise ConfigError(
            f"temperature must be > 0; got {lowest!r}. Greedy samples are scored at temperature 1."
        )
    if isinstance(temperature, Tensor):
        return z / temperature.to(z.dtype).view(-1, 1, 1)
    return z if temperature == 1 else z / temperature


def _k1(d: Tensor) -> Tensor:
    return d


def _k2(d: Tensor) -> Tensor:
    return d * d / 2


def _k3(d: Tensor) -> Tensor:
    guarded = d.clamp(min=-_EXPONENT_GUARD)
    return torch.expm1(-guarded) + guarded


KL_KINDS: dict[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3}
