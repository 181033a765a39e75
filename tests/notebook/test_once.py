"""``nbrl run --once``: what is done already is not done again, and what came of it is said."""

import json
from pathlib import Path

import nbformat
import pytest

from nbrl.errors import DataError
from nbrl.notebook import batch_runs
from nbrl.notebook.cli import main
from nbrl.notebook.execution import Outcome, summary_of
from tests.notebook.test_run import make_notebook

PARAMETERS = 'steps = 3  # how many\nmodel: str = "tiny"\nrun_folder = "runs/x"\n'
LAST = """
import json, pathlib
folder = pathlib.Path(run_folder)
folder.mkdir()
(folder / "summary.json").write_text(json.dumps(
    {"reward_before": 0.25, "reward_after": steps / 10, "plots": ["a.png"],
     "run_folder": run_folder, "model": model, "cwd": str(pathlib.Path.cwd())}))
"""


@pytest.mark.slow
def test_a_notebook_runs_once_until_something_changes(tmp_path, capsys):
    (tmp_path / "books").mkdir()
    notebook = make_notebook(tmp_path / "books" / "a.ipynb", LAST, PARAMETERS)
    out = tmp_path / "out"
    call = ["run", str(notebook), "--out", str(out), "--once", "-p", "model=a=b", "-p", "steps"]

    assert main([*call, "7"]) == 0
    first = capsys.readouterr()
    for said in ("0.250 before, 0.700 after", out / "run" / "a.png", out / "a.ipynb"):
        assert str(said) in first.err
    summary = json.loads((out / "run" / "summary.json").read_text())
    assert (summary["model"], summary["cwd"]) == ("a=b", str(notebook.parent))
    assert nbformat.read(out / "a.ipynb", 4).cells[-1].execution_count is not None

    assert main([*call, "7"]) == 0
    again = capsys.readouterr()
    assert "nothing changed" in again.err
    assert "0.250 before, 0.700 after" in again.err
    assert again.out == first.out
    assert not (out / "run-2").exists()

    assert main([*call, "8"]) == 0
    assert "0.800 after" in capsys.readouterr().err
    assert json.loads((out / "run" / "summary.json").read_text()) == summary
    assert (out / "run-2").is_dir()


def outcome(folder, **changed):
    facts = {
        "code": 0, "folder": str(folder), "notebook": str(folder / "a.ipynb"), "run_folder": None,
        "made_by": "x", "parameters": {}, "seconds": 1.0, "cell": None, "error": None,
        "results": {},
    }  # fmt: skip
    return Outcome(**(facts | changed))


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "damaged"), ("[]", "damaged"), ('{"state": "running"}', "not over"), (None, "")],
)
def test_only_a_whole_record_of_an_equal_run_is_one(tmp_path, text, said):
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    heard = []
    assert batch_runs.done_before(tmp_path, "x", heard.append) is None
    assert said in "".join(heard)
    whole = outcome(tmp_path)
    (tmp_path / "status.json").write_text(whole.line())
    assert batch_runs.done_before(tmp_path, "x", heard.append) is None
    Path(whole.notebook).touch()
    assert batch_runs.done_before(tmp_path, "x", heard.append) == whole
    assert batch_runs.done_before(tmp_path, "y", heard.append) is None
    (tmp_path / "status.json").write_text(outcome(tmp_path, code=1).line())
    assert batch_runs.done_before(tmp_path, "x", heard.append) is None


@pytest.mark.parametrize(("text", "said"), [("{", "is not JSON"), ("[]", "must hold an object")])
def test_a_summary_that_is_none_says_so(tmp_path, text, said):
    assert summary_of(str(tmp_path)) == {}
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(DataError, match=said):
        summary_of(str(tmp_path))


def test_what_makes_no_sense_with_it_is_refused(tmp_path, capsys):
    notebook = make_notebook(tmp_path / "a.ipynb")
    assert main(["run", str(notebook), "--once"]) == 2
    assert "pass --out" in capsys.readouterr().err
    assert main(["run", str(notebook), "--once", "--seeds", "0", "--out", str(tmp_path)]) == 2
    assert "Drop it" in capsys.readouterr().err


def test_a_notebook_is_never_overwritten_by_its_copy(tmp_path, capsys):
    notebook = make_notebook(tmp_path / "a.ipynb")
    before = notebook.read_bytes()
    assert main(["run", str(notebook), "--out", str(tmp_path)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert notebook.read_bytes() == before
