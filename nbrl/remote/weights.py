"""Weights on their way from trainer to engines: flat bytes in shared memory, with a digest.

Imports torch, numpy and hashlib only. Ray's object store hands arrays to every process of a node
without a copy, and to other nodes once.
"""

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packed:
    """Named tensors as bytes.

    ``layout`` holds of each its name, dtype and shape, in order; ``digest`` is over all of it.
    Example: one float32 tensor of two entries has ``layout=(("w", "float32", (2,)),)`` and one
    array of 8 bytes.
    """

    layout: tuple[tuple[str, str, tuple[int, ...]], ...]
    arrays: tuple[np.ndarray, ...]
    digest: str

    @property
    def nbytes(self) -> int:
        """The size of the weights."""
        return sum(array.nbytes for array in self.arrays)


def pack(weights: Iterable[tuple[str, Tensor]]) -> Packed:
    """Copies of these tensors on the CPU, as bytes."""
    layout, arrays = [], []
    for name, tensor in weights:
        plain = tensor.detach().to("cpu").contiguous()
        layout.append((name, str(plain.dtype).removeprefix("torch."), tuple(plain.shape)))
        arrays.append(plain.flatten().view(torch.uint8).numpy().copy())
    found = tuple(layout), tuple(arrays)
    return Packed(layout=found[0], arrays=found[1], digest=_digest(*found))


def unpack(packed: Packed) -> tuple[list[tuple[str, Tensor]], str]:
    """The tensors, which share the memory of the arrays, and the digest of what is here."""
    weights = []
    for (name, dtype, shape), array in zip(packed.layout, packed.arrays, strict=True):
        kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        with warnings.catch_warnings():
            # Ray's arrays are read-only, which torch only warns of; nothing here writes to them.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            plain = torch.frombuffer(array.data, dtype=torch.uint8) if array.size else None
        tensor = torch.empty(0, dtype=kind) if plain is None else plain.view(kind)
        weights.append((name, tensor.view(shape)))
    return weights, _digest(packed.layout, packed.arrays)


def _digest(layout: object, arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.blake2b(repr(layout).encode(), digest_size=16)
    for array in arrays:
        digest.update(array.data)
    return digest.hexdigest()
