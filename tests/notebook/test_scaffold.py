"""Templates: valid files that run as they stand, never over a file that is there."""

import asyncio
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import nbrl
from nbrl.backends.rewards import load_reward, score_samples
from nbrl.errors import ConfigError, StoreError
from nbrl.notebook import cli
from nbrl.notebook.parameters import parameters_of
from nbrl.notebook.scaffold import TEMPLATES, create
from nbrl.types import SOURCE_ENVIRONMENT, SOURCE_POLICY, SOURCE_PROMPT
from tests.headless import run_notebook

ROOT = Path(__file__).parents[2]
ENDINGS = {kind: ".ipynb" if kind == "notebook" else ".py" for kind in TEMPLATES}


def row(prompt, response, label):
    return {"sample_id": "s", "prompt": prompt, "response": response, "label": label} | {
        "messages": None, "metadata": {}, "rollout": {},
    }  # fmt: skip


def scored(file, response, label, name="reward"):
    reward = load_reward(f"{file}:{name}")
    rows = [row("7+5=", response, label)]
    (outcome,) = score_samples(reward, rows, on_error="exclude", advance=lambda *_: None)
    return outcome


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_new_file_has_the_houses_shape(kind, tmp_path, capsys):
    file = tmp_path / "deep" / f"mine{ENDINGS[kind]}"
    assert cli.main(["new", kind, "--output", str(file)]) == 0
    assert capsys.readouterr().out == f"{kind} -> {file}\n"
    text = file.read_bytes()
    assert text.endswith(b"\n")
    assert b"\r" not in text
    assert b"THIS_FILE" not in text
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--line-length",
        "100",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    format_command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check", "--diff"]
    done = subprocess.run(
        [*format_command, "--line-length", "100", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_file_that_is_there_stays(kind, tmp_path, capsys):
    file = tmp_path / f"mine{ENDINGS[kind]}"
    file.write_text("mine")
    assert cli.main(["new", kind, "--output", str(file)]) == 2
    assert "is there already; pass --force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert cli.main(["new", kind, "--output", str(file), "--force"]) == 0
    assert file.read_text() != "mine"


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown template 'agent'; known: math-reward"):
        create("agent", tmp_path / "x.py")
    with pytest.raises(ConfigError, match=r"a reward is a \.py file"):
        create("reward", tmp_path / "x.ipynb")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        create("reward", tmp_path / "folder.py", force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreError, ConfigError), match="new reward"):
        create("reward", tmp_path / "file" / "x.py")
    assert cli.main(["new", "reward"]) == 2


def test_the_reward_runs_in_both_forms(tmp_path):
    file = create("reward", tmp_path / "mine.py")
    for name in ("reward", "reward_func"):
        assert [scored(file, text, "12", name).value for text in ("12", " \n")] == [1.0, 0.0]


@pytest.mark.parametrize("name", ["reward", "reward_func"])
def test_the_math_reward_knows_right_from_wrong(tmp_path, name):
    file = create("math-reward", tmp_path / "mine.py")
    pairs = [
        (r"so \boxed{12}", "12", 1.0), (r"\boxed{ 12.0 }", "12", 1.0), (r"\boxed{1/2}", "0.5", 1.0),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0), (r"\boxed{13}", "12", 0.0),
        ("12", "12", 0.0), (r"\boxed{12", "12", 0.0), (r"\boxed{}", "12", 0.0),
        (r"\boxed{1} \boxed{12}", "12", 1.0), (r"\boxed{1/0}", "12", 0.0),
        (r"<think>\boxed{12}</think> \boxed{13}", "12", 0.0),
    ]  # fmt: skip
    assert [scored(file, given, label, name).value for given, label, _ in pairs] == [
        right for *_, right in pairs
    ]


@pytest.mark.parametrize("label", ["", "  ", None])
@pytest.mark.parametrize("response", [r"\boxed{}", r"\boxed{ }", ""])
def test_empty_is_never_right_for_empty(tmp_path, label, response):
    file = create("math-reward", tmp_path / "mine.py")
    assert scored(file, response, label).status == "error"


