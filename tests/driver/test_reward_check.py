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
    return nbrl.check_reward(reward, rollouts, workers=0).table.set_index("check")


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


def test_a_reward_on_form_depends_on_it(rollouts):
    found = checked(lambda response: float(len(response.split()) < 2), rollouts)
    assert found.loc["format", "value"] == 1.0
    meaning = found.loc["format", "meaning"]
    assert meaning.startswith("a sentence before it: 100% of the values change (16 down)")
    assert "a code fence" in meaning
    assert "a box" not in meaning
    boxed = checked(lambda response: float("boxed{" in response), rollouts)
    assert boxed.loc["format", "meaning"] == "a box: 100% of the values change (16 up)"


def test_a_change_of_form_reaches_the_whole_rollout(rollouts):
    found = checked(lambda rollout: float(rollout["response"].startswith("<answer>")), rollouts)
    assert found.loc["format", "value"] == 1.0
    assert found.loc["case", ["value", "verdict"]].tolist() == [0.0, "ok"]


def test_a_sound_reward_has_nothing_to_look_at(rollouts):
    """It reads the digits alone; answers differ, so groups live."""

    def digits(response):
        return float(sum(map(int, filter(str.isdigit, response))))

    check = nbrl.check_reward(digits, rollouts, workers=0)
    assert {n for n in check.table["check"] if f"{n}:" in " ".join(check.concerns)} <= {"length"}
    assert check.table.set_index("check").loc["white space", "meaning"] == (
        "the same answer gets the same: blanks around it"
    )


def test_the_table_reads_as_text(rollouts):
    check = nbrl.check_reward(lambda response: 1.0, rollouts, workers=0)
    assert repr(check) == "RewardCheck('reward', 16 samples, look at spread, dead groups)"
    lines = str(check).splitlines()
    assert lines[0] == repr(check)
    assert len(lines) == 10
    spread = next(line for line in lines if line.startswith("  spread"))
    assert spread.split("  look ")[1].strip() == "every sample gets 1: nothing can be learnt"
    assert check.concerns[0] == "spread: every sample gets 1: nothing can be learnt"
    assert any(line.split("  ")[1:] and "unknown" in line for line in lines)


def test_errors_are_counted_and_the_first_one_is_shown(rollouts):
    found = checked(lambda response: 1 / 0, rollouts)
    assert found.loc["errors", "value"] == 1.0
    assert "ZeroDivisionError" in found.loc["errors", "meaning"]


def test_what_is_no_reward_is_refused(rollouts):
    with pytest.raises(ConfigError, match="check_reward"):
        nbrl.check_reward(3, rollouts)
