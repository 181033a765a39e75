"""Headless notebooks: strict parameters, a new run folder each time, work done once."""

import json

import nbformat
import pytest
from papermill.exceptions import PapermillExecutionError

from nbrl.errors import ConfigError, DataError
from nbrl.notebook import batch

PARAMETERS = 'steps = 3  # how many\nmodel: str = "tiny"\nrun_folder = "runs/x"\n'
LAST = """
import json, pathlib
folder = pathlib.Path(run_folder)
folder.mkdir()
(folder / "summary.json").write_text(json.dumps(
    {"reward_before": 0.25, "reward_after": steps / 10, "plots": ["a.png"],
     "run_folder": run_folder, "model": model, "cwd": str(pathlib.Path.cwd())}))
"""


def make_notebook(path, parameters=PARAMETERS, last=LAST):
    cells = [nbformat.v4.new_code_cell(parameters), nbformat.v4.new_code_cell(last)]
    cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_parameters_are_read_with_their_defaults(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    assert batch.parameters_of(notebook) == {
        "steps": "3",
        "model": "'tiny'",
        "run_folder": "'runs/x'",
    }


def test_unknown_parameters_stop_before_anything_runs(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    with pytest.raises(ConfigError) as raised:
        batch.execute(notebook, tmp_path / "out", parameters={"step": 1, "run_folder": "x"})
    assert "2 problems" in str(raised.value)
    assert "'step' is no parameter" in str(raised.value)
    assert "steps=3" in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["no notebook", "{}"])
def test_what_is_no_notebook_says_so(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(DataError, match="is not a notebook"):
        batch.parameters_of(tmp_path / "a.ipynb")


def test_a_notebook_without_parameters_says_so(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    cells = nbformat.read(notebook, 4)
    cells.cells[0].metadata["tags"] = []
    nbformat.write(cells, notebook)
    with pytest.raises(DataError, match=r"exactly one cell tagged 'parameters'; it has 0"):
        batch.execute(notebook, tmp_path / "out")


@pytest.mark.slow
def test_a_notebook_runs_once_until_something_changes(tmp_path, capsys):
    (tmp_path / "books").mkdir()
    notebook = make_notebook(tmp_path / "books" / "a.ipynb")
    out = tmp_path / "out"
    call = [str(notebook), str(out), "-p", "steps=7", "-p", "model=a=b"]

    assert batch.main(call) == 0
    said = capsys.readouterr().out
    assert "0.250 before, 0.700 after" in said
    assert str(out / "run-1" / "a.png") in said
    summary = json.loads((out / "run-1" / "summary.json").read_text())
    assert summary["model"] == "a=b"
    assert summary["cwd"] == str(notebook.parent)
    assert nbformat.read(out / "a.ipynb", 4).cells[-1].execution_count is not None
    assert nbformat.read(notebook, 4).cells[-1].execution_count is None

    assert batch.main(call) == 0
    said = capsys.readouterr().out
    assert "nothing changed" in said
    assert "0.250 before, 0.700 after" in said
    assert not (out / "run-2").exists()

    assert batch.main([*call[:2], "-p", "steps=8"]) == 0
    assert "0.800 after" in capsys.readouterr().out
    assert (out / "run-1").is_dir()
    assert (out / "run-2").is_dir()


@pytest.mark.slow
def test_a_cell_that_raises_is_a_failure_that_the_notebook_keeps(tmp_path, capsys):
    notebook = make_notebook(tmp_path / "a.ipynb", last="1 / 0")
    with pytest.raises(PapermillExecutionError, match="ZeroDivisionError"):
        batch.execute(notebook, tmp_path / "out")
    assert batch.main([str(notebook), str(tmp_path / "out")]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert "ZeroDivisionError" in (tmp_path / "out" / "a.ipynb").read_text()


@pytest.mark.slow
def test_a_notebook_without_a_summary_is_a_failure(tmp_path, capsys):
    notebook = make_notebook(tmp_path / "a.ipynb", last="pass")
    assert batch.main([str(notebook), str(tmp_path / "out")]) == 1
    assert "wrote no" in capsys.readouterr().err
    last = LAST.replace('"plots": ["a.png"],', "")
    notebook = make_notebook(tmp_path / "b.ipynb", last=last)
    assert batch.main([str(notebook), str(tmp_path / "out")]) == 1
    assert "lacks ['plots']" in capsys.readouterr().err


def test_a_bad_call_is_told_apart_from_a_failure(tmp_path, capsys):
    notebook = make_notebook(tmp_path / "a.ipynb")
    assert batch.main([str(notebook), str(tmp_path / "out"), "-p", "steps"]) == 2
    assert "NAME=VALUE; got 'steps'" in capsys.readouterr().err
    assert batch.main([str(notebook), str(tmp_path / "out"), "-p", "what=1"]) == 2
    assert "'what' is no parameter" in capsys.readouterr().err


def test_a_notebook_is_never_overwritten_by_its_copy(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    before = notebook.read_bytes()
    with pytest.raises(ConfigError, match="would be overwritten"):
        batch.execute(notebook, tmp_path)
    assert notebook.read_bytes() == before
