"""The trainer: equal under any split, all or nothing, and a probe that leaves no trace."""

import copy
import dataclasses
import hashlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from nbrl.backends import forward
from nbrl.backends.models import ValueModel
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.backends.trainers.optimizers import Learner
from nbrl.config import KL, Optimizer, PolicyLoss
from nbrl.errors import ConfigError, StepError, UnknownNameError
from tests.backends.trainers.small import make_batch, make_policy, split, still

LENGTHS = [6, 1, 3, 4, 2, 6, 1, 5]
FIXED = Optimizer(lr=1e-2, max_grad_norm=None)
MIXED = PolicyLoss(kl=KL(coef=0.1, kind="k3"), entropy_coef=0.01)


def make_trainer(optimizer=FIXED, *, critic=False, policy=None, **more):
    policy = policy or make_policy()
    value_model = ValueModel(make_policy(1).base_model, 64) if critic else None
    return LocalTrainer(
        policy,
        optimizer=optimizer,
        critic=value_model,
        critic_optimizer=Optimizer(lr=1e-2) if critic else None,
        reference=more.pop("reference", make_policy),
        **more,
    )


def weights_of(trainer):
    return {name: weight.clone() for name, weight in trainer.weights()}


def moved(trainer, before):
    return max(float((w - before[n]).abs().max()) for n, w in trainer.weights())


def annotated_batch(trainer, lengths=LENGTHS, seed=0, **columns):
    """A batch whose old and reference log-probs lie near the policy's own."""
    wanted = ("advantages", "returns", "values", "rollout_logprobs")
    batch = make_batch(lengths, seed=seed, columns=wanted)
    own = trainer.annotate([batch], ["old_logprobs"], still)["old_logprobs"][0]
    torch.manual_seed(seed)
    near = own + 0.2 * torch.randn_like(own)
    extra = {"old_logprobs": near, "ref_logprobs": near - 0.1, **columns}
    return dataclasses.replace(batch, columns={**batch.columns, **extra})


@pytest.mark.parametrize("loss", [MIXED, PolicyLoss(aggregation="seq-mean-token-mean")])
def test_any_split_is_the_same_step(loss):
    results = []
    for count in (1, 2, 4, 8):
        # Plain gradient descent in effect: AdamW's first step is the sign of the gradient, which
        # would hide sizes and blow up rounding; a large epsilon makes the step proportional.
        trainer = make_trainer(dataclasses.replace(FIXED, eps=10.0, lr=1.0))
        batch = annotated_batch(trainer)
        before = weights_of(trainer)
        (terms,) = trainer.step([split(batch, count)], loss, still)
        update = {name: w - before[name] for name, w in trainer.weights()}
        results.append((terms.metrics, update))
    metrics, update = results[0]
    assert max(float(u.abs().max()) for u in update.values()) > 1e-3
    for other, again in results[1:]:
        for name, metric in metrics.items():
            assert other[name].value == pytest.approx(metric.value, abs=1e-6), name
        for name, change in update.items():
            torch.testing.assert_close(again[name], change, atol=1e-6, rtol=0)


