"""Rewards that depend on the world are not asked about stored samples unless it is meant."""

import functools

import pytest

import nbrl
from nbrl.errors import ConfigError
from nbrl.notebook.reprs.summaries import scored_concerns
from tests.driver.conftest import SHORT, exact


def prices(response: str) -> float:
    return float(len(response) > 1)


prices.replayable = False


class Market:
    """An object that looks something up."""

    replayable = False

    def __call__(self, response: str) -> float:
        return 1.0


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "r"
    with nbrl.connect(run_dir=folder, progress="quiet") as opened:
        yield opened


@pytest.fixture(scope="module")
def live(session):
    return session.rollout(session.next_prompts(2), n=2, sampling=SHORT)


@pytest.fixture(scope="module")
def stored(live, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "r"
    live.save(folder)
    return nbrl.load(folder)


FILE = "def reward(response):\n    return 1.0\n\n\nreward.replayable = False\n"


AWAY = nbrl.RewardServer("http://x", replayable=False)


@pytest.mark.parametrize(
    "reward",
    [prices, Market(), functools.partial(prices), "file", AWAY],
    ids=["function", "object", "partial", "file", "server"],
)
def test_stored_samples_are_refused_by_name(session, live, stored, reward, tmp_path):
    if reward == "file":
        reward = str(tmp_path / "market.py")
        (tmp_path / "market.py").write_text(FILE)
    with pytest.raises(ConfigError, match="reward 'price' depends on the world") as caught:
        session.score(stored, {"price": reward, "right": exact})
    assert "'right'" not in str(caught.value)
    assert "pass replay=True" in str(caught.value)
    with pytest.raises(ConfigError, match="depends on the world"):
        nbrl.check_reward(reward, stored[:2], workers=0)


def test_parts_of_stored_samples_are_stored(session, live, stored):
    wanted = live.table.column("sample_id").to_pylist()[0]
    for part in (stored[:1], stored.select([wanted]), stored.filter(lambda r: True)):
        assert part.stored
    assert not live[:1].stored
    with pytest.raises(ConfigError, match="depends on the world"):
        session.score(session.annotate(stored, ["entropy"]), prices)


def test_live_samples_are_scored(session, live):
    scored = session.score(live, {"price": prices, "market": Market()})
    assert scored.spec["replayed"] == []
    assert not any("depends on the world" in said for said in scored_concerns(scored))


def test_a_forced_replay_is_marked(session, live, stored, tmp_path):
    before = session.score(live, {"price": prices})
    forced = session.score(stored, {"price": prices}, replay=True)
    assert forced.spec["replayed"] == ["price"]
    wanted = "price depends on the world and was asked again about stored samples"
    assert scored_concerns(forced)[0] == wanted
    assert nbrl.diff_scores(before, forced).notes == (f"b: {wanted}",)
    forced.save(tmp_path / "forced")
    assert nbrl.load(tmp_path / "forced").spec["replayed"] == ["price"]


def test_other_rewards_score_stored_samples(session, stored):
    scored = session.score(stored, {"right": exact}, replay=True)
    assert scored.spec["replayed"] == []


def test_samples_of_a_run_folder_are_stored(session, live):
    session.train_step(session.compute_advantages(session.score(live, prices)))
    session._runtime.recorder.flush()
    kept = nbrl.open_run(session.run_dir)
    assert kept.rollouts(1).stored
    assert kept.scored(1).rollouts.stored
    with pytest.raises(ConfigError, match="depends on the world"):
        session.score(kept.rollouts(1), prices)


def test_a_declaration_that_is_no_bool_is_refused(session, live):
    def odd(response: str) -> float:
        return 1.0

    odd.replayable = "no"
    with pytest.raises(ConfigError, match="replayable must be True or False; got 'no'"):
        session.score(live, odd)
