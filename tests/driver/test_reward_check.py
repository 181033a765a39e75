"""What a check says of rewards whose faults are known."""

import random

import pytest

import nbrl
from nbrl.errors import ConfigError
from tests.driver.conftest import SHORT


@pytest.fixture
def rollouts(session):
    return session.rollout(session.next_prompts(4), n=4, sampling=SHORT)


def checked(reward, rollouts):
    return nbrl.check_reward(reward, rollouts, workers=0).set_index("check")


def test_a_reward_on_length_depends_on_length_and_white_space(rollouts):
    found = checked(lambda response: len(response), rollouts)
    assert found.loc["length", "value"] == pytest.approx(1.0)
    assert found.loc["white space", "value"] == 1.0
    assert found.loc["case", "value"] == 0.0
    assert found.loc["determinism", "value"] == 1.0
    assert found.loc["errors", ["value", "verdict"]].tolist() == [0.0, "ok"]


def test_a_constant_reward_has_dead_groups_and_no_spread(rollouts):
    found = checked(lambda response: 1.0, rollouts)
    assert found.loc["dead groups", ["value", "verdict"]].tolist() == [1.0, "look"]
    assert found.loc["spread", ["value", "verdict"]].tolist() == [1.0, "look"]


def test_a_reward_that_rolls_dice_is_not_deterministic(rollouts):
    found = checked(lambda response: random.random(), rollouts)
    assert found.loc["determinism", ["value", "verdict"]].tolist() == [0.0, "look"]


def test_errors_are_counted_and_the_first_one_is_shown(rollouts):
    found = checked(lambda response: 1 / 0, rollouts)
    assert found.loc["errors", "value"] == 1.0
    assert "ZeroDivisionError" in found.loc["errors", "meaning"]


def test_what_is_no_reward_is_refused(rollouts):
    with pytest.raises(ConfigError, match="check_reward"):
        nbrl.check_reward(3, rollouts)
