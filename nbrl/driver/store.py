"""The run folder: its settings, its metrics; the one owner of paths inside it.

May import ``errors``.
"""

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
        """Write the settings; the file appears whole or not at all."""
        fresh = self.config_path.with_suffix(".json.new")
        try:
            fresh.write_text(json.dumps(spec, indent=2, default=str) + "\n", encoding="utf-8")
            fresh.replace(self.config_path)
        except OSError as error:
            raise StoreError(f"could not write {self.config_path}: {error}") from error

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line and see it on the disk.

        Raises:
            StoreError: The disk refused it.
        """
        line = json.dumps(row, default=str) + "\n"
        try:
            with self.metrics_path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"could not write {self.metrics_path}: {error}") from error


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
