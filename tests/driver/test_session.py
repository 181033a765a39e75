"""The verbs on the bundled model: what they give, what they change, what they refuse."""

import asyncio
import dataclasses
import json
import signal
import threading

import numpy as np
import pytest
import torch

import nbrl
from nbrl.backends.checkpoints import ASSETS
from nbrl.config import KL, PolicyLoss, Recipe, Sampling, Shaping
from nbrl.errors import ConfigError, RewardError, RolloutError, SessionError, StepError
from tests.driver.conftest import SHORT, digest, exact


def recipe(**changes) -> Recipe:
    return dataclasses.replace(Recipe(rewards=exact, prompts=6, n=4, sampling=SHORT), **changes)


def by_hand(session, *, k=6, n=4):
    rollouts = session.rollout(session.next_prompts(k), n=n, sampling=SHORT)
    scored = session.score(rollouts, exact)
    return session.train_step(session.compute_advantages(scored, "grpo"))


def test_run_and_the_cells_by_hand_give_bit_equal_weights(open_tiny):
    looped, stepwise = open_tiny(), open_tiny()
    history = looped.run(3, recipe())
    results = [by_hand(stepwise) for _ in range(3)]
    assert digest(looped) == digest(stepwise)
    assert list(history.to_pandas()["loss"]) == [r.metrics["loss"].value for r in results]
    assert digest(looped) != digest(open_tiny())


def test_looking_around_between_the_cells_changes_nothing(open_tiny):
    plain, curious = open_tiny(), open_tiny()
    by_hand(plain)
    rollouts = curious.rollout(curious.next_prompts(6), n=4, sampling=SHORT)
    curious.rollout(rollouts.prompts, n=2, sampling=Sampling(max_new_tokens=3, seed=9))
    curious.evaluate(nbrl.load_prompts("arithmetic", split="held_out", max_samples=4), exact, n=2)
    noted = curious.annotate(rollouts, ["old_logprobs", "ref_logprobs", "entropy"])
    batch = curious.compute_advantages(curious.score(noted, exact), "grpo")
    curious.probe(batch, {"ppo": PolicyLoss(), "gspo": PolicyLoss(surrogate="gspo")})
    curious.train_step(batch)
    assert digest(plain) == digest(curious)


def test_another_seed_samples_other_answers(open_tiny):
    one, two = open_tiny(seed=0), open_tiny(seed=1)
    prompts = one.next_prompts(8)
    answers = [
        s.rollout(prompts, n=2, sampling=SHORT).table["response"].to_pylist() for s in (one, two)
    ]
    assert answers[0] != answers[1]


def test_a_rollout_is_repeatable_and_its_samples_stand_alone(session):
    prompts = session.next_prompts(5)
    two = session.rollout(prompts, n=2, sampling=SHORT)
    four = session.rollout(prompts.take(np.array([3, 1])), n=4, sampling=SHORT)
    both = sorted(
        set(two.table["sample_id"].to_pylist()) & set(four.table["sample_id"].to_pylist())
    )
    assert len(both) == 4
    assert two.select(both).table["token_ids"].equals(four.select(both).table["token_ids"])
    salted = session.rollout(prompts, n=2, sampling=dataclasses.replace(SHORT, seed=1))
    assert not set(salted.table["sample_id"].to_pylist()) & set(two.table["sample_id"].to_pylist())


def test_rollout_columns_say_what_happened(session):
    prompts = session.next_prompts(3)
    rollouts = session.rollout(prompts, n=2, sampling=SHORT)
    assert rollouts.table["group_id"].to_pylist() == [
        f"{p}@0" for p in prompts.table["prompt_id"].to_pylist() for _ in range(2)
    ]
    row = rollouts[0]
    policy = [s == 1 for s in row["source"]]
    assert len(row["token_ids"]) == len(row["rollout_logprobs"]) == len(policy)
    assert all(p == 0.0 for p, own in zip(row["rollout_logprobs"], policy, strict=True) if not own)
    assert all(p < 0.0 for p, own in zip(row["rollout_logprobs"], policy, strict=True) if own)
    assert policy.index(True) == len(row["prompt"])
    assert rollouts.spec["sampling"]["max_new_tokens"] == 6