def test_the_gradient_is_that_of_a_loop_over_rows():
    trainer = make_trainer()
    batch = annotated_batch(trainer)
    policy = make_policy()
    total = 0.0
    for i, length in enumerate(LENGTHS):
        present = batch.attention_mask[i]
        ids = batch.input_ids[i][present][None]
        logp = policy(input_ids=ids).logits[0, :-1].log_softmax(-1)
        chosen = logp[range(len(logp)), ids[0, 1:]][-length:]
        old, ref, adv = (
            batch.columns[n][i, :length] for n in ("old_logprobs", "ref_logprobs", "advantages")
        )
        for t in range(length):
            ratio = (chosen[t] - old[t]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            gap = ref[t] - chosen[t]
            p = logp[-length + t]
            total = total - torch.minimum(ratio * adv[t], clipped * adv[t])
            total = total + 0.1 * (gap.exp() - 1 - gap) + 0.01 * (p.exp() * p).sum()
    (total / sum(LENGTHS)).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    (terms,) = trainer.step([[batch]], MIXED, still)
    assert terms.metrics["loss"].value == pytest.approx(total.item() / sum(LENGTHS), abs=1e-5)
    assert terms.metrics["grad_norm"].value == pytest.approx(float(expected.norm()), rel=1e-4)


def test_without_old_logprobs_the_own_forward_is_used():
    with_column, without = make_trainer(), make_trainer()
    batch = make_batch(LENGTHS)
    own = with_column.annotate([batch], ["old_logprobs"], still)["old_logprobs"][0]
    given = dataclasses.replace(batch, columns={**batch.columns, "old_logprobs": own})
    (a,) = with_column.step([[given]], PolicyLoss(), still)
    (b,) = without.step([[batch]], PolicyLoss(), still)
    assert b.metrics["ratio_max"].value == 1.0
    assert a.metrics["ratio_max"].value == pytest.approx(1.0, abs=1e-5)
    assert a.metrics["grad_norm"].value == pytest.approx(b.metrics["grad_norm"].value, rel=1e-5)


def test_later_minibatches_are_compared_with_the_policy_that_sampled():
    with_column, without = make_trainer(), make_trainer()
    batch = make_batch(LENGTHS)
    own = with_column.annotate([batch], ["old_logprobs"], still)["old_logprobs"][0]
    given = dataclasses.replace(batch, columns={**batch.columns, "old_logprobs": own})
    a = with_column.step([split(given, 2)] * 3, PolicyLoss(), still)
    b = without.step([split(batch, 2)] * 3, PolicyLoss(), still)
    assert a[2].metrics["ratio_max"].value > 1.05
    for one, other in zip(a, b, strict=True):
        got, wanted = (x.metrics["ratio_mean"].value for x in (other, one))
        assert got == pytest.approx(wanted, abs=1e-5)


def test_a_step_raises_the_chance_of_what_was_better():
    trainer = make_trainer()
    batch = make_batch(LENGTHS, columns=("advantages", "rollout_logprobs"))
    sign = torch.tensor([1.0, -1.0] * 4)[:, None].expand_as(batch.mask)
    batch = dataclasses.replace(batch, columns={"advantages": torch.where(batch.mask, sign, 0.0)})
    before = trainer.annotate([batch], ["old_logprobs"], still)["old_logprobs"][0]
    (terms,) = trainer.step([[batch]], PolicyLoss(), still)
    after = trainer.annotate([batch], ["old_logprobs"], still)["old_logprobs"][0]
    gain = ((after - before) * sign)[batch.mask]
    assert gain.mean() > 0.1
    assert list(terms.tokens[0]) == ["ratio", "clipped", "loss"]
    assert terms.tokens[0]["ratio"].shape == batch.mask.shape


def test_gradients_are_clipped_to_the_norm():
    free, clipped = (
        make_trainer(dataclasses.replace(FIXED, eps=10.0, lr=1.0)),
        make_trainer(Optimizer(lr=1.0, eps=10.0, max_grad_norm=0.01)),
    )
    batch, updates, norms = make_batch(LENGTHS), [], []
    for trainer in (free, clipped):
        before = weights_of(trainer)
        (terms,) = trainer.step([[batch]], PolicyLoss(), still)
        norms.append(terms.metrics["grad_norm"].value)
        updates.append(torch.cat([(w - before[n]).flatten() for n, w in trainer.weights()]))
    assert norms[0] == norms[1] > 0.02
    # AdamW's first step with a large epsilon is close to lr / eps times the gradient.
    assert float(updates[1].norm() / updates[0].norm()) == pytest.approx(0.01 / norms[0], rel=0.05)
    assert torch.cosine_similarity(updates[0], updates[1], 0) > 0.999


def test_schedule_values():
    trainer = make_trainer(Optimizer(lr=1.0e-3, schedule="linear", warmup_steps=2, total_steps=6))
    batch = make_batch(LENGTHS)
    with pytest.raises(StepError, match=r"7 more optimizer steps .*total_steps=6, of which 0"):
        trainer.step([[batch]] * 7, PolicyLoss(), still)
    terms = trainer.step([[batch]] * 6, PolicyLoss(), still)
    rates = [t.metrics["lr"].value for t in terms]
    assert rates == pytest.approx([0.0, 5e-4, 1e-3, 7.5e-4, 5e-4, 2.5e-4])


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"schedule": "constant"}, 1.0),
        ({"schedule": "constant_with_warmup", "warmup_steps": 8}, 0.5),
        ({"schedule": "cosine", "total_steps": 8}, 0.5),
        ({"schedule": "cosine_with_min_lr", "total_steps": 8, "min_lr_ratio": 0.5}, 0.75),
        ({"schedule": "inverse_sqrt", "warmup_steps": 1}, 0.5),
    ],
)
def test_every_schedule_by_its_name(settings, last):
    module = torch.nn.Linear(1, 1)
    learner = Learner(module, Optimizer(lr=1.0, **settings))
    for _ in range(4):
        module.weight.grad = torch.ones(1, 1)
        learner.update(1.0)
    assert learner.lr == pytest.approx(last)


