"""Values as folders of Parquet files: one file a link of the chain, lossless, replaced as a whole."""

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.errors import DataError, StoreError

SCHEMA_NUMBER = 1
CHAIN = ("prompts", "rollouts", "scored", "advantaged")
_META = b"nbrl"


def save(value: Any, path: str | os.PathLike) -> None:
    """Write a value and its parents; the folder appears whole or not at all.

    Raises:
        StoreError: The path holds something that is not a saved value, or writing failed.
    """
    target = Path(path)
    if target.exists() and not is_saved_value(target):
        raise StoreError(f"{target} exists and is not a saved nbrl value; pass another path.")
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        fresh.mkdir(parents=True)
        for link, table in links(value).items():
            pq.write_table(table, fresh / f"{link}.parquet", compression="zstd")
        _replace(fresh, target)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise StoreError(f"could not save to {target}: {error}. The old content is untouched.") from error


def links(value: Any) -> dict[str, pa.Table]:
    """The tables of a value and its parents, first parent first, each with its spec as metadata."""
    chain: list[Any] = [value]
    for parent in ("scored", "rollouts", "prompts"):
        if hasattr(chain[-1], parent):
            chain.append(getattr(chain[-1], parent))
    return {link: _stamped(v, link) for link, v in zip(CHAIN, reversed(chain), strict=False)}


def is_saved_value(path: Path) -> bool:
    """Whether the folder was written by :func:`save`."""
    return (path / "prompts.parquet").is_file()


def read_links(path: str | os.PathLike) -> list[tuple[str, pa.Table, dict[str, Any]]]:
    """The saved tables with their specs, first parent first.

    Raises:
        DataError: Nothing is there, or a newer schema wrote it.
    """
    folder = Path(path)
    if not is_saved_value(folder):
        raise DataError(f"{folder} holds no saved nbrl value (no prompts.parquet in it).")
    found = []
    for link in CHAIN:
        file = folder / f"{link}.parquet"
        if not file.is_file():
            break
        table = pq.read_table(file)
        meta = json.loads(table.schema.metadata[_META])
        if meta["schema"] > SCHEMA_NUMBER:
            raise DataError(
                f"{file} has schema {meta['schema']}, this nbrl reads up to {SCHEMA_NUMBER}; upgrade nbrl."
            )
        found.append((link, table.replace_schema_metadata(None), meta["spec"]))
    return found


def _stamped(value: Any, link: str) -> pa.Table:
    meta = {"schema": SCHEMA_NUMBER, "type": link, "spec": value.spec}
    return value.table.replace_schema_metadata({_META: json.dumps(meta, allow_nan=True).encode()})


def _replace(fresh: Path, target: Path) -> None:
    """Put the fresh folder in the target's place; the old one goes only after the new one stands."""
    if not target.exists():
        fresh.rename(target)
        return
    old = target.with_name(f".{target.name}.old.{uuid.uuid4().hex[:8]}")
    target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
