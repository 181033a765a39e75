"""An interrupt at every instruction of a verb's border, and at every line of what may be torn."""

import contextlib
import signal
import sys

import pytest

from nbrl.backends import interrupts
from nbrl.backends.engines import hf
from nbrl.backends.trainers import local
from nbrl.config import Sampling
from nbrl.driver import progress, rollout, runtime, training
from nbrl.driver import session as sessions
from tests.driver.conftest import SHORT, digest, exact

BORDER = (runtime, progress, contextlib, sessions)


def interrupt():
    """What an interrupt does where nobody holds it."""
    raise KeyboardInterrupt


def press():
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


class Striking:
    """Strikes at one event inside some modules; counts those that came."""

    def __init__(self, modules, strike, at, *, event):
        self.files = {module.__file__ for module in modules}
        self.strike, self.at, self.event, self.seen = strike, at, event, 0

    def call(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        return self.local

    def local(self, frame, event, arg):
        if event == self.event:
            self.seen += 1
            if self.seen == self.at:
                self.strike()
        return self.local

    def run(self, work):
        """What the work gives, or ``"interrupted"``."""
        before = sys.gettrace()
        sys.settrace(self.call)
        try:
            return work()
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            sys.settrace(before)


def each_place(modules, strike, work, *, event="line", step=1):
    """What the work gives when it is struck at each place in turn."""
    at = 1
    while True:
        striking = Striking(modules, strike, at, event=event)
        outcome = striking.run(work)
        if striking.seen < at:
            assert at > 20, "the places were looked for in vain"
            return
        yield at, outcome
        at += step


class Recorder:
    """A sink that keeps the last state it was shown."""

    def __init__(self):
        self.outcome, self.final = "nothing shown", True

    def show(self, bars, final):
        self.outcome, self.final = bars[0].outcome, final


def test_no_instruction_of_a_verbs_border_leaves_it_busy_or_a_bar_open(session):
    rollouts = session.rollout(session.next_prompts(1), sampling=SHORT)
    held = session._runtime
    sinks = []

    def make():
        sinks.append(Recorder())
        return sinks[-1]

    held.progress = progress.Progress(make)
    count = 0
    for at, outcome in each_place(
        BORDER, interrupt, lambda: session.score(rollouts, exact), event="opcode"
    ):
        count += 1
        assert outcome == "interrupted", at
        assert held.turns == [], at
        assert held.progress._open == [], at
        assert all(sink.final and sink.outcome != "running" for sink in sinks), at
        sinks.clear()
    assert count > 400
    assert len(session.next_prompts(1)) == 1


def test_no_line_of_closing_leaves_half_a_session(open_tiny):
    session = open_tiny()
    for _ in each_place((runtime,), interrupt, session.close):
        assert session._runtime.turns == []
    session.close()
    with pytest.raises(AttributeError):
        _ = session._runtime.engine


def test_no_line_of_a_step_leaves_it_half_taken(session, batch_of):
    held, batch = session._runtime, batch_of(session, k=2, n=2)
    saved, before = held.trainer.state(), digest(session)
    session.train_step(batch)
    after, seen = digest(session), set()

    def reset():
        held.trainer.load_state(saved)
        held.version = 0
        for each in (held.trained, held.records, held.unwritten):
            each.clear()

    reset()
    modules = (training, local, progress, runtime, contextlib, interrupts)
    for at, outcome in each_place(modules, press, lambda: session.train_step(batch), step=3):
        state = (digest(session), session.version, len(held.records), len(held.trained))
        assert state in {(before, 0, 0, 0), (after, 1, 1, 1)}, at
        assert (held.turns, held.progress._open) == ([], []), at
        assert session.version == 1 or outcome == "interrupted", at
        seen.add((session.version, outcome == "interrupted"))
        reset()
    assert seen >= {(0, True), (1, True)}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_line_of_a_rollout_swallows_an_interrupt_or_bends_the_model(session):
    prompts, short = session.next_prompts(2), Sampling(max_new_tokens=3)
    whole = session.rollout(prompts, n=2, sampling=short)
    module = session._runtime.engine._module
    seen = set()
    for at, outcome in each_place(
        (rollout, hf, runtime), press, lambda: session.rollout(prompts, n=2, sampling=short), step=3
    ):
        if outcome != "interrupted":
            assert outcome.spec["interrupted"], at
            ids = outcome.table["sample_id"].to_pylist()
            assert outcome.table["token_ids"].equals(whole.select(ids).table["token_ids"]), at
            seen.add(len(ids))
        assert module.config._attn_implementation == "sdpa", at
        assert not module.training, at
        assert not module.get_output_embeddings()._forward_pre_hooks, at
    assert {0, 4} <= seen
    assert not session.rollout(prompts, n=2, sampling=short).spec["interrupted"]
