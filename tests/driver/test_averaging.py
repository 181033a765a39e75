"""The average of the weights, frozen parameters and the critic's warm-up, through a session."""

import contextlib
import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM

import nbrl
from nbrl.backends import interrupts
from nbrl.backends.trainers import averaging as lending
from nbrl.config import Critic, Optimizer, Trainer
from nbrl.driver import averaging
from nbrl.errors import ConfigError, StepError
from tests.driver.conftest import SHORT, digest, exact
from tests.driver.test_fitting import CONVERSATIONS, PAIRS
from tests.driver.test_injection import each_place, press

KEEPING = Trainer(optimizer=Optimizer(lr=3e-3), ema_decay=0.9, frozen=("*embed_tokens*",))


@pytest.fixture
def connect(tmp_path):
    """Opens sessions with a trainer of one's own, by the name of their run folder."""
    opened = []

    def one(name, trainer=KEEPING, **more):
        session = nbrl.connect(trainer=trainer, run_dir=tmp_path / name, progress="quiet", **more)
        opened.append(session)
        return session

    yield one
    for session in opened:
        session.close()


def weights_of(session):
    return {n: w.clone() for n, w in session._runtime.trainer.weights()}


def logprobs(evaluation):
    return evaluation.scored.rollouts.table.column("rollout_logprobs").to_pylist()


def test_the_average_is_evaluated_exported_and_watched_and_the_policy_goes_on(connect, tmp_path):
    session = connect("one")
    history = session.fit(
        CONVERSATIONS[:8], nbrl.SFT(), 2, batch_size=4, held_out=CONVERSATIONS[8:]
    )
    last = history.records[-1]
    assert last["held_out_averaged_loss"] > last["held_out_loss"]
    before, own = digest(session), weights_of(session)
    prompts = session.next_prompts(4)
    plain = session.evaluate(prompts, exact, n=2, sampling=SHORT)
    mean = session.evaluate(prompts, exact, n=2, sampling=SHORT, averaged=True)
    assert logprobs(plain) != logprobs(mean)
    assert (plain.spec["averaged"], mean.spec["averaged"]) == (False, True)
    assert digest(session) == before
    session.export(tmp_path / "averaged", averaged=True)
    session.export(tmp_path / "plain")
    assert digest(session) == before
    mean_weights = AutoModelForCausalLM.from_pretrained(tmp_path / "averaged").state_dict()
    plain_weights = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").state_dict()
    with session._runtime.trainer.averaged():
        expected = weights_of(session)
    for name, weight in expected.items():
        assert torch.equal(mean_weights[name], weight), name
        assert torch.equal(plain_weights[name], own[name]), name
    again = session.evaluate(prompts, exact, n=2, sampling=SHORT)
    assert logprobs(again) == logprobs(plain)


def test_samples_of_the_average_are_not_the_policys_own(connect):
    session = connect("one")
    session.fit(CONVERSATIONS[:4], nbrl.SFT(), batch_size=2)
    found = session.evaluate(session.next_prompts(3), exact, n=2, sampling=SHORT, averaged=True)
    batch = session.compute_advantages(found.scored, "reinforce_pp")
    with pytest.raises(StepError, match="another run's policy"):
        session.train_step(batch)


def test_a_resumed_run_goes_on_with_the_same_average(connect, tmp_path):
    straight, stopped = connect("straight"), connect("stopped")
    for session in (straight, stopped):
        session.fit(CONVERSATIONS[:6], nbrl.SFT(), batch_size=3)
    stopped.save()
    stopped.close()
    resumed = nbrl.connect(resume=tmp_path / "stopped", progress="quiet")
    for session in (straight, resumed):
        session.fit(CONVERSATIONS[6:], nbrl.SFT(), batch_size=3)
    assert digest(straight) == digest(resumed)
    assert resumed.spec["trainer"]["frozen"] == ["*embed_tokens*"]
    resumed.close()


def test_what_needs_an_average_or_a_scale_of_its_own_says_so(connect, open_tiny, tmp_path):
    session = open_tiny()
    with pytest.raises(ConfigError, match="ema_decay"):
        session.export(tmp_path / "x", averaged=True)
    with pytest.raises(ConfigError, match="ema_decay"):
        session.evaluate(session.next_prompts(1), exact, averaged=True)
    scorer = connect("scorer", model=nbrl.Model("tiny", head="reward"))
    scorer.fit(PAIRS[:4], nbrl.RewardLoss(), batch_size=2)
    with pytest.raises(ConfigError, match="pass scale_on"):
        scorer.export(tmp_path / "x", averaged=True)
    scorer.export(tmp_path / "x", averaged=True, scale_on=PAIRS)
    assert (tmp_path / "x" / "config.json").is_file()


def test_a_pattern_without_effect_is_said_before_a_run_begins(connect, tmp_path):
    with pytest.raises(ConfigError, match=r"'\*visual\*' matches none"):
        connect("never", dataclasses.replace(KEEPING, frozen=("*visual*",)))
    assert not (tmp_path / "never").exists()


def test_the_critic_learns_alone_at_first(connect):
    critic = Critic(optimizer=Optimizer(lr=1e-3), warmup_steps=2)
    session = connect("warm", Trainer(optimizer=Optimizer(lr=1e-3), critic=critic))
    before = weights_of(session)
    moved = []
    for _ in range(3):
        rollouts = session.rollout(session.next_prompts(4), n=2, sampling=SHORT)
        scored = session.score(rollouts, lambda response, label: float(len(response)))
        session.train_step(session.compute_advantages(scored, "gae"))
        moved.append(any(not torch.equal(w, before[n]) for n, w in weights_of(session).items()))
    assert moved == [False, False, True]
    assert ["grad_norm" in r for r in session.history.records] == moved


def test_no_instruction_of_the_borrowing_leaves_the_average_in_place(connect):
    session = connect("one")
    session.fit(CONVERSATIONS[:4], nbrl.SFT(), batch_size=2)
    held, before, seen = session._runtime, digest(session), set()

    def borrow():
        with averaging.averaged_policy(held):
            seen.add(next(iter(held.trainer.weights()))[0])

    modules = (averaging, lending, contextlib, interrupts)
    count = 0
    for at, _ in each_place(modules, press, borrow, event="opcode", step=5):
        count += 1
        if at % 4 == 1:
            assert digest(session) == before, at
    assert count > 60
    assert seen
    assert digest(session) == before
