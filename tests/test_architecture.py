"""The house stands: imports go one way, modules stay small, nothing leaks into the tree."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "nbrl", "tests", "notebooks", "reward_fns", "benchmarks", "docs", "requirements", ".ci"
)  # fmt: skip
# what using the project leaves behind is nobody's text
LEFT_BEHIND = {"__pycache__", ".ipynb_checkpoints", "runs"}
MODULES = sorted(p for p in (ROOT / "nbrl").rglob("*.py"))
TEXTS = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".txt", ".in", ".ipynb", ".svg", ".json", ".js", ".css", ""}
    and path.is_file()
    and not LEFT_BEHIND & set(path.relative_to(ROOT).parts[:-1])
) + sorted(p for p in ROOT.iterdir() if p.suffix in {".md", ".toml", ".yml", ".yaml"})
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# in pieces, so that this file does not find itself
FOREIGN = re.compile(
    r"(?<![\w.$~-])/(wor[k]|far[m]|roo[t]|hom[e]|tm[p])/"
    r"|py[p]i[.]org|pythonho[s]ted|registry[.]np[m]js|deb[.]debi[a]n|download[.]py[t]orch"
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_imports_keep_the_contracts():
    done = run(sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
        ("functional", "import nbrl.types.samples", "layers"),
        ("stages", "import nbrl.backends.models", "layers"),
        ("backends", "import nbrl.stages.batching", "layers"),
        ("driver", "import nbrl.notebook.plots", "layers"),
        ("backends/trainers", "import nbrl.backends.engines", "rooms"),
        ("driver", "import ray", "ray"),
        ("stages", "import transformers", "maths"),
        ("", "", "layers"),
    ],
)
def test_the_contracts_notice_what_they_forbid(tmp_path, room, line, contract):
    shutil.copytree(ROOT / "nbrl", tmp_path / "nbrl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "nbrl" / room / "intruder.py").write_text(f"{line}\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "from importlinter.cli import lint_imports_command as c; c()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--contract", contract],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "intruder" in done.stdout


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_code_has_the_houses_shape(command):
    done = run(sys.executable, "-m", "ruff", *command, ".")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_are_small_and_say_what_they_do(path):
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400, "look first whether the room is too big"
    assert ast.get_docstring(ast.parse(source)), "the first line says what the module does"
    assert source.isascii()


def trees() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES
    }


def test_no_room_probes():
    """Neither ``hasattr`` nor ``getattr`` with a default."""
    found = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
            if named == "hasattr" or (named == "getattr" and len(node.args) > 2):
                found.append(f"{path}:{node.lineno} {named}")
    assert found == []


def test_no_class_of_ours_is_inherited_from():
    """Exceptions aside: a class is a protocol or a leaf, and nobody calls ``super``."""
    classes = [
        (path, node)
        for path, tree in trees().items()
        if path != "nbrl/errors.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    ours = {node.name for _, node in classes}
    found = [
        f"{path}:{node.lineno} {base.id}"
        for path, node in classes
        for base in node.bases
        if isinstance(base, ast.Name) and base.id in ours
    ]
    found += [
        f"{path}:{node.lineno} super"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "super"
    ]
    assert found == []


def test_engines_and_clusters_are_never_imported_with_a_module():
    """Ruff holds TID253; this holds that nobody switches it off outside of remote/."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    off = [k for k, rules in config["per-file-ignores"].items() if "TID253" in rules]
    assert off == ["nbrl/remote/**"]
    assert set(config["flake8-tidy-imports"]["banned-module-level-imports"]) == {
        "vllm",
        "deepspeed",
        "ray",
    }
    silenced = [
        str(path.relative_to(ROOT)) for path in MODULES if "TID253" in path.read_text("utf-8")
    ]
    assert silenced == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_are_stored_without_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert "papermill" not in notebook["metadata"]
    assert "widgets" not in notebook["metadata"]
    for cell in notebook["cells"]:
        assert "papermill" not in cell["metadata"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_no_file_names_a_machine_or_a_registry():
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in TEXTS
        if (match := FOREIGN.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize("text", ["open('/wo" + "rk/main')", "https://py" + "pi.org/simple"])
def test_the_search_for_foreign_places_finds_them(text):
    assert FOREIGN.search(text)


def test_tests_mirror_the_house():
    """A folder of tests is named as a room of the package."""
    rooms = {p.name for p in (ROOT / "nbrl").rglob("*") if p.is_dir()} | set(FOLDERS)
    folders = {p.name for p in (ROOT / "tests").rglob("*") if p.is_dir() and p.name[0] not in "_."}
    assert folders - rooms - {"fixtures", "golden", "data"} == set()
