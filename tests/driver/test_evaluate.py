"""pass@k of what was sampled: judged before anything is, and right where counts differ."""

import numpy as np
import pytest
import torch

import nbrl
from nbrl.config import Sampling
from nbrl.driver.evaluate import _per_prompt
from nbrl.errors import ConfigError
from nbrl.functional.statistics import pass_at_k
from tests.driver.conftest import SHORT, exact
from tests.notebook.conftest import make_prompts, make_rollouts, make_scored


def takes_topic(completions, topic):
    return [0.0] * len(completions)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with nbrl.connect(run_dir=tmp_path_factory.mktemp("evaluate"), progress="quiet") as opened:
        yield opened


@pytest.fixture(scope="module")
def held_out():
    return nbrl.load_prompts("arithmetic", split="held_out", max_samples=4)


def test_all_that_is_wrong_is_named_before_anything_is_sampled(session, held_out):
    engine, session._runtime.engine = session._runtime.engine, None
    try:
        with pytest.raises(ConfigError) as raised:
            session.evaluate(
                held_out[0:0],
                {"a": "no_such.py", "total": exact},
                n=0,
                sampling=Sampling(top_p=2.0),
                threshold=float("nan"),
            )
        with pytest.raises(ConfigError, match=r"'takes_topic' asks for \['topic'\]"):
            session.evaluate(held_out, takes_topic)
    finally:
        session._runtime.engine = engine
    lines = str(raised.value).splitlines()
    phrases = [
        "Sampling.top_p", "n must be", "threshold must be a number", "there are no prompts",
        "cannot be called 'total'", "no_such.py",
    ]  # fmt: skip
    assert lines[0] == f"evaluate: {len(phrases)} problems"
    for phrase in phrases:
        assert sum(phrase in line for line in lines[1:]) == 1, phrase


def test_a_sample_passes_from_the_threshold_on(session, held_out):
    def quarter(response):
        return 0.25

    for threshold, passed in ((0.25, 1.0), (0.2500001, 0.0)):
        found = session.evaluate(held_out, quarter, n=2, sampling=SHORT, threshold=threshold)
        assert found.pass_at[1] == (passed, passed, passed)
        assert found.reward[0] == 0.25
        assert found.spec["threshold"] == threshold


def test_a_prompt_with_fewer_samples_counts_where_it_has_enough():
    prompts = make_prompts(["a", "b", "c"], ["1", "1", "1"])
    rollouts = make_rollouts(prompts, [["1", "2", "3"], ["1", "2"], ["1"]])
    scored = make_scored(rollouts, [1.0, None, 0.0, 1.0, 1.0, None])
    counts, passed, means = _per_prompt(scored, 1.0)
    assert counts.tolist() == [2, 2]
    assert passed.tolist() == [1, 2]
    assert means.tolist() == [0.5, 1.0]
    # by hand: of 2 samples of which 1 passes, one drawn passes half the time, two always
    assert torch.equal(pass_at_k(counts, passed, 1).double(), torch.tensor([0.5, 1.0]).double())
    assert torch.equal(pass_at_k(counts, passed, 2).double(), torch.tensor([1.0, 1.0]).double())
    assert np.isfinite(means).all()