def test_engine_and_trainer_agree_on_the_log_probs(session):
    hot = Sampling(temperature=0.5, max_new_tokens=6)
    rollouts = session.rollout(session.next_prompts(6), n=4, sampling=hot)
    noted = session.annotate(rollouts, ["old_logprobs", "ref_logprobs"])
    for column in ("old_logprobs", "ref_logprobs"):
        ours = np.concatenate(noted.table[column].to_pylist())
        theirs = np.concatenate(noted.table["rollout_logprobs"].to_pylist())
        assert np.abs(ours - theirs).max() < 2e-5


def test_a_step_reports_metrics_with_denominators(session, batch_of):
    batch = batch_of(session, k=8)
    result = session.train_step(batch)
    assert (result.version_before, result.version_after, session.version) == (0, 1, 1)
    tokens = sum(sum(m) for m in batch.table["mask"].to_pylist())
    assert result.metrics["loss"].count == tokens
    reward = result.metrics["reward"]
    assert reward.value == pytest.approx(np.mean(batch.scored.table["total"].to_numpy()))
    assert (reward.count, reward.of) == (32, "samples")
    assert set(result.seconds) == {"rollout", "score", "advantages", "train"}
    assert result.tokens["sample_id"].to_pylist() == batch.table["sample_id"].to_pylist()
    ratio = np.concatenate(result.tokens["ratio"].to_pylist())
    mask = np.concatenate(batch.table["mask"].to_pylist())
    assert np.allclose(ratio[mask], 1.0)
    assert result.spec["advantages"]["estimator_name"] == "grpo"


def test_a_result_says_all_that_it_was_made_with_and_from(session, batch_of, tmp_path):
    batch = batch_of(session, kl=KL(coef=0.1))
    probe = session.probe(batch, {"ppo": PolicyLoss()})["ppo"]
    loss = PolicyLoss(aggregation="seq-mean-token-sum-norm")
    result = session.train_step(batch, loss, minibatches=2)
    spec = result.spec
    assert spec["session"]["trainer"]["optimizer"]["lr"] == 1e-3
    assert spec["session"]["model"]["path"] == "tiny"
    assert spec["session"]["versions"]["torch"]
    assert (spec["loss"]["surrogate"], spec["loss"]["norm_length"]) == ("ppo", 6)
    assert (spec["minibatches"], spec["epochs"]) == (2, 1)
    assert spec["rollouts"]["sampling"]["max_new_tokens"] == 6
    assert spec["rollouts"]["session"] == spec["session"]
    assert spec["scored"]["fingerprints"].keys() == {"reward"}
    assert spec["advantages"]["estimator"]["baseline"] == "group-mean"
    assert spec["advantages"]["kl"]["coef"] == 0.1
    parents = {"run": session.spec["run"], "version": 0, "samples": 24}
    assert parents.items() <= spec["parents"].items()
    assert probe.spec["parents"] == spec["parents"]
    evaluation = session.evaluate(batch.scored.rollouts.prompts, exact, n=2, sampling=SHORT)
    history = session.run(1, recipe())
    for value in (evaluation, history, session.history):
        assert value.spec["session"] == spec["session"]
    for name, value in {"step": result, "eval": evaluation, "run": history, "p": probe}.items():
        value.save(tmp_path / name)
        assert nbrl.load(tmp_path / name).spec == value.spec
    assert nbrl.load(tmp_path / "step").tokens.equals(result.tokens)


def test_training_twice_on_a_batch_needs_to_be_said(session, batch_of):
    batch = batch_of(session)
    session.train_step(batch)
    before = digest(session)
    with pytest.raises(StepError, match="trained on already, at version 0"):
        session.train_step(batch)
    assert digest(session) == before
    assert session.train_step(batch, again=True, expect_version=0).version_after == 2


def test_a_batch_from_the_disk_is_known_again(session, batch_of, tmp_path):
    batch = batch_of(session)
    batch.save(tmp_path / "batch")
    session.train_step(batch)
    with pytest.raises(StepError, match="trained on already"):
        session.train_step(nbrl.load(tmp_path / "batch"))