def state_digest(trainer, policy):
    """Everything a probe might touch: parameters, flags, gradients, optimizer, random states."""
    digest = hashlib.sha256(trainer.digest().encode())
    for name, parameter in policy.named_parameters():
        grad = parameter.grad
        digest.update(parameter.detach().numpy().tobytes())
        digest.update(repr((name, parameter.requires_grad, grad is None)).encode())
        if grad is not None:
            digest.update(grad.numpy().tobytes())
    for _, module in policy.named_modules():
        digest.update(bytes([module.training]))
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(np.random.get_state()[1].tobytes())  # noqa: NPY002 -- the state that must not move
    return digest.hexdigest()


def test_probe_leaves_no_trace():
    policy = make_policy()
    trainer = make_trainer(policy=policy, critic=True)
    batch = annotated_batch(trainer)
    trainer.step([split(batch, 2)], MIXED, still)
    for parameter in policy.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    before = state_digest(trainer, policy)
    trainer.probe(split(batch, 3), {"ppo": PolicyLoss(), "mixed": MIXED}, still)
    trainer.annotate([batch], ["old_logprobs", "ref_logprobs", "values", "entropy"], still)
    assert state_digest(trainer, policy) == before


PYTHON_RANDOM = """
import random
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Optimizer, PolicyLoss
from tests.backends.trainers.small import make_batch, make_policy, still
trainer = LocalTrainer(make_policy(), optimizer=Optimizer())
batch, before = make_batch([3, 2]), random.getstate()
trainer.probe([batch], {"a": PolicyLoss(), "b": PolicyLoss(surrogate="gspo")}, still)
assert random.getstate() == before
"""


@pytest.mark.slow
def test_probe_leaves_pythons_random_state():
    # In a process of its own: the type checks of the test suite draw from this state themselves.
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PYTHON_RANDOM], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_digest_sees_every_part():
    trainer = make_trainer()
    batch = make_batch(LENGTHS)
    seen = {trainer.digest()}
    trainer.step([[batch]], PolicyLoss(), still)
    seen.add(trainer.digest())
    state = trainer.state()
    state["learners"][0]["moments"]["model.norm.weight"]["exp_avg"] += 1
    trainer.load_state(state)
    seen.add(trainer.digest())
    assert len(seen) == 3


def test_probe_tells_what_a_step_would_do():
    losses = {"ppo": PolicyLoss(), "gspo": PolicyLoss(surrogate="gspo"), "mixed": MIXED}
    trainer = make_trainer()
    batch = annotated_batch(trainer)
    found = trainer.probe(split(batch, 3), losses, still)
    whole = trainer.probe([batch], losses, still)
    for name, loss in losses.items():
        (terms,) = make_trainer().step([[batch]], loss, still)
        for metric in ("loss", "grad_norm", "clip_fraction", "entropy"):
            got = found[name].metrics[metric].value
            assert got == pytest.approx(terms.metrics[metric].value, rel=1e-4, abs=1e-6)
        sketch, other = found[name].sketch, whole[name].sketch
        np.testing.assert_allclose(sketch, other, atol=1e-5 * np.linalg.norm(other))
        assert np.linalg.norm(sketch) == pytest.approx(
            found[name].metrics["grad_norm"].value, rel=0.1
        )


def test_the_models_run_once_for_many_losses():
    policy = make_policy()
    trainer, calls = make_trainer(policy=policy), []
    policy.register_forward_hook(lambda *_: calls.append(1))
    batch = annotated_batch(trainer)
    calls.clear()
    trainer.probe([batch], {"a": PolicyLoss(), "b": MIXED, "c": PolicyLoss(eps_low=0.1)}, still)
    assert len(calls) == 1
    trainer.step([[batch]], MIXED, still)
    assert len(calls) == 2


