"""``nbrl run``: strict parameters, exit codes, one line of JSON, sweeps that go on."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pandas as pd
import pytest

from nbrl.errors import ConfigError, DataError
from nbrl.notebook import sweep
from nbrl.notebook.cli import _joined, main
from nbrl.notebook.execution import execute_run
from nbrl.notebook.parameters import checked, parameters_of

PARAMETERS = """
from typing import Literal
steps: int = 3  # how many
lr = 3e-4  # the rate
model: Literal["tiny", "big"] = "tiny"
flag = False
sizes = [1, 2]
anything = None
seed = 0
run_folder = None
"""
BODY = """
import nbrl
nbrl.record("score", seed + 10 * lr)
nbrl.record("kind", type(lr).__name__)
"""


def make_notebook(path, body=BODY, parameters=PARAMETERS):
    cells = [nbformat.v4.new_code_cell(parameters), nbformat.v4.new_code_cell(body)]
    cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def command(*arguments):
    return [sys.executable, "-m", "nbrl.notebook.cli", "run", *map(str, arguments)]


def last_line(text):
    return json.loads(text.strip().splitlines()[-1])


def test_parameters_are_read_with_help_and_choices(tmp_path):
    known = parameters_of(make_notebook(tmp_path / "a.ipynb"))
    assert known["steps"].help == "how many"
    assert known["lr"].default == 3e-4
    assert known["model"].choices == ("tiny", "big")
    assert list(known)[-1] == "run_folder"


def test_types_are_kept(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    texts = {"steps": "7", "lr": "1", "flag": "true", "sizes": "[3]", "anything": "x=y"}
    values = checked(notebook, texts | {"model": "big"})
    assert values == {
        "steps": 7, "lr": 1.0, "flag": True, "sizes": [3], "anything": "x=y", "model": "big",
    }  # fmt: skip
    assert type(values["lr"]) is float
    assert checked(notebook, {"anything": "null", "steps": "null"})["steps"] is None


def test_everything_wrong_is_said_at_once(tmp_path):
    given = {
        "step": "1",
        "steps": "1.5",
        "flag": "1",
        "sizes": "3",
        "model": "x",
        "run_folder": "y",
    }
    with pytest.raises(ConfigError) as raised:
        checked(make_notebook(tmp_path / "a.ipynb"), given)
    for said in (
        "6 problems", "'step' is no parameter", "steps is int (3); got float '1.5'",
        "flag is bool (False); got int", "sizes is a list", "model must be one of", "--out",
    ):  # fmt: skip
        assert said in str(raised.value)


@pytest.mark.parametrize("text", ["no notebook", "{}", "[1]", '{"cells": 3}', '{"cells": [4]}'])
def test_what_is_no_notebook_says_so(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(DataError, match="is not a notebook"):
        parameters_of(tmp_path / "a.ipynb")


def test_a_parameters_cell_that_is_none_says_so(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb", parameters="steps = 3\n%matplotlib inline\n")
    with pytest.raises(DataError, match=r"is no Python: .*line 2"):
        parameters_of(notebook)
    cells = nbformat.read(notebook, 4)
    cells.cells[0].metadata["tags"] = []
    nbformat.write(cells, notebook)
    with pytest.raises(DataError, match=r"exactly one cell tagged 'parameters'; it has 0"):
        parameters_of(notebook)


def test_a_pair_of_words_is_a_parameter():
    given = ["run", "a.ipynb", "-p", "k", "v", "-p", "x=1", "--parameter", "e", "a=b", "-p"]
    assert _joined(given) == [
        "run", "a.ipynb", "-p", "k=v", "-p", "x=1", "--parameter", "e=a=b", "-p",
    ]  # fmt: skip
    assert sweep.read_seeds("2..4") == [2, 3, 4]
    assert sweep.read_seeds("5,1") == [5, 1]
    with pytest.raises(ConfigError, match="span"):
        sweep.read_seeds("4..2")


def test_a_bad_call_is_refused_before_a_kernel_starts(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    out = tmp_path / "out"
    for more in (["-p", "what", "1"], ["-p", "steps", "x"], ["-p", "steps"]):
        assert main(["run", str(notebook), "--out", str(out), *more]) == 2
    assert not out.exists()


@pytest.mark.slow
def test_a_run_has_its_folder_its_results_and_its_line(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    out = tmp_path / "out"
    call = command(notebook, "--out", out, "-p", "lr", "1", "-p", "seed", "2")
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    line = last_line(done.stdout)
    assert line["results"] == {"score": 12.0, "kind": "float"}
    assert (line["code"], line["parameters"]) == (0, {"lr": 1.0, "seed": 2})
    executed = nbformat.read(out / "a.ipynb", 4)
    assert executed.metadata["nbrl"]["parameters"] == {"lr": 1.0, "seed": 2}
    assert "widgets" not in executed.metadata
    assert json.loads((out / "status.json").read_text())["state"] == "done"
    assert nbformat.read(notebook, 4).cells[-1].execution_count is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import sys; sys.exit(7)", 7, "SystemExit"),
        ("class ClusterError(OSError): pass\nraise ClusterError('no head')", 3, "no head"),
        ("import os; os._exit(9)", 4, "kernel died"),
        ("import time; time.sleep(60)", 5, "timed out"),
    ],
)
def test_the_code_says_what_went_wrong(tmp_path, body, code, said):
    notebook = make_notebook(tmp_path / "a.ipynb", body)
    outcome = execute_run(notebook, tmp_path / "out", {}, timeout=8.0 if code == 5 else None)
    assert outcome.code == code, outcome
    assert said in outcome.error
    assert (tmp_path / "out" / "a.ipynb").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_saves_its_notebook_and_ends_its_work(tmp_path, number):
    body = f"""
