"""``%load_ext nbrl`` and ``%%reward``: a cell defines a reward and sees what it says."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import nbrl
from nbrl.errors import ConfigError
from nbrl.notebook import magics
from tests.values import make_prompts, make_rollouts, make_scored

EXACT = "def exact(response, label):\n    return float(len(response) > 2)\n"


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with nbrl.connect(run_dir=tmp_path_factory.mktemp("run") / "r", progress="quiet") as opened:
        yield opened


@pytest.fixture
def shell(session):
    made = InteractiveShell(display_pub_class=CapturingDisplayPublisher)
    nbrl.load_ipython_extension(made)
    made.user_ns |= {
        "session": session,
        "rollouts": make_rollouts(make_prompts(2), [1, 2, 3, 4]),
    }
    return made


def cell(shell, line, text):
    shell.display_pub.outputs.clear()
    shell.run_cell_magic("reward", line, text)
    return list(shell.display_pub.outputs)


def shown(outputs, kind="text/plain"):
    (output,) = outputs
    return output["data"][kind]


def test_a_cell_defines_a_reward_and_shows_what_it_says(shell):
    text = shown(cell(shell, "exact", EXACT))
    assert text.startswith("exact: 4 samples, mean 0.500, std 0.500")
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [
        ["0", "2", "50%"], ["1", "2", "50%"]
    ]  # fmt: skip
    assert shell.user_ns["exact"]("xxx", "") == 1.0
    (again,) = [shell.user_ns["session"].score(shell.user_ns["rollouts"], shell.user_ns["exact"])]
    assert again.table.column("total").to_pylist() == [0.0, 0.0, 1.0, 1.0]


def test_the_next_run_says_what_changed(shell):
    assert "another reward" not in shown(cell(shell, "exact", EXACT))
    text = shown(cell(shell, "exact", EXACT.replace("> 2", "> 3")))
    assert "1 of 4 samples have another reward than at the last run" in text


def test_errors_are_counted_beside_the_rest(shell):
    body = "def picky(response):\n    return 1 / (len(response) - 2)\n"
    captured = cell(shell, "picky", body)
    assert "4 samples, 1 failed" in shown(captured)
    assert "1 x ZeroDivisionError" in shown(captured).replace("  ", " ")
    assert "ZeroDivisionError" in shown(captured, "text/html")


def test_a_reward_that_says_nothing_is_warned_of(shell):
    assert "every sample has the same reward, 1" in shown(
        cell(shell, "one", "one = lambda response: 1")
    )


def test_text_of_models_is_no_html(shell):
    texts = nbrl.Rollouts(
        table=shell.user_ns["rollouts"].table.set_column(
            3, "response", [["<img src=x onerror=alert(1)>"] * 4]
        ),
        prompts=shell.user_ns["rollouts"].prompts,
    )
    shell.user_ns["rollouts"] = texts
    body = "def odd(response):\n    raise ValueError('<script>')\n"
    for text in (shown(cell(shell, "exact", EXACT), "text/html"),
                 shown(cell(shell, "odd", body), "text/html")):  # fmt: skip
        assert "<img" not in text
        assert "<script" not in text


def test_the_samples_may_be_named(shell):
    few = make_rollouts(make_prompts(1), [5, 5])
    shell.user_ns["few"] = make_scored(few, [0.0, 1.0])
    assert "2 samples, mean 1.000" in shown(cell(shell, "exact", EXACT))
    assert "4 samples" in shown(cell(shell, "exact --on rollouts", EXACT))
    assert "3 samples" in shown(cell(shell, "exact --on rollouts --samples 3", EXACT))
    for line, said in (("exact --on nothing", "holds nothing"), ("exact --on session", "Session")):
        with pytest.raises(UsageError, match=said):
            cell(shell, line, EXACT)


def test_stored_samples_are_asked_about_the_world_only_where_it_is_meant(shell):
    shell.user_ns["kept"] = dataclasses.replace(shell.user_ns["rollouts"], stored=True)
    world = EXACT + "exact.replayable = False\n"
    with pytest.raises(UsageError, match="'exact' depends on the world"):
        cell(shell, "exact --on kept", world)
    assert "4 samples" in shown(cell(shell, "exact --on kept --replay", world))
    assert shell.user_ns["_exact_scored"].spec["replayed"] == ["exact"]


def test_what_is_missing_is_said(shell):
    del shell.user_ns["rollouts"]
    with pytest.raises(UsageError, match=r"run `rollouts = session\.rollout"):
        cell(shell, "exact", EXACT)
    del shell.user_ns["session"]
    with pytest.raises(UsageError, match=r"run `session = nbrl\.connect"):
        cell(shell, "exact", EXACT)


@pytest.mark.parametrize(
    ("line", "body", "said"),
    [
        ("exact", "x = 1", "defines no function"),
        ("exact", "def exact(", "line 1 of the cell is no Python"),
        ("2x", EXACT, "must be an identifier"),
        ("", EXACT, "required"),
        ("exact --on", EXACT, "expected one argument"),
        ("exact", "def exact(weird):\n    return 1.0", "weird"),
    ],
)
def test_cells_that_cannot_work_are_refused(shell, line, body, said):
    with pytest.raises((UsageError, ConfigError), match=said):
        cell(shell, line, body)


def test_a_cell_that_fails_shows_its_own_traceback(shell, capsys):
    assert cell(shell, "exact", EXACT + "1 / 0\n") == []
    captured = capsys.readouterr()
    assert "ZeroDivisionError" in captured.out + captured.err


def test_the_function_that_is_meant():
    two = "def helper(x):\n    return x\n\ndef other(response):\n    return 1\n"
    assert magics._function_name("mine", two) == "other"
    assert magics._function_name("helper", two) == "helper"
    assert magics._function_name("mine", two + "def reward(response): ...") == "reward"
    assert magics._function_name("mine", "async def judge(response):\n    return 1\n") == "judge"


def test_distributions_by_value_or_range():
    assert magics.distribution(np.array([])) == []
    assert magics.distribution(np.array([0.0, 0.0, 0.0, 1.0])) == [
        ("0", 3, "75%", magics.BLOCK * 24), ("1", 1, "25%", magics.BLOCK * 8)
    ]  # fmt: skip
    many = magics.distribution(np.linspace(0, 1, 80))
    assert len(many) == 8
    assert [n for _, n, *_ in many] == [10] * 8


def test_loading_the_extension_needs_no_engine():
    code = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell as S; s = S();"
        "s.extension_manager.load_extension('nbrl'); s.extension_manager.load_extension('nbrl');"
        "print('reward' in s.magics_manager.magics['cell'],"
        " [m for m in ('ray', 'vllm', 'deepspeed') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True []"
