"""What all tests share: no download, no window, repeatable examples, missing extras."""

import importlib.util
import os
import shutil

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

# two shared cores make a single example's time meaningless; in CI every run draws the same examples
settings.register_profile("home", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")

NEEDS = {
    "browser": lambda: shutil.which("chromium") is not None,
    "ray": lambda: importlib.util.find_spec("ray") is not None,
    "vllm": lambda: importlib.util.find_spec("vllm") is not None,
    "deepspeed": lambda: importlib.util.find_spec("deepspeed") is not None,
    "gpu": lambda: importlib.import_module("torch").cuda.is_available(),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A missing extra skips its tests at home and fails them where NBRL_REQUIRE_ALL is set."""
    for name, is_there in NEEDS.items():
        if item.get_closest_marker(name) and not is_there():
            give_up = pytest.fail if os.environ.get("NBRL_REQUIRE_ALL") else pytest.skip
            give_up(f"needs {name}")
