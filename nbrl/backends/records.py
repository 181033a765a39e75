"""Rows of files, folders, hub data sets and generators as plain records, with what is broken named.

May import ``errors``. A record that cannot be read comes as its error text; row numbers count from 1
and, in files of lines, are line numbers.
"""

import csv
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from nbrl.errors import DataError, unknown_name

Record = dict[str, Any] | str
Rows = Iterator[tuple[int, Record]]

GENERATED = "reasoning-gym:"
DEFAULT_GENERATED = 1000


def read_records(source: str, split: str, limit: int | None) -> tuple[str, Rows]:
    """A name for the data (stable, unique to its content or address), and its rows with their numbers.

    Args:
        source: ``reasoning-gym:<task>``, a ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file, a folder
            that ``datasets`` saved or can load, or a data set's name on the hub.
        split: Of hub data and folders; of generated tasks it seeds the generator.
        limit: At most so many rows are wanted.

    Raises:
        DataError: Nothing can be read there; says what was tried.
        UnknownNameError: A generated task that does not exist.
    """
    if source.startswith(GENERATED):
        return _generated(source.removeprefix(GENERATED), split, limit or DEFAULT_GENERATED)
    path = Path(source)
    if path.is_file():
        if path.suffix not in READERS:
            raise DataError(
                f"{source}: cannot read {path.suffix or 'a file without an ending'}; known: "
                f"{', '.join(READERS)}."
            )
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        return f"{path.stem}-{digest}", READERS[path.suffix](path)
    return _through_datasets(source, split)


def _json_lines(path: Path) -> Rows:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _parsed(line)


def _parsed(line: bytes) -> Record:
    try:
        return _record(json.loads(line))
    except ValueError as error:
        return f"not JSON: {error}"


def _record(value: Any) -> Record:
    return value if isinstance(value, dict) else f"not an object but {type(value).__name__}"


def _json(path: Path) -> Rows:
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.") from error
    if not isinstance(values, list):
        raise DataError(f"{path} must hold a list of objects; it holds {type(values).__name__}.")
    for number, value in enumerate(values, start=1):
        yield number, _record(value)


def _csv(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            # Short rows give None values, long ones a None key.
            whole = None not in row and None not in row.values()
            yield reader.line_num, row if whole else "another number of cells than the header"


def _parquet(path: Path) -> Rows:
    try:
        table = pq.read_table(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet file: {error}.") from error
    for number, row in enumerate(table.to_pylist(), start=1):
        yield number, row


READERS: Mapping[str, Callable[[Path], Rows]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _through_datasets(source: str, split: str) -> tuple[str, Rows]:
    import datasets

    folder = Path(source)
    try:
        if (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(source)
            data = loaded[split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            data = datasets.load_dataset(source, split=split)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        what = "a folder" if folder.is_dir() else "neither a file nor a folder"
        raise DataError(
            f"prompts {source!r}: {folder.absolute()} is {what}, and datasets cannot load it with "
            f"split {split!r}: {str(error).splitlines()[0] if str(error) else type(error).__name__}. Pass a "
            f"file ({', '.join(READERS)}), a folder, a hub name that can be reached, 'arithmetic' or "
            f"'{GENERATED}<task>'."
        ) from error
    name = f"{Path(source).name}-{split}-{data._fingerprint[:8]}"
    return name, ((number, dict(row)) for number, row in enumerate(data, start=1))


def _generated(task: str, split: str, count: int) -> tuple[str, Rows]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise unknown_name("reasoning-gym task", task, DATASETS)
    seed = zlib.crc32(split.encode())
    data = reasoning_gym.create_dataset(task, size=count, seed=seed)
    rows = ((number, _question(entry)) for number, entry in enumerate(data, start=1))
    return f"{task}-{split}", rows


def _question(entry: Mapping[str, Any]) -> Record:
    return {
        "prompt": entry["question"],
        "label": entry["answer"],
        "entry": json.loads(json.dumps(entry["metadata"], default=str)),
    }
