"""Whole files and lines on a disk that fails at any of its calls."""

import errno
import os

import pytest

from nbrl.driver.store import files
from nbrl.errors import StoreError
from tests.faults import FaultyOS

ERRORS = [errno.ENOSPC, errno.EIO]


def calls_of(monkeypatch, work):
    """How many calls that can fail the work makes."""
    counting = FaultyOS()
    with monkeypatch.context() as patched:
        patched.setattr(files, "os", counting)
        work()
    return counting.calls


@pytest.mark.parametrize("error", ERRORS)
def test_a_file_is_the_old_or_the_new_one_wherever_the_disk_fails(tmp_path, monkeypatch, error):
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})
    calls = calls_of(monkeypatch, lambda: files.write_json(tmp_path / "b.json", {"new": 2}))
    assert calls >= 4
    for at in range(calls):
        with monkeypatch.context() as patched:
            patched.setattr(files, "os", FaultyOS(at, error))
            with pytest.raises(StoreError, match=os.strerror(error)):
                files.write_json(path, {"new": 2})
        assert files.read_json(path) in ({"old": 1}, {"new": 2})
        assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("error", ERRORS)
def test_lines_are_whole_wherever_the_disk_fails(tmp_path, monkeypatch, error):
    path = tmp_path / "lines.jsonl"
    files.append_line(path, {"step": 1})
    calls = calls_of(monkeypatch, lambda: files.append_line(path, {"step": 2}))
    for at in range(calls):
        with monkeypatch.context() as patched:
            patched.setattr(files, "os", FaultyOS(at, error))
            with pytest.raises(StoreError, match=os.strerror(error)):
                files.append_line(path, {"step": 3})
        assert files.read_lines(path) == [{"step": 1}, {"step": 2}]


def test_secrets_of_the_environment_are_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-0123456789")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijk")
    monkeypatch.setenv("HOME_OF_KEYS", "short")
    files.write_json(tmp_path / "a.json", {"url": "https://x:hf_abcdefghijk@host", "word": "short"})
    files.append_line(tmp_path / "b.jsonl", {"said": "key wandb-0123456789"})
    assert files.read_json(tmp_path / "a.json") == {"url": "https://x:***@host", "word": "short"}
    assert files.read_lines(tmp_path / "b.jsonl") == [{"said": "key ***"}]
