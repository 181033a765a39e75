"""The run folder: its settings, its metrics; the one owner of paths inside it.

May import ``errors``.
"""

import contextlib
import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.errors import StoreError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that belongs to one run.

    ``config.json`` holds the settings it was opened with, ``metrics.jsonl`` one line a step.
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

    def write_config(self, spec: Mapping[str, Any]) -> None:
        """Write the settings; the file appears whole or not at all.

        Raises:
            StoreError: The disk refused it; what was there is there still.
        """
        fresh = self.config_path.with_suffix(".json.new")
        try:
            with fresh.open("wb", buffering=0) as file:
                _write(file, (json.dumps(spec, indent=2, default=str) + "\n").encode())
            fresh.replace(self.config_path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise StoreError(f"could not write {self.config_path}: {error}") from error

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line and see it on the disk; all of it or nothing.

        What a killed writer left of a last line is cut off first, so that no record joins it.

        Raises:
            StoreError: The disk refused it; the lines before it are as they were.
        """
        line = (json.dumps(row, default=str) + "\n").encode()
        try:
            with self.metrics_path.open("a+b", buffering=0) as file:
                whole = _mended(file)
                try:
                    _write(file, line)
                except BaseException:
                    file.truncate(whole)
                    raise
        except OSError as error:
            raise StoreError(f"could not write {self.metrics_path}: {error}") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records, oldest first; a last line that a kill tore off is not one, nor is no file.

        Raises:
            StoreError: The file cannot be read, or another line than the last is broken.
        """
        try:
            lines = self.metrics_path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"could not read {self.metrics_path}: {error}") from error
        tail, records = _record(lines.pop()), []
        for number, line in enumerate(lines, start=1):
            record = _record(line)
            if record is None:
                raise StoreError(
                    f"{self.metrics_path} is broken at line {number} of {len(lines)}: expected a "
                    f"JSON object, found {line[:60]!r}. Remove the line, or restore the file."
                )
            records.append(record)
        return records if tail is None else [*records, tail]


def open_run_folder(run_dir: str | os.PathLike | None, name: str) -> RunFolder:
    """A fresh run folder: the one asked for, or ``runs/<time>-<name>``.

    Raises:
        StoreError: It holds another run, or cannot be made.
    """
    try:
        if run_dir is None:
            return RunFolder(_fresh(Path("runs"), f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"))
        path = Path(run_dir)
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


def _write(file: io.FileIO, data: bytes) -> None:
    """Write all of it to an unbuffered file, and wait until the disk has it."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
    os.fsync(file.fileno())


def _mended(file: io.FileIO) -> int:
    """The size of a file of lines, after a torn last line was cut off or a whole one ended."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    whole, end, tail = file.readall().rpartition(b"\n")
    if _record(tail) is None:
        file.truncate(len(whole) + len(end))
    else:
        _write(file, b"\n")
    return file.seek(0, os.SEEK_END)


def _record(line: bytes) -> dict[str, Any] | None:
    """A line's JSON object; None where it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
