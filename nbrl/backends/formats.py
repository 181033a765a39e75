"""Files of each format as records with their numbers: a table of readers, by the file's ending.

May import ``errors``. A record that cannot be read comes as its error text. Numbers count from 1
and are line numbers in files of lines.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.errors import DataError

Record = dict[str, Any] | str
Rows = Iterator[tuple[int | str, Record]]


def _json_lines(path: Path) -> Rows:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _parsed(line)


def _parsed(line: bytes) -> Record:
    try:
        return _record(json.loads(line, object_pairs_hook=_object))
    except ValueError as error:
        return f"not JSON: {error}"


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key stands twice in {[key for key, _ in pairs]}")
    return found


def _record(value: Any) -> Record:
    return value if isinstance(value, dict) else f"not an object but {type(value).__name__}"


def _json(path: Path) -> Rows:
    try:
        values = json.loads(path.read_bytes(), object_pairs_hook=_object)
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.") from error
    if not isinstance(values, list):
        raise DataError(f"{path} must hold a list of objects; it holds {type(values).__name__}.")
    for number, value in enumerate(values, start=1):
        yield number, _record(value)


def _csv(path: Path) -> Rows:
    # A file written by a spreadsheet begins with a byte-order mark.
    with path.open(newline="", encoding="utf-8-sig") as file:
        # Not strict, a quote that is never closed would swallow the rows after it.
        reader = csv.DictReader(file, strict=True)
        try:
            _check_header(path, list(reader.fieldnames or ()))
            for row in reader:
                # Short rows give None values, long ones a None key.
                whole = None not in row and None not in row.values()
                yield reader.line_num, row if whole else "another number of cells than the header"
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{path} cannot be read as CSV after line {reader.line_num}: {error}. Mend the "
                "quotes and save it as UTF-8, or as JSONL where cells are very long."
            ) from error


def _check_header(path: Path, names: Sequence[str]) -> None:
    """Raise where a column's name stands twice, or there is none: one column would hide another."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or any(not name.strip() for name in names):
        what = f"repeats {twice}" if twice else "has a column without a name"
        raise DataError(f"{path}: the header {what}: {list(names)}. Give each column its own name.")


def _parquet(path: Path) -> Rows:
    number = 0
    try:
        # Not read_table: it would take "lr=0.1" in the path for a column.
        with pq.ParquetFile(path) as parquet:
            _check_header(path, parquet.schema_arrow.names)
            for batch in parquet.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a Parquet file: {error}.") from error


def _arrow(path: Path) -> Rows:
    """Rows of Arrow's stream form, which ``datasets`` writes, or of its file form."""
    number = 0
    try:
        with pa.memory_map(str(path)) as file:
            known = file.read(6) == b"ARROW1"
            file.seek(0)
            reader = pa.ipc.open_file(file) if known else pa.ipc.open_stream(file)
            _check_header(path, reader.schema.names)
            count = reader.num_record_batches if isinstance(reader, pa.RecordBatchFileReader) else 0
            for batch in map(reader.get_batch, range(count)) if known else reader:
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not an Arrow file: {error}.") from error


READERS: Mapping[str, Callable[[Path], Rows]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
