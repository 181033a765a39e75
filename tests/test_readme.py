"""README's promises: its links lead somewhere, its commands exist, its six lines run."""

import re
from pathlib import Path

import pytest

import nbrl

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    broken = [k for k in links if "://" not in k and not (page.parent / k).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_has_every_target_that_is_named(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.M))
    assert named <= targets


def test_the_first_screen_says_what_how_and_shows_the_loop():
    first = README.splitlines()[:25]
    commands = [line.split("#")[0].strip() for line in first if line.startswith("make ")]
    assert commands == ["make demo", "make lab"]
    assert any("docs/loop.svg" in line for line in first)


def test_modules_and_notebooks_that_commands_name_exist():
    commands = "\n".join(body for kind, body in BLOCKS if kind == "bash")
    for module in re.findall(r"python -m ([\w.]+)", commands):
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), module
    for notebook in re.findall(r"notebooks/\w+\.ipynb", commands):
        assert (ROOT / notebook).is_file()


def test_every_notebook_is_in_the_index():
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"(notebooks/{notebook.name})" in README


def test_public_names_that_are_mentioned_exist():
    mentioned = set(re.findall(r"`nbrl\.([A-Za-z_]\w*)", README))
    modules = {p.stem for p in (ROOT / "nbrl").iterdir()}
    assert mentioned
    assert mentioned <= set(nbrl.__all__) | modules


@pytest.mark.slow
def test_the_six_lines_run(tmp_path, monkeypatch):
    code, *others = [body for kind, body in BLOCKS if kind == "python"]
    assert all(compile(other, "README.md", "exec") for other in others)
    (tmp_path / "reward_fns").symlink_to(ROOT / "reward_fns")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(names["rollouts"]) == 256
    assert (names["result"].version_before, names["result"].version_after) == (0, 1)
    assert names["result"].metrics["grad_norm"].value > 0
    names["session"].close()
