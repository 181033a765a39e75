"""Sets aside what a run did after the checkpoint that it goes on from; nothing is removed.

May import ``errors`` and its neighbours.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbrl.driver.store.checkpoints import LATEST, Checkpoint, checkpoints_of
from nbrl.driver.store.files import append_line, write_json, write_whole
from nbrl.driver.store.folder import RunFolder
from nbrl.driver.store.recording import whole_files
from nbrl.errors import StoreError


def rewind(
    folder: RunFolder, checkpoint: Checkpoint, records: Sequence[Mapping[str, Any]]
) -> Path | None:
    """Make the folder what it was at a checkpoint; where the rest went, None where there was none.

    May be killed at any point and called again.

    Args:
        folder: The run's.
        checkpoint: Which becomes the latest.
        records: The metrics up to it.

    Raises:
        StoreError: The disk refused it.
    """
    write_json(folder.checkpoints_path / LATEST, {"tag": checkpoint.tag})
    rows = folder.read_metrics()
    later = [row for row in rows if row["version"] > checkpoint.version]
    files = [n for n, row in whole_files(folder).items() if row["step"] > checkpoint.version]
    newer = [c for c in checkpoints_of(folder) if c.version > checkpoint.version]
    aside = None
    if later or files or newer:
        aside = _aside(folder)
        try:
            for name in files:
                _move(folder.path / name, aside / name)
                append_line(folder.manifest_path, {"file": name, "removed": True})
            for each in newer:
                _move(each.path, aside / "checkpoints" / each.tag)
        except OSError as error:
            raise StoreError(f"could not set aside later steps in {aside}: {error}") from error
        if later:
            write_whole(aside / "metrics.jsonl", _lines(later))
    if rows != list(records):
        write_whole(folder.metrics_path, _lines(records))
    return aside


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _aside(folder: RunFolder) -> Path:
    parent = folder.path / "superseded"
    parent.mkdir(exist_ok=True)
    number = 1 + max((int(p.name) for p in parent.iterdir() if p.name.isdigit()), default=0)
    made = parent / str(number)
    made.mkdir()
    return made


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(target)
