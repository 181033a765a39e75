"""A session on a real Ray cluster: three ways in, the verbs of one process, and nothing left."""

import time

import psutil
import pytest

import nbrl
from nbrl.errors import ConfigError
from tests.driver.conftest import SHORT, exact
from tests.remote.conftest import ASKED

pytestmark = [pytest.mark.ray, pytest.mark.deepspeed, pytest.mark.slow]

SMALL = {**ASKED, "engine": nbrl.Engine("hf"), "trainer": nbrl.Trainer("deepspeed")}
"""One engine and one rank."""
GONE_SECONDS = 20.0


def one_step(session):
    """Samples and metrics of a step, as every session takes it."""
    rollouts = session.rollout(session.next_prompts(6), n=4, sampling=SHORT)
    scored = session.score(rollouts, exact)
    result = session.train_step(session.compute_advantages(scored, "grpo"))
    return rollouts, result


def left_of(pids):
    """Which of these processes of this machine live on, given time to end."""
    end = time.monotonic() + GONE_SECONDS
    while (alive := [p for p in pids if psutil.pid_exists(p)]) and time.monotonic() < end:
        time.sleep(0.2)
    return alive


def groups_held():
    """Placement groups of the connected cluster that are not removed."""
    import ray

    table = ray.util.placement_group_table()
    return [row for row in table.values() if row["state"] != "REMOVED"]


@pytest.mark.parametrize("way", ["ray", "auto"])
def test_other_ways_in_lead_to_the_same_and_closing_leaves_nothing(
    way, place, tmp_path, monkeypatch
):
    """The user's own ``ray.init`` stays connected; inside of the cluster, ours is ended."""
    import ray

    assert not ray.is_initialized()  # these tests are the first of the module
    monkeypatch.setenv("RAY_ADDRESS", place.address)
    if way == "ray":
        ray.init(address=place.address, log_to_driver=False)
    session = nbrl.connect(way, run_dir=tmp_path / "run", **SMALL)
    with session:
        pids = list(session.describe()["pid"])
        assert len(one_step(session)[0]) == 24
    assert left_of(pids) == []
    assert ray.is_initialized() == (way == "ray")
    if way == "ray":
        assert groups_held() == []
        ray.shutdown()


def test_verbs_give_what_they_give_in_one_process(away, tmp_path):
    """Two steps: the same samples, the same metrics, and the same samples of the new weights."""
    trainer = nbrl.Trainer(optimizer=ASKED["trainer"].optimizer)
    with nbrl.connect(trainer=trainer, run_dir=tmp_path / "run", progress="quiet") as here:
        for version in (1, 2):
            (mine, want), (theirs, got) = one_step(here), one_step(away)
            for column in ("prompt_id", "token_ids", "finish_reason", "policy_version"):
                assert mine.table.column(column).equals(theirs.table.column(column)), column
            assert away.version == here.version == version
            assert got.metrics.keys() == want.metrics.keys()
            for name in ("loss", "reward", "entropy", "grad_norm"):
                expected = pytest.approx(want.metrics[name].value, rel=1e-3, abs=1e-5)
                assert got.metrics[name].value == expected, name


def test_describe_says_what_runs_where(away):
    told = away.describe()
    assert list(told.index) == ["engine 0", "engine 1", "rank 0", "rank 1"]
    assert len(set(told["pid"])) == 4
    assert (told["memory"] > 10_000_000).all()
    assert (told["node"] != "").all()


def test_equal_settings_give_the_running_session_and_others_are_named(place, away):
    asked = {**ASKED, "run_dir": away.run_dir}
    assert nbrl.connect(place.client, **asked) is away
    with pytest.raises(ConfigError, match=r"seed: it runs with 0, asked for is 3"):
        nbrl.connect(place.client, **asked, seed=3)