def test_a_stale_batch_needs_a_declaration(open_tiny, batch_of):
    session = open_tiny()
    old = batch_of(session)
    session.train_step(batch_of(session))
    with pytest.raises(StepError, match=r"version 0 of the policy.*expect_version=0"):
        session.train_step(old)
    with pytest.raises(StepError, match="expect_version=3"):
        session.train_step(old, expect_version=3)
    result = session.train_step(old, expect_version=0)
    assert any("older version" in w for w in result.warnings)
    ratio = np.concatenate(result.tokens["ratio"].to_pylist())[
        np.concatenate(old.table["mask"].to_pylist())
    ]
    assert ratio.std() > 1e-4


def test_a_correction_declares_staleness(session, batch_of):
    old = batch_of(session)
    session.train_step(batch_of(session))
    result = session.train_step(old, PolicyLoss(correction="tis"))
    assert result.version_after == 2
    assert any(name.startswith("importance") for name in result.metrics)


def test_a_batch_of_another_run_needs_a_declaration(open_tiny, batch_of):
    ours, theirs = open_tiny(), open_tiny(seed=9)
    batch = batch_of(theirs)
    with pytest.raises(StepError, match=r"version 0 of another run's policy.*expect_version=0"):
        ours.train_step(batch)
    with pytest.raises(ConfigError, match="not this policy"):
        ours.annotate(batch.scored.rollouts, ["old_logprobs"])
    result = ours.train_step(batch, expect_version=0)
    assert any("another run" in w for w in result.warnings)


def test_probe_tells_each_loss_alone_what_it_tells_beside_others(session, batch_of):
    old = batch_of(session, k=8)
    for _ in range(3):
        session.train_step(batch_of(session))
    plain, corrected = PolicyLoss(), PolicyLoss(correction="tis")
    alone = session.probe(old, {"plain": plain})["plain"]
    beside = session.probe(old, {"corrected": corrected, "plain": plain})
    assert list(beside) == ["corrected", "plain"]
    assert beside["plain"].metrics["grad_norm"] == alone.metrics["grad_norm"]
    assert beside["corrected"].metrics["grad_norm"].value != alone.metrics["grad_norm"].value
    taken = session.train_step(old, plain, expect_version=0)
    assert taken.metrics["grad_norm"].value == pytest.approx(
        alone.metrics["grad_norm"].value, rel=1e-5
    )


@pytest.mark.parametrize("surrogate", ["ppo", "reinforce", "cispo"])
def test_annotating_does_not_undo_a_correction(open_tiny, batch_of, surrogate):
    weights = []
    for annotated in (False, True):
        session = open_tiny(lr=3e-3)
        rollouts = session.rollout(session.next_prompts(6), n=4, sampling=SHORT)
        if annotated:
            rollouts = session.annotate(rollouts, ["old_logprobs"])
        old = session.compute_advantages(session.score(rollouts, exact), "rloo")
        for _ in range(2):
            session.train_step(batch_of(session))
        loss = PolicyLoss(surrogate=surrogate, correction="tis")
        weights.append(session.train_step(old, loss).metrics["importance_weight"].value)
    assert weights[0] == weights[1]
    assert abs(weights[0] - 1) > 1e-3


def test_returns_of_a_critic_free_estimator_leave_the_critic_alone(open_tiny, batch_of):
    session = open_tiny(critic=True)
    scored = batch_of(session, estimator="gae").scored
    assert "values" in scored.rollouts.table.column_names
    result = session.train_step(session.compute_advantages(scored, "grpo"))
    assert "value_loss" not in result.metrics


def test_an_estimator_of_the_wrong_shape_is_named(session):
    def sloppy(rewards, group_ids, mask, **rest):
        return rewards, rewards

    rollouts = session.rollout(session.next_prompts(2), n=2, sampling=SHORT)
    with pytest.raises(nbrl.errors.DataError, match=r"sloppy.*\[4, \d\]"):
        session.compute_advantages(session.score(rollouts, exact), sloppy)


def test_steps_beyond_the_schedule_are_refused(tmp_path):
    optimizer = nbrl.Optimizer(lr=1e-4, schedule="cosine", total_steps=2)
    given = {"trainer": nbrl.Trainer(optimizer=optimizer), "progress": "quiet"}
    with nbrl.connect(**given, run_dir=tmp_path / "run") as session:
        assert len(session.run(2, recipe())) == 2
        before = digest(session)
        with pytest.raises(StepError, match="total_steps=2"):
            by_hand(session)
        assert digest(session) == before


