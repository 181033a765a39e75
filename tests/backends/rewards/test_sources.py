"""Servers and models as rewards of a session, beside functions."""

import shutil
import sys

import pytest

import nbrl
from nbrl.backends.checkpoints import ASSETS
from nbrl.backends.rewards import http, load_reward
from nbrl.errors import ConfigError, RewardError
from nbrl.notebook import cli
from tests.backends.rewards.faulty import faulty_server
from tests.backends.rewards.test_models import folder as folder  # a fixture
from tests.values import make_prompts, make_rollouts

ROLLOUTS = make_rollouts(make_prompts(2), [1, 2, 3, 4])


@pytest.fixture(scope="module")
def server():
    with faulty_server() as running:
        yield running


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with nbrl.connect(run_dir=tmp_path_factory.mktemp("run") / "r", progress="quiet") as opened:
        yield opened


def test_a_server_and_a_model_score_beside_a_function(session, server, folder):
    rewards = {
        "length": server.url,
        "model": nbrl.RewardModel(str(folder)),
        "own": lambda response: -len(response),
    }
    scored = session.score(ROLLOUTS, rewards)
    assert scored.table.column("length").to_pylist() == [1.0, 2.0, 3.0, 4.0]
    assert scored.table.column("own").to_pylist() == [-1.0, -2.0, -3.0, -4.0]
    model = scored.table.column("model").to_pylist()
    assert len(set(model)) == 4
    assert scored.table.column("total").to_pylist() == pytest.approx(model)
    assert scored.spec["rewards"] == {"length": "server", "model": "rm", "own": "reward"}


def test_failures_raise_or_are_excluded(session, server, monkeypatch):
    monkeypatch.setattr(http, "FIRST_WAIT", 0.01)
    nan = nbrl.RewardServer(f"{server.url}/nan")
    with pytest.raises(RewardError, match=r"'server' on sample 'p0@0#0'.*finite number"):
        session.score(ROLLOUTS, nan)
    scored = session.score(ROLLOUTS, nan, on_error="exclude")
    assert scored.table.column("total").to_pylist() == [None, 2.0, 3.0, 4.0]
    gone = nbrl.RewardServer(f"{server.url}/500", tries=2)
    with pytest.raises(RewardError, match="the last of 2 tries"):
        session.score(ROLLOUTS, gone)


def test_what_cannot_work_is_refused_before_anything_is_asked(session, server, tmp_path):
    asked = len(server.asked)
    rewards = {"a": server.url, "b": nbrl.RewardModel(str(tmp_path)), "c": "nowhere.py"}
    with pytest.raises(ConfigError, match=r"(?s)no config\.json.*no Python file"):
        session.score(ROLLOUTS, rewards)
    assert len(server.asked) == asked
    with pytest.raises(ConfigError, match=r"http\(s\) address"):
        load_reward(7)


@pytest.mark.parametrize("package", ["httpx", "tenacity"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs {package}.*pip install 'nbrl\[serve\]'"):
        load_reward("http://127.0.0.1:5000")


def test_the_command_names_a_missing_package(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert cli.main(["serve-reward", "x.py"]) == 2
    assert "needs fastapi" in capsys.readouterr().err


def test_a_model_that_was_trained_on_has_another_fingerprint(folder, tmp_path):
    place = tmp_path / "rm"
    shutil.copytree(folder, place)
    before = load_reward(nbrl.RewardModel(str(place))).fingerprint
    assert load_reward(nbrl.RewardModel(str(place))).fingerprint == before
    assert load_reward(nbrl.RewardModel(str(place), max_length=9)).fingerprint != before
    (place / "more.safetensors").write_bytes((ASSETS / "tiny" / "model.safetensors").read_bytes())
    assert load_reward(nbrl.RewardModel(str(place))).fingerprint != before
