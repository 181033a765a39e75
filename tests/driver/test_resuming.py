"""Save, load, resume, fork: what goes on is what would have been, or is refused in words."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nbrl
from nbrl.config import Critic, Lora, Model, Optimizer, Recipe, Store, Trainer
from nbrl.driver.checkpointing import random_state, set_random_state
from nbrl.errors import ConfigError, StepError, StoreError, UnknownNameError
from tests.driver.conftest import SHORT, digest, exact

RECIPE = Recipe(rewards=exact, prompts=4, n=4, sampling=SHORT)
ROOT = Path(__file__).parents[2]


def half(response: str, label: str) -> float:
    """Another reward."""
    return 0.5 * float(response.strip() == label)


def metrics_of(session):
    return [
        {k: v for k, v in record.items() if not k.startswith("seconds")}
        for record in session.history.records
    ]


CASES = {
    "plain": {},
    "critic": {"critic": True},
    "lora": {"model": Model(lora=Lora(rank=4, dropout=0.1))},
    "bfloat16": {"model": Model(dtype="bfloat16")},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_run_that_went_on(open_tiny, case):
    recipe = RECIPE
    if case == "critic":
        recipe = Recipe(rewards=exact, prompts=4, n=2, sampling=SHORT, estimator="gae")
    straight = open_tiny(**CASES[case])
    straight.run(4, recipe)
    first = open_tiny(**CASES[case], store=Store(save_every=2))
    first.run(3, recipe)
    first.close()
    second = nbrl.connect(resume=first.run_dir, progress="quiet")
    assert (second.version, second.run_dir) == (2, first.run_dir)
    second.run(2, recipe)
    assert digest(second) == digest(straight)
    assert metrics_of(second) == metrics_of(straight)
    lines = (second.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["version"] for line in lines] == [1, 2, 3, 4]
    aside = second.run_dir / "superseded" / "1"
    assert json.loads((aside / "metrics.jsonl").read_text())["version"] == 3
    second._runtime.recorder.flush()
    assert (aside / "rollouts" / "step-000003.parquet").is_file()
    assert (second.run_dir / "rollouts" / "step-000003.parquet").is_file()
    second.close()


@pytest.mark.slow
def test_a_killed_run_resumes_bit_by_bit():
    command = [sys.executable, "-m", "benchmarks.crash", "--kills", "5", "--steps", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "equal after resume: 5 of 5" in done.stdout, done.stdout + done.stderr


def test_load_brings_back_everything_that_decides_the_future(open_tiny):
    session = open_tiny()
    session.run(2, RECIPE)
    np.random.seed(5), torch.manual_seed(5)  # noqa: NPY002
    path = session.save("here")
    before = (digest(session), session._runtime.cursor, metrics_of(session))
    drawn = (np.random.rand(), torch.rand(()).item())  # noqa: NPY002
    wanted = session.rollout(session.next_prompts(3), n=2, sampling=SHORT)
    session.run(1, RECIPE)
    session.load("here")
    assert (digest(session), session._runtime.cursor, metrics_of(session)) == before
    assert (np.random.rand(), torch.rand(()).item()) == drawn  # noqa: NPY002
    again = session.rollout(session.next_prompts(3), n=2, sampling=SHORT)
    assert again.table.drop_columns("seconds").equals(wanted.table.drop_columns("seconds"))
    assert path == session.run_dir / "checkpoints" / "here"
    with pytest.raises(UnknownNameError, match="known: here"):
        session.load("there")


def test_every_generator_goes_back_to_where_it_was():
    state = random_state()
    drawn = (random.random(), np.random.rand(), torch.rand(()).item())  # noqa: NPY002
    set_random_state(json.loads(json.dumps(state)))
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == drawn  # noqa: NPY002


def test_a_batch_that_was_trained_on_is_known_after_a_resume(open_tiny, batch_of):
    session = open_tiny()
    batch = batch_of(session)
    session.train_step(batch)
    session.save("a")
    session.close()
    resumed = nbrl.connect(resume=f"{session.run_dir}@a", progress="quiet")
    with pytest.raises(StepError, match="trained on already"):
        resumed.train_step(batch)
    resumed.close()


def test_a_checkpoint_that_cannot_be_loaded_changes_nothing(open_tiny):
    session = open_tiny()
    path = session.save("a")
    session.run(1, RECIPE)
    before = digest(session)
    [file] = path.glob("policy-moments-*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StoreError, match="policy-moments was changed or cut"):
        session.load("a")
    assert (digest(session), session.version) == (before, 1)
    with pytest.raises(StoreError, match="policy-moments was changed or cut"):
        session.fork("a")


def test_changed_data_is_refused_with_the_way_out(open_tiny, tmp_path):
    prompts = nbrl.load_prompts("arithmetic", max_samples=12)
    session = open_tiny(prompts=prompts)
    session.run(1, RECIPE)
    session.save("a")
    session.close()
    with pytest.raises(ConfigError, match="Pass the same ones"):
        nbrl.connect(resume=session.run_dir, progress="quiet")
    with nbrl.connect(resume=session.run_dir, prompts=prompts, progress="quiet") as same:
        assert same.run_dir == session.run_dir
        assert same._runtime.cursor == 4
    other = prompts[:8]
    with nbrl.connect(resume=session.run_dir, prompts=other, progress="quiet") as fork:
        assert fork.run_dir != session.run_dir
        assert (fork.version, fork._runtime.cursor) == (1, 0)

    path = tmp_path / "data.jsonl"
    rows = [{"prompt": f"{i}+1=", "label": str(i + 1)} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, rows)))
    session = open_tiny(prompts=str(path))
    session.save("a")
    session.close()
    path.write_text("\n".join(map(json.dumps, rows[1:])))
    with pytest.raises(ConfigError, match="the data has changed") as raised:
        nbrl.connect(resume=session.run_dir, progress="quiet")
    assert "fork with prompts=" in str(raised.value)
    path.write_text("\n".join(map(json.dumps, rows)))
    nbrl.connect(resume=session.run_dir, progress="quiet").close()


def test_a_changed_reward_is_refused_in_the_run_and_allowed_in_a_fork(open_tiny, tmp_path):
    session = open_tiny()
    session.run(1, RECIPE)
    session.save("a")
    session.close()
    other = Recipe(rewards=half, prompts=4, n=4, sampling=SHORT)
    with nbrl.connect(resume=session.run_dir, progress="quiet") as resumed:
        with pytest.raises(StepError, match=r"rewards \['reward'\] are not those"):
            resumed.run(1, other)
        assert resumed.version == 1
        resumed.run(1, RECIPE)
        resumed.run(1, other)
    with nbrl.connect(resume=f"{session.run_dir}@a", run_dir=tmp_path / "f") as fork:
        fork.run(1, other)


def test_another_number_of_ranks_is_refused_with_both_counts(open_tiny):
    session = open_tiny()
    path = session.save("a") / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "ranks": 8}))
    with pytest.raises(ConfigError, match="number of ranks was 8 and is 1"):
        session.load("a")


def test_a_fork_is_a_run_of_its_own_that_knows_its_parent(open_tiny):
    parent = open_tiny()
    parent.run(2, RECIPE)
    before = digest(parent)
    fork = parent.fork(seed=7)
    try:
        assert digest(fork) == before
        assert fork.version == 2
        assert fork.run_dir.parent == parent.run_dir.parent
        spec = json.loads((fork.run_dir / "config.json").read_text())
        assert spec["parent"]["folder"] == str(parent.run_dir)
        assert (spec["parent"]["version"], spec["seed"]) == (2, 7)
        asked = [s.next_prompts(4).table.column("prompt_id").to_pylist() for s in (parent, fork)]
        assert asked[0] == asked[1]
        fork.run(1, RECIPE)
        assert (digest(parent), parent.version) == (before, 2)
        assert digest(fork) != before
        lines = (fork.run_dir / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["version"] for line in lines] == [3]
    finally:
        fork.close()


def test_a_fork_follows_the_learning_rate_that_it_was_given(open_tiny):
    parent = open_tiny()
    parent.run(2, RECIPE)
    settings = Optimizer(lr=0.5, schedule="linear", total_steps=4)
    with parent.fork(trainer=Trainer(optimizer=settings)) as fork:
        [record] = fork.run(1, RECIPE).records
        assert record["lr"] == pytest.approx(0.25)
    with pytest.raises(StepError, match="load_state"):
        parent.fork(trainer=Trainer(critic=Critic()))
    assert len(list(parent.run_dir.parent.glob("*/config.json"))) == 2


def test_two_writers_are_refused(open_tiny):
    session = open_tiny()
    session.save("a")
    with pytest.raises(StoreError, match="being written by process"):
        nbrl.connect(resume=session.run_dir, progress="quiet")


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(StoreError, match="no run folder at"):
        nbrl.connect(resume=tmp_path / "gone@5", progress="quiet")


def test_a_run_without_checkpoint_says_how_to_have_one(open_tiny):
    session = open_tiny()
    session.close()
    with pytest.raises(StoreError, match="save_every"):
        nbrl.connect(resume=session.run_dir, progress="quiet")


def test_a_save_that_fails_in_a_step_is_a_warning(open_tiny):
    session = open_tiny(store=Store(save_every=1))
    session.run(1, RECIPE)
    target = session.run_dir / "checkpoints" / "step-000002"
    target.write_text("in the way")
    rollouts = session.rollout(session.next_prompts(4), n=4, sampling=SHORT)
    result = session.train_step(session.compute_advantages(session.score(rollouts, exact)))
    assert session.version == 2
    assert any("latest checkpoint is still 'step-000001'" in w for w in result.warnings)
