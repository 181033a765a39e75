"""Losses over some steps from one start, beside TRL's trainers where those are installed."""

import importlib.util
from functools import partial

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import nbrl
from benchmarks import beside_trl, dpo_vs_trl, sft_vs_trl
from nbrl.functional.preference import distillation_loss, process_reward_loss

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("trl") is None, reason="needs TRL, a bench requirement"
    ),
]

STEPS, BATCH = 3, 5


def parts(rows):
    return [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]


def assert_same_course(ours, theirs):
    assert len(ours.losses) == len(theirs.losses) == STEPS
    assert ours.losses == pytest.approx(theirs.losses, abs=1e-4)
    assert ours.losses[0] != pytest.approx(ours.losses[-1], abs=1e-4)


@pytest.mark.parametrize("bench", [dpo_vs_trl, sft_vs_trl], ids=["dpo", "sft"])
def test_the_losses_are_trls(bench):
    assert_same_course(*bench.both(bench.rows(STEPS * BATCH), STEPS))


def test_ipo_on_means_is_trls():
    from trl import DPOConfig, DPOTrainer

    pairs = dpo_vs_trl.rows(STEPS * BATCH)
    objective = nbrl.DPO(beta=0.2, kind="ipo", length="mean")
    settings = partial(DPOConfig, beta=0.2, loss_type="ipo", precompute_ref_log_probs=True)
    assert_same_course(
        beside_trl.by_nbrl([nbrl.load_pairs(p) for p in parts(pairs)], objective),
        beside_trl.by_trl(DPOTrainer, settings, pairs, steps=STEPS),
    )


def test_ktos_losses_are_trls():
    from trl import KTOConfig, KTOTrainer

    rows = []
    for at, pair in enumerate(dpo_vs_trl.rows(STEPS * BATCH)):
        right = at % 3 > 0
        answer = pair["chosen" if right else "rejected"]
        rows.append({"prompt": f"{at}+{pair['prompt']}", "completion": answer, "label": right})
    weights = {"desirable_weight": 1.3, "undesirable_weight": 0.9}
    # TRL takes the answer of the row before to estimate the KL, nbrl that of the row behind
    batches = [nbrl.load_labelled(part[::-1]) for part in parts(rows)]
    settings = partial(KTOConfig, beta=0.3, precompute_ref_log_probs=True, **weights)
    assert_same_course(
        beside_trl.by_nbrl(batches, nbrl.KTO(beta=0.3, **weights)),
        beside_trl.by_trl(KTOTrainer, settings, rows, steps=STEPS),
    )


def test_a_reward_models_losses_are_trls_with_margins(tmp_path):
    from trl import RewardConfig, RewardTrainer

    pairs = [
        {**pair, "margin": 0.1 * (at % 4)} for at, pair in enumerate(dpo_vs_trl.rows(STEPS * BATCH))
    ]
    with nbrl.connect(
        model=nbrl.Model("tiny", head="reward"), run_dir=tmp_path / "run", progress="quiet"
    ) as session:
        place = str(session.export(tmp_path / "start"))
    start = AutoModelForSequenceClassification.from_pretrained(place)
    assert_same_course(
        beside_trl.by_nbrl(
            [nbrl.load_pairs(p) for p in parts(pairs)],
            nbrl.RewardLoss(margin=True),
            model=place,
            head="reward",
        ),
        beside_trl.by_trl(RewardTrainer, RewardConfig, pairs, steps=STEPS, model=start),
    )


def test_distillation_is_trls_divergence_and_the_teachers_entropy():
    from trl.experimental.gkd import GKDTrainer

    torch.manual_seed(0)
    teacher, mask = torch.randn(3, 5, 11), torch.rand(3, 5) > 0.3
    ours, theirs = (torch.randn(3, 5, 11, generator=seeded()).requires_grad_() for _ in range(2))
    labels = torch.where(mask, 1, -100)
    divergence = GKDTrainer.generalized_jsd_loss(theirs, teacher, labels=labels, beta=0)
    entropy = torch.distributions.Categorical(logits=teacher).entropy()[mask].mean()
    loss = distillation_loss(ours, teacher, mask).sum() / mask.sum()
    torch.testing.assert_close(loss, divergence + entropy)
    loss.backward()
    divergence.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_process_reward_is_transformers_loss_of_token_classes():
    """TRL has no trainer of process rewards; its former one was this loss on hard labels."""
    from transformers.loss.loss_utils import ForTokenClassification

    torch.manual_seed(0)
    logits, mask = torch.randn(3, 5, 2), torch.rand(3, 5) > 0.3
    good = torch.rand(3, 5) > 0.5
    # class 0 is the good token
    labels = torch.where(mask, (~good).long(), -100)
    config = type("Config", (), {"num_labels": 2})()
    theirs = ForTokenClassification(logits, labels, config)
    ours = process_reward_loss(logits, good.float(), mask).sum() / mask.sum()
    torch.testing.assert_close(ours, theirs)


def seeded():
    return torch.Generator().manual_seed(1)
