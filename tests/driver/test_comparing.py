"""Losses on one frozen batch: equal to what probes of the whole say, and changing nothing."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from nbrl.config import PolicyLoss
from nbrl.driver.comparing import _signal_to_noise, loss_name
from nbrl.errors import ConfigError
from nbrl.notebook.reprs.results import loss_concerns, losses_html
from nbrl.types import Metric, Probe

EMPTY = pa.table({"sample_id": pa.array([], pa.string())})
LOSSES = {
    "ppo": PolicyLoss(),
    "sequences": PolicyLoss(aggregation="seq-mean-token-mean"),
    "entropy": PolicyLoss(entropy_coef=0.5),
}


def digest(session):
    return session._runtime.trainer.digest()


@pytest.fixture
def batch(session, batch_of):
    return batch_of(session, k=12, n=4)


def test_it_says_what_probes_of_the_whole_batch_say(session, batch):
    before = digest(session)
    compared = session.compare_losses(batch, LOSSES)
    probes = session.probe(batch, LOSSES)
    assert digest(session) == before
    assert compared.parts > 2
    for name, probe in probes.items():
        row = compared.table.loc[name]
        assert row["loss"] == pytest.approx(probe.metrics["loss"].value, abs=1e-5)
        assert row["grad_norm"] == pytest.approx(probe.metrics["grad_norm"].value, rel=0.06)
        for other, theirs in probes.items():
            said = compared.cosines.loc[name, other]
            assert said == pytest.approx(probe.cosine(theirs), abs=1e-3)
        ids = compared.tokens[name].column("sample_id").to_pylist()
        assert sorted(ids) == sorted(batch.table.column("sample_id").to_pylist())


def test_shares_of_tokens_and_update(session, batch):
    row = session.compare_losses(batch, LOSSES).table.loc["ppo"]
    advantages = np.concatenate(batch.table.column("advantages").to_pylist())
    mask = np.concatenate(batch.table.column("mask").to_pylist()).astype(bool)
    assert row["silent"] == pytest.approx(np.mean(advantages[mask] == 0))
    assert row["clipped"] == 0.0
    assert row["masked"] == 0.0
    assert row["update_size"] == pytest.approx(1e-3 * min(row["grad_norm"], 1.0))


def test_one_forward_pass_serves_all_losses(session, batch):
    passes = []
    policy = type(session._runtime.trainer._models.policy)
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: passes.append(1) if isinstance(module, policy) else None
    )
    try:
        session.compare_losses(batch, [PolicyLoss()])
        one = len(passes)
        session.compare_losses(batch, LOSSES)
    finally:
        hook.remove()
    assert one > 0
    assert len(passes) == 2 * one


def test_a_list_of_losses_is_named_by_what_differs():
    assert loss_name(PolicyLoss()) == "ppo"
    assert loss_name(PolicyLoss(eps_high=0.28)) == "ppo, eps_high=0.28"


@pytest.mark.parametrize("losses", [[], {}, [PolicyLoss(), PolicyLoss()]])
def test_nothing_to_compare_is_refused(session, batch, losses):
    with pytest.raises(ConfigError, match=r"compare_losses (needs|got)"):
        session.compare_losses(batch, losses)


def probe_of(sketch, count=10):
    metrics = {"loss": Metric(value=0.0, count=count, of="tokens")}
    return Probe(
        name="x", version=0, metrics=metrics, tokens=EMPTY, sketch=np.array(sketch, np.float32)
    )


def test_signal_to_noise_by_hand():
    # mean (1, 0); deviations (0, 1), (0, -1): 2 / (2 * 1) = 1
    assert _signal_to_noise([probe_of([1, 1]), probe_of([1, -1])]) == pytest.approx(1.0)
    # weights 3/4 and 1/4 make the parts (1.5, 0) and (0.5, 0): mean 1, noise sqrt(0.5 / 2)
    assert _signal_to_noise([probe_of([1, 0], 30), probe_of([1, 0], 10)]) == pytest.approx(2.0)
    assert np.isnan(_signal_to_noise([probe_of([1, 0])]))


def test_concerns_and_html(session, batch):
    compared = session.compare_losses(batch, {"ppo": PolicyLoss(), "<b>": LOSSES["entropy"]})
    assert "&lt;b&gt;" in losses_html(compared)
    assert "<b>: the gradient" not in " ".join(loss_concerns(compared))
