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


@pytest.mark.parametrize(
    "text",
    ["no notebook", "{}", "[]", "3", '{"cells": 5}', '{"cells": [3], "nbformat": 4}', "\ufffd"],
)
def test_what_is_no_notebook_says_so(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(DataError, match="is not a notebook"):
        batch.parameters_of(tmp_path / "a.ipynb")
    assert batch.main([str(tmp_path / "a.ipynb"), str(tmp_path / "out")]) == 2
    assert batch.main([str(tmp_path / "none.ipynb"), str(tmp_path / "out")]) == 2


def test_a_parameters_cell_that_is_no_python_says_so(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb", parameters="steps = 3\n%matplotlib inline\n")
    with pytest.raises(DataError, match=r"no Python, line 2: .*'%matplotlib inline'"):
        batch.parameters_of(notebook)


KINDS = """
steps = 3
lr = 1e-3
big = True
name = "tiny"
sizes = [1, 2]
limit = None
top = 2 * 3
run_folder = "runs/x"
"""


def test_values_are_of_the_kind_of_the_notebook_s_own(tmp_path, capsys):
    notebook = make_notebook(tmp_path / "a.ipynb", parameters=KINDS)
    right = {"steps": 4, "lr": 1, "big": False, "name": "5", "sizes": [], "limit": 3, "top": "x"}
    batch.check_parameters(notebook, right)
    wrong = {"steps": "abc", "lr": "0.1", "big": 1, "name": 5, "sizes": 3, "limit": "any"}
    with pytest.raises(ConfigError) as raised:
        batch.check_parameters(notebook, wrong)
    lines = str(raised.value).splitlines()
    assert lines[0] == "execute a.ipynb: 5 problems"
    assert "steps is int in the notebook (steps=3); got str 'abc'" in lines[1]
    for name, line in zip(("steps", "lr", "big", "name", "sizes"), lines[1:], strict=True):
        assert f"  - {name} is" in line
    for value in (True, 2.5):
        with pytest.raises(ConfigError, match="steps is int in the notebook"):
            batch.check_parameters(notebook, {"steps": value})
    assert batch.main([str(notebook), str(tmp_path / "out"), "-p", "steps=abc"]) == 2
    assert "got str 'abc'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_text_stays_a_text_whatever_it_looks_like():
    known = {"name": "'tiny'", "steps": "3", "limit": "None"}
    assert batch._parameter("name=5", known) == ("name", "5")
    assert batch._parameter("steps=5", known) == ("steps", 5)
    assert batch._parameter("limit=true", known) == ("limit", True)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"digest": 1, "run": "run-1", "seconds": 1}'])
def test_a_damaged_record_of_an_execution_is_none(tmp_path, text):
    (tmp_path / "done.json").write_text(text)
    assert batch._read_record(tmp_path / "done.json") is None
    (tmp_path / "done.json").write_text('{"digest": "a", "run": "run-1", "seconds": 1}')
    assert batch._read_record(tmp_path / "done.json") == {
        "digest": "a",
        "run": "run-1",
        "seconds": 1,
    }


@pytest.mark.parametrize(("text", "said"), [("{", "is not JSON"), ("[]", "must hold an object")])
def test_a_summary_that_is_none_says_so(tmp_path, text, said):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(DataError, match=said):
        batch._read_summary(tmp_path)


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
