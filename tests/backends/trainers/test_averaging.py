"""The average of the weights, by hand and through checkpoints; the critic's warm-up."""

import copy
import dataclasses

import pytest
import torch

from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Optimizer, PolicyLoss
from nbrl.errors import StepError
from tests.backends.trainers.small import make_batch, make_policy, split, still
from tests.backends.trainers.test_local import (
    LENGTHS,
    adapted,
    annotated_batch,
    make_trainer,
    weights_of,
)

FAST = Optimizer(lr=1e-2)


def averaged_weights(trainer):
    with trainer.averaged():
        return weights_of(trainer)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 0.0), (torch.bfloat16, 2**-7)])
def test_the_average_is_its_recursion(dtype, rtol):
    trainer = make_trainer(FAST, policy=make_policy(dtype=dtype), ema_decay=0.75)
    master = trainer._learners[0].masters
    expected = {n: m.detach().double().clone() for n, m in master.items()}
    for seed in range(3):
        trainer.step([[make_batch(LENGTHS, seed=seed)]], PolicyLoss(), still)
        for name, mean in expected.items():
            mean.mul_(0.75).add_(master[name].detach().double(), alpha=0.25)
    for name, weight in averaged_weights(trainer).items():
        torch.testing.assert_close(weight, expected[name].to(dtype), atol=1e-6, rtol=rtol)


def test_weights_are_their_own_after_the_block_however_it_ends():
    trainer = make_trainer(FAST, ema_decay=0.9)
    trainer.step([[make_batch(LENGTHS)]], PolicyLoss(), still)
    digest, before = trainer.digest(), weights_of(trainer)

    def interrupted():
        with trainer.averaged():
            yield weights_of(trainer)

    block = interrupted()
    moved = next(block)
    with pytest.raises(KeyboardInterrupt):
        block.throw(KeyboardInterrupt())
    assert trainer.digest() == digest
    assert any(not torch.equal(moved[n], w) for n, w in before.items())
    assert all(torch.equal(w, before[n]) for n, w in trainer.weights())


def test_the_average_goes_through_a_checkpoint_exactly():
    first, second = (make_trainer(FAST, ema_decay=0.9) for _ in range(2))
    batch = make_batch(LENGTHS)
    first.step([[batch]], PolicyLoss(), still)
    second.load_state(copy.deepcopy(first.state()))
    for trainer in (first, second):
        trainer.step([[make_batch(LENGTHS, seed=1)]], PolicyLoss(), still)
    assert first.digest() == second.digest()
    plain = make_trainer(FAST)
    plain.step([[batch]], PolicyLoss(), still)
    second.load_state(plain.state())
    after, own = averaged_weights(second), weights_of(second)
    assert all(torch.equal(after[n], own[n]) for n in own)


def test_a_failed_update_leaves_the_average_too():
    trainer = make_trainer(FAST, ema_decay=0.9)
    good, bad = make_batch(LENGTHS), make_batch(LENGTHS)
    columns = {**bad.columns, "advantages": torch.full_like(bad.columns["advantages"], torch.nan)}
    before = trainer.digest()
    with pytest.raises(StepError, match="must be finite"):
        trainer.step([[good], [dataclasses.replace(bad, columns=columns)]], PolicyLoss(), still)
    assert trainer.digest() == before


def test_the_average_of_an_adapter_is_merged():
    trainer = LocalTrainer(adapted(), optimizer=FAST, ema_decay=0.5)
    before = weights_of(trainer)
    trainer.step([[make_batch(LENGTHS)]], PolicyLoss(), still)
    trainer.step([[make_batch(LENGTHS, seed=1)]], PolicyLoss(), still)
    after, mean = weights_of(trainer), averaged_weights(trainer)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(mean[name], after[name])
    assert not torch.equal(mean[name], before[name])
    norm = "model.norm.weight"
    assert torch.equal(mean[norm], before[norm])


def test_a_trainer_without_an_average_says_so():
    trainer = make_trainer()
    assert not trainer.keeps_average
    with pytest.raises(StepError, match="ema_decay"):
        trainer.averaged()
    kept = make_trainer(ema_decay=0.9)
    assert kept.describe()["ema_decay"] == 0.9
    more = kept.describe()["bytes"] - trainer.describe()["bytes"]
    assert more == sum(p.numel() * 4 for p in make_policy().parameters())


def test_the_policy_stands_still_while_the_critic_warms_up():
    settings = Optimizer(lr=1e-2, schedule="linear", total_steps=3)
    trainer = make_trainer(settings, critic=True, critic_warmup=2)
    batch = annotated_batch(trainer)
    before, critic = weights_of(trainer), trainer.state()["learners"][1]["parameters"]
    (first,) = trainer.step([split(batch, 2)], PolicyLoss(), still)
    assert all(torch.equal(w, before[n]) for n, w in trainer.weights())
    moved = trainer.state()["learners"][1]["parameters"]
    assert any(not torch.equal(moved[n], w) for n, w in critic.items())
    assert "grad_norm" not in first.metrics
    assert first.metrics["critic_grad_norm"].value > 0
    # the third update is the policy's first, at the beginning of its schedule
    second, third = trainer.step([[batch]] * 2, PolicyLoss(), still)
    assert "grad_norm" not in second.metrics
    assert third.metrics["lr"].value == 1e-2
    assert any(not torch.equal(w, before[n]) for n, w in trainer.weights())
    assert trainer.describe()["updates"] == 1


def test_a_batch_without_returns_is_the_policys_in_the_warm_up_too():
    trainer, plain = make_trainer(critic=True, critic_warmup=5), make_trainer(critic=True)
    batch = make_batch(LENGTHS)
    for each in (trainer, plain):
        each.step([[batch]], PolicyLoss(), still)
    assert trainer.digest() == plain.digest()