AGENTS = [("multiturn", "success"), ("vlm-multiturn", "vlm_success")]


@pytest.mark.parametrize(("kind", "log"), AGENTS)
def test_agents_play_two_turns(tmp_path, kind, log):
    names = runpy.run_path(str(create(kind, tmp_path / "mine.py")))
    environment = names["AgentInstance"]()

    async def play(answers, label):
        start = await environment.reset({"observation": "7+5=", "label": label})
        assert start == {"observation": "7+5="}
        return [
            await environment.step(
                {"observation_text": "", "action_text": a, "label": label, "sampling_params": None}
            )
            for a in answers
        ]

    first, last = asyncio.run(play(["I say 12", "It is 12."], "12"))
    assert (first["done"], first["rewards"].item()) == (False, 0.0)
    assert first["environment_feedback"].startswith("<|im_end|>\n<|im_start|>user\n")
    assert first["environment_feedback"].endswith("<|im_start|>assistant\n")
    assert (last["done"], last["rewards"].item(), last["environment_feedback"]) == (True, 1.0, "")
    assert last["extra_logs"][log].item() == 1.0
    images = first.get("environment_images", [])
    assert len(images) == first["environment_feedback"].count("<|image_pad|>")
    assert [image.size for image in images] == [(32, 32)] * (kind == "vlm-multiturn")
    closed, _ = asyncio.run(play(["12<|im_end|>", "13"], "12"))
    assert not closed["environment_feedback"].startswith("<|im_end|>")
    for label in ("", None):
        _, last = asyncio.run(play(["12", "12"], label))
        assert last["rewards"].item() == 0.0


@pytest.mark.slow
def test_the_notebook_runs_headless_with_other_parameters(tmp_path):
    file = create("notebook", tmp_path / "mine.ipynb")
    assert {"model", "prompts", "steps", "run_folder"} <= set(parameters_of(file))
    notebook = json.loads(file.read_text())
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    os.environ.setdefault("MPLBACKEND", "Agg")
    given = {"steps": 1, "num_prompts": 4, "n": 2, "held_out": 4}
    done = run_notebook(file, tmp_path / "out", given)
    assert 0.0 <= done.summary["reward_after"] <= 1.0
    assert (done.run_folder / "reward.png").is_file()


def test_the_multiturn_agent_plays_in_a_session(tmp_path):
    """As it stands: two turns a sample, the question masked out, its rewards scored and trained."""
    file = create("multiturn", tmp_path / "mine.py")
    with nbrl.connect(run_dir=tmp_path / "run", progress="quiet") as session:
        short = nbrl.Sampling(max_new_tokens=4)
        episodes = session.rollout(session.next_prompts(2), n=2, sampling=short, agent=str(file))
        assert episodes.table.column("num_turns").to_pylist() == [2] * 4
        assert episodes.table.column("error").null_count == 4
        sources = [set(row) for row in episodes.table.column("source").to_pylist()]
        assert sources == [{SOURCE_PROMPT, SOURCE_POLICY, SOURCE_ENVIRONMENT}] * 4
        scored = session.score(episodes, nbrl.EnvironmentReward())
        assert set(scored.table.column("total").to_pylist()) <= {0.0, 1.0}
        batch = session.compute_advantages(scored, "reinforce_pp")
        assert session.train_step(batch).version_after == 1


@pytest.mark.parametrize("kind", ["reward", "math-reward"])
def test_the_rewards_score_in_a_session(kind, tmp_path):
    file = create(kind, tmp_path / "mine.py")
    with nbrl.connect(run_dir=tmp_path / "run", progress="quiet") as session:
        short = nbrl.Sampling(max_new_tokens=4)
        rollouts = session.rollout(session.next_prompts(2), n=2, sampling=short)
        scored = session.score(rollouts, {"one": str(file), "many": f"{file}:reward_func"})
        assert scored.table.column("status").to_pylist() == ["ok"] * 4
        assert scored.table.column("one").equals(scored.table.column("many"))
