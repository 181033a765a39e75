"""The command line: quick to help, refuses in words, loads nothing that a command does not use."""

import subprocess
import sys
import time

import pytest

from nbrl.errors import ConfigError
from nbrl.notebook import cli, doctor

HEAVY = ("torch", "transformers", "ray", "vllm", "pandas", "pyarrow", "matplotlib", "fastapi")


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys; from nbrl.notebook.cli import main; status = main(['--help']);"
        f"print([m for m in {HEAVY!r} if m in sys.modules], status)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"
    assert all(f"  {name} " in done.stdout for name in cli.COMMANDS)
    # a second on a machine of its own; this one may be shared
    assert time.perf_counter() - start < 3.0


def test_unknown_commands_and_options_are_refused(capsys):
    assert cli.main(["rum"]) == 2
    assert "rum" in capsys.readouterr().err
    assert cli.main(["doctor", "--loud"]) == 2
    assert "--loud" in capsys.readouterr().err


def test_a_refusal_of_ours_is_a_line_and_no_traceback(capsys, monkeypatch):
    def refuse() -> None:
        raise ConfigError("it was asked for 3, allowed are 1 and 2.")

    monkeypatch.setattr(cli, "COMMANDS", {"refuse": refuse, "other": refuse})
    assert cli.main(["refuse"]) == 2
    assert capsys.readouterr().err == "it was asked for 3, allowed are 1 and 2.\n"


def test_doctor_says_one_line_a_thing(capsys):
    status = cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert [line.split()[1] for line in lines[:5]] == [
        "python", "machine", "devices", "compiler", "nbrl"
    ]  # fmt: skip
    assert any("torch 2.13" in line for line in lines)


@pytest.mark.parametrize(
    ("line", "fine", "said"),
    [
        ("pytest>=1", True, "pytest"),
        ("pytest<1", False, "is not <1"),
        ("nbrl-is-no-such-package", False, "nbrl-is-no-such-package is missing"),
    ],
)
def test_doctor_tells_what_is_missing_from_what_is_there(line, fine, said):
    found = doctor._extra("dev", [doctor.Requirement(line)])
    assert (found.fine, found.optional) == (fine, True)
    assert said in found.said
    assert found.remedy == ("" if fine else "pip install 'nbrl[dev]'")


def test_only_what_nbrl_cannot_do_without_is_a_failure():
    lacking = doctor.Finding(name="nbrl", said="torch is missing", fine=False)
    missing = doctor.Finding(name="extra lora", said="peft is missing", fine=False, optional=True)
    assert [line[:2] for line in doctor.report([lacking, missing]).splitlines()] == ["NO", "--"]
