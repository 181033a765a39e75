"""Bars, their numbers, and when a sink is called."""

import pytest

from nbrl.driver.progress import PlainLines, Progress, Quiet
from nbrl.protocols import Bar


class Recorder:
    """A sink that keeps what it was shown."""

    def __init__(self):
        self.shown = []

    def show(self, bars, final):
        self.shown.append((tuple(bars), final))


def test_rates_and_time_to_go():
    bar = Bar(name="rollout", unit="samples", total=256, done=64, tokens=320, seconds=2.0)
    assert bar.rate == 32.0
    assert bar.eta == 6.0
    assert bar.line() == (
        "rollout: 64/256 samples in 2.0 s, 32.0 samples/s, 160 tokens/s, 6 s to go"
    )


def test_no_rate_before_the_first_unit():
    bar = Bar(name="score", unit="samples", total=4)
    assert (bar.rate, bar.eta) == (0.0, None)


def test_inner_phases_share_the_outer_sink_and_the_last_state_is_whole():
    sinks = []

    def make():
        sinks.append(Recorder())
        return sinks[-1]

    progress = Progress(make)
    with progress.phase("run", 2, "steps") as steps:
        for _ in range(2):
            with progress.phase("rollout", 3, "samples") as advance:
                advance(3, 12)
            steps(1, 0)
        progress.note("reward 0.5")
    assert len(sinks) == 1
    bars, final = sinks[0].shown[-1]
    assert final
    assert [(b.name, b.done, b.tokens, b.outcome, b.note) for b in bars] == [
        ("run", 2, 0, "done", "reward 0.5"),
        ("rollout", 6, 24, "done", ""),
    ]
    assert bars[1].total == 6


def test_updates_are_throttled():
    sink = Recorder()
    progress = Progress(lambda: sink)
    with progress.phase("rollout", 1000, "samples") as advance:
        for _ in range(1000):
            advance(1, 1)
    assert len(sink.shown) <= 4
    assert sink.shown[-1][0][0].done == 1000


def fail(progress, error):
    """A phase that ends by an error."""
    with progress.phase("score", 4, "samples") as advance:
        advance(1, 0)
        raise error


@pytest.mark.parametrize(
    ("error", "outcome"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")]
)
def test_the_end_is_told_as_it_was(error, outcome):
    sink = Recorder()
    progress = Progress(lambda: sink)
    with pytest.raises(error):
        fail(progress, error)
    assert sink.shown[-1][0][0].outcome == outcome
    with progress.phase("score", 4, "samples"):
        pass
    assert sink.shown[-1][0][0].outcome == "done"


def test_plain_lines_go_to_stderr(capsys):
    PlainLines().show(
        [Bar(name="run", unit="steps", total=2, done=2, seconds=1.0, outcome="done")], True
    )
    assert capsys.readouterr().err == "run: 2/2 steps in 1.0 s, 2.0 steps/s\n"


def test_quiet_says_nothing(capsys):
    Quiet().show([Bar(name="run", unit="steps", total=2)], True)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