def with_nan(batch):
    advantages = batch.columns["advantages"].clone()
    advantages[0, 0] = torch.nan
    return dataclasses.replace(batch, columns={**batch.columns, "advantages": advantages})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_step_with_a_nan_changes_nothing(place):
    trainer = make_trainer(critic=True)
    good = annotated_batch(trainer)
    trainer.step([[good]], PolicyLoss(), still)
    before = trainer.digest()
    minibatches = [[good]] * place + [[good, with_nan(good)]]
    with pytest.raises(StepError, match=rf"optimizer step {place + 1} of {place + 1}: loss nan"):
        trainer.step(minibatches, PolicyLoss(), still)
    assert trainer.digest() == before
    assert all(p.grad is None for p in trainer._models.policy.parameters())
    trainer.step([[good]], PolicyLoss(), still)
    assert trainer.digest() != before


def test_a_first_step_that_fails_leaves_a_fresh_trainer():
    trainer, untouched = make_trainer(), make_trainer()
    with pytest.raises(StepError, match="loss nan"):
        trainer.step([[with_nan(make_batch(LENGTHS))]], PolicyLoss(), still)
    assert trainer.digest() == untouched.digest()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_interrupt_in_any_micro_batch_changes_nothing(at):
    trainer = make_trainer()
    batch = make_batch(LENGTHS)
    before, calls = trainer.digest(), []

    def interrupting(units, tokens):
        calls.append((units, tokens))
        if len(calls) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.step([split(batch, 2)] * 2, PolicyLoss(), interrupting)
    assert trainer.digest() == before
    assert sum(units for units, _ in calls) == 4 * at
    assert all(tokens > 0 for _, tokens in calls)


def test_a_ctrl_c_while_weights_are_written_comes_after_the_step():
    trainer, twin = make_trainer(), make_trainer()
    batch = make_batch(LENGTHS)
    optimizer = trainer._learners[0]._optimizer
    optimizer.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    came = False
    try:
        (terms,) = trainer.step([[batch]], PolicyLoss(), still)
        taken = trainer.digest()
        time.sleep(2)
    except KeyboardInterrupt:
        came = True
    twin.step([[batch]], PolicyLoss(), still)
    assert came
    assert taken == twin.digest()
    assert terms.metrics["loss"].count == sum(LENGTHS)


def test_a_handler_that_does_not_raise_gets_the_ctrl_c():
    trainer, came = make_trainer(), []
    optimizer = trainer._learners[0]._optimizer
    optimizer.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        trainer.step([[make_batch(LENGTHS)]], PolicyLoss(), still)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


def test_a_step_in_another_thread():
    trainer, twin = make_trainer(), make_trainer()
    batch = make_batch(LENGTHS)
    thread = threading.Thread(target=trainer.step, args=([[batch]], PolicyLoss(), still))
    thread.start()
    thread.join()
    twin.step([[batch]], PolicyLoss(), still)
    assert trainer.digest() == twin.digest()


def test_no_token_counts_is_an_error_before_any_work():
    trainer = make_trainer()
    batch = make_batch(LENGTHS)
    empty = dataclasses.replace(batch, mask=torch.zeros_like(batch.mask))
    before = trainer.digest()
    with pytest.raises(StepError, match="no token counts in minibatch 2 of 2"):
        trainer.step([[batch], [empty]], PolicyLoss(), still)
    assert trainer.digest() == before


def test_an_empty_micro_batch_beside_a_full_one_does_no_harm():
    batch = make_batch(LENGTHS)
    empty = dataclasses.replace(batch, mask=torch.zeros_like(batch.mask))
    alone, beside = make_trainer(), make_trainer()
    (a,) = alone.step([[batch]], PolicyLoss(), still)
    (b,) = beside.step([[batch, empty]], PolicyLoss(), still)
    assert a.metrics == b.metrics
    assert alone.digest() == beside.digest()


def test_state_goes_to_a_new_trainer_and_on():
    settings = Optimizer(lr=1e-3, schedule="linear", warmup_steps=1, total_steps=9)
    first, second = make_trainer(settings, critic=True), make_trainer(settings, critic=True)
    batch = annotated_batch(first)
    first.step([[batch]] * 2, MIXED, still)
    second.load_state(copy.deepcopy(first.state()))
    assert first.digest() == second.digest()
    assert second.describe()["version"] == 1
    for trainer in (first, second):
        trainer.step([[batch]], MIXED, still)
    assert first.digest() == second.digest()


