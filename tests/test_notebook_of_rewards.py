"""Notebook 05: four rewards on one batch, what flips, and a step on each from the same weights."""

import json
from pathlib import Path

import pytest

from tests.headless import run_notebook

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "05_swap_the_reward.ipynb"
QUICK = {"num_prompts": 12, "n": 4, "held_out": 12}
NAMES = ["file", "function", "dict", "server"]


@pytest.mark.slow
def test_four_rewards_are_compared_and_each_takes_a_step(tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    executed = run_notebook(NOTEBOOK, tmp_path, QUICK)
    summary = executed.summary
    assert list(summary["held_out"]) == NAMES
    assert all(0.0 <= mean <= 1.0 for mean in summary["held_out"].values())
    assert summary["rank_correlation"]["file"] == pytest.approx(1.0)
    assert all(-1.0 <= summary["rank_correlation"][name] < 1.0 for name in NAMES[1:])
    assert summary["cosines"]["file"] == pytest.approx(1.0)
    assert (executed.run_folder / "rewards.png").read_bytes().startswith(b"\x89PNG")
    cells = json.loads(executed.notebook.read_text(encoding="utf-8"))["cells"]
    shown = " ".join("".join(o["data"]["text/plain"]) for c in cells for o in c.get("outputs", [])
                     if "text/plain" in o.get("data", {}))  # fmt: skip
    assert shown.count("ScoreDiff(48 samples") == 4
    assert "RewardCheck('arithmetic', 48 samples" in shown
    assert "digits: 48 samples" in shown
