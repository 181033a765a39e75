"""Prices for length: DAPO's overlong penalty, and one for answers that were cut.

Give it beside the reward that it prices: ``{"right": ..., "length": "reward_fns/length.py"}``.
``nbrl.Shaping(overlong_buffer=..., stop_properly=...)`` does the same after scoring, where the
price should not be part of what is logged as the reward.
"""

from typing import Any

MOST_TOKENS = 512
"""The answer's limit: ``max_new_tokens`` of the sampling."""
BUFFER = 128
"""How many tokens before the limit the price begins to rise."""
PENALTY = 1.0
UNFINISHED = 0.5
"""The price of an answer that did not end by itself."""


def overlong(length: int, most: int = MOST_TOKENS, buffer: int = BUFFER) -> float:
    """0 up to ``most - buffer`` tokens, falling in a line to ``-PENALTY`` at ``most`` and beyond.

    Yu et al. (2025), "DAPO", equation 13.
    """
    return -PENALTY * min(max(length - (most - buffer), 0), buffer) / buffer


def stop_properly(value: float, truncated: bool, coef: float) -> float:
    """A reward that a cut answer keeps a share of, or loses for a fixed one below 0.

    From 0 to 1 ``coef`` is the share; a negative one takes the reward's place.
    """
    if not truncated:
        return value
    return value * coef if coef >= 0 else coef


def reward(rollout: dict[str, Any]) -> dict[str, float]:
    """Both prices; sampled tokens are counted, what an environment said in between is not."""
    sampled = sum(source == 1 for source in rollout["source"])
    return {
        "overlong": overlong(sampled),
        "unfinished": stop_properly(0.0, rollout["truncated"], -UNFINISHED),
    }
