"""Fits of every objective on the bundled model: curves, held-out data, interrupts, export."""

import os
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import nbrl
from nbrl.errors import ConfigError, RolloutError, StepError
from tests.driver.conftest import digest


def sums(count, start=0):
    """Sums that the bundled model knows more or less, each with a wrong answer beside the right."""
    rows = []
    for i in range(start, start + count):
        a, b = (7 * i) % 90, (13 * i + 5) % 90
        right = str(a + b)
        rows.append(
            {
                "prompt": f"{a}+{b}=",
                "response": right if i % 3 else right + "0",
                "label": bool(i % 3),
                "chosen": right,
                "rejected": right + "00",
                "steps": [f"{a}", f"{b}"],
                "labels": [1, i % 2],
                "margin": 0.5,
            }
        )
    return rows


CONVERSATIONS = nbrl.load_conversations(sums(12), output_key="rejected")
PAIRS = nbrl.load_pairs(sums(12))
LABELLED = nbrl.load_labelled(sums(12))
EQUAL = nbrl.load_pairs([{"prompt": "1+1=", "chosen": "2", "rejected": "2"}] * 2)
STEPS = nbrl.load_steps(sums(12))
CASES = {
    "sft": (CONVERSATIONS, nbrl.SFT()),
    "distillation": (CONVERSATIONS, nbrl.Distillation("tiny", coef=0.1)),
    "dpo": (PAIRS, nbrl.DPO(nll_coef=0.1)),
    "kto": (LABELLED, nbrl.KTO()),
    "process reward": (STEPS, nbrl.ProcessReward()),
}


@pytest.fixture
def scorer(open_tiny):
    return open_tiny(model=nbrl.Model("tiny", head="reward"))


@pytest.mark.parametrize("name", CASES)
def test_every_objective_fits_and_is_watched(name, session):
    data, objective = CASES[name]
    before = digest(session)
    history = session.fit(data[:8], objective, epochs=3, batch_size=3, held_out=data[8:])
    assert digest(session) != before
    assert not history.interrupted
    frame = history.to_pandas()
    # 8 examples are batches of 3, 3 and 2: the tail is kept
    assert len(frame) == 9 == session.version
    assert frame["epoch"].tolist() == pytest.approx([(i + 1) / 3 for i in range(9)])
    assert frame["held_out_loss"].notna().tolist() == [False, False, True] * 3
    assert frame["loss"].iloc[6:].mean() < frame["loss"].iloc[:3].mean()
    assert history.spec["objective"] == type(objective).__name__


def test_a_fit_is_the_same_steps_by_hand(open_tiny):
    one, two = open_tiny(), open_tiny()
    ready = one.tokenize(CONVERSATIONS)
    history = one.fit(ready, nbrl.SFT(), batch_size=12)
    result = two.train_step(two.tokenize(CONVERSATIONS), nbrl.SFT())
    assert result.metrics["loss"].value == pytest.approx(history.records[0]["loss"])
    for (name, a), (_, b) in zip(
        one._runtime.trainer.weights(), two._runtime.trainer.weights(), strict=True
    ):
        torch.testing.assert_close(a, b, msg=name)


def test_reference_log_probs_are_of_the_model_as_it_was(session):
    first = session.train_step(PAIRS[:6], nbrl.DPO())
    assert first.metrics["loss"].value == pytest.approx(0.693147, abs=1e-5)
    assert first.metrics["margin"].value == pytest.approx(0.0, abs=1e-5)
    second = session.train_step(PAIRS[6:], nbrl.DPO())
    assert second.metrics["margin"].value != pytest.approx(0.0, abs=1e-5)


def test_with_an_adapter_the_reference_is_the_model_without_it(open_tiny):
    session = open_tiny(model=nbrl.Model("tiny", lora=nbrl.Lora(rank=4)), lr=1e-2)
    history = session.fit(PAIRS, nbrl.DPO(), epochs=3, batch_size=12)
    losses = [r["loss"] for r in history.records]
    assert losses[0] == pytest.approx(0.693147, abs=1e-4)
    assert losses[-1] < losses[0]


def test_a_second_step_on_the_same_examples_is_refused(session):
    session.train_step(CONVERSATIONS, nbrl.SFT())
    with pytest.raises(StepError, match="trained on already, at version 0"):
        session.train_step(CONVERSATIONS, nbrl.SFT())
    again = session.train_step(CONVERSATIONS, nbrl.SFT(), again=True)
    assert again.version_before == 1