def test_probe_changes_nothing_and_tells_losses_apart(session, batch_of):
    batch = batch_of(session, k=8)
    before = digest(session)
    probes = session.probe(
        batch, {"ppo": PolicyLoss(), "mean": PolicyLoss(aggregation="seq-mean-token-mean")}
    )
    assert digest(session) == before
    assert probes["ppo"].metrics["grad_norm"].value > 0
    assert probes["ppo"].cosine(probes["ppo"]) == pytest.approx(1.0)
    assert -1 <= probes["ppo"].cosine(probes["mean"]) < 0.99999
    taken = session.train_step(batch)
    assert taken.metrics["grad_norm"].value == pytest.approx(
        probes["ppo"].metrics["grad_norm"].value, rel=1e-5
    )


def test_minibatches_and_epochs_take_several_optimizer_steps(open_tiny, batch_of):
    once, often = open_tiny(), open_tiny()
    first = once.train_step(batch_of(once, k=8))
    many = often.train_step(batch_of(often, k=8), minibatches=2, epochs=2)
    assert digest(once) != digest(often)
    assert many.version_after == 1
    assert many.metrics["loss"].count == 2 * first.metrics["loss"].count
    assert many.metrics["tokens"].value == 2 * first.metrics["tokens"].value
    largest = max(max(r) for r in many.tokens["ratio"].to_pylist())
    assert many.metrics["ratio_max"].value >= largest - 1e-6
    ratio = np.concatenate(many.tokens["ratio"].to_pylist())
    assert np.abs(ratio[ratio > 0] - 1).max() > 1e-3


def test_gae_trains_a_critic(open_tiny, batch_of):
    session = open_tiny(critic=True)
    batch = batch_of(session, estimator="gae")
    assert "values" in batch.scored.rollouts.table.column_names
    result = session.train_step(batch)
    assert result.metrics["value_loss"].value > 0


def test_gae_without_a_critic_says_how_to_get_one(session, batch_of):
    with pytest.raises(ConfigError, match="critic"):
        batch_of(session, estimator="gae")


def test_kl_in_the_reward_fetches_the_reference(session, batch_of):
    session.train_step(batch_of(session))
    batch = batch_of(session, kl=KL(coef=0.1))
    kl = np.concatenate(batch.table["kl"].to_pylist())
    assert np.abs(kl).max() > 1e-4
    mask = np.concatenate(batch.table["mask"].to_pylist())
    metric = session.train_step(batch).metrics["reward_kl"]
    assert metric.value == pytest.approx(kl[mask].mean(), rel=1e-5)
    batch = batch_of(session, kl=KL(coef=0.1))
    with pytest.raises(ConfigError, match=r"in the reward .* and in the loss"):
        session.train_step(batch, PolicyLoss(kl=KL(coef=0.1)))


def test_kl_in_the_loss_fetches_the_reference(session, batch_of):
    session.train_step(batch_of(session))
    result = session.train_step(batch_of(session), PolicyLoss(kl=KL(coef=0.1, kind="k3")))
    assert result.metrics["kl"].value > 0


def test_one_answer_a_prompt_is_refused_before_any_work(session):
    with pytest.raises(ConfigError, match=r"grpo.*n"):
        session.run(1, recipe(n=1))
    assert session.version == 0
    assert session.run(1, recipe(n=1, estimator="reinforce_pp")).to_pandas().index.tolist() == [1]


def test_all_problems_of_a_recipe_come_at_once(session):
    with pytest.raises(ConfigError, match="3 problems") as error:
        session.run(0, recipe(prompts=0, loss=PolicyLoss(eps_low=-1.0)))
    assert "steps must be a whole number >= 1" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"mode": "warp"}, "sync"), ({"recipe": recipe(estimator="grpoo")}, "dr_grpo")],
)
def test_unknown_names_list_the_known_ones(session, settings, named):
    with pytest.raises(ConfigError, match=named):
        session.run(1, **{"recipe": recipe(), **settings})


def test_a_raising_reward_leaves_the_session_as_it_was(session):
    def broken(response, label):
        raise RuntimeError("no verifier")

    before = (digest(session), session.version, session._runtime.cursor)
    with pytest.raises(RewardError, match="no verifier"):
        session.run(2, recipe(rewards=broken))
    assert (digest(session), session.version, session._runtime.cursor) == before
    assert len(session.run(1, recipe())) == 1


