"""Masked sums, means and whitening, and loss aggregation; may import torch and errors.

Every reduction *selects* what counts instead of multiplying by the mask, so that an infinity or
a NaN at a masked place never reaches a result or a gradient. Reductions are done in float32 at
least (float64 stays).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbrl.errors import ConfigError, unknown_name
from nbrl.frozen import frozen

VARIANCE_FLOOR = 1e-8


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor itself in float32 or float64, anything narrower (and integers) in float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def masked_sum(
    x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], dim: int | None = None
) -> Float[Tensor, "*reduced"]:
    """The sum over True places, of everything or along ``dim``; 0 where there are none."""
    kept = torch.where(mask, at_least_float32(x), 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(
    x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], dim: int | None = None
) -> Float[Tensor, "*reduced"]:
    """The mean over True places, of everything or along ``dim``.

    An empty mask gives 0 with zero gradient (others divide 0 by 0 there and get NaN).
    """
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(x, mask, dim) / count.clamp(min=1)


@torch.no_grad()
def whiten(
    x: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    *,
    scale: bool = True,
    ddof: int = 0,
) -> Float[Tensor, "N T"]:
    """``x`` minus its mean over the mask, over its standard deviation; masked places are 0.

    ``(x - mu) / sqrt(max(var, 1e-8))`` over all True places of the batch. The variance is the
    *population* one (OpenRLHF, NeMo-RL); ``ddof=1`` gives the sample variance (verl, SkyRL). One
    True place or none gives 0, as does a constant: its rounded mean is not blown up, because all
    is measured from the largest value in size. The result is a constant: no gradient goes through.

    Args:
        x: What to whiten.
        mask: What counts.
        scale: False subtracts the mean only.
        ddof: Subtracted from the count in the variance, 0 or 1.
    """
    x = at_least_float32(x)
    count = int(mask.count_nonzero())
    if count <= 1:
        return torch.zeros_like(x)
    # One new tensor, then in place: at these sizes fresh memory costs more than arithmetic.
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    out = torch.where(mask, x, zero)
    low, high = out.aminmax()
    out.sub_(torch.where(high > -low, high, low))
    torch.where(mask, out, zero, out=out)
    out.sub_(out.sum() / count)
    torch.where(mask, out, zero, out=out)
    if scale:
        squares = torch.linalg.vector_norm(out, dim=1).square().sum()
        variance = squares / (count - ddof)
        out.mul_(variance.clamp(min=VARIANCE_FLOOR).rsqrt())
    return out


@frozen()
class Totals:
    """What an aggregation divides by: counts over a whole optimizer step.

    ``sequences`` counts rows with at least one token that counts.

    Example: masks ``[[1, 1], [0, 0]]`` and ``[[1, 0]]`` in two micro-batches give
    ``Totals(tokens=3, sequences=2)``.
    """

    tokens: int
    sequences: int

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(tokens=self.tokens + other.tokens, sequences=self.sequences + other.sequences)


def totals(mask: Bool[Tensor, "N T"]) -> Totals:
    """The counts of one mask; add those of all micro-batches of an optimizer step."""
    per_row = mask.sum(1)
    return Totals(tokens=int(per_row.sum()), sequences=int((per_row > 0).sum()))


def aggregate(
    terms: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    mode: str = "token-mean",
    *,
    norm_length: int | None = None,
    totals: Totals | None = None,
) -> Float[Tensor, ""]:
    """One scalar from per-token terms, divided by counts of the whole optimizer step.

    With ``s_i`` the sum and ``n_i`` the number of tokens of row ``i`` that count, and ``S`` the
    number of rows with ``n_i > 0``:

    - ``token-mean``: ``sum_i s_i / sum_i n_i`` (DAPO, Yu et al. 2025, eq. 8)
    - ``seq-mean-token-mean``: ``1/S sum_i s_i / n_i`` (GRPO, Shao et al. 2024, eq. 3)
    - ``seq-mean-token-sum``: ``1/S sum_i s_i``
    - ``seq-mean-token-sum-norm``: ``1/S sum_i s_i / norm_length``, a constant, so that it does not
      depend on padding (Dr. GRPO, Liu et al. 2025)

    With ``totals`` of the whole step, the results of its micro-batches *add up* to the result of
    the whole under any split by rows. Rows without a token are not sequences. An empty mask
    gives 0 with zero gradient. The ``dr_grpo`` estimator does not choose an aggregation: the
    paper's recipe is that estimator *and* ``seq-mean-token-sum-norm``.

    Args:
        terms: Per-token losses.
        mask: What counts.
        mode: A name in :data:`AGGREGATIONS`.
        norm_length: Tokens, >= 1; for ``seq-mean-token-sum-norm`` only.
        totals: Counts over the optimizer step; ``None`` takes those of ``mask``.

    Raises:
        ConfigError: Unknown mode; ``norm_length`` missing, or given where it has no effect.
    """
    if mode not in AGGREGATIONS:
        raise unknown_name("aggregation", mode, AGGREGATIONS)
    needs_length = mode == "seq-mean-token-sum-norm"
    if needs_length and (norm_length is None or norm_length < 1):
        raise ConfigError(
            f"aggregation {mode!r} needs norm_length >= 1; got {norm_length!r}. "
            "Pass the largest response length, e.g. the rollouts' max_new_tokens."
        )
    if not needs_length and norm_length is not None:
        raise ConfigError(f"norm_length has no effect with aggregation {mode!r}; drop it.")
    counted = _totals(mask) if totals is None else totals
    return AGGREGATIONS[mode](terms, mask, counted, norm_length or 1)


_totals = totals


def _token_mean(terms: Tensor, mask: Tensor, total: Totals, _: int) -> Tensor:
    return masked_sum(terms, mask) / max(total.tokens, 1)


def _seq_mean_token_mean(terms: Tensor, mask: Tensor, total: Totals, _: int) -> Tensor:
    return masked_mean(terms, mask, 1).sum() / max(total.sequences, 1)


def _seq_mean_token_sum(terms: Tensor, mask: Tensor, total: Totals, length: int) -> Tensor:
    return masked_sum(terms, mask) / (max(total.sequences, 1) * length)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, Totals, int], Tensor]] = {
    "token-mean": _token_mean,
    "seq-mean-token-mean": _seq_mean_token_mean,
    "seq-mean-token-sum": _seq_mean_token_sum,
    "seq-mean-token-sum-norm": _seq_mean_token_sum,
}
