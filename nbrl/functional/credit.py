"""From one number a row to one number a token: returns and GAE; may import torch.

One recursion serves both. With ``r`` the token rewards, ``V`` the values (0 for plain returns) and
``c`` what comes from the right, starting with the row's own reward at its last token that counts:
``A = r - V + c`` and, one token to the left, ``c = gamma V + gamma lambda A``.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nbrl.frozen import frozen

# What a token that does not count does to ``c``: nothing; a step with value and reward 0; an end.
MASKED_TOKENS: Mapping[str, str] = {
    "skip": "no step: it costs no discount, and the value after it is the next one that counts",
    "walk": "a step with reward 0 and value 0: it costs one discount (OpenRLHF)",
    "reset": "an end: nothing passes from the right of it to the left (SkyRL's REINFORCE++)",
}

# Rows that are walked through side by side; their columns stay in the cache.
_BLOCK = 4096


@frozen()
class Walk:
    """How the recursion goes from token to token."""

    gamma: float = 1.0
    lam: float = 1.0
    masked_tokens: str = "skip"

    @property
    def plain(self) -> bool:
        """Whether every token of a row gets the same credit when only the last is rewarded."""
        return self.gamma == 1 and self.lam == 1 and self.masked_tokens != "reset"


def returns_to_go(
    rewards: Float[Tensor, " N"],
    token_rewards: Float[Tensor, "N T"] | None,
    mask: Bool[Tensor, "N T"],
    walk: Walk,
) -> Float[Tensor, "N T"]:
    """The discounted sum of rewards from each token on; masked places are 0.

    ``rewards`` stand at each row's last token that counts; a row without one gets nothing.
    """
    if token_rewards is None and walk.plain:
        return torch.where(mask, rewards.unsqueeze(1), 0.0)
    return _by_blocks(rewards, token_rewards, None, mask, walk)


def generalized_advantages(
    rewards: Float[Tensor, " N"],
    token_rewards: Float[Tensor, "N T"] | None,
    values: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    walk: Walk,
) -> Float[Tensor, "N T"]:
    """GAE (Schulman et al. 2016, eq. 16): ``A_t = delta_t + gamma lambda A_{t+1}``; masked are 0.

    ``delta_t = r_t + gamma V_{t+1} - V_t``, with a value of 0 after the last token that counts.
    """
    return _by_blocks(rewards, token_rewards, values, mask, walk)


def _by_blocks(
    rewards: Tensor, token_rewards: Tensor | None, values: Tensor | None, mask: Tensor, walk: Walk
) -> Tensor:
    """The recursion over blocks of rows, each turned so that a column lies in one piece."""
    advantages = torch.empty(mask.shape, dtype=rewards.dtype, device=mask.device)
    width = min(_BLOCK, len(rewards))
    # Turned blocks reuse their memory: fresh pages would cost more than the arithmetic.
    gain_buffer, value_buffer = _buffer(token_rewards, width), _buffer(values, width)
    mask_buffer, out_buffer = _buffer(mask, width), _buffer(advantages, width)
    for start in range(0, len(rewards), _BLOCK):
        rows = slice(start, start + _BLOCK)
        out = out_buffer[:, : len(rewards[rows])]
        _walk(
            rewards[rows],
            None if token_rewards is None else _turned(token_rewards, rows, gain_buffer),
            None if values is None else _turned(values, rows, value_buffer),
            _turned(mask, rows, mask_buffer),
            out,
            walk,
        )
        advantages[rows] = out.T
    return advantages


def _buffer(like: Tensor | None, width: int) -> Tensor:
    """Room for a block of rows, turned; nothing where there is nothing to turn."""
    return torch.empty(0) if like is None else like.new_empty((like.shape[1], width))


def _turned(x: Tensor, rows: slice, buffer: Tensor) -> Tensor:
    """Rows of ``x`` as columns, written into ``buffer``."""
    block = x[rows]
    return buffer[:, : len(block)].copy_(block.T)


def _walk(
    rewards: Tensor,
    gains: Tensor | None,
    values: Tensor | None,
    mask: Tensor,
    out: Tensor,
    walk: Walk,
) -> None:
    """Fill ``out`` by the recursion over columns ``[T, n]``, from the last to the first."""
    carry, zero = rewards, torch.zeros((), dtype=rewards.dtype, device=mask.device)
    seen = torch.zeros_like(rewards, dtype=torch.bool)
    between = walk.gamma * walk.lam if walk.masked_tokens == "walk" else 0.0
    for t in range(len(mask) - 1, -1, -1):
        counts = mask[t]
        here = carry if values is None else carry - values[t]
        if gains is not None:
            here = here + gains[t]
        torch.where(counts, here, zero, out=out[t])
        left = here * (walk.gamma * walk.lam)
        if values is not None:
            left = torch.add(left, values[t], alpha=walk.gamma)
        if walk.masked_tokens != "skip":
            carry = torch.where(seen, carry * between, carry)
            seen = seen | counts
        carry = torch.where(counts, left, carry)
