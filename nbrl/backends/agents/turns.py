"""The turn loop: the policy speaks, the environment answers, until an episode ends.

May import ``protocols``, ``config``, ``types`` and this room. Sampled ids are never encoded
again: an episode's tokens are the prompt's, then what was sampled and, encoded on its own, what
the environment said. All episodes take a turn together, so that an engine sees them at once.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nbrl.backends.agents.calls import Call, Reply, call_all
from nbrl.backends.agents.loading import AgentFactory
from nbrl.backends.agents.replies import Answer, understood
from nbrl.backends.agents.traces import Trace, Turn
from nbrl.config import Agent, Sampling
from nbrl.protocols import Advance, Generation, GenerationRequest, RolloutEngine
from nbrl.types import SOURCE_ENVIRONMENT, SOURCE_POLICY, SOURCE_PROMPT


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where an episode begins: a prompt's ids, its label, and a seed for each of its turns."""

    prompt_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    label: str | None
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec:
    """Text to ids, at the ``beginning`` of a row or ``inside`` one, and ids to their whole text."""

    beginning: Callable[[str], tuple[int, ...]]
    inside: Callable[[str], tuple[int, ...]]
    text: Callable[[Sequence[int]], str]


@dataclass(kw_only=True, slots=True)
class Episode:
    """An episode under way."""

    start: Start
    sampling: Sampling
    loop: asyncio.AbstractEventLoop
    instance: Any = None
    text: str = ""
    ids: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    seconds: float = 0.0
    ended_by: str | None = None
    error: str | None = None

    def add(
        self, ids: Sequence[int], source: int, version: int = 0, logprobs: Any = None
    ) -> tuple[int, int]:
        """Put tokens at the end; their range."""
        first = len(self.ids)
        self.ids += ids
        self.source += [source] * len(ids)
        self.versions += [version] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        return first, len(self.ids)

    def end(self, by: str, error: str | None = None) -> None:
        """The episode is over."""
        self.ended_by, self.error = by, error


def play(
    engine: RolloutEngine,
    factory: AgentFactory,
    starts: Sequence[Start],
    *,
    agent: Agent,
    sampling: Sampling,
    codec: Codec,
    advance: Advance,
) -> list[Trace]:
    """The traces of the episodes that ended, in the order of ``starts``.

    An environment that fails, is late or says what cannot be understood ends its own episode, with
    an error. After Ctrl-C the episodes that had ended are returned.
    """
    episodes = [
        Episode(start=start, sampling=sampling, loop=asyncio.new_event_loop()) for start in starts
    ]
    context = int(str(engine.describe()["context_length"]))
    try:
        _reset(episodes, factory, agent, codec)
        while going := [e for e in episodes if e.ended_by is None]:
            before = len(going)
            ready = [e for e in going if not _is_full(e, agent, context)]
            _speak(engine, ready, agent, lambda _, tokens: advance(0, tokens))
            _answer([e for e in ready if e.ended_by is None], agent, codec, context)
            advance(before - sum(e.ended_by is None for e in going), 0)
    except KeyboardInterrupt:
        pass
    finally:
        for episode in episodes:
            # one that is still running belongs to a call that was late
            if not episode.loop.is_running():
                episode.loop.close()
    return [_trace(e) for e in episodes if e.ended_by is not None]


# ---- the three parts of a turn ------------------------------------------------------------------


def _reset(episodes: Sequence[Episode], factory: AgentFactory, agent: Agent, codec: Codec) -> None:
    """Make the instances and let each say where it begins."""
    for episode in episodes:
        episode.text = codec.text(episode.start.token_ids)
    calls = [
        Call(_Beginning(factory, e.loop), {"observation": e.text, "label": e.start.label}, e.loop)
        for e in episodes
    ]
    for episode, reply in zip(episodes, call_all(calls, agent.timeout), strict=True):
        _began(episode, reply, codec)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Makes an instance and resets it, in the episode's thread: either may be slow, or fail."""

    factory: AgentFactory
    loop: asyncio.AbstractEventLoop

    def __call__(self, state: Mapping[str, Any]) -> tuple[Any, Any]:
        instance = self.factory.make()
        said = instance.reset(state)
        return instance, self.loop.run_until_complete(said) if asyncio.iscoroutine(said) else said


def _began(episode: Episode, reply: Reply, codec: Codec) -> None:
    episode.seconds += reply.seconds
    ids = episode.start.token_ids
    if reply.error is None:
        episode.instance, said = reply.value
        text = said.get("observation") if isinstance(said, Mapping) else None
        if not isinstance(text, str) or not text:
            reply = Reply(error=f"reset must return {{'observation': text}}; got {said!r:.200}")
        elif text != episode.text:
            episode.text, ids = text, codec.beginning(text)
    episode.add(ids, SOURCE_PROMPT)
    if reply.error is not None:
        episode.end("error", f"reset: {reply.error}")


