"""Every objective on a small model: any split adds up, the formula holds, nothing leaks."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from nbrl.backends.models import ValueModel
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.backends.trainers.objectives import OBJECTIVES
from nbrl.config import (
    DPO,
    KTO,
    SFT,
    TRAINS_ON,
    Distillation,
    Optimizer,
    PolicyLoss,
    ProcessReward,
    RewardLoss,
)
from nbrl.errors import StepError
from nbrl.functional import preference
from nbrl.stages.sequences import sequence_batches, sequences_of
from tests.backends.trainers.small import make_policy, still
from tests.examples import make_tokenized

LOSSES = {
    "sft": SFT(),
    "sft by sequence": SFT(aggregation="seq-mean-token-mean"),
    "reward": RewardLoss(),
    "reward with margin": RewardLoss(margin=True),
    "dpo": DPO(),
    "cdpo": DPO(label_smoothing=0.1, nll_coef=0.3),
    "ipo": DPO(kind="ipo"),
    "ipo by means": DPO(kind="ipo", length="mean"),
    "kto": KTO(undesirable_weight=1.3),
    "distillation": Distillation("teacher"),
    "process reward": ProcessReward(token_ids=(3, 5)),
}


def make_scorer(seed=0):
    policy = make_policy(seed)
    torch.manual_seed(seed + 1)
    return ValueModel(policy.base_model, 64, seed=seed)


def make_trainer(loss, **settings):
    module = make_scorer() if isinstance(loss, RewardLoss) else make_policy()
    return LocalTrainer(
        module,
        # a large eps: the update follows the size of a gradient, not the sign of its rounding
        optimizer=Optimizer(lr=1e-2, eps=1e-2, max_grad_norm=None),
        teacher=lambda name: make_policy(seed=7),
        **settings,
    )


def batches_of(examples, max_tokens=10_000, rows=None):
    rows = np.arange(len(examples)) if rows is None else rows
    made = [sequence_batches(s, rows, max_tokens=max_tokens) for s in sequences_of(examples)]
    return [batch for some in made for batch in some]


def weights(trainer):
    return {name: weight.clone() for name, weight in trainer.weights()}


def test_every_row_of_the_table_is_tried():
    assert {type(loss) for loss in LOSSES.values()} | {PolicyLoss} == set(OBJECTIVES)
    assert set(TRAINS_ON) | {PolicyLoss} == set(OBJECTIVES)


@pytest.mark.parametrize("name", LOSSES)
def test_any_split_takes_the_same_step(name):
    loss = LOSSES[name]
    examples = make_tokenized(TRAINS_ON[type(loss)], 7, seed=3)
    found = []
    for max_tokens in (10_000, 30, 1):
        trainer = make_trainer(loss)
        batches = batches_of(examples, max_tokens)
        (terms,) = trainer.step([batches], loss, still)
        found.append((terms.metrics, weights(trainer), len(batches)))
    (one, moved, few), *others = found
    assert others[-1][2] > few
    for metrics, after, _ in others:
        assert metrics.keys() == one.keys()
        for key, metric in metrics.items():
            assert metric.value == pytest.approx(one[key].value, rel=1e-4, abs=1e-5), key
            assert (metric.count, metric.of) == (one[key].count, one[key].of)
        for key, weight in after.items():
            torch.testing.assert_close(weight, moved[key], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
@pytest.mark.parametrize("name", LOSSES)
def test_b64_a_step_on_packed_rows_is_the_padded_one(name, attention):
    loss = LOSSES[name]
    sets = sequences_of(make_tokenized(TRAINS_ON[type(loss)], 7, seed=3))
    found = []
    for packed in (False, True):
        trainer = make_trainer(loss, packed=packed and attention == "sdpa")
        if packed and attention == "varlen":
            trainer._models.policy.get_submodule(
                "backbone" if isinstance(loss, RewardLoss) else ""
            ).set_attn_implementation("varlen")
        batches = [
            batch
            for rows in sets
            for batch in sequence_batches(rows, np.arange(7), max_tokens=30, packed=packed)
        ]
        assert len(batches) > len(sets)
        before = weights(trainer)
        (terms,) = trainer.step([batches], loss, still)
        found.append((terms.metrics, before, weights(trainer)))
    (one, before, moved), (two, _, after) = found
    assert two["loss"].value == pytest.approx(one["loss"].value, abs=1e-5)
    assert two["grad_norm"].value == pytest.approx(one["grad_norm"].value, rel=1e-4)
    assert any(not torch.equal(moved[key], before[key]) for key in moved)
    for key, weight in moved.items():
        torch.testing.assert_close(after[key], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_measuring_is_the_steps_own_metrics_and_changes_nothing(name):
    loss = LOSSES[name]
    trainer = make_trainer(loss)
    batches = batches_of(make_tokenized(TRAINS_ON[type(loss)], 5, seed=1), 40)
    before = trainer.digest()
    measured = trainer.measure(batches, loss, still)
    assert trainer.digest() == before
    (terms,) = trainer.step([batches], loss, still)
    for key, metric in measured.items():
        assert metric.value == pytest.approx(terms.metrics[key].value, abs=1e-6), key
    assert trainer.digest() != before


@pytest.mark.parametrize("name", LOSSES)
def test_steps_lower_the_loss(name):
    loss = LOSSES[name]
    trainer = make_trainer(loss)
    batches = batches_of(make_tokenized(TRAINS_ON[type(loss)], 6, seed=2))
    curve = [trainer.step([batches], loss, still)[0].metrics["loss"].value for _ in range(6)]
    assert curve[-1] < curve[0]


def row_logprobs(policy, examples, side):
    """Each answer's summed and mean log-prob, row by row and without padding."""
    sums, means = [], []
    for row in examples.table.to_pylist():
        ids = torch.tensor([row[f"{side}token_ids"]])
        with torch.no_grad():
            logp = policy(ids).logits.float().log_softmax(-1)[0, :-1]
        picked = logp.gather(-1, ids[0, 1:, None]).squeeze(-1)
        kept = picked[torch.tensor(row[f"{side}mask"])[1:]]
        sums.append(kept.sum())
        means.append(kept.mean())
    return torch.stack(sums), torch.stack(means)