def test_a_steps_result_says_what_each_token_cost(session):
    result = session.train_step(CONVERSATIONS[:4], nbrl.SFT(), minibatches=2)
    ids = CONVERSATIONS[:4].table.column("example_id").to_pylist()
    assert sorted(result.tokens.column("sample_id").to_pylist()) == sorted(ids)
    costs = [x for row in result.tokens.column("loss").to_pylist() for x in row if x]
    assert sum(costs) / len(costs) == pytest.approx(result.metrics["loss"].value, rel=0.2)
    pairs = session.train_step(PAIRS[:2], nbrl.DPO())
    names = pairs.tokens.column("sample_id").to_pylist()
    assert [n.split(":")[1] for n in names] == ["chosen", "rejected"] * 2
    assert "loss" in repr(pairs)


def test_b66_a_reward_model_notes_the_scale_of_its_training_data(scorer, tmp_path):
    history = scorer.fit(
        PAIRS[:10], nbrl.RewardLoss(), epochs=15, batch_size=5, held_out=PAIRS[10:]
    )
    assert history.records[-1]["accuracy"] == 1.0
    scale = history.spec["score_scale"]
    folder = scorer.export(tmp_path / "rm")
    back = AutoModelForSequenceClassification.from_pretrained(folder)
    scores = []
    ready = scorer.tokenize(PAIRS[:10]).table.to_pylist()
    for side in ("chosen", "rejected"):
        for row in ready:
            with torch.no_grad():
                scores.append(back(torch.tensor([row[f"{side}_token_ids"]])).logits.item())
    assert scale["mean"] == pytest.approx(float(torch.tensor(scores).mean()), abs=1e-4)
    assert scale["std"] == pytest.approx(float(torch.tensor(scores).std()), abs=1e-4)
    # of the training data, not of what was held out
    assert scale["origin"] == {"role": "training", "data": "12 rows", "scores": 20, "version": 30}
    assert back.config.mean == pytest.approx(scale["mean"])
    named = scorer.export(tmp_path / "named", scale_on=PAIRS[10:])
    other = AutoModelForSequenceClassification.from_pretrained(named).config.score_scale
    assert other["origin"]["role"] == "named"
    assert other["origin"]["scores"] == 4


def test_b66_a_scale_of_equal_scores_is_refused(scorer, tmp_path):
    head = scorer._runtime.trainer._models.policy.head.weight
    with torch.no_grad():
        head.zero_()
    with pytest.raises(StepError, match=r"gives all 4 answers .* the score 0"):
        scorer.export(tmp_path / "rm", scale_on=PAIRS[:2])
    assert not (tmp_path / "rm").exists()
    scorer._runtime.trainer._models.policy.requires_grad_(False)
    head.requires_grad_(True)
    margins = nbrl.RewardLoss(margin=True)
    with pytest.warns(UserWarning, match="no scale is noted"):
        history = scorer.fit(EQUAL, margins, batch_size=2)
    assert history.spec["score_scale"] is None
    assert len(history) == scorer.version == 1


def test_a_reward_model_neither_generates_nor_takes_other_objectives(scorer):
    with pytest.raises(RolloutError, match="does not generate"):
        scorer.rollout(scorer.next_prompts(1))
    with pytest.raises(ConfigError, match="DPO needs a session of model=Model"):
        scorer.fit(PAIRS, nbrl.DPO())
    with pytest.raises(ConfigError, match="has no critic"):
        nbrl.connect(
            model=nbrl.Model("tiny", head="reward"), trainer=nbrl.Trainer(critic=nbrl.Critic())
        )


def test_the_best_weights_come_back_under_a_version_of_their_own(open_tiny):
    session = open_tiny(lr=3e-2)
    watched = nbrl.HeldOut(CONVERSATIONS[8:], every=1, keep="best")
    history = session.fit(CONVERSATIONS[:8], nbrl.SFT(), epochs=4, batch_size=4, held_out=watched)
    losses = [r["held_out_loss"] for r in history.records if "held_out_loss" in r]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert best < len(losses) - 1, "the learning rate was meant to be too large"
    assert history.records[-1] == {"version": 9, "best_version": best + 1}
    assert session.version == 9
    measured = session.fit(CONVERSATIONS[:1], nbrl.SFT(), held_out=CONVERSATIONS[8:])
    assert measured.records[0]["version"] == 10


