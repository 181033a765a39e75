"""Episodes through a session: exact to train on, scored by their environment, equal to one turn."""

import json

import numpy as np
import pytest

import nbrl
from nbrl.errors import ConfigError, RewardError
from nbrl.types import SOURCE_ENVIRONMENT, SOURCE_POLICY, columns

SAMPLING = nbrl.Sampling(max_new_tokens=4)


class Retry:
    """Says the sum again after a wrong answer; the second one ends the episode."""

    def __init__(self):
        self.turn = 0

    async def reset(self, state):
        self.sum = state["observation"]
        return state

    async def step(self, state):
        self.turn += 1
        said = state["action_text"].split("<")[0].strip()
        right = said == state["label"]
        done = right or self.turn == 2
        return {
            "rewards": float(right) if done else 0.0,
            "environment_feedback": "" if done else f"\n{self.sum}",
            "done": done,
        }


class Once(Retry):
    async def step(self, state):
        return {"rewards": 0.5, "environment_feedback": "", "done": True}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with nbrl.connect(model="tiny", run_dir=tmp_path_factory.mktemp("agents") / "run") as made:
        yield made


@pytest.fixture(scope="module")
def episodes(session):
    return session.rollout(session.next_prompts(8), n=4, sampling=SAMPLING, agent=Retry)


def token_column(value, name):
    return columns.ragged(value.table.column(name))[0]


def test_episodes_are_rollouts_like_any_other(episodes, tmp_path):
    frame = episodes.to_pandas()
    assert len(frame) == 32
    assert set(frame["num_turns"]) == {1, 2}
    assert set(frame["ended_by"]) == {"environment"}
    for row in frame.itertuples():
        turns = json.loads(row.turns)
        assert len(turns) == row.num_turns
        source = np.asarray(row.source)
        for turn in turns:
            assert (source[slice(*turn["action"])] == SOURCE_POLICY).all()
            assert (source[slice(*turn["feedback"])] == SOURCE_ENVIRONMENT).all()
        said = sum(turn["action"][1] - turn["action"][0] for turn in turns)
        assert (source == SOURCE_POLICY).sum() == said
    assert episodes.spec["agent"]["name"] == "Retry"
    episodes.save(tmp_path / "episodes")
    assert nbrl.load(tmp_path / "episodes").table.equals(episodes.table)


def test_the_trainer_sees_the_log_probs_that_were_sampled(session, episodes):
    annotated = session.annotate(episodes, ["old_logprobs"])
    policy = token_column(episodes, "source") == SOURCE_POLICY
    ours = token_column(annotated, "old_logprobs")
    theirs = token_column(annotated, "rollout_logprobs")
    np.testing.assert_allclose(ours[policy], theirs[policy], atol=1e-4)
    assert (theirs[~policy] == 0).all()


def test_the_environment_reward_is_what_the_turns_add_up_to(session, episodes):
    scored = session.score(episodes, nbrl.EnvironmentReward())
    totals = scored.table.column("total").to_pylist()
    for turns, total in zip(episodes.table.column("turns").to_pylist(), totals, strict=True):
        assert total == sum(turn["reward"] for turn in json.loads(turns))
    assert 0 < np.mean(totals) < 1
    halved = session.score(episodes, nbrl.EnvironmentReward(discount=0.5))
    twice = np.array(episodes.table.column("num_turns").to_pylist()) == 2
    late = np.array(halved.table.column("total").to_pylist())[twice]
    assert set(late) <= {0.0, 0.5}
    assert scored.spec["fingerprints"] != halved.spec["fingerprints"]


def test_a_step_trains_the_policys_tokens_only(tmp_path):
    with nbrl.connect(model="tiny", run_dir=tmp_path / "run") as session:
        episodes = session.rollout(session.next_prompts(8), n=4, sampling=SAMPLING, agent=Retry)
        scored = session.score(episodes, nbrl.EnvironmentReward())
        batch = session.compute_advantages(scored, "grpo")
        policy = token_column(episodes, "source") == SOURCE_POLICY
        assert (token_column(batch, "mask") == policy).all()
        assert (token_column(batch, "advantages")[~policy] == 0).all()
        result = session.train_step(batch)
        assert result.version_after == 1
        assert result.metrics["grad_norm"].value > 0
        assert result.metrics["loss"].count == policy.sum()
        ratio = columns.ragged(result.tokens.column("ratio"))[0]
        np.testing.assert_allclose(ratio[policy], 1.0, atol=1e-4)


def test_one_turn_is_what_a_rollout_without_an_agent_draws(session):
    prompts = session.next_prompts(4)
    plain = session.rollout(prompts, n=2, sampling=SAMPLING)
    once = session.rollout(prompts, n=2, sampling=SAMPLING, agent=nbrl.Agent(Once, max_turns=1))
    for name in plain.table.column_names:
        if name != "seconds":
            assert once.table.column(name).to_pylist() == plain.table.column(name).to_pylist()


def test_the_same_call_plays_the_same_episodes(session):
    prompts = session.next_prompts(3)
    first, second = (
        session.rollout(prompts, n=3, sampling=SAMPLING, agent=Retry) for _ in range(2)
    )
    assert first.table.column("token_ids").equals(second.table.column("token_ids"))
    alone = session.rollout(prompts[1:2], n=3, sampling=SAMPLING, agent=Retry)
    assert alone.table.column("token_ids").equals(first[3:6].table.column("token_ids"))


def test_a_failing_environment_is_data_and_stays_out_of_training(session):
    class Fails(Retry):
        async def step(self, state):
            if state["label"] in sums[:1]:
                raise OSError("the game server is gone")
            return await super().step(state)

    prompts = session.next_prompts(3)
    sums = prompts.table.column("label").to_pylist()
    episodes = session.rollout(prompts, n=2, sampling=SAMPLING, agent=Fails)
    errors = episodes.table.column("error").to_pylist()
    assert all("the game server is gone" in e for e in errors[:2])
    scored = session.score(episodes, nbrl.EnvironmentReward())
    assert scored.table.column("status").to_pylist()[:2] == ["excluded"] * 2


def test_what_is_refused_before_anything_is_generated(session):
    prompts = session.next_prompts(1)
    with pytest.raises(ConfigError, match="max_turns") as caught:
        session.rollout(prompts, agent=nbrl.Agent(Retry, max_turns=0, timeout=-1.0))
    assert "timeout" in str(caught.value)
    with pytest.raises(ConfigError, match="there is no Python file"):
        session.rollout(prompts, agent="nowhere.py")
    plain = session.rollout(prompts, sampling=SAMPLING)
    with pytest.raises(RewardError, match="not played by an agent"):
        session.score(plain, nbrl.EnvironmentReward())
