"""Mirrors: the metrics are there too; one that fails is said and stops nothing."""

import importlib.util

import pytest

import nbrl
from nbrl.config import Recipe, Store
from nbrl.driver.store import mirrors
from nbrl.errors import ConfigError
from tests.driver.conftest import SHORT, exact

RECIPE = Recipe(rewards=exact, prompts=4, n=4, sampling=SHORT)


@pytest.mark.slow
def test_tensorboard_shows_every_metric(open_tiny, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("MY_API_KEY", "secret-0123456789")
    session = open_tiny(store=Store(mirrors=("tensorboard",)), name="secret-0123456789")
    session.run(2, RECIPE)
    session.close()
    folder = session.run_dir / "tensorboard"
    events = EventAccumulator(str(folder))
    events.Reload()
    curve = {e.step: e.value for e in events.Scalars("reward")}
    assert curve == pytest.approx({r["version"]: r["reward"] for r in session.history.records})
    assert not any(b"secret-0123456789" in p.read_bytes() for p in folder.iterdir())


def test_a_mirror_that_fails_is_said_once_and_stops_nothing(open_tiny, monkeypatch):
    def broken(folder, spec):
        raise ConnectionError("no such host")

    monkeypatch.setitem(mirrors.OPENERS, "tensorboard", broken)
    session = open_tiny(store=Store(mirrors=("tensorboard",)))
    session.run(1, RECIPE)
    session._runtime.recorder.flush()
    results = []
    for _ in range(2):
        rollouts = session.rollout(session.next_prompts(4), n=4, sampling=SHORT)
        batch = session.compute_advantages(session.score(rollouts, exact))
        results.append(session.train_step(batch))
        session._runtime.recorder.flush()
    assert any("'tensorboard' failed" in w and "no such host" in w for w in results[0].warnings)
    assert not any("tensorboard" in w for w in results[1].warnings)
    assert session.version == 3


def test_a_mirror_that_is_not_installed_is_refused(tmp_path):
    absent = [n for n in mirrors.OPENERS if importlib.util.find_spec(n) is None]
    if not absent:
        pytest.skip("every mirror is installed")
    with pytest.raises(ConfigError, match=f"{absent[0]!r} is not installed"):
        nbrl.connect(run_dir=tmp_path / "x", store=Store(mirrors=(absent[0],)))