def reference_sums(examples, side):
    return torch.tensor(
        [sum(row) for row in examples.table.column(f"{side}ref_logprobs").to_pylist()]
    )


def test_sft_is_the_mean_over_all_tokens_and_not_of_means():
    policy, examples = make_policy(), make_tokenized("conversations", 5)
    sums, _ = row_logprobs(policy, examples, "")
    count = sum(map(sum, examples.table.column("mask").to_pylist()))
    measured = make_trainer(SFT()).measure(batches_of(examples, 20), SFT(), still)
    assert measured["loss"].value == pytest.approx(-sums.sum().item() / count, rel=1e-5)
    assert measured["loss"].count == count


@pytest.mark.parametrize("name", ["dpo", "cdpo", "ipo"])
def test_dpo_and_its_kin_are_their_formulas_on_rows_apart(name):
    loss, policy, examples = LOSSES[name], make_policy(), make_tokenized("pairs", 5)
    (chosen, means), (rejected, _) = (
        row_logprobs(policy, examples, side) for side in ("chosen_", "rejected_")
    )
    sides = chosen, rejected, *(reference_sums(examples, s) for s in ("chosen_", "rejected_"))
    if loss.kind == "ipo":
        terms = preference.ipo_loss(*sides, beta=loss.beta)
    else:
        terms = preference.dpo_loss(*sides, beta=loss.beta, label_smoothing=loss.label_smoothing)
    wanted = terms.mean() - loss.nll_coef * means.mean()
    measured = make_trainer(loss).measure(batches_of(examples, 40), loss, still)
    assert measured["loss"].value == pytest.approx(wanted.item(), rel=1e-4)
    assert measured["loss"].of == "pairs"


def test_equal_answers_are_no_win():
    examples = make_tokenized("pairs", 3)
    same = {
        f"rejected_{n}": examples.table.column(f"chosen_{n}")
        for n in ("token_ids", "mask", "ref_logprobs")
    }
    measured = make_trainer(DPO()).measure(batches_of(examples.with_columns(same)), DPO(), still)
    assert measured["loss"].value == pytest.approx(0.693147, abs=2e-6)
    assert measured["accuracy"].value == 0
    assert measured["margin"].value == 0


