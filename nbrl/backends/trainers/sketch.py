"""Random projections of gradients that are too long to keep; may import numpy and torch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SKETCH_SIZE = 4096
_SEED = 0x6E62726C
_CHUNK = 1 << 20


def gradient_norm(gradient: Sequence[Tensor]) -> float:
    """The 2-norm of all tensors together."""
    return float(torch.nn.utils.get_total_norm(list(gradient)))


def sketches(gradients: Sequence[Sequence[Tensor]]) -> list[np.ndarray]:
    """A float32 ``[4096]`` count-sketch of each gradient, all by the same hash.

    Every place of a gradient is added, with a random sign, to a random one of 4096 buckets
    (Charikar, Chen and Farach-Colton 2002). The map is linear; the expected inner product of two
    sketches is that of the gradients, so cosines are estimated with a standard error of about
    ``1 / sqrt(4096)`` = 0.016. Hash and order of places are fixed: sketches of the same
    parameters may be compared across calls and runs.

    Args:
        gradients: For each loss one tensor a parameter, float32, the same shapes in all.
    """
    rng = np.random.Generator(np.random.PCG64(_SEED))
    found = [np.zeros(SKETCH_SIZE) for _ in gradients]
    for tensors in zip(*gradients, strict=True):
        flat = [tensor.detach().cpu().reshape(-1).numpy() for tensor in tensors]
        for start in range(0, len(flat[0]), _CHUNK):
            pieces = [f[start : start + _CHUNK] for f in flat]
            draw = rng.integers(0, 2 * SKETCH_SIZE, len(pieces[0]), dtype=np.uint16)
            for sketch, piece in zip(found, pieces, strict=True):
                # The sign is the bucket's upper half: one draw is both.
                both = np.bincount(draw, weights=piece, minlength=2 * SKETCH_SIZE)
                sketch += both[:SKETCH_SIZE] - both[SKETCH_SIZE:]
    return [sketch.astype(np.float32) for sketch in found]
