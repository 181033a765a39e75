"""The way in: all that is wrong in one message, nothing loaded or made before."""

import os
import sys
import time
from pathlib import Path

import pytest

import nbrl
from nbrl.backends import models
from nbrl.config import Critic, Engine, Lora, Model, Optimizer, Trainer
from nbrl.driver.admission import folder_problems
from nbrl.errors import ConfigError, DataError, UnknownNameError


def test_all_that_is_wrong_comes_in_one_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    start = time.monotonic()
    with pytest.raises(ConfigError) as raised:
        nbrl.connect(
            "mars",
            progress="loud",
            model=Model("nobody/has-this", lora=Lora(rank=0)),
            engine=Engine(max_batch=0),
            trainer=Trainer(optimizer=Optimizer(lr=-1.0), critic=Critic(path="./nothing")),
            prompts="rows.jsonl",
            seed=-1,
            name="a\nb",
            run_dir=tmp_path / "file" / "run",
        )
    assert time.monotonic() - start < 20
    phrases = [
        "Lora.rank", "Engine.max_batch", "Optimizer.lr", "place 'mars' is unknown; known: local",
        "progress 'loud' is unknown", "Model('nobody/has-this') leads nowhere",
        "Critic.path: Model('./nothing') leads nowhere", "rows.jsonl: there is no such file",
        "seed must be a whole number >= 0; got -1", "name must be a text that can name a folder",
        "file is a file; pass another folder",
    ]  # fmt: skip
    lines = str(raised.value).splitlines()
    assert lines[0] == f"connect: {len(phrases)} problems"
    for phrase in phrases:
        assert sum(phrase in line for line in lines[1:]) == 1, phrase
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_unknown_place_alone_is_an_unknown_name():
    with pytest.raises(UnknownNameError, match="place 'mars' is unknown"):
        nbrl.connect("mars")


@pytest.mark.parametrize("name", ["", " ", "a/..", "..", "two\nlines"])
def test_a_name_must_be_able_to_name_a_folder(name):
    with pytest.raises(ConfigError, match="name must be a text that can name a folder"):
        nbrl.connect(name=name)


def test_no_model_is_loaded_for_a_folder_that_cannot_hold_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_load_causal", None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a run already; pass another run_dir"):
        nbrl.connect(run_dir=tmp_path)
    with pytest.raises(ConfigError, match="run_dir must be a folder's path; got ''"):
        nbrl.connect(run_dir="")


def test_a_run_folder_that_can_be_made_is_no_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for good in (None, tmp_path / "new" / "deep", "~/x", tmp_path):
        assert list(folder_problems(good)) == []
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    assert "holds a run already" in next(folder_problems("~/run"))


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot write to" in next(folder_problems(tmp_path / "run"))


def test_paths_are_welcome_wherever_a_path_is_meant(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"input": "1+1=", "label": "2"}\n')
    folder = Path(models.__file__).parents[1] / "assets" / "tiny"
    with nbrl.connect(
        model=folder, prompts=Path("~/rows.jsonl"), run_dir="~/run", progress="quiet"
    ) as session:
        assert session.run_dir == tmp_path / "run"
        prompts = session.next_prompts(1)
        assert prompts.table["prompt"].to_pylist() == ["1+1="]
        prompts.save("~/kept")
        assert len(nbrl.load("~/kept")) == 1
    assert (tmp_path / "kept").is_dir()


def test_a_resume_is_judged_like_any_other_request(tmp_path):
    with pytest.raises(ConfigError) as raised:
        nbrl.connect("mars", resume="", engine=Engine(max_batch=0), prompts="rows.jsonl", seed=-1)
    lines = str(raised.value).splitlines()
    assert lines[0] == "connect: 5 problems"
    assert "resume must be a folder's path; got ''" in lines[-1]


def test_prompts_that_cannot_be_drawn_from(tmp_path):
    none = nbrl.load_prompts("arithmetic", max_samples=1)[0:0]
    with pytest.raises(ConfigError, match="prompts: there are none to draw from"):
        nbrl.connect(prompts=none)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="no row has one of the keys input, prompt"):
        nbrl.connect(prompts=tmp_path / "rows.jsonl")


def test_the_spec_that_is_handed_out_is_a_copy(open_tiny):
    session = open_tiny()
    session.spec["seed"] = 7
    session.spec["trainer"]["optimizer"]["lr"] = 1.0
    session.history.spec["session"]["trainer"]["optimizer"]["lr"] = 1.0
    assert session.spec["seed"] == session.history.spec["session"]["seed"] == 0
    assert session.spec["trainer"]["optimizer"]["lr"] == 1e-3
