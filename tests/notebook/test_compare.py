"""Runs side by side: lineage, differing settings, paired differences, recorded results."""

import json

import numpy as np
import pandas as pd
import pytest

import nbrl
from nbrl.config import Optimizer, Recipe, Sampling, Trainer
from nbrl.errors import DataError

SHORT = Sampling(max_new_tokens=6)


def exact(response: str, label: str) -> float:
    """1 for the right sum."""
    return float(response.strip() == label)


def more(response: str, label: str) -> float:
    """A quarter more than the exact one."""
    return 0.25 + exact(response, label)


def recipe(reward):
    return Recipe(rewards=reward, prompts=6, n=4, sampling=SHORT)


@pytest.fixture
def branches(tmp_path):
    """A run of three steps, and its fork after the first with another reward and rate."""
    root = tmp_path / "runs"
    with nbrl.connect(run_dir=root / "a", progress="quiet") as parent:
        parent.run(1, recipe(exact))
        parent.save("one")
        slow = Trainer(optimizer=Optimizer(lr=1e-5))
        with parent.fork("one", run_dir=root / "b", trainer=slow) as fork:
            fork.run(2, recipe(more))
        parent.run(2, recipe(exact))
    return root


def test_runs_are_a_table_with_lineage_and_differences(branches):
    table = nbrl.runs(branches)
    assert table["run"].tolist() == ["a", "  b"]
    assert table["parent"].tolist() == ["", "a@1"]
    assert table["steps"].tolist() == [3, 2]
    assert table["version"].tolist() == [3, 3]
    assert table["trainer.optimizer.lr"].tolist() == [1e-6, 1e-5]
    assert "seed" not in table.columns
    with pytest.raises(DataError, match="there is no folder"):
        nbrl.runs(branches / "gone")
    (branches / "empty").mkdir()
    assert len(nbrl.runs(branches / "empty")) == 0


def test_branches_are_compared_prompt_by_prompt(branches):
    found = nbrl.compare(branches / "a", branches / "b")
    assert found.steps.index.tolist() == [2, 3]
    assert len(found.prompts) == 12
    # at step 2 both drew the same answers with the same policy
    first = found.steps.loc[2]
    assert (first["difference"], first["low"], first["high"]) == pytest.approx((0.25, 0.25, 0.25))
    pairs = found.prompts
    assert np.allclose(pairs["difference"], pairs["reward_b"] - pairs["reward_a"])
    assert found.difference[0] == pytest.approx(pairs["difference"].mean())
    assert found.difference[1] <= found.difference[0] <= found.difference[2]
    same = nbrl.compare(branches / "a", nbrl.open_run(branches / "a"))
    assert same.difference == (0.0, 0.0, 0.0)
    with pytest.raises(DataError, match="has no 'gone'"):
        nbrl.compare(branches / "a", branches / "b", column="gone")


def test_runs_without_a_shared_prompt_are_not_compared(branches, tmp_path):
    with nbrl.connect(run_dir=tmp_path / "c", seed=9, progress="quiet") as other:
        other.run(1, recipe(exact))
    with pytest.raises(DataError, match="no step of both asks the same prompt"):
        nbrl.compare(tmp_path / "c", branches / "b")


def test_results_are_recorded_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("NBRL_RUN_FOLDER", str(tmp_path))
    nbrl.record("reward", np.float32(0.5))
    nbrl.record("reward", 0.75)
    nbrl.record("pass", {"1": [0.5, 0.25]})
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert lines[0] == {"name": "reward", "value": 0.5}
    (tmp_path / "config.json").write_text("{}")
    assert nbrl.open_run(tmp_path).results() == {"reward": 0.75, "pass": {"1": [0.5, 0.25]}}
    for name, value in (("", 1), ("x", object()), ("x", pd.DataFrame())):
        with pytest.raises((DataError, ValueError)):
            nbrl.record(name, value)
