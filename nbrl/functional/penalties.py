"""What is taken off rewards for length, and which groups carry signal; may import torch and errors.

The order around a group baseline: groups are filtered on *raw* scores, then the overlong penalty,
then the stop-properly penalty change the reward, then the baseline is taken.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbrl.errors import ConfigError
from nbrl.functional.groups import group_mean, grouped
from nbrl.functional.reductions import at_least_float32


def overlong_penalty(
    lengths: Int[Tensor, " N"], *, max_new_tokens: int, buffer: int, factor: float = 1.0
) -> Float[Tensor, " N"]:
    """A number <= 0 to add to each reward, falling over the last ``buffer`` tokens allowed.

    ``-factor clamp((L - (max_new_tokens - buffer)) / buffer, 0, 1)`` (DAPO, Yu et al. 2025,
    eq. 13): linear from 0 at ``max_new_tokens - buffer`` to ``-factor`` at ``max_new_tokens``,
    and no lower: an answer that is longer loses ``factor``, not more.

    Args:
        lengths: Sampled tokens of each answer; text of tools and users between turns is not the
            policy's doing and does not count (OpenRLHF counts it).
        max_new_tokens: The limit, in tokens.
        buffer: In 1..``max_new_tokens``, the tokens over which the penalty grows.
        factor: > 0, the largest penalty.

    Raises:
        ConfigError: A buffer or a factor out of range.
    """
    if not 1 <= buffer <= max_new_tokens:
        raise ConfigError(
            f"overlong buffer must be in 1..max_new_tokens={max_new_tokens}; got {buffer!r}."
        )
    if not factor > 0:
        raise ConfigError(f"overlong penalty factor must be > 0; got {factor!r}.")
    over = (lengths.double() - (max_new_tokens - buffer)) / buffer
    return 0.0 - over.clamp(0.0, 1.0) * factor


def stop_properly(
    rewards: Float[Tensor, " N"], truncated: Bool[Tensor, " N"], coef: float
) -> Float[Tensor, " N"]:
    """Rewards with those of truncated answers times ``coef``, or set to it where it is negative.

    ProRL's rule: ``coef`` in [0, 1] scales the reward, ``coef < 0`` replaces it.

    Raises:
        ConfigError: A coefficient above 1, which would pay for not stopping.
    """
    if not coef <= 1:
        raise ConfigError(f"stop_properly must be <= 1; got {coef!r}.")
    x = at_least_float32(rewards)
    cut = x * coef if coef >= 0 else torch.full_like(x, coef)
    return torch.where(truncated, cut, x)


def groups_inside(
    scores: Float[Tensor, " N"], group_ids: Int[Tensor, " N"], low: float, high: float
) -> Bool[Tensor, " N"]:
    """Whether the mean raw score of each row's group lies strictly inside ``(low, high)``.

    DAPO's dynamic filtering (Yu et al. 2025, eq. 11): with scores in {0, 1} and the interval (0, 1)
    it keeps the groups that have both.

    Raises:
        ConfigError: An empty interval.
    """
    if not low < high:
        raise ConfigError(f"reward range must be (low, high) with low < high; got {(low, high)!r}.")
    if len(scores) == 0:
        return torch.zeros(0, dtype=torch.bool, device=scores.device)
    # Compared in the scores' own dtype: float32's 0.1 is not above 0.1.
    x = at_least_float32(scores)
    mean = group_mean(x, grouped(group_ids)).to(x.dtype)
    return (mean > low) & (mean < high)