def test_state_is_a_copy_and_that_of_others_is_refused():
    trainer = make_trainer()
    state, before = trainer.state(), trainer.digest()
    trainer.step([[make_batch(LENGTHS)]], PolicyLoss(), still)
    after = trainer.digest()
    with pytest.raises(StepError, match="this trainer"):
        make_trainer(critic=True).load_state(state)
    assert trainer.digest() == after
    trainer.load_state(state)
    assert trainer.digest() == before


def test_the_critic_learns_and_the_policy_does_not_hear_of_it():
    trainer, alone = make_trainer(critic=True), make_trainer()
    batch = annotated_batch(trainer)
    returns = torch.where(batch.mask, 1.0, 0.0)
    losses = []
    for _ in range(12):
        values = trainer.annotate([batch], ["values"], still)["values"][0]
        columns = {**batch.columns, "returns": returns, "values": values}
        batch = dataclasses.replace(batch, columns=columns)
        (terms,) = trainer.step([[batch]], PolicyLoss(value_clip=5.0), still)
        losses.append(terms.metrics["value_loss"].value)
        (apart,) = alone.step([[batch]], PolicyLoss(), still)
        assert apart.metrics["grad_norm"] == terms.metrics["grad_norm"]
        assert terms.metrics["critic_grad_norm"].value > 0
    assert losses[-1] < 0.05 * losses[0]
    assert trainer.describe()["critic"] is True


def adapted(dropout=0.0):
    config = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    torch.manual_seed(3)
    return get_peft_model(make_policy(), config).eval()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_only_the_adapter_is_trained(dropout):
    policy = adapted(dropout)
    frozen = {n: p.detach().clone() for n, p in policy.named_parameters() if "lora_" not in n}
    trainer = make_trainer(policy=policy, reference=None)
    batch = make_batch(LENGTHS)
    base = forward.response_logprobs(make_policy(), batch).detach()
    states = [torch.get_rng_state()]
    for _ in range(3):
        trainer.step([[batch]], PolicyLoss(), still)
    states.append(torch.get_rng_state())
    for name, parameter in policy.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name])
    columns = trainer.annotate([batch], ["old_logprobs", "ref_logprobs"], still)
    torch.testing.assert_close(columns["ref_logprobs"][0], base)
    assert (columns["old_logprobs"][0] - base)[batch.mask].abs().max() > 1e-3
    assert torch.equal(*states)
    assert not any(module.training for module in policy.modules())
    assert set(trainer.state()["learners"][0]["parameters"]) == {
        n for n, _ in policy.named_parameters() if "lora_" in n
    }


def test_adapter_dropout_is_on_in_a_step_and_follows_the_seed():
    batch = make_batch(LENGTHS)

    def norm(dropout, seed):
        trainer = make_trainer(policy=adapted(dropout), reference=None, seed=seed)
        first, second = (trainer.step([[batch]], PolicyLoss(), still)[0] for _ in range(2))
        return first.metrics["grad_norm"].value, second.metrics["grad_norm"].value

    assert norm(0.5, 1) == norm(0.5, 1) != norm(0.5, 2)
    assert norm(0.0, 1) == norm(0.0, 2)


def test_weights_have_the_checkpoints_names_with_the_adapter_merged():
    policy = adapted()
    trainer = make_trainer(policy=policy, reference=None)
    batch = make_batch(LENGTHS)
    trainer.step([[batch]] * 2, PolicyLoss(), still)
    plain = make_policy(9)
    missing = plain.load_state_dict(dict(trainer.weights()), strict=False)
    assert not missing.unexpected_keys
    own = trainer.annotate([batch], ["old_logprobs"], still)["old_logprobs"][0]
    torch.testing.assert_close(
        forward.response_logprobs(plain, batch).detach(), own, atol=1e-5, rtol=1e-5
    )
    names = {name for name, _ in make_trainer().weights()}
    assert names == {name for name, _ in trainer.weights()}


def test_gradient_checkpointing_gives_the_same_step():
    plain, saving = make_trainer(), make_trainer(gradient_checkpointing=True)
    layer_calls = []
    saving._models.policy.model.layers[0].mlp.register_forward_pre_hook(
        lambda *_: layer_calls.append(1)
    )
    batch = annotated_batch(plain)
    (a,) = plain.step([[batch]], MIXED, still)
    (b,) = saving.step([[batch]], MIXED, still)
    assert len(layer_calls) == 2
    assert a.metrics["grad_norm"].value == pytest.approx(b.metrics["grad_norm"].value, rel=1e-6)
    p, q = (t.probe([batch], {"a": PolicyLoss(), "b": MIXED}, still) for t in (plain, saving))
    np.testing.assert_allclose(p["b"].sketch, q["b"].sketch, rtol=1e-3, atol=1e-4)


