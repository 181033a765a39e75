"""How several rewards become one total, and what is refused before any of them is called."""

import functools

import pytest

from nbrl.config import Recipe, Shaping
from nbrl.errors import ConfigError, RewardError, UnknownNameError
from tests.driver.conftest import SHORT, exact


def halves(response: str) -> float:
    return 0.5


def picky(response: str) -> float:
    if response.startswith("1"):
        raise ValueError("no ones")
    return 2.0


@pytest.fixture
def rollouts(session):
    return session.rollout(session.next_prompts(6), n=4, sampling=SHORT)


def largest(values):
    return max(values.values())


def sum_over(values, divisor):
    return sum(values.values()) / divisor


@pytest.mark.parametrize(
    ("combine", "total", "echo"),
    [
        (None, lambda right: right + 0.5, "sum"),
        ("sum", lambda right: right + 0.5, "sum"),
        ("product", lambda right: right * 0.5, "product"),
        ({"right": 2, "half": -1.0}, lambda right: 2 * right - 0.5, {"right": 2, "half": -1.0}),
        (largest, lambda right: max(right, 0.5), "largest"),
    ],
)
def test_several_rewards_add_up_as_asked(session, rollouts, combine, total, echo):
    scored = session.score(rollouts, {"right": exact, "half": halves}, combine=combine)
    right = scored.table["right"].to_pylist()
    assert set(right) == {0.0, 1.0}
    assert scored.table["half"].to_pylist() == [0.5] * 24
    assert scored.table["total"].to_pylist() == [total(x) for x in right]
    assert scored.spec["combine"] == echo


def test_a_total_is_missing_where_one_of_the_rewards_is(session, rollouts):
    scored = session.score(rollouts, {"half": halves, "picky": picky}, on_error="exclude")
    bad = [r.startswith("1") for r in rollouts.table["response"].to_pylist()]
    assert True in bad
    assert scored.table["total"].to_pylist() == [None if b else 2.5 for b in bad]
    assert scored.table["status"].to_pylist() == ["error" if b else "ok" for b in bad]
    assert scored.table["half.status"].to_pylist() == ["ok"] * 24
    assert scored.table["picky.status"].to_pylist() == scored.table["status"].to_pylist()


def test_a_total_that_is_not_finite_names_its_sample(session, rollouts):
    with pytest.raises(RewardError, match=r"combine gives nan on sample '.*@0#0' for {'reward'"):
        session.score(rollouts, halves, combine=lambda values: float("nan"))


def test_the_echo_of_a_score_can_be_saved(session, rollouts, tmp_path):
    combine = functools.partial(sum_over, divisor=4)
    scored = session.score(rollouts, halves, combine=combine)
    assert scored.table["total"].to_pylist() == [0.125] * 24
    scored.save(tmp_path / "scored")
    assert scored.spec["combine"] == "partial"


@pytest.mark.parametrize(
    ("rewards", "combine", "message"),
    [
        (halves, "summ", "combine 'summ' is unknown; known: sum, product"),
        ({"a": halves}, {"b": 1.0}, r"gives weights for \['b'\], the rewards are \['a'\]"),
        (halves, 3, "combine must be one of sum, product"),
        ({}, None, "there are no rewards; pass a callable"),
        ({"total": halves}, None, "cannot be called 'total'"),
        ({"a.b": halves}, None, "a word without dots and slashes; got 'a.b'"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_a_prompt_is_drawn(
    session, rewards, combine, message
):
    session._runtime.engine = None
    with pytest.raises(ConfigError, match=message):
        session.run(1, Recipe(rewards=rewards, combine=combine, prompts=2, n=2, sampling=SHORT))


def test_an_unknown_error_policy_lists_the_known_ones(session, rollouts):
    with pytest.raises(
        UnknownNameError, match=r"on_error .skip. is unknown; known: raise, exclude"
    ):
        session.score(rollouts, halves, on_error="skip")


@pytest.mark.parametrize(
    ("scores", "kept"), [([0.0] * 4, 0), ([1.0] * 4, 0), ([0.0, 1.0] * 2, 4), (None, 4)]
)
def test_groups_are_filtered_by_scores_where_a_reward_gives_them(session, scores, kept):
    # B24: a score of 0.0 is a score, and the interval is open at both ends.
    def reward_func(queries, prompts, labels):
        given = {"rewards": [0.5] * len(queries)}
        return given if scores is None else {**given, "scores": scores}

    rollouts = session.rollout(session.next_prompts(1), n=4, sampling=SHORT)
    scored = session.score(rollouts, reward_func)
    assert scored.table["total"].to_pylist() == [0.5] * 4
    shaping = Shaping(reward_range=(0.0, 1.0))
    assert len(session.compute_advantages(scored, "grpo", shaping=shaping)) == kept
