"""The running average of trained weights: followed after each step, lent to the modules at will.

May import ``interrupts`` and torch.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nbrl.backends.interrupts import held_interrupts


class Average:
    """``average = decay * average + (1 - decay) * weights``, in float32, from the first weights on.

    Only what is trained is averaged; the rest does not change.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        masters: Mapping[str, Tensor],
        *,
        decay: float,
    ) -> None:
        """Begin at the weights as they are.

        Args:
            parameters: What the average is lent to.
            masters: What it follows: the same in float32.
            decay: How much of the average stays at each step, in (0, 1).
        """
        self.decay = decay
        self._parameters, self._masters = parameters, masters
        self._means = {n: m.detach().clone() for n, m in masters.items()}
        self._own: dict[str, Tensor] | None = None

    def follow(self) -> None:
        """Move towards the weights by one step."""
        with torch.no_grad():
            for name, mean in self._means.items():
                mean.lerp_(self._masters[name], 1 - self.decay)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The parameters hold the average in this block, and bit by bit their own after it.

        However the block ends and wherever an interrupt strikes: what puts the weights back can be
        done twice, and is.
        """
        try:
            try:
                self._lend()
                yield
            finally:
                self._take_back()
        finally:
            self._take_back()

    def state(self) -> dict[str, Tensor]:
        """A copy of the average, by the parameters' names."""
        return {name: mean.clone() for name, mean in self._means.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Become what :meth:`state` gave."""
        with torch.no_grad():
            for name, mean in self._means.items():
                mean.copy_(state[name])

    def feed(self, digest: "hashlib._Hash") -> None:
        """Add the average to a digest."""
        for name, mean in self._means.items():
            digest.update(name.encode())
            digest.update(mean.cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    def bytes(self) -> int:
        """How much memory it takes."""
        return sum(mean.numel() * mean.element_size() for mean in self._means.values())

    def _lend(self) -> None:
        with held_interrupts(), torch.no_grad():
            self._own = {n: p.detach().clone() for n, p in self._parameters.items()}
            for name, parameter in self._parameters.items():
                parameter.copy_(self._means[name])

    def _take_back(self) -> None:
        with held_interrupts(), torch.no_grad():
            for name, own in (self._own or {}).items():
                self._parameters[name].copy_(own)
            self._own = None