def test_excluded_samples_are_counted_and_not_trained_on(session):
    def picky(response, label):
        if label.endswith("1"):
            raise ValueError("odd")
        return exact(response, label)

    rollouts = session.rollout(session.next_prompts(24), n=2, sampling=SHORT)
    scored = session.score(rollouts, picky, on_error="exclude")
    bad = scored.table["status"].to_pylist().count("error")
    assert bad > 0
    batch = session.compute_advantages(scored, "grpo")
    assert len(batch) == 48 - bad
    assert sum(batch.spec["dropped"].values()) == bad
    assert any("dropped" in w for w in session.train_step(batch).warnings)


def test_nothing_to_train_on_is_an_error(session):
    rollouts = session.rollout(session.next_prompts(4), n=2, sampling=SHORT)
    scored = session.score(rollouts, lambda response: 0.0)
    batch = session.compute_advantages(scored, "grpo", shaping=Shaping(reward_range=(0.0, 1.0)))
    assert len(batch) == 0
    with pytest.raises(StepError, match="no samples"):
        session.train_step(batch)


def test_dead_groups_are_said_in_words(session):
    rollouts = session.rollout(session.next_prompts(4), n=2, sampling=SHORT)
    batch = session.compute_advantages(session.score(rollouts, lambda response: 0.1), "grpo")
    assert any("equal rewards" in w for w in session.train_step(batch).warnings)


def test_evaluate_gives_intervals_around_the_estimate(session):
    held_out = nbrl.load_prompts("arithmetic", split="held_out", max_samples=16)
    evaluation = session.evaluate(held_out, exact, n=4, sampling=SHORT)
    assert sorted(evaluation.pass_at) == [1, 2, 4]
    for estimate, low, high in evaluation.pass_at.values():
        assert 0 <= low <= estimate <= high <= 1
    assert evaluation.pass_at[1][0] <= evaluation.pass_at[4][0]
    assert evaluation.reward[0] == pytest.approx(evaluation.pass_at[1][0])


def test_verbs_work_inside_a_running_event_loop(session):
    async def cell():
        return by_hand(session)

    assert asyncio.run(cell()).version_after == 1


def test_a_closed_session_refuses(session):
    session.close()
    session.close()
    with pytest.raises(SessionError, match="closed"):
        session.next_prompts(1)
    assert "closed" in repr(session)


def test_two_threads_do_not_share_a_session(session):
    errors = []

    def slow(response):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        return 0.0

    def second():
        try:
            session.next_prompts(1)
        except SessionError as error:
            errors.append(str(error))

    session.score(session.rollout(session.next_prompts(1), sampling=SHORT), slow)
    assert len(errors) == 1
    assert "busy with score" in errors[0]


def interrupt_on_call(function, number):
    """The function, with a Ctrl-C sent at its nth call."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(args)
        if len(calls) == number:
            signal.raise_signal(signal.SIGINT)
        return function(*args, **kwargs)

    return wrapped


def test_an_interrupted_step_leaves_everything_as_it_was(session, batch_of, monkeypatch):
    batch = batch_of(session)
    before = digest(session)
    phase = session._runtime.progress._advance
    monkeypatch.setattr(session._runtime.progress, "_advance", interrupt_on_call(phase, 1))
    with pytest.raises(KeyboardInterrupt):
        session.train_step(batch)
    assert digest(session) == before
    assert session.version == 0
    monkeypatch.undo()
    assert session.train_step(batch).version_after == 1


def test_an_interrupted_run_keeps_its_whole_steps(session):
    calls = []

    def reward(response, label):
        calls.append(1)
        if len(calls) == 24 * 2 + 5:
            signal.raise_signal(signal.SIGINT)
        return exact(response, label)

    history = session.run(10, recipe(rewards=reward))
    assert history.interrupted
    assert len(history) == 2
    assert session.version == 2
    assert session._runtime.cursor == 12
    assert len(session.run(1, recipe())) == 1


def poisoned(session, value):
    """The last norm's weight has this value; what is returned puts the old one back."""
    weight = session._runtime.trainer._models.policy.get_parameter("model.norm.weight")
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:] = value

    def undo():
        with torch.no_grad():
            weight.copy_(before)

    return undo


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("sampling", [SHORT, Sampling(temperature=0.0, max_new_tokens=6)])
def test_a_policy_that_diverged_is_named_and_the_session_goes_on(
    session, batch_of, value, sampling
):
    batch = batch_of(session)
    undo = poisoned(session, value)
    before = digest(session)
    how = "weights are finite" if value == 3e38 else r"not finite: 1 of \d+ tensors .*model.norm"
    with pytest.raises(RolloutError, match=rf"{how}[\s\S]*lower learning rate"):
        session.rollout(session.next_prompts(2), n=2, sampling=sampling)
    with pytest.raises(StepError, match=r"the policy has diverged.*lower learning rate"):
        session.annotate(batch.scored.rollouts, ["old_logprobs"])
    with pytest.raises(StepError, match="loss nan"):
        session.train_step(batch)
    with pytest.raises(StepError, match="loss nan"):
        session.probe(batch, {"ppo": PolicyLoss()})
    with pytest.raises(RolloutError):
        session.run(1, recipe(sampling=sampling))
    assert (digest(session), session.version, session._runtime.trained) == (before, 0, {})
    undo()
    assert session.train_step(batch).version_after == 1


