"""The notebooks of the other objectives run, learn what they say, and show it."""

import json
from pathlib import Path

import pytest

from tests.headless import run_notebook

ROOT = Path(__file__).parents[1]
QUICK = {
    "09_sft": {"num_examples": 96, "held_out": 16, "epochs": 1},
    "10_reward_model": {"num_pairs": 256, "held_out": 64},
    "11_dpo_and_kto": {"num_pairs": 64, "held_out": 16, "batch_size": 16},
    "12_sft_rm_ppo": {
        "num_examples": 256, "held_out": 32, "steps": 2, "num_prompts": 8, "n": 2,
    },
}  # fmt: skip
TRUE = {
    "09_sft": lambda s: s["held_out_loss_best"] <= s["held_out_loss_first"],
    "10_reward_model": lambda s: s["held_out_accuracy"] > 0.85 and s["std"] > 0,
    "11_dpo_and_kto": lambda s: s["held_out_accuracy"] > 0.6 and s["kto_gap"] > 0,
    "12_sft_rm_ppo": lambda s: s["judge_accuracy"] > 0.85,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_notebook_learns_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    executed = run_notebook(ROOT / "notebooks" / f"{name}.ipynb", tmp_path, QUICK[name])
    assert TRUE[name](executed.summary), executed.summary
    for plot in executed.summary["plots"]:
        assert (executed.run_folder / plot).read_bytes().startswith(b"\x89PNG")
    cells = json.loads(executed.notebook.read_text(encoding="utf-8"))["cells"]
    assert not [o for c in cells for o in c.get("outputs", []) if o["output_type"] == "error"]
