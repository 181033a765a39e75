"""Rewards that depend on the world, and samples that were read from a disk.

May import ``backends.rewards``, ``config`` and ``types``. A reward that looks something up, a price
or the state of a machine, says today of a stored sample what it would not have said then.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from nbrl.backends.rewards import RewardFn, RewardServer
from nbrl.rules import shown
from nbrl.types import Rollouts


def replayable(reward: Any, function: RewardFn) -> bool:
    """Whether a reward says the same of a stored sample at any time; True unless it says no.

    A function, or an object with ``__call__``, says no by its attribute: ``prices.replayable =
    False``; :class:`~nbrl.RewardServer` by its field.
    """
    return _declared(reward, function) is not False


def replay_problems(
    rewards: Any, functions: Mapping[str, RewardFn], rollouts: Any, replay: Any
) -> Iterator[str]:
    """Why these samples cannot be scored by these rewards, for each that depends on the world.

    Args:
        rewards: As ``session.score`` got them.
        functions: Those that were found, by name.
        rollouts: The samples.
        replay: Whether it is meant.
    """
    if not isinstance(replay, bool):
        yield f"replay must be True or False; got {shown(replay)}"
    for name, given, function in _each(rewards, functions):
        declared = _declared(given, function)
        if not isinstance(declared, bool):
            yield f"reward {name!r}: its replayable must be True or False; got {shown(declared)}"
    stored = isinstance(rollouts, Rollouts) and rollouts.stored
    if not stored or replay:
        return
    for name in world_bound(rewards, functions):
        yield (
            f"reward {name!r} depends on the world (replayable=False), and these samples were read "
            "from a disk: what it says now is not what it said of them then. Score fresh rollouts, "
            "or pass replay=True, which the result will show"
        )


def world_bound(rewards: Any, functions: Mapping[str, RewardFn]) -> list[str]:
    """The names of the rewards that depend on the world."""
    return [
        n for n, given, function in _each(rewards, functions) if not replayable(given, function)
    ]


def replayed(rewards: Any, functions: Mapping[str, RewardFn], rollouts: Rollouts) -> list[str]:
    """The names of the rewards whose answers about these samples are a replay."""
    return world_bound(rewards, functions) if rollouts.stored else []


def _each(rewards: Any, functions: Mapping[str, RewardFn]) -> Iterator[tuple[str, Any, RewardFn]]:
    given = rewards if isinstance(rewards, Mapping) else {"reward": rewards}
    for name, function in functions.items():
        yield name, given[name], function


def _declared(reward: Any, function: RewardFn) -> Any:
    if isinstance(reward, RewardServer):
        return reward.replayable
    code: Any = function.function
    while True:
        try:
            return code.replayable
        except AttributeError:
            # most functions say nothing; what wraps another has the other's word
            if not isinstance(code, functools.partial):
                return True
        code = code.func
