"""How good, and how sure: pass@k and bootstrap intervals; may import torch and errors."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbrl.errors import ConfigError, DataError

# Resampled indices held at once; bounds memory, does not change results.
_CHUNK_ELEMENTS = 4_000_000


def pass_at_k(n: Int[Tensor, " P"] | int, c: Int[Tensor, " P"], k: int) -> Float[Tensor, " P"]:
    """The chance that at least one of ``k`` answers drawn without replacement is right.

    ``1 - C(n - c, k) / C(n, k)``, unbiased (Chen et al. 2021, eq. 1), by its product form, which
    does not overflow; float64. (Best-of-n reward, which some call pass@n, is another thing.)

    Args:
        n: Answers a prompt, >= ``k``.
        c: Right ones among them, 0..n.
        k: How many are drawn, >= 1.

    Raises:
        ConfigError: ``k`` < 1, or more than the answers there are.
        DataError: More right answers than answers.
    """
    total = torch.as_tensor(n, device=c.device).expand_as(c)
    if k < 1 or bool((total < k).any()):
        raise ConfigError(
            f"pass@k needs 1 <= k <= n; got k={k}, smallest n={int(total.min())}. "
            "Draw more answers a prompt or pass a smaller k."
        )
    if bool(((c < 0) | (c > total)).any()):
        raise DataError(
            f"pass@k needs 0 <= c <= n; got c={c.tolist()[:5]}, n={total.tolist()[:5]}."
        )
    draws = torch.arange(k, device=c.device)
    wrong_left = (total - c).unsqueeze(-1) - draws
    left = total.unsqueeze(-1) - draws
    return 1 - (wrong_left.clamp(min=0).double() / left.double()).prod(-1)


def bootstrap_interval(
    x: Float[Tensor, " N"], *, seed: int = 0, level: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """The ends (low, high) of the percentile bootstrap interval of the mean (Efron 1979).

    Resample over what is independent: prompts, not samples of one prompt.

    Args:
        x: Independent numbers, at least one; of one number the interval is that number.
        seed: Of the resampling.
        level: In (0, 1), the coverage.
        resamples: >= 1.

    Raises:
        ConfigError: A level or a number of resamples out of range.
        DataError: No numbers, or some that are not finite.
    """
    if not (0 < level < 1 and resamples >= 1):
        raise ConfigError(
            f"bootstrap needs 0 < level < 1 and resamples >= 1; got {level!r}, {resamples!r}."
        )
    if len(x) == 0 or not bool(torch.isfinite(x).all()):
        raise DataError(f"bootstrap needs at least one number, all finite; got {x.tolist()[:5]}.")
    wide = x.detach().double().cpu()
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _CHUNK_ELEMENTS // len(wide))
    means = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), len(wide))
        means.append(wide[torch.randint(len(wide), shape, generator=generator)].mean(1))
    tail = (1 - level) / 2
    ends = torch.cat(means).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return float(ends[0]), float(ends[1])


def paired_difference(
    a: Float[Tensor, " N"],
    b: Float[Tensor, " N"],
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float, float]:
    """The mean of ``b - a`` over the same items, and its bootstrap interval: (mean, low, high).

    Pairing takes the items' own spread out: two runs on the same prompts are compared prompt by
    prompt. An interval that leaves out 0 is a difference at that level.

    Raises:
        ConfigError, DataError: As :func:`bootstrap_interval`.
    """
    difference = b.double() - a.double()
    low, high = bootstrap_interval(difference, seed=seed, level=level, resamples=resamples)
    return float(difference.mean()), low, high