def test_ctrl_c_keeps_the_steps_that_were_taken(session):
    taken = []

    def press(result):
        taken.append(result)
        if len(taken) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    session._runtime.progress.note = press
    history = session.fit(CONVERSATIONS, nbrl.SFT(), epochs=5, batch_size=4)
    assert history.interrupted
    assert len(history) == session.version == 3
    session._runtime.progress.note = lambda text: None
    assert len(session.fit(CONVERSATIONS, nbrl.SFT(), batch_size=6)) == 2


def test_what_does_not_go_together_is_said_at_once(session):
    with pytest.raises(ConfigError, match=r"objective must be one of nbrl\.SFT"):
        session.train_step(PAIRS)
    with pytest.raises(ConfigError) as raised:
        session.fit(PAIRS, nbrl.SFT(aux_coef=-1.0), epochs=0, batch_size=0)
    said = str(raised.value)
    for phrase in ("epochs", "batch_size", "SFT.aux_coef"):
        assert phrase in said
    with pytest.raises(ConfigError, match="SFT trains on conversations; got Examples"):
        session.fit(PAIRS, nbrl.SFT())
    with pytest.raises(ConfigError, match="RewardLoss needs a session of"):
        session.fit(PAIRS, nbrl.RewardLoss())
    with pytest.raises(ConfigError, match="there are no examples"):
        session.fit(PAIRS[:0], nbrl.DPO())
    with pytest.raises(ConfigError, match="KTO needs batches of 2"):
        session.fit(LABELLED, nbrl.KTO(), batch_size=1)
    with pytest.raises(ConfigError, match="must be one token"):
        session.fit(STEPS, nbrl.ProcessReward(reward_tokens=("good", "bad")))
    with pytest.raises(ConfigError, match="expect_version has no effect"):
        session.train_step(PAIRS, nbrl.DPO(), expect_version=0)
    with pytest.raises(ConfigError, match="scale_on is for the scores"):
        session.export("nowhere", scale_on=PAIRS)
    assert session.version == 0


def test_packed_rows_fit_as_padded_ones_do(open_tiny):
    found = []
    for packed in (False, True):
        # AdamW's first steps move an element whose gradient is rounding noise by the whole lr, so a
        # lr that the second step's figures do not feel keeps the bar on what packing computes
        session = open_tiny(packed=packed, lr=1e-6)
        history = session.fit(PAIRS[:8], nbrl.DPO(), batch_size=4, held_out=PAIRS[8:])
        found.append(history.records)
    for one, two in zip(*found, strict=True):
        for name in ("loss", "margin", "grad_norm"):
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-6), name
    assert found[1][-1]["held_out_loss"] == pytest.approx(found[0][-1]["held_out_loss"], abs=1e-6)


def test_packing_that_cannot_keep_rows_apart_is_refused(tmp_path):
    trainer = nbrl.Trainer(packed=True)
    with pytest.raises(ConfigError, match="no effect with attention='varlen'"):
        nbrl.connect(model=nbrl.Model("tiny", attention="varlen"), trainer=trainer)
    with pytest.raises(ConfigError, match="with attention='sdpa' only; got 'eager'"):
        nbrl.connect(model=nbrl.Model("tiny", attention="eager"), trainer=trainer)


class Bars:
    """A sink that remembers the last state of every bar."""

    def __init__(self):
        self.seen = {}

    def show(self, bars, final):
        if final:
            self.seen |= {bar.name: bar for bar in bars}


def test_every_bar_is_full_when_its_work_is_done(session):
    sink = Bars()
    session._runtime.progress.make_sink = lambda: sink
    session.fit(LABELLED[:8], nbrl.KTO(), batch_size=4, held_out=LABELLED[8:])
    session.train_step(PAIRS[:4], nbrl.DPO())
    session.evaluate(session.next_prompts(2), lambda response: 1.0, n=2)
    names = ["fit", "reference", "held out", "train_step", "evaluate", "rollout", "score"]
    assert set(sink.seen) == set(names)
    for bar in sink.seen.values():
        assert (bar.done, bar.outcome) == (bar.total, "done"), bar
    assert sink.seen["held out"].total == 4
    assert sink.seen["train_step"].total == 8


