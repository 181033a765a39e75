"""The turn loop: exact tokens, masks and turns, and environments that misbehave."""

import asyncio
import sys
import time

import numpy as np
import pytest
import torch

from nbrl.backends.agents.loading import load_agent
from nbrl.backends.agents.turns import Codec, Start, play
from nbrl.config import Agent, Sampling
from nbrl.errors import ConfigError
from nbrl.protocols import Generation

CODEC = Codec(
    beginning=lambda text: tuple(text.encode()),
    inside=lambda text: tuple(text.encode()),
    text=lambda ids: bytes(ids).decode(),
)


class Parrot:
    """An engine that says ``a`` and the turn's seed as a digit, or what fits of it."""

    def __init__(self, context=64):
        self.context, self.asked = context, []

    def generate(self, requests, sampling, advance):
        self.asked.append([(bytes(r.token_ids).decode(), r.seeds) for r in requests])
        made = []
        for request in requests:
            room = min(self.context - len(request.token_ids), sampling.max_new_tokens or 99)
            for i, seed in enumerate(request.seeds):
                ids = np.frombuffer(f"a{seed % 10}".encode(), np.uint8).astype(np.int32)[:room]
                made.append(
                    Generation(
                        prompt_id=request.prompt_id,
                        sample_index=i,
                        token_ids=ids,
                        logprobs=-np.arange(1, len(ids) + 1, dtype=np.float32) - seed,
                        finish_reason="stop" if len(ids) == 2 else "length",
                        version=3,
                        seconds=0.5,
                    )
                )
        return made

    def load_weights(self, weights, version):
        raise AssertionError("nobody syncs in a rollout")

    def describe(self):
        return {"context_length": self.context}


def starts(count=1, turns=4):
    return [
        Start(
            prompt_id="p",
            sample_index=i,
            token_ids=tuple(b"Q:"),
            label="7",
            seeds=tuple(10 * i + t for t in range(turns)),
        )
        for i in range(count)
    ]


class Counting:
    """Ends after the second action."""

    def __init__(self):
        self.seen = []

    async def reset(self, state):
        return {"observation": state["observation"]}

    async def step(self, state):
        self.seen.append(dict(state))
        await asyncio.sleep(0)
        last = len(self.seen) == 2
        return {
            "rewards": torch.tensor(float(len(self.seen))),
            "environment_feedback": "" if last else "<no>",
            "done": last,
            "extra_logs": {"seen": torch.tensor([len(self.seen)]), "text": state["action_text"]},
        }


def episodes(source, count=1, *, context=64, sampling=None, engine=None, **bounds):
    agent = Agent(source, **{"timeout": 5.0} | bounds)
    turns = agent.max_turns
    return play(
        engine or Parrot(context),
        load_agent(source),
        starts(count, turns),
        agent=agent,
        sampling=sampling or Sampling(),
        codec=CODEC,
        advance=lambda samples, tokens: None,
    )


def test_two_turns_by_hand():
    (trace,) = episodes(Counting)
    assert bytes(trace.token_ids.tolist()) == b"Q:a0<no>a1"
    assert trace.source.tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 1, 1]
    assert trace.logprobs.tolist() == [0, 0, -1, -2, 0, 0, 0, 0, -2, -3]
    assert trace.versions.tolist() == [0, 0, 3, 3, 0, 0, 0, 0, 3, 3]
    assert [t.action for t in trace.turns] == [(2, 4), (8, 10)]
    assert [t.feedback for t in trace.turns] == [(4, 8), (10, 10)]
    assert [t.reward for t in trace.turns] == [1.0, 2.0]
    assert [t.extras for t in trace.turns] == [
        {"seen": [1], "text": "a0"},
        {"seen": [2], "text": "a1"},
    ]
    assert (trace.finish_reason, trace.ended_by, trace.error) == ("stop", "environment", None)
    assert trace.prompt_length == 2
    assert trace.num_turns == 2


def test_what_an_environment_sees():
    made = []

    def make():
        made.append(Counting())
        return made[-1]

    episodes(make, 2)
    assert len(made) == 2, "every sample has an instance of its own"
    first, second = made[0].seen
    assert first["observation_text"] == "Q:"
    assert second["observation_text"] == "Q:a0<no>"
    assert second["action_text"] == "a1"
    assert first["label"] == second["label"] == "7"
    assert first["sampling_params"] == second["sampling_params"] == Sampling()
    assert made[1].seen[1]["observation_text"] == "Q:a0<no>"


def test_equal_beginnings_are_one_request_and_histories_stay_apart():
    engine = Parrot()
    traces = episodes(Counting, 3, engine=engine)
    assert engine.asked[0] == [("Q:", (0, 10, 20))]
    assert [ids for ids, _ in engine.asked[1]] == ["Q:a0<no>"]
    assert engine.asked[1][0][1] == (1, 11, 21)
    assert len({t.logprobs.tobytes() for t in traces}) == 3


def test_a_reset_may_write_the_prompt_anew():
    class Anew(Counting):
        async def reset(self, state):
            return {"observation": "Now:"}

    (trace,) = episodes(Anew)
    assert bytes(trace.token_ids.tolist()[:6]) == b"Now:a0"
    assert trace.source.tolist()[:6] == [0, 0, 0, 0, 1, 1]


class Endless(Counting):
    async def step(self, state):
        return {"rewards": 1, "environment_feedback": "..", "done": False}


