"""How an agent's episodes are played, and the rules for it. May import ``rules``."""

from collections.abc import Iterator
from dataclasses import KW_ONLY
from typing import Any

from nbrl.frozen import frozen
from nbrl.rules import bounded, make_plain, whole


@frozen(kw_only=False)
class Agent:
    """An environment that answers the policy, and the bounds of an episode.

    ``source`` is a class with ``async reset(state)`` and ``async step(state)``, a function that
    makes such an instance, or a Python file that defines ``AgentExecutor`` or ``AgentInstance``;
    every sample has an instance of its own. ``max_turns`` and ``max_tokens`` bound the turns and
    the sampled tokens of an episode (``Sampling.max_new_tokens`` those of a turn). A ``reset`` or
    ``step`` that takes more than ``timeout`` seconds is an error of its sample alone.
    """

    source: Any
    _: KW_ONLY
    max_turns: int = 16
    max_tokens: int | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        make_plain(self)


def agent_problems(c: Agent) -> Iterator[str]:
    """What is wrong with the fields of one ``Agent``; its source is judged where it is loaded."""
    yield from whole("Agent.max_turns", c.max_turns, 1)
    if c.max_tokens is not None:
        yield from whole("Agent.max_tokens", c.max_tokens, 1)
    yield from bounded("Agent.timeout", c.timeout, 0.0, open_low=True)
