"""The engine of a session whose model does not generate; may import what engines may."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from nbrl.config import Sampling
from nbrl.errors import RolloutError
from nbrl.protocols import Advance, Generation, GenerationRequest


class IdleEngine:
    """Fulfils ``RolloutEngine`` by refusing: a reward model says nothing."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, advance: Advance
    ) -> list[Generation]:
        """Nothing.

        Raises:
            RolloutError: Always.
        """
        raise RolloutError(
            f"{len(requests)} prompts were given to a reward model, which does not generate. "
            "Connect with model=Model(..., head='lm') to roll out."
        )

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Do nothing: there is nobody to give them to."""

    def describe(self) -> Mapping[str, object]:
        """That there is none."""
        return {"kind": "none"}
