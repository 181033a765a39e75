"""What stands where in a run folder, and who may write to it.

May import ``errors`` and ``files`` beside it.
"""

import fcntl
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nbrl.driver.store.files import append_line, read_json, read_lines, write_json
from nbrl.errors import StoreError

SCHEMA_NUMBER = 1
"""Of the folder's layout and of the Parquet files in it."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that belongs to one run.

    ``config.json`` holds the settings it was opened with, ``environment.json`` where and with
    what versions, ``metrics.jsonl`` one line a step, ``events.jsonl`` what else happened,
    ``rollouts/`` and ``scores/`` one Parquet file a step, ``manifest.jsonl`` which of those are
    whole, ``checkpoints/`` a folder a tag, ``superseded/`` what a resume set aside, ``logs/`` what
    workers said.
    """

    path: Path

    @property
    def metrics_path(self) -> Path:
        """One JSON line a training step."""
        return self.path / "metrics.jsonl"

    @property
    def config_path(self) -> Path:
        """The resolved settings of the session."""
        return self.path / "config.json"

    @property
    def environment_path(self) -> Path:
        """Versions, source revision, host and devices."""
        return self.path / "environment.json"

    @property
    def events_path(self) -> Path:
        """One JSON line for whatever else happened: opened, resumed, saved, removed."""
        return self.path / "events.jsonl"

    @property
    def manifest_path(self) -> Path:
        """One JSON line a Parquet file that is whole, or that was removed."""
        return self.path / "manifest.jsonl"

    @property
    def checkpoints_path(self) -> Path:
        """One folder a tag."""
        return self.path / "checkpoints"

    @property
    def logs_path(self) -> Path:
        """Where workers write what they say."""
        return self.path / "logs"

    @property
    def results_path(self) -> Path:
        """What cells recorded by name: one JSON line each."""
        return self.path / "results.jsonl"

    def table_path(self, kind: str, step: int) -> Path:
        """The Parquet file of a step; ``kind`` is ``rollouts`` or ``scores``."""
        return self.path / kind / f"step-{step:06d}.parquet"

    def write_config(self, spec: Mapping[str, Any]) -> None:
        """Write the settings; the file appears whole or not at all.

        Raises:
            StoreError: The disk refused it; what was there is there still.
        """
        write_json(self.config_path, spec)

    def read_config(self) -> dict[str, Any]:
        """The settings.

        Raises:
            StoreError: There are none, or they cannot be read.
        """
        if not self.config_path.is_file():
            raise StoreError(f"{self.path} is no run folder: it has no {self.config_path.name}.")
        return read_json(self.config_path)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line and see it on the disk; all of it or nothing.

        Raises:
            StoreError: The disk refused it; the lines before it are as they were.
        """
        append_line(self.metrics_path, row)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records, oldest first; a last line that a kill tore off is not one, nor is no file.

        Raises:
            StoreError: The file cannot be read, or another line than the last is broken.
        """
        return read_lines(self.metrics_path)

    def append_event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Note that something happened, with the time.

        Raises:
            StoreError: The disk refused it.
        """
        append_line(self.events_path, {"event": kind, "time": time.time(), **facts})

    def lock(self) -> IO[bytes]:
        """Become the one writer, until the file that is given back is closed.

        The system frees it when the process ends, however it ends.

        Raises:
            StoreError: Another session writes here, or the folder cannot be written.
        """
        path = self.path / "writer.lock"
        try:
            file = path.open("a+b")
        except OSError as error:
            raise StoreError(
                f"could not write {path}: {error}. Make the folder writable, or pass another "
                "run_dir."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().decode("utf-8", "replace").strip() or "another process"
            file.close()
            raise StoreError(
                f"{self.path} is being written by {holder}. Close that session first, or pass "
                "another run_dir; nbrl.open_run reads it meanwhile."
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        file.flush()
        return file


def open_run_folder(
    run_dir: str | os.PathLike | None, name: str, *, beside: Path | None = None
) -> RunFolder:
    """A fresh run folder: the one asked for, or ``runs/<time>-<name>``.

    Where ``beside`` another run is said, a new name stands in that run's parent folder.

    Raises:
        StoreError: It holds another run, or cannot be made.
    """
    try:
        if run_dir is None:
            parent = Path("runs") if beside is None else beside.parent
            return RunFolder(_fresh(parent, f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"))
        path = Path(run_dir).expanduser()
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"could not make the run folder: {error}") from error
    folder = RunFolder(path)
    if folder.config_path.exists():
        raise StoreError(f"{path} holds a run already; pass another run_dir, or remove it.")
    return folder


def _fresh(parent: Path, name: str) -> Path:
    """A folder that did not exist before; a number is added where the name is taken."""
    for attempt in range(1000):
        path = parent / (name if attempt == 0 else f"{name}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path.resolve()
    raise StoreError(f"could not find a free name for {parent / name}.")