def test_kto_takes_its_reference_point_over_the_whole_step():
    policy, examples = make_policy(), make_tokenized("labelled", 5)
    own, _ = row_logprobs(policy, examples, "")
    other, _ = row_logprobs(policy, examples, "mismatched_")
    terms = preference.kto_loss(
        own,
        reference_sums(examples, ""),
        torch.tensor(examples.table.column("desirable").to_pylist()),
        other,
        reference_sums(examples, "mismatched_"),
    )
    measured = make_trainer(KTO()).measure(batches_of(examples, 15), KTO(), still)
    assert measured["loss"].value == pytest.approx(terms.mean().item(), rel=1e-4)


@pytest.mark.parametrize(("wanted", "absent"), [(True, "undesirable"), (False, "desirable")])
def test_b61_a_class_without_rows_logs_nothing(wanted, absent):
    examples = make_tokenized("labelled", 3)
    rows = examples.filter([d is wanted for d in [True, False, True]])
    one = rows.with_columns({"desirable": pa.array([wanted] * len(rows))})
    metrics = make_trainer(KTO()).measure(batches_of(one), KTO(), still)
    assert f"{absent}_reward" not in metrics
    assert all(np.isfinite(m.value) for m in metrics.values())


def test_a_reward_models_score_is_read_at_the_last_token_of_each_row():
    scorer, examples = make_scorer(), make_tokenized("pairs", 4)
    gaps = []
    for row in examples.table.to_pylist():
        ids = [torch.tensor([row[f"{side}token_ids"]]) for side in examples.sides]
        with torch.no_grad():
            chosen, rejected = (scorer(x)[0, -1] for x in ids)
        gaps.append(chosen - rejected)
    measured = make_trainer(RewardLoss()).measure(batches_of(examples), RewardLoss(), still)
    assert measured["margin"].value == pytest.approx(torch.stack(gaps).mean().item(), abs=1e-6)
    assert measured["score"].count == 8


def test_a_process_reward_is_read_at_the_placeholder():
    loss, policy, examples = LOSSES["process reward"], make_policy(), make_tokenized("steps", 4)
    terms = []
    for row in examples.table.to_pylist():
        with torch.no_grad():
            logits = policy(torch.tensor([row["token_ids"]])).logits[..., [3, 5]]
        mask, labels = torch.tensor([row["mask"]]), torch.tensor([row["step_labels"]])
        terms.append(preference.process_reward_loss(logits, labels, mask)[mask])
    measured = make_trainer(loss).measure(batches_of(examples, 12), loss, still)
    assert measured["loss"].value == pytest.approx(torch.cat(terms).mean().item(), rel=1e-4)


def test_a_student_that_is_its_teacher_has_the_entropy_as_cross_entropy():
    loss = Distillation("teacher", coef=1.0)
    trainer = LocalTrainer(
        make_policy(seed=7), optimizer=Optimizer(lr=1e-2), teacher=lambda name: make_policy(seed=7)
    )
    (terms,) = trainer.step([batches_of(make_tokenized("conversations", 4))], loss, still)
    assert terms.metrics["grad_norm"].value == pytest.approx(0, abs=1e-5)


def test_an_objective_of_the_other_head_is_refused():
    pairs = batches_of(make_tokenized("pairs", 2))
    with pytest.raises(StepError, match=r"RewardLoss is for a reward model.*head='reward'"):
        make_trainer(DPO()).step([pairs], RewardLoss(), still)
    with pytest.raises(StepError, match="DPO is for a language model"):
        make_trainer(RewardLoss()).step([pairs], DPO(), still)
    with pytest.raises(StepError, match="annotate"):
        make_trainer(RewardLoss()).annotate(pairs, ["entropy"], still)


def test_a_missing_reference_is_named():
    pairs = batches_of(make_tokenized("pairs", 2, reference=False))
    with pytest.raises(StepError, match="DPO, which compares with the reference"):
        make_trainer(DPO()).step([pairs], DPO(), still)


def test_what_is_not_learned_has_no_part_in_the_loss():
    examples = make_tokenized("conversations", 3)
    batches = batches_of(examples)
    (terms,) = make_trainer(SFT()).step([batches], SFT(), still)
    assert terms.metrics["tokens"].value == int(batches[0].mask.sum())
    assert not terms.tokens[0]["loss"][~batches[0].mask].any()
    assert (terms.tokens[0]["loss"][batches[0].mask] > 0).all()
