"""Rollouts and scores as Parquet that any tool reads, and back to the values they were.

May import ``types`` and ``errors``. A file holds one step: rollouts beside their prompts' columns,
or scores; the two are joined by ``sample_id``. What a value has beside its columns stands as JSON
in the file's metadata under ``nbrl``.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.driver.store.folder import SCHEMA_NUMBER
from nbrl.driver.store.secrets import without_secrets
from nbrl.errors import DataError, StoreError
from nbrl.types import Prompts, Rollouts, Scored
from nbrl.types.columns import indices_of
from nbrl.types.storage import plain

KEY = b"nbrl"
BYTES_A_GROUP = 1 << 18
"""Bytes, before compression, that are read together when one sample is opened."""
FEWEST_ROWS, MOST_ROWS = 8, 1024
"""Of a row group, whatever its bytes."""
DRAWN_AT = re.compile(r"@(\d+)")
"""The policy version in a sample's id."""


def rollouts_file(rollouts: Rollouts) -> pa.Buffer:
    """The Parquet file of rollouts with their prompts' columns beside them."""
    mine = set(rollouts.table.column_names)
    named = {
        (f"prompt.{name}" if name in mine else name): name
        for name in rollouts.prompts.table.column_names
        if name != "prompt_id"
    }
    facts = {
        "kind": "rollouts",
        "prompt_columns": named,
        "prompts_spec": plain(rollouts.prompts.spec, "prompts.spec"),
        "spec": plain(rollouts.spec, "rollouts.spec"),
    }
    return _file(rollouts.to_arrow(), facts)


def scores_file(scored: Scored) -> pa.Buffer:
    """The Parquet file of scores, without the rollouts that they belong to."""
    return _file(scored.table, {"kind": "scores", "spec": plain(scored.spec, "scored.spec")})


def read_rollouts(path: Path) -> Rollouts:
    """The rollouts of a file, as they were.

    Raises:
        StoreError: The file is absent, damaged, or of a newer schema.
    """
    table, facts = read_table(path, "rollouts")
    named: Mapping[str, str] = facts["prompt_columns"]
    asked = table.select(["prompt_id", *named]).rename_columns(["prompt_id", *named.values()])
    ids = asked.column("prompt_id")
    prompts = asked.take(pa.array(indices_of_first(ids)))
    return Rollouts(
        table=table.drop_columns(list(named)),
        prompts=Prompts(table=prompts, spec=facts["prompts_spec"]),
        spec=facts["spec"],
        stored=True,
    )


def read_scored(rollouts_path: Path, scores_path: Path) -> Scored:
    """The scores of a file with the rollouts that they are joined to by ``sample_id``.

    Raises:
        StoreError: A file is absent, damaged, or of a newer schema.
        DataError: Scores of samples that the rollouts do not have.
    """
    table, facts = read_table(scores_path, "scores")
    rollouts = read_rollouts(rollouts_path)
    ids = table.column("sample_id")
    if not rollouts.table.column("sample_id").equals(ids):
        rollouts = rollouts.take(indices_of(rollouts.table.column("sample_id"), ids))
    return Scored(table=table, rollouts=rollouts, spec=facts["spec"])


def read_table(path: Path, kind: str) -> tuple[pa.Table, dict[str, Any]]:
    """A file's columns and what stands beside them.

    Raises:
        StoreError: The file is absent, damaged, of another kind, or of a newer schema.
    """
    with opened(path) as file:
        table = _guarded(path, file.read)
    return table.replace_schema_metadata(None), facts_of(path, table.schema, kind)


def opened(path: Path) -> pq.ParquetFile:
    """A Parquet file, of which nothing but the footer was read.

    Raises:
        StoreError: It is absent or damaged.
    """
    if not path.is_file():
        raise StoreError(f"{path} is not there; the samples of that step were not kept.")
    return _guarded(path, lambda: pq.ParquetFile(path))


def facts_of(path: Path, schema: pa.Schema, kind: str) -> dict[str, Any]:
    """What a file says of itself beside its columns.

    Raises:
        StoreError: It is of another kind, or of a newer schema.
    """
    try:
        facts = json.loads((schema.metadata or {})[KEY])
    except (KeyError, ValueError) as error:
        raise StoreError(f"{path} was not written by nbrl: its metadata lacks 'nbrl'.") from error
    if facts["schema"] > SCHEMA_NUMBER:
        raise StoreError(
            f"{path} has schema {facts['schema']}; this nbrl reads up to {SCHEMA_NUMBER}. "
            "Upgrade nbrl."
        )
    if facts["kind"] != kind:
        raise StoreError(f"{path} holds {facts['kind']}, not {kind}.")
    return facts


def rows_a_group(table: pa.Table) -> int:
    """Rows of which one is opened by reading all: fewer where each has more bytes."""
    a_row = table.nbytes / max(len(table), 1)
    return min(max(int(BYTES_A_GROUP / max(a_row, 1)), FEWEST_ROWS), MOST_ROWS)


def drawn_at(sample_id: str) -> int | None:
    """The policy version that a sample was drawn with, by its id; None where it does not say."""
    found = DRAWN_AT.search(sample_id)
    return int(found[1]) if found else None


def drawn_span(rollouts: Rollouts) -> list[int] | None:
    """The oldest and newest policy version in the ids; None where an id has none."""
    versions = {drawn_at(each) for each in rollouts.table.column("sample_id").to_pylist()}
    known = [v for v in versions if v is not None]
    return [min(known), max(known)] if known and None not in versions else None


def indices_of_first(ids: pa.ChunkedArray) -> list[int]:
    """Where each id stands first, in order."""
    first: dict[str, int] = {}
    for row, each in enumerate(ids.to_pylist()):
        first.setdefault(each, row)
    return list(first.values())


def _file(table: pa.Table, facts: Mapping[str, Any]) -> pa.Buffer:
    said = without_secrets(json.dumps({"schema": SCHEMA_NUMBER, **facts}))
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({KEY: said.encode()}),
        sink,
        compression="zstd",
        row_group_size=rows_a_group(table),
    )
    return sink.getvalue()


def _guarded(path: Path, read: Any) -> Any:
    try:
        return read()
    except (OSError, pa.ArrowException, DataError) as error:
        raise StoreError(f"{path} is damaged: {error}. Restore it from a copy.") from error
