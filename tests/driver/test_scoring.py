"""How several rewards become one total, and what is refused before any of them is called."""

import functools
import os

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


# ---- in processes of their own ------------------------------------------------------------------


def ends_its_process(response: str) -> float:
    """Exits on every sample."""
    os._exit(1)


def test_rewards_in_workers_give_what_they_give_here(session, rollouts):
    rewards = {"right": exact, "length": lambda response: len(response)}
    here = session.score(rollouts, rewards)
    there = session.score(rollouts, rewards, workers=2)
    asked = ["sample_id", "total", "status", "right", "length"]
    assert there.table.select(asked).equals(here.table.select(asked))
    assert there.spec["fingerprints"] == here.spec["fingerprints"]
    assert (there.spec["workers"], there.spec["timeout"]) == (2, 30.0)


def test_what_ends_a_worker_is_raised_or_kept_as_data(session, rollouts):
    with pytest.raises(RewardError, match=r"'ends_its_process' on sample .* exit status 1"):
        session.score(rollouts[:2], ends_its_process, workers=1)
    kept = session.score(rollouts[:2], ends_its_process, workers=1, on_error="exclude")
    assert kept.table.column("status").to_pylist() == ["error"] * 2
    assert kept.table.column("total").null_count == 2


def test_workers_and_time_that_cannot_be_are_refused_together(session, rollouts):
    with pytest.raises(ConfigError) as error:
        session.score(rollouts, exact, workers=-1, timeout=0.0)
    assert "workers must be" in str(error.value)
    assert "timeout must be" in str(error.value)


def test_a_closed_session_has_no_workers(session, rollouts):
    session.score(rollouts[:2], exact, workers=1)
    processes = [worker.process for worker in session._runtime.reward_pool._workers]
    assert len(processes) == 1
    session.close()
    assert all(process.poll() is not None for process in processes)