@pytest.mark.parametrize(("answers", "limit"), [(1, 1), (4, 6)])
def test_an_interrupt_after_the_last_answer_is_known(session, monkeypatch, answers, limit):
    prompts, short = session.next_prompts(1), Sampling(max_new_tokens=limit)
    whole = session.rollout(prompts, n=answers, sampling=short)
    advance, done = session._runtime.progress._advance, []

    def last(opened, units, tokens):
        done.append(units)
        advance(opened, units, tokens)
        if sum(done) == answers:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session._runtime.progress, "_advance", last)
    rollouts = session.rollout(prompts, n=answers, sampling=short)
    assert sum(done) == answers
    assert rollouts.table["token_ids"].equals(whole.table["token_ids"])
    assert rollouts.spec["interrupted"]
    done.clear()
    one = recipe(prompts=1, n=answers, estimator="reinforce_pp", sampling=short)
    history = session.run(3, one)
    assert (len(history), history.interrupted, session.version) == (0, True, 0)
    assert session._runtime.cursor == 1


def test_a_full_disk_is_a_warning_not_a_lost_step(session, batch_of):
    metrics = session.run_dir / "metrics.jsonl"
    metrics.mkdir()
    for version in (1, 2):
        result = session.train_step(batch_of(session))
        assert result.version_after == version
        (said,) = result.warnings
        assert "could not write" in said
        assert f"versions {list(range(1, version + 1))}" in said
    assert repr(session).endswith("2 steps, 2 of them not on the disk)")
    metrics.rmdir()
    assert session.train_step(batch_of(session)).warnings == []
    written = session._runtime.folder.read_metrics()
    assert written == list(session.history.records)
    assert "disk" not in repr(session)


