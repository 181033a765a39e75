"""The run folder."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

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


def under_a_size_limit(code: str, folder: Path, limit: int) -> str:
    """What the code prints in a process whose files the system lets grow to ``limit`` bytes."""
    head = f"""
        import resource
        from pathlib import Path
        from nbrl.driver.store import RunFolder
        from nbrl.errors import StoreError
        folder = RunFolder(Path({str(folder)!r}))

        def limited(to):
            resource.setrlimit(resource.RLIMIT_FSIZE, (to, resource.RLIM_INFINITY))
    """
    code = f"{textwrap.dedent(head)}limited({limit})\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_a_full_disk_is_said_and_the_old_config_stays(tmp_path):
    folder = open_run_folder(tmp_path, "tiny")
    folder.write_config({"seed": 1})
    said = under_a_size_limit(
        """
        try:
            folder.write_config({"seed": "x" * 500})
        except StoreError as error:
            print(error)
        """,
        tmp_path,
        limit=100,
    )
    assert "config.json" in said
    assert "too large" in said
    assert json.loads(folder.config_path.read_text()) == {"seed": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_line_that_does_not_fit_leaves_no_part_of_itself(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"version": 1})
    said = under_a_size_limit(
        """
        try:
            folder.append_metrics({"version": 2, "reward": 0.123456789})
        except StoreError as error:
            print(error, folder.metrics_path.stat().st_size)
        limited(1000)
        folder.append_metrics({"version": 3})
        """,
        tmp_path,
        limit=20,
    )
    assert "too large" in said
    assert int(said.split()[-1]) == len('{"version": 1}\n')
    assert folder.metrics_path.read_text() == '{"version": 1}\n{"version": 3}\n'


@pytest.mark.parametrize("torn", [b'{"version": 2, "rew', b"\0" * 40, b"17"])
def test_a_line_torn_by_a_kill_is_no_record_and_joins_none(tmp_path, torn):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"version": 1})
    with folder.metrics_path.open("ab") as file:
        file.write(torn)
    assert folder.read_metrics() == [{"version": 1}]
    folder.append_metrics({"version": 3})
    assert folder.read_metrics() == [{"version": 1}, {"version": 3}]


def test_a_whole_line_without_its_end_is_kept(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics_path.write_bytes(b'{"version": 1}\n{"version": 2}')
    assert folder.read_metrics() == [{"version": 1}, {"version": 2}]
    folder.append_metrics({"version": 3})
    assert folder.metrics_path.read_text().splitlines() == [
        f'{{"version": {i}}}' for i in (1, 2, 3)
    ]


def test_no_file_is_no_record_and_a_broken_line_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    folder.metrics_path.write_text('{"version": 1}\n{"vers\n{"version": 3}\n')
    with pytest.raises(StoreError, match="line 2 of 3"):
        folder.read_metrics()


def test_metrics_that_cannot_be_written_raise(tmp_path):
    with pytest.raises(StoreError, match="could not write"):
        RunFolder(tmp_path / "gone").append_metrics({"version": 1})
