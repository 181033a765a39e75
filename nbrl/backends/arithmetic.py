"""Sums made on the fly, with a label that can be checked: ``7+42=`` asks for ``49``.

May import ``types``, ``errors`` and its neighbour ``sources``.
"""

from functools import cache

import numpy as np

from nbrl.backends.sources import PromptSource, prompts_table, seeded_order
from nbrl.errors import ConfigError, unknown_name
from nbrl.types import Prompts

LIMIT = 100
"""Both numbers are in ``0 .. LIMIT - 1``."""
SPLITS = ("train", "held_out")
HELD_OUT_SHARE = 0.125


@cache
def pairs(split: str) -> np.ndarray:
    """The pairs (a, b) of a split, int64 ``[n, 2]``; no pair is in both.

    An eighth of all pairs, chosen by a hash of (a, b), is held out.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    order = seeded_order(LIMIT * LIMIT, "arithmetic pairs")
    cut = int(len(order) * HELD_OUT_SHARE)
    chosen = np.sort(order[:cut] if split == "held_out" else order[cut:])
    return np.stack([chosen // LIMIT, chosen % LIMIT], axis=1)


def arithmetic_prompts(k: int, *, start: int, seed: int, split: str = "train") -> Prompts:
    """The ``k`` sums from index ``start`` on, the same ones for the same seed.

    Every pair of the split comes once before any comes again; the order of each round is drawn
    from the seed. Prompt ids are ``arithmetic-<split>-<index>``.
    """
    if k < 1 or start < 0:
        raise ConfigError(f"{k} sums from index {start}: k must be >= 1 and start >= 0.")
    known = pairs(split)
    size = len(known)
    rounds = {e: _order(size, f"{seed}/{split}/{e}") for e in _rounds(k, start, size)}
    rows = []
    for index in range(start, start + k):
        a, b = known[rounds[index // size][index % size]].tolist()
        rows.append(
            {
                "prompt_id": f"arithmetic-{split}-{index}",
                "prompt": f"{a}+{b}=",
                "label": str(a + b),
                "metadata": "{}",
            }
        )
    spec = {"source": "arithmetic", "split": split, "seed": seed, "start": start, "k": k}
    return Prompts(table=prompts_table(rows), spec=spec)


def arithmetic_source(*, seed: int, split: str = "train") -> PromptSource:
    """An endless source of sums."""
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    return PromptSource(
        name=f"arithmetic ({split})",
        fingerprint=f"arithmetic/{LIMIT}/{split}/{seed}",
        size=None,
        seed=seed,
        draw=lambda k, cursor: arithmetic_prompts(k, start=cursor, seed=seed, split=split),
    )


def _rounds(k: int, start: int, size: int) -> range:
    return range(start // size, (start + k - 1) // size + 1)


@cache
def _order(size: int, key: str) -> np.ndarray:
    return seeded_order(size, key)
