"""The live monitor: pictures while steps come, the last state at the end."""

import time

import pytest

import nbrl
from nbrl.errors import ConfigError
from nbrl.notebook.lab.monitor import draw, monitor
from nbrl.types import History


@pytest.fixture
def session(tmp_path):
    opened = nbrl.connect(run_dir=tmp_path / "run", progress="quiet")
    yield opened
    opened.close()


def reward(response, label):
    return float(response.strip() == label)


def test_pictures_come_while_the_run_goes_on_and_at_its_end(session):
    shown = []
    recipe = nbrl.Recipe(rewards=reward, prompts=2, n=2, sampling=nbrl.Sampling(max_new_tokens=4))
    session.run(1, recipe)
    with monitor(session, show=lambda picture, words: shown.append((picture, words))):
        session.run(1, recipe)
        end = time.monotonic() + 30
        while not shown and time.monotonic() < end:
            time.sleep(0.05)
        during = len(shown)
        session.run(1, recipe)
    assert during >= 1
    assert all(picture.startswith(b"\x89PNG") for picture, _ in shown)
    # the step before the block is not in its picture
    assert shown[-1][1].startswith("History(2 steps")


def test_nothing_is_drawn_without_a_step_and_a_failure_passes(session):
    shown = []
    with (
        pytest.raises(RuntimeError, match="stop"),
        monitor(session, show=lambda picture, words: shown.append(words)),
    ):
        raise RuntimeError("stop")
    assert shown == []


def test_unknown_metrics_are_left_out():
    history = History(records=[{"version": 1, "reward": 0.5}])
    assert draw(history, ["reward", "no such"]).startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", [{"metrics": []}, {"every": 0.1}])
def test_what_cannot_work_is_refused(session, wrong):
    with pytest.raises(ConfigError, match="monitor needs"), monitor(session, **wrong):
        pass