def test_what_is_no_longer_needed_is_let_go(session):
    held = session._runtime.trainer
    session.fit(PAIRS[:4], nbrl.DPO(), batch_size=4)
    assert not held.describe()["reference"]
    rollouts = session.rollout(session.next_prompts(1), n=1)
    session.annotate(rollouts, ["ref_logprobs"])
    assert held.describe()["reference"]
    session.fit(CONVERSATIONS[:4], nbrl.Distillation("tiny"), batch_size=4)
    assert not held._teachers
    assert not held.describe()["reference"]
    # and comes back as it was: the first loss of a model beside itself
    first = session.fit(PAIRS[4:8], nbrl.DPO(), batch_size=4).records[0]
    assert first["margin"] != pytest.approx(0.0, abs=1e-6)


def test_a_balance_of_experts_needs_experts(session):
    with pytest.raises(ConfigError, match=r"SFT.aux_coef has no effect: the model has no experts"):
        session.fit(CONVERSATIONS, nbrl.SFT(aux_coef=0.1))
    with pytest.raises(ConfigError, match=r"DPO.aux_coef has no effect"):
        session.train_step(PAIRS, nbrl.DPO(aux_coef=0.1))


def test_kto_leaves_no_row_alone(session):
    history = session.fit(LABELLED[:7], nbrl.KTO(), batch_size=3)
    assert [r["sequences"] for r in history.records] == [3, 4]


def test_what_was_trained_is_the_policy_of_the_next_session(session, open_tiny, tmp_path):
    session.fit(CONVERSATIONS, nbrl.SFT(), epochs=2, batch_size=6)
    folder = session.export(tmp_path / "sft")
    ids = torch.tensor([[20, 21, 22]])
    mine = session._runtime.trainer._models.policy(ids).logits
    torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(folder)(ids).logits, mine)
    following = open_tiny(model=str(folder))
    rollouts = following.rollout(following.next_prompts(2), n=2)
    annotated = following.annotate(rollouts, ["old_logprobs", "ref_logprobs"])
    for row in annotated.table.to_pylist():
        assert row["old_logprobs"] == pytest.approx(row["ref_logprobs"], abs=1e-5)


def test_tokens_can_be_looked_at_before(session):
    ready = session.tokenize(CONVERSATIONS[:2])
    row = ready[0]
    learned = [t for t, m in zip(row["token_ids"], row["mask"], strict=True) if m]
    assert session._runtime.decode([learned]) == [row["response"]]
    assert learned[-1] == 1
    with pytest.warns(UserWarning, match="over max_length"):
        assert len(session.tokenize(CONVERSATIONS, max_length=8)) < 12
    with pytest.raises(ConfigError, match="turns must be one of all, last"):
        session.tokenize(CONVERSATIONS, turns="first")


def paced(open_tiny, **settings):
    session = open_tiny()
    session.close()
    return nbrl.connect(
        trainer=nbrl.Trainer(optimizer=nbrl.Optimizer(lr=1e-3, **settings)),
        run_dir=session.run_dir.with_name("paced"),
        progress="quiet",
    )


def test_steps_beyond_the_schedule_are_foreseen(open_tiny):
    session = paced(open_tiny, schedule="linear", total_steps=7)
    before = digest(session)
    with pytest.raises(ConfigError, match=r"8 optimizer steps lie ahead.*total_steps=7"):
        session.fit(CONVERSATIONS, nbrl.SFT(), 2, batch_size=3)
    assert digest(session) == before
    assert session.version == 0
    with pytest.warns(UserWarning, match="step 4 of Optimizer.total_steps=7"):
        session.fit(CONVERSATIONS, nbrl.SFT(), batch_size=3)
    # the four that are taken count
    with pytest.raises(ConfigError, match="total_steps=8"):
        session.fit(CONVERSATIONS, nbrl.SFT(), batch_size=3)
    session.close()


def test_a_warm_up_that_never_ends_is_said(open_tiny):
    session = paced(open_tiny, schedule="constant_with_warmup", warmup_steps=4)
    with pytest.warns(UserWarning, match="the peak is never reached"):
        session.fit(CONVERSATIONS, nbrl.SFT(), batch_size=3)
    session.fit(CONVERSATIONS[:3], nbrl.SFT(), batch_size=3)
    session.close()