def test_the_run_folder_tells_the_story(open_tiny):
    session = open_tiny()
    history = session.run(2, recipe())
    lines = [json.loads(x) for x in (session.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [x["version"] for x in lines] == [1, 2]
    assert lines[1]["reward"] == history.to_pandas()["reward"][2]
    config = json.loads((session.run_dir / "config.json").read_text())
    assert config["trainer"]["optimizer"]["lr"] == 1e-3
    assert config["versions"]["torch"]


def test_describe_lists_what_is_resident(session):
    table = session.describe()
    assert table.loc["trainer", "parameters"] > 100_000
    assert "hf" in str(table.loc["engine", "kind"])
    for name in ("bytes", "context_length", "max_batch", "parameters"):
        counts = [x for x in table[name] if x != ""]
        assert counts
        assert all(type(count) is int for count in counts), name
    assert table.loc["trainer", "context_length"] == ""


def test_an_adapter_trains_beside_frozen_weights(open_tiny):
    session = open_tiny(model=nbrl.Model("tiny", lora=nbrl.Lora(rank=4)))
    session.run(2, recipe(loss=PolicyLoss(kl=KL(coef=0.1, kind="k3"))))
    rollouts = session.rollout(session.next_prompts(4), n=2, sampling=SHORT)
    noted = session.annotate(rollouts, ["old_logprobs", "ref_logprobs"])
    old, drawn, ref = (
        np.concatenate(noted.table[c].to_pylist())
        for c in ("old_logprobs", "rollout_logprobs", "ref_logprobs")
    )
    assert np.abs(old - drawn).max() < 2e-5
    assert np.abs(old - ref).max() > 1e-4
    assert session.describe().loc["trainer", "trainable"] < 50_000


def test_a_critic_rests_while_critic_free_estimators_train(open_tiny, batch_of):
    session = open_tiny(critic=True)
    result = session.train_step(batch_of(session, estimator="grpo"))
    assert "value_loss" not in result.metrics
    with pytest.raises(ConfigError, match="value_coef and value_clip have no effect on"):
        session.train_step(batch_of(session), PolicyLoss(value_coef=0.5))


def test_a_checkpoint_folder_opens_like_the_bundled_name(open_tiny, tmp_path):
    bundled = open_tiny()
    policy = bundled._runtime.trainer._models.policy
    policy.save_pretrained(tmp_path / "mine")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "mine" / name).write_bytes((ASSETS / "tiny" / name).read_bytes())
    copy = open_tiny(model=str(tmp_path / "mine"))
    prompts = bundled.next_prompts(4)
    answers = [s.rollout(prompts, n=2, sampling=SHORT).table["response"] for s in (bundled, copy)]
    assert answers[0].equals(answers[1])


def test_settings_of_a_session_are_judged_together():
    trainer = nbrl.Trainer(optimizer=nbrl.Optimizer(lr=-1.0, schedule="linear"))
    with pytest.raises(ConfigError, match="3 problems"):
        nbrl.connect(trainer=trainer, seed=-1)
    with pytest.raises(ConfigError, match="place 'mars' is unknown; known: local"):
        nbrl.connect("mars")


def test_a_prompt_longer_than_the_model_is_refused_by_its_id(session):
    prompts = nbrl.Prompts(
        table=session.next_prompts(1).table.set_column(1, "prompt", [["1+" * 200 + "1="]])
    )
    with pytest.raises(nbrl.errors.DataError, match="arithmetic-train-0"):
        session.rollout(prompts, n=2)
    assert session.version == 0


def test_a_failing_reward_does_not_flatter_an_evaluation(session):
    prompts = nbrl.load_prompts("arithmetic", split="held_out", max_samples=4)
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        session.evaluate(prompts, lambda response: 1 / 0, n=2, sampling=SHORT)


def test_history_is_a_copy(session):
    session.run(1, recipe())
    session.history.records[0].clear()
    assert len(session.history.to_pandas()) == 1


def test_a_reward_cannot_close_the_session_under_a_verb(session):
    def closing(response):
        session.close()

    rollouts = session.rollout(session.next_prompts(1), sampling=SHORT)
    with pytest.raises(RewardError, match="busy with score"):
        session.score(rollouts, closing)
    assert by_hand(session).version_after == 1


def values_of(result):
    return {name: metric.value for name, metric in result.metrics.items()}


def test_packed_rows_sample_and_train_as_padded_ones_do(open_tiny, batch_of):
    told = []
    for attention in ("sdpa", "varlen"):
        session = open_tiny(model=nbrl.Model("tiny", attention=attention), critic=True)
        batch = batch_of(session, estimator="gae")
        probed = session.probe(batch, {"ppo": nbrl.PolicyLoss()})["ppo"]
        table = batch.scored.rollouts.table
        result = session.train_step(batch, minibatches=2)
        ids, values = table.column("token_ids").to_pylist(), table.column("values").to_pylist()
        told.append((ids, values, values_of(probed), values_of(result)))
    (ids, values, probe, step), (packed_ids, packed_values, packed_probe, packed_step) = told
    assert packed_ids == ids
    flat, packed_flat = (np.concatenate(v) for v in (values, packed_values))
    np.testing.assert_allclose(packed_flat, flat, atol=1e-5)
    for name in ("loss", "grad_norm", "entropy"):
        assert packed_probe[name] == pytest.approx(probe[name], rel=1e-4, abs=1e-6)
    for name in ("grad_norm", "critic_grad_norm"):
        assert packed_step[name] == pytest.approx(step[name], rel=1e-3)
