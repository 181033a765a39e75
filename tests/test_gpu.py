"""On a GPU: a session's numbers are those of the processor, and it trains on what it samples."""

import numpy as np
import pytest

import nbrl
from tests.driver.conftest import SHORT, exact

pytestmark = pytest.mark.gpu


def first_step(model, folder):
    """The samples of a first batch, what they and the step measured, on this model."""
    with nbrl.connect(model=model, run_dir=folder, progress="quiet") as session:
        prompts = session.next_prompts(8)
        rollouts = session.annotate(session.rollout(prompts, n=4, sampling=SHORT), ["old_logprobs"])
        batch = session.compute_advantages(session.score(rollouts, exact), "grpo")
        return rollouts, session.train_step(batch)


def gap(rollouts):
    """The largest difference between what sampler and trainer say of a token."""
    table = rollouts.table
    sampled, trained = (
        np.concatenate(table.column(name).to_pylist())
        for name in ("rollout_logprobs", "old_logprobs")
    )
    return float(np.abs(sampled - trained).max())


def test_the_gpu_is_where_the_model_goes_by_itself(tmp_path):
    with nbrl.connect(model="tiny", run_dir=tmp_path / "run", progress="quiet") as session:
        assert set(session.describe()["device"]) == {"cuda:0"}


def test_a_step_on_the_gpu_is_that_on_the_processor(tmp_path):
    there, here = (
        first_step(nbrl.Model("tiny", device=d), tmp_path / d.replace(":", ""))
        for d in ("cuda", "cpu")
    )
    assert gap(there[0]) < 1e-3
    assert there[1].metrics["grad_norm"].value == pytest.approx(
        here[1].metrics["grad_norm"].value, rel=0.2
    )


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_bfloat16_samples_what_it_trains(tmp_path, attention):
    model = nbrl.Model("tiny", device="cuda", dtype="bfloat16", attention=attention)
    rollouts, step = first_step(model, tmp_path / "run")
    assert gap(rollouts) < 0.1
    assert np.isfinite(step.metrics["grad_norm"].value)