@pytest.mark.parametrize(
    ("bounds", "ended_by", "finish", "turns"),
    [
        ({"max_turns": 2}, "turns", "stop", 2),
        ({"max_tokens": 4}, "tokens", "length", 2),
        ({"max_tokens": 3}, "tokens", "length", 2),
        ({"context": 10}, "length", "length", 2),
        ({"context": 7}, "length", "length", 2),
    ],
)
def test_what_bounds_an_episode(bounds, ended_by, finish, turns):
    (trace,) = episodes(Endless, **bounds)
    assert (trace.ended_by, trace.finish_reason, trace.num_turns) == (ended_by, finish, turns)
    assert len(trace.token_ids) <= bounds.get("context", 64)
    assert (trace.source == 1).sum() <= bounds.get("max_tokens", 64)


def test_feedback_beyond_the_context_is_cut():
    (trace,) = episodes(Endless, context=5)
    assert bytes(trace.token_ids.tolist()) == b"Q:a0."
    assert trace.turns[0].feedback == (4, 5)


def test_a_cut_last_action_is_truncated_even_where_the_environment_ends():
    (trace,) = episodes(Counting, context=9)
    assert trace.ended_by == "environment"
    assert trace.finish_reason == "length"


def misbehaving(said):
    class Env(Counting):
        async def step(self, state):
            return said

    return Env


GOOD = {"rewards": 0.0, "environment_feedback": "", "done": True}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "must return a dict"),
        ({"rewards": 1.0}, "lacks environment_feedback, done"),
        (GOOD | {"rewards": float("nan")}, "'rewards' must be a finite number"),
        (GOOD | {"rewards": [1.0, 2.0]}, "'rewards' must be a finite number"),
        (GOOD | {"scores": "high"}, "'scores' must be a finite number"),
        (GOOD | {"environment_feedback": 5}, "'environment_feedback' must be a text"),
        (GOOD | {"sampling_params": {"n": 1}}, "must be nbrl.Sampling"),
        (GOOD | {"sampling_params": Sampling(temperature=0.5)}, "temperature"),
        (GOOD | {"extra_logs": 3}, "'extra_logs' must be a dict"),
    ],
)
def test_what_cannot_be_understood_costs_its_own_sample(said, message):
    kinds = [misbehaving(said), Counting]

    def make():
        return kinds.pop(0)()

    traces = sorted(episodes(make, 2), key=lambda t: t.error is None)
    assert message in traces[0].error
    assert traces[0].error.startswith("step 1: ")
    assert (traces[0].finish_reason, traces[0].ended_by) == ("error", "error")
    assert bytes(traces[0].token_ids.tolist()).startswith(b"Q:a"), "what was sampled is kept"
    assert traces[1].error is None
    assert traces[1].num_turns == 2


def test_failing_slow_and_blocking_environments_are_errors_of_their_samples():
    class Fails(Counting):
        async def step(self, state):
            raise KeyError("gone")

    class Sleeps(Counting):
        async def reset(self, state):
            await asyncio.sleep(30)

    class Blocks(Counting):
        def step(self, state):
            time.sleep(30)

    class Exits(Counting):
        async def reset(self, state):
            raise SystemExit(3)

    kinds = [Fails, Sleeps, Blocks, Exits, Counting]
    started = time.perf_counter()
    traces = []
    for kind in kinds:
        traces += episodes(kind, timeout=0.3)
    assert time.perf_counter() - started < 15
    fails, sleeps, blocks, exits, fine = traces
    assert "KeyError" in fails.error
    assert "test_turns.py" in fails.error
    assert sleeps.error == "reset: no answer within 0.3 s"
    assert blocks.error == "step 1: no answer within 0.3 s"
    assert "SystemExit" in exits.error
    assert fine.error is None


def test_sync_methods_work_too():
    class Plain:
        def reset(self, state):
            return state

        def step(self, state):
            return GOOD | {"rewards": np.float32(2.0)}

    (trace,) = episodes(Plain)
    assert trace.turns[0].reward == 2.0


def test_an_interrupted_engine_gives_the_episodes_that_ended():
    class Stops(Parrot):
        def generate(self, requests, sampling, advance):
            made = super().generate(requests, sampling, advance)
            return made if len(self.asked) == 1 else made[:-1]

    kinds = [misbehaving(GOOD), Counting]

    def make():
        return kinds.pop(0)()

    traces = episodes(make, 2, engine=Stops())
    assert len(traces) == 1
    assert traces[0].ended_by == "environment"


OPENRLHF_FILE = """
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    async def reset(self, states, **kwargs):
        return {"observation": states["observation"]}

    async def step(self, states, **kwargs):
        return {"rewards": 1.0, "environment_feedback": "!", "done": True}


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""


def test_a_file_written_for_openrlhf_runs_unchanged(tmp_path):
    file = tmp_path / "agent.py"
    file.write_text(OPENRLHF_FILE)
    (trace,) = episodes(str(file))
    assert bytes(trace.token_ids.tolist()) == b"Q:a0!"
    (trace,) = episodes(f"{file}:AgentInstance")
    assert trace.turns[0].reward == 1.0
    assert "openrlhf" not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (5, "a class with reset and step"),
        ("nowhere.py", "there is no Python file"),
        (type("Half", (), {"reset": len}), "lacks step"),
    ],
)
def test_what_is_no_agent(source, message):
    with pytest.raises(ConfigError, match=message):
        load_agent(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = 1", "defines no AgentExecutor or AgentInstance"), ("def (", "cannot be run: Syntax")],
)
def test_files_that_hold_no_agent(tmp_path, text, message):
    file = tmp_path / "agent.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_agent(file)
