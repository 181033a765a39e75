"""The run folder."""

import json

import pytest

from nbrl.driver.store import RunFolder, open_run_folder
from nbrl.errors import StoreError


def test_config_and_metrics_can_be_read_back(tmp_path):
    folder = open_run_folder(tmp_path / "run", "tiny")
    folder.write_config({"seed": 3})
    folder.append_metrics({"version": 1, "reward": 0.5})
    folder.append_metrics({"version": 2, "reward": 0.75})
    assert json.loads(folder.config_path.read_text()) == {"seed": 3}
    lines = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
    assert lines == [{"version": 1, "reward": 0.5}, {"version": 2, "reward": 0.75}]


def test_a_folder_with_a_run_is_refused(tmp_path):
    open_run_folder(tmp_path, "tiny").write_config({})
    with pytest.raises(StoreError, match="holds a run already"):
        open_run_folder(tmp_path, "tiny")


def test_unnamed_folders_never_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = {open_run_folder(None, "tiny").path for _ in range(3)}
    assert len(made) == 3
    assert all(path.parent == tmp_path / "runs" for path in made)


def test_a_full_disk_is_said_and_the_old_config_stays(tmp_path, monkeypatch):
    folder = open_run_folder(tmp_path, "tiny")
    folder.write_config({"seed": 1})

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(StoreError, match="No space left"):
        folder.write_config({"seed": 2})
    assert json.loads(folder.config_path.read_text()) == {"seed": 1}


def test_metrics_that_cannot_be_written_raise(tmp_path):
    with pytest.raises(StoreError, match="could not write"):
        RunFolder(tmp_path / "gone").append_metrics({"version": 1})