def _is_full(episode: Episode, agent: Agent, context: int) -> bool:
    """Whether there is no room for another action; the episode ends where there is none."""
    if len(episode.ids) >= context:
        episode.end("length")
    elif len(episode.turns) >= agent.max_turns:
        episode.end("turns")
    elif _left(episode, agent) == 0:
        episode.end("tokens")
    return episode.ended_by is not None


def _left(episode: Episode, agent: Agent) -> int | None:
    """How many tokens the policy may still say, where the agent bounds them."""
    if agent.max_tokens is None:
        return None
    return max(agent.max_tokens - sum(s == SOURCE_POLICY for s in episode.source), 0)


def _speak(
    engine: RolloutEngine, episodes: Sequence[Episode], agent: Agent, advance: Advance
) -> None:
    """One action of each episode; equal beginnings are one request, and are prefilled once.

    Raises:
        KeyboardInterrupt: The engine was interrupted; no action was taken.
    """
    asked: dict[tuple[Sampling, tuple[int, ...]], list[Episode]] = {}
    for episode in episodes:
        asked.setdefault((_bounded(episode, agent), tuple(episode.ids)), []).append(episode)
    said: list[tuple[Episode, Generation]] = []
    for sampling in dict.fromkeys(sampling for sampling, _ in asked):
        groups = [(ids, members) for (s, ids), members in asked.items() if s == sampling]
        requests = [
            GenerationRequest(
                prompt_id=str(number),
                token_ids=ids,
                seeds=tuple(e.start.seeds[len(e.turns)] for e in members),
            )
            for number, (ids, members) in enumerate(groups)
        ]
        made = engine.generate(requests, sampling, advance)
        if len(made) < sum(len(members) for _, members in groups):
            raise KeyboardInterrupt
        said += [(groups[int(g.prompt_id)][1][g.sample_index], g) for g in made]
    for episode, generation in said:
        _spoke(episode, generation)


def _bounded(episode: Episode, agent: Agent) -> Sampling:
    left, sampling = _left(episode, agent), episode.sampling
    if left is None or (sampling.max_new_tokens is not None and sampling.max_new_tokens <= left):
        return sampling
    return replace(sampling, max_new_tokens=left)


def _spoke(episode: Episode, generation: Generation) -> None:
    action = episode.add(
        generation.token_ids.tolist(),
        SOURCE_POLICY,
        generation.version,
        generation.logprobs.tolist(),
    )
    episode.seconds += generation.seconds
    episode.turns.append(
        Turn(
            action=action,
            feedback=(action[1], action[1]),
            finish_reason=generation.finish_reason,
            version=generation.version,
        )
    )
    if generation.error is not None:
        episode.end("error", generation.error)


def _answer(episodes: Sequence[Episode], agent: Agent, codec: Codec, context: int) -> None:
    """What each environment says to the action."""
    actions = [codec.text(e.ids[slice(*e.turns[-1].action)]) for e in episodes]
    states = [
        {
            "observation_text": episode.text,
            "action_text": action,
            "label": episode.start.label,
            "sampling_params": episode.sampling,
        }
        for episode, action in zip(episodes, actions, strict=True)
    ]
    calls = [
        Call(episode.instance.step, state, episode.loop)
        for episode, state in zip(episodes, states, strict=True)
    ]
    replies = call_all(calls, agent.timeout)
    for episode, action, reply in zip(episodes, actions, replies, strict=True):
        episode.text += action
        episode.seconds += reply.seconds
        said = understood(reply, episode.sampling)
        if isinstance(said, Answer):
            _take_over(episode, said, codec, context)
        else:
            episode.end("error", f"step {len(episode.turns)}: {said}")


def _take_over(episode: Episode, said: Answer, codec: Codec, context: int) -> None:
    """Put what the environment said behind the action."""
    # what does not fit is cut away, as no model could read it
    room = max(context - len(episode.ids), 0)
    span = episode.add(codec.inside(said.feedback)[:room], SOURCE_ENVIRONMENT)
    episode.turns[-1] = replace(
        episode.turns[-1],
        feedback=span,
        reward=said.reward,
        score=said.score,
        extras=said.extras,
        seconds=said.seconds,
    )
    episode.text += said.feedback
    episode.sampling = said.sampling
    if said.done:
        episode.end("environment")


def _trace(episode: Episode) -> Trace:
    reasons = {"length": "length", "tokens": "length", "error": "error"}
    last = episode.turns[-1].finish_reason if episode.turns else "stop"
    assert episode.ended_by is not None
    start = episode.start
    return Trace(
        prompt_id=start.prompt_id,
        sample_index=start.sample_index,
        seed=start.seeds[0],
        token_ids=np.array(episode.ids, np.int32),
        source=np.array(episode.source, np.int8),
        logprobs=np.array(episode.logprobs, np.float32),
        versions=np.array(episode.versions, np.int64),
        finish_reason=reasons.get(episode.ended_by, last),
        ended_by=episode.ended_by,
        seconds=episode.seconds,
        prompt_length=episode.turns[0].action[0] if episode.turns else len(episode.ids),
        turns=tuple(episode.turns),
        error=episode.error,
    )