def test_a_bfloat16_policy_moves_by_steps_smaller_than_its_precision():
    policy = make_policy(dtype=torch.bfloat16)
    trainer = make_trainer(Optimizer(lr=1e-5), policy=policy)
    batch = make_batch(LENGTHS)
    before = {n: m.clone() for n, m in trainer._learners[0].masters.items()}
    for _ in range(5):
        (terms,) = trainer.step([split(batch, 2)], PolicyLoss(), still)
    masters = trainer._learners[0].masters
    assert all(m.dtype == torch.float32 for m in masters.values())
    change = max(float((m - before[n]).abs().max()) for n, m in masters.items())
    assert change == pytest.approx(5e-5, rel=0.3)
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, masters[name].to(torch.bfloat16))
    exact = make_trainer(policy=make_policy()).step([[batch]], PolicyLoss(), still)[0]
    assert terms.metrics["grad_norm"].value == pytest.approx(
        exact.metrics["grad_norm"].value, rel=0.2
    )


def test_temperature_is_that_of_sampling_on_both_sides():
    # B47: the same weights and temperature give ratio 1; another temperature does not.
    trainer = make_trainer()
    batch = make_batch(LENGTHS, columns=("advantages",))
    cold = dataclasses.replace(batch, temperature=torch.full((8,), 0.5))
    wanted = ["old_logprobs", "ref_logprobs", "entropy"]
    columns = {n: c[0] for n, c in trainer.annotate([cold], wanted, still).items()}
    assert torch.equal(columns["old_logprobs"], columns["ref_logprobs"])
    warm = trainer.annotate([batch], ["entropy"], still)["entropy"][0]
    assert (columns["entropy"] < warm)[batch.mask].all()
    given = dataclasses.replace(cold, columns={**batch.columns, **columns})
    metrics = trainer.probe([given], {"x": PolicyLoss(kl=KL(kind="k2"))}, still)["x"].metrics
    assert metrics["ratio_max"].value == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl"].value == pytest.approx(0.0, abs=1e-8)
    mixed = dataclasses.replace(given, temperature=torch.ones(8))
    assert trainer.probe([mixed], {"x": PolicyLoss()}, still)["x"].metrics["ratio_max"].value > 1.1


def test_annotations_that_cannot_be_had():
    trainer = make_trainer()
    batch = make_batch(LENGTHS)
    with pytest.raises(UnknownNameError, match="token column 'logits'; known: entropy"):
        trainer.annotate([batch], ["logits"], still)
    with pytest.raises(StepError, match="this trainer has no critic"):
        trainer.annotate([batch], ["values"], still)


def test_the_reference_is_loaded_once_and_only_when_needed():
    loads = []

    def load():
        loads.append(1)
        return make_policy(4)

    trainer = make_trainer(reference=load)
    batch = make_batch(LENGTHS)
    trainer.annotate([batch], ["old_logprobs"], still)
    assert not loads
    for _ in range(2):
        found = trainer.annotate([batch, batch], ["ref_logprobs"], still)["ref_logprobs"]
    assert len(loads) == 1
    expected = forward.response_logprobs(make_policy(4), batch)
    torch.testing.assert_close(found[1], expected.detach())


def test_describe_counts_what_is_resident():
    trainer = make_trainer()
    described = trainer.describe()
    count = sum(p.numel() for p in make_policy().parameters())
    assert described["parameters"] == described["trainable"] == count
    assert described["bytes"] == 4 * count
    assert (described["kind"], described["dtype"], described["version"]) == ("local", "float32", 0)


def test_a_trainer_without_a_reference_says_so_and_gives_its_weights():
    policy = make_policy()
    trainer = LocalTrainer(policy, optimizer=Optimizer())
    with pytest.raises(StepError, match="no reference"):
        trainer.annotate([], ["ref_logprobs"], lambda units, tokens: None)
    assert dict(trainer.weights()).keys() == dict(policy.named_parameters()).keys()


def test_a_critic_and_its_optimizer_go_together():
    with pytest.raises(ConfigError, match="go together"):
        LocalTrainer(make_policy(), optimizer=Optimizer(), critic_optimizer=Optimizer())
