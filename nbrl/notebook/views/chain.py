"""The parents of a value under one roof, whichever of the three kinds it is.

May import ``types`` and ``errors``.
"""

from dataclasses import dataclass

from nbrl.errors import DataError
from nbrl.types import Advantaged, Rollouts, Scored

Samples = Rollouts | Scored | Advantaged


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chain:
    """A value with its rollouts, and its rewards and advantages where it has them.

    Example: of an ``Advantaged`` all three are there, of ``Rollouts`` only the first.
    """

    rollouts: Rollouts
    scored: Scored | None = None
    advantaged: Advantaged | None = None


def chain_of(value: object) -> Chain:
    """The chain that a value stands at the end of.

    Raises:
        DataError: It is none of the three kinds of samples.
    """
    if isinstance(value, Advantaged):
        return Chain(rollouts=value.scored.rollouts, scored=value.scored, advantaged=value)
    if isinstance(value, Scored):
        return Chain(rollouts=value.rollouts, scored=value)
    if isinstance(value, Rollouts):
        return Chain(rollouts=value)
    raise DataError(
        f"samples are Rollouts, Scored or Advantaged; got {type(value).__name__}. Prompts have "
        "no samples yet: session.rollout(prompts) makes them."
    )
