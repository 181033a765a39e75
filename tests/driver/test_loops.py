"""Loops: what cannot work is said before the first prompt is drawn, all of it in one message."""

import dataclasses

import pytest

import nbrl
from nbrl.config import KL, Optimizer, PolicyLoss, Recipe, Sampling, Shaping, Trainer
from nbrl.errors import ConfigError, UnknownNameError
from tests.driver.conftest import SHORT, exact

NORM = "seq-mean-token-sum-norm"


def takes_topic(completions, topic):
    """A reward of TRL's form that wants a column."""
    return [0.0] * len(completions)


def lonely(rewards, group_ids):
    """An estimator that cannot be called."""


def recipe(**changes) -> Recipe:
    return dataclasses.replace(Recipe(rewards=exact, prompts=4, n=2, sampling=SHORT), **changes)


def problems_of(session, asked: Recipe, steps: int = 1, **settings) -> list[str]:
    """What a run is refused for; nothing may be generated, and the cursor stands."""
    engine, session._runtime.engine = session._runtime.engine, None
    try:
        with pytest.raises(ConfigError) as raised:
            session.run(steps, asked, **settings)
    finally:
        session._runtime.engine = engine
    assert session._runtime.cursor == session.version == 0
    return str(raised.value).splitlines()[1:]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with nbrl.connect(run_dir=tmp_path_factory.mktemp("loops"), progress="quiet") as opened:
        yield opened


REFUSED = [
    (recipe(loss=PolicyLoss(value_coef=0.5)), "value_coef and value_clip have no effect"),
    (recipe(loss=PolicyLoss(value_clip=0.1)), "value_coef and value_clip have no effect"),
    (
        recipe(loss=PolicyLoss(aggregation=NORM), sampling=Sampling()),
        f"aggregation '{NORM}' needs norm_length, or rollouts with max_new_tokens",
    ),
    (
        recipe(shaping=Shaping(overlong_buffer=4), sampling=Sampling()),
        "overlong_buffer needs Sampling.max_new_tokens",
    ),
    (
        recipe(shaping=Shaping(overlong_buffer=7)),
        "overlong_buffer must be <= max_new_tokens=6; got 7",
    ),
    (recipe(kl=KL(unbiased_gradient=True)), "unbiased_gradient has no effect in the reward"),
    (
        recipe(n=1, estimator="reinforce_pp", shaping=Shaping(reward_range=(0.0, 1.0))),
        "reward_range filters groups and needs n >= 2",
    ),
    (recipe(n=1), "estimator 'grpo' needs n >= 2 rollouts a prompt; got n=1"),
    (recipe(estimator="gae"), "estimator 'gae' needs a critic"),
    (recipe(estimator=5), "estimator must be a name of gae,"),
    (recipe(estimator=None), "a function; got NoneType None"),
    (recipe(estimator=nbrl.Estimator), "estimator must be a name of gae,"),
    (
        recipe(estimator=lonely),
        "callable as (rewards, group_ids, mask, *, kl, kl_coef, values, reward_clip)",
    ),
    (recipe(rewards="no_such.py"), "there is no Python file"),
    (recipe(rewards=None), "got NoneType None"),
    (recipe(rewards={"": exact}), "a reward's key must be a word without dots and slashes; got ''"),
    (recipe(rewards=takes_topic), "'takes_topic' asks for ['topic']; the data has the columns"),
    (recipe(combine={"reward": "x"}), "the weight of 'reward' must be a finite number; got 'x'"),
    (recipe(combine={"reward": float("nan")}), "must be a finite number; got nan"),
    (recipe(combine=lambda: 0.0), "combine must be callable as ({name: value})"),
    (recipe(minibatches=9), "minibatches=9 is more than 8 samples"),
]


@pytest.mark.parametrize(("asked", "phrase"), REFUSED, ids=[p[:40] for _, p in REFUSED])
def test_what_a_later_verb_would_refuse_is_refused_first(session, asked, phrase):
    problems = problems_of(session, asked)
    assert len(problems) == 1
    assert phrase in problems[0]


def test_all_that_is_wrong_comes_in_one_message(session):
    asked = recipe(
        n=1,
        loss=PolicyLoss(value_coef=0.5, aggregation=NORM, eps_low=-1.0),
        sampling=Sampling(top_p=2.0),
        shaping=Shaping(overlong_buffer=4, reward_range=(0.0, 1.0)),
        kl=KL(unbiased_gradient=True),
        rewards={"a": "no_such.py", "b": takes_topic, "c": "neither.py"},
        combine="summ",
    )
    problems = problems_of(session, asked, steps=0, mode="warp")
    phrases = [
        "Sampling.top_p", "PolicyLoss.eps_low", "unbiased_gradient", "mode 'warp' is unknown",
        "steps must be", "estimator 'grpo' needs", "overlong_buffer needs", "reward_range",
        "value_coef", "norm_length", "no_such.py", "neither.py", "combine 'summ'", "['topic']",
    ]  # fmt: skip
    assert len(problems) == len(phrases)
    for phrase in phrases:
        assert sum(phrase in problem for problem in problems) == 1, phrase


def test_an_unknown_estimator_hides_nothing(session):
    problems = problems_of(session, recipe(estimator="grpoo", minibatches=9))
    assert ["known: gae, reinforce_pp" in p for p in problems] == [True, False]
    with pytest.raises(UnknownNameError, match="estimator 'grpoo' is unknown"):
        session.run(1, recipe(estimator="grpoo"))


def test_a_broken_reward_file_is_named_with_its_own_error(session, tmp_path):
    (tmp_path / "broken.py").write_text("def reward(response):\n    return (\n")
    with pytest.raises(ConfigError, match=r"broken\.py cannot be run: SyntaxError") as raised:
        session.run(1, recipe(rewards=str(tmp_path / "broken.py")))
    assert isinstance(raised.value.__cause__.__cause__, SyntaxError)


def test_columns_that_the_data_has_are_there_for_a_reward(open_tiny, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"input": "1+1=", "topic": "sums"}\n' * 4)
    session = open_tiny(prompts=str(tmp_path / "rows.jsonl"))
    assert len(session.run(1, recipe(rewards=takes_topic))) == 1
    assert "prompts=5 is more than the 4" in problems_more(session)[0]


def problems_more(session) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        session.run(1, recipe(prompts=5))
    return str(raised.value).splitlines()[1:]


def test_more_steps_than_the_schedule_has_are_refused_at_once(tmp_path):
    optimizer = Optimizer(lr=1e-4, schedule="linear", total_steps=3)
    given = {"trainer": Trainer(optimizer=optimizer), "progress": "quiet"}
    with nbrl.connect(**given, run_dir=tmp_path / "run") as session:
        problems = problems_of(session, recipe(minibatches=2), steps=2)
        assert "2 steps of 2 minibatches and 1 epochs are 4 optimizer steps" in problems[0]
        assert len(session.run(1, recipe(minibatches=2))) == 1
