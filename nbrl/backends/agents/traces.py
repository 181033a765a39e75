"""What an episode leaves: the ids that were sampled and those between them, turn by turn.

May import ``protocols``, ``types``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nbrl.protocols import Generation
from nbrl.types import SOURCE_POLICY, SOURCE_PROMPT


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One action of the policy and what the environment said to it.

    ``action`` and ``feedback`` are half-open ranges of the trace's tokens. ``reward`` and
    ``score`` are None where the environment did not answer. ``seconds`` are of the environment.

    Example: ``Turn(action=(5, 9), feedback=(9, 12), finish_reason="stop", reward=0.0)``.
    """

    action: tuple[int, int]
    feedback: tuple[int, int]
    finish_reason: str
    version: int
    reward: float | None = None
    score: float | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trace:
    """The tokens of one sample, from prompt to end.

    ``token_ids`` int32, ``source`` int8, ``logprobs`` float32 and ``versions`` int64 are all
    ``[L]``; log-probs and versions are 0 outside the policy's tokens. ``ended_by`` says what
    ended it: ``policy`` (a single turn), ``environment``, ``length`` (the context is full),
    ``turns``, ``tokens`` (the episode's bound) or ``error``.
    """

    prompt_id: str
    sample_index: int
    seed: int
    token_ids: np.ndarray
    source: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: str
    ended_by: str
    seconds: float
    prompt_length: int
    """How many tokens stand before the policy's first, or all where it has none."""
    turns: Sequence[Turn] = ()
    error: str | None = None

    @property
    def num_turns(self) -> int:
        """How many times the policy spoke; an answer without an agent is one turn."""
        return len(self.turns) or int(self.prompt_length < len(self.source))

    def turns_json(self) -> str:
        """The turns as JSON, one object each, as the column ``turns`` holds them."""
        return json.dumps([asdict(turn) for turn in self.turns])


def trace_of(prompt: np.ndarray, seed: int, generation: Generation) -> Trace:
    """The trace of a single turn: the prompt's ids, the sample's seed, and the answer."""
    at, length = len(prompt), len(prompt) + len(generation.token_ids)
    token_ids, source = np.empty(length, np.int32), np.full(length, SOURCE_PROMPT, np.int8)
    logprobs, versions = np.zeros(length, np.float32), np.zeros(length, np.int64)
    token_ids[:at], token_ids[at:] = prompt, generation.token_ids
    source[at:], versions[at:] = SOURCE_POLICY, generation.version
    logprobs[at:] = generation.logprobs
    return Trace(
        prompt_id=generation.prompt_id,
        sample_index=generation.sample_index,
        seed=seed,
        token_ids=token_ids,
        source=source,
        logprobs=logprobs,
        versions=versions,
        finish_reason=generation.finish_reason,
        ended_by="policy",
        seconds=generation.seconds,
        prompt_length=at,
        error=generation.error,
    )
