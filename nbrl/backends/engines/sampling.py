"""Draws tokens from logits, each row from its own counter-based stream; imports torch and numpy.

May import ``backends.splitmix``, ``config`` and ``errors``. A row's draw depends on its logits, its
seed and its position only, so a batch may be cut, sorted and refilled without changing what anyone
gets. Rounding of the logits (about 1e-7, it varies with the batch's shape) moves a draw only where
the uniform number falls that close to a boundary between two tokens.
"""

import numpy as np
import torch
from torch import Tensor

from nbrl.backends.splitmix import GAMMA, mixed
from nbrl.config import Sampling
from nbrl.errors import RolloutError

TOP_P_CANDIDATES = 1024
"""Tokens that top-p sorts first; where they do not hold enough probability, all are sorted."""


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One number in [0, 1) a row, a pure function of (seed, position).

    The finaliser of SplitMix64, applied to the seed and then to the seed's hash plus the position
    times the golden gamma. 52 bits are kept, so that ``u * total < total`` also after rounding.

    Args:
        seeds: uint64 ``[B]``.
        positions: Index of the token in the answer, ``[B]``.
    """
    steps = positions.astype(np.uint64) + np.uint64(1)
    hashed = mixed(mixed(seeds.astype(np.uint64) + GAMMA) + steps * GAMMA)
    return (hashed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def draw(logits: Tensor, uniform: np.ndarray, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sampled ids int64 ``[B]`` and their log-probs float32 ``[B]``.

    The log-probs are those of the full softmax at the sampling temperature (at 1 when greedy),
    whatever top-k and top-p cut away; logits are cast to float32 before anything else. Top-k
    cuts first, top-p then keeps the fewest of the rest that hold ``top_p`` of its probability.

    Args:
        logits: ``[B, V]``, any float dtype.
        uniform: ``[B]`` in [0, 1); unused when greedy.
        sampling: Temperature, top-p and top-k.

    Raises:
        RolloutError: Logits of a row are NaN or infinite (minus infinity for some tokens is not:
            they are never drawn).
    """
    scaled = logits.float()
    if sampling.logprob_temperature != 1.0:
        scaled = scaled / sampling.logprob_temperature
    logprobs = torch.log_softmax(scaled, dim=-1)
    # One such logit makes the whole row NaN, so that one column tells.
    if bool((bad := logprobs[:, 0].isnan()).any()):
        raise RolloutError(
            f"the logits of {int(bad.sum())} of {len(bad)} answers are NaN or infinite"
        )
    if sampling.temperature == 0:
        tokens = logprobs.argmax(dim=-1)
    else:
        at = torch.from_numpy(uniform).to(logits.device)
        tokens = _draw_cut(logprobs, at, sampling)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def _draw_cut(logprobs: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Tokens drawn after top-k and top-p have cut."""
    vocabulary = logprobs.shape[-1]
    top_k = sampling.top_k if 0 < sampling.top_k < vocabulary else vocabulary
    if sampling.top_p >= 1.0 and top_k == vocabulary:
        return _invert(logprobs.exp(), uniform)
    width = min(top_k, TOP_P_CANDIDATES) if sampling.top_p < 1.0 else top_k
    probs, ids = logprobs.exp().topk(width, dim=-1)
    if width < top_k and bool((probs.sum(-1) < sampling.top_p).any()):
        probs, ids = logprobs.exp().sort(dim=-1, descending=True, stable=True)
        probs, ids = probs[:, :top_k], ids[:, :top_k]
    if sampling.top_p < 1.0:
        # Without top-k the mass is 1 and need not be summed: all of it is in view or enough is.
        total = probs.sum(-1, keepdim=True, dtype=torch.float64) if top_k < vocabulary else 1.0
        before = probs.cumsum(-1, dtype=torch.float64) - probs
        probs = torch.where(before < sampling.top_p * total, probs, 0.0)
    return ids.gather(-1, _invert(probs, uniform)[:, None]).squeeze(-1)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first place where the running sum of the weights exceeds ``uniform`` of their total."""
    running = weights.cumsum(-1, dtype=torch.float64)
    threshold = uniform[:, None] * running[:, -1:]
    return torch.searchsorted(running, threshold, right=True).squeeze(-1)