import pathlib, time
try:
    pathlib.Path({str(tmp_path / "begun")!r}).touch()
    time.sleep(100)
finally:
    pathlib.Path({str(tmp_path / "cleaned")!r}).touch()
"""
    notebook = make_notebook(tmp_path / "a.ipynb", body)
    process = subprocess.Popen(
        command(notebook, "--out", tmp_path / "out"), stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 100
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.1)
    os.kill(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert last_line(said)["code"] == 128 + number
    assert (tmp_path / "cleaned").exists()
    assert "KeyboardInterrupt" in (tmp_path / "out" / "a.ipynb").read_text()


@pytest.mark.slow
def test_a_sweep_tables_its_seeds_and_goes_on_where_it_stopped(tmp_path):
    body = "import pathlib\nif seed == 1 and lr == 2.0 and not pathlib.Path(mark).exists(): 1 / 0\n"
    parameters = PARAMETERS + f"mark = {str(tmp_path / 'mark')!r}\n"
    notebook = make_notebook(tmp_path / "a.ipynb", body + BODY, parameters)
    (tmp_path / "grid.yml").write_text("lr: [1.0, 2.0]\n")
    out = tmp_path / "out"
    more = ["--grid", tmp_path / "grid.yml", "--seeds", "0..1", "--jobs", 2, "--out", out]
    call = command(notebook, *more)
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1
    assert len(last_line(done.stdout)["failed"]) == 1
    assert "ZeroDivisionError" in done.stderr
    (tmp_path / "mark").touch()
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "3 of 4 runs are done already" in done.stderr
    table = pd.read_csv(out / "summary.csv")
    assert table["mean"].tolist() == [10.5, 20.5]
    assert table["seeds"].tolist() == [2, 2]
    assert table["difference"].tolist() == [0.0, 10.0]
    assert table["difference_low"].tolist() == [0.0, 10.0]
    assert table["low"][0] == pytest.approx(10.5 - 12.706 * 0.5, abs=1e-2)


def test_a_sweep_is_checked_before_its_first_run(tmp_path):
    notebook = make_notebook(tmp_path / "a.ipynb")
    with pytest.raises(ConfigError, match="both fixed and in the grid"):
        sweep.cells_of(notebook, tmp_path, {"lr": "1"}, {"lr": [1.0]}, None)
    with pytest.raises(ConfigError, match="lr is float"):
        sweep.cells_of(notebook, tmp_path, {}, {"lr": [1.0, "x"]}, None)
    with pytest.raises(ConfigError, match="sets the parameter 'seed'"):
        sweep.cells_of(notebook, tmp_path, {"seed": "1"}, {}, [1])
    (tmp_path / "grid.yml").write_text("lr: 3\n")
    with pytest.raises(DataError, match="must be lists"):
        sweep.read_grid(tmp_path / "grid.yml")
