"""Rows of files, folders, hub data sets and generators as plain records, with what is broken named.

May import ``errors`` and its neighbours ``arithmetic``, ``checkpoints`` and ``formats``. Row
numbers are those of ``formats``, of arithmetic from 0; of a file among several they are
``<file>:<number>``.
"""

import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbrl.backends.arithmetic import arithmetic_prompts
from nbrl.backends.checkpoints import hub_problem
from nbrl.backends.formats import READERS, Record, Rows
from nbrl.errors import ConfigError, DataError, unknown_name

ARITHMETIC = "arithmetic"
GENERATED = "reasoning-gym:"
SHOWN = 5
"""How many bad rows a message names."""
GENERATED_SPLITS = ("train", "held_out", "validation", "test")
DEFAULT_GENERATED = 1000
SAVED_BY_DATASETS = ("dataset_info.json", "dataset_dict.json")
SPLIT_WORDS = ("train", "test", "validation", "valid", "val", "dev", "eval", "held_out")


def read_records(
    source: str, split: str, limit: int | None, *, streaming: bool = False
) -> tuple[str, Rows]:
    """A name for the data, unique to its content or address, and its rows with their numbers.

    Args:
        source: ``arithmetic``, ``reasoning-gym:<task>``, a ``.jsonl``, ``.json``, ``.csv``,
            ``.parquet`` or ``.arrow`` file, a folder of such files or one that ``datasets`` saved,
            or a data set's name on the hub; behind an ``@`` the configuration or the folder in it
            that is meant.
        split: Of hub data and folders; of generated tasks it seeds the generator. In a folder of
            files those with this word in their name, or all where the split is ``train`` and no
            file bears the name of a split.
        limit: At most so many rows are wanted.
        streaming: Let ``datasets`` fetch rows as they are asked for, not the whole set first.

    Raises:
        ConfigError: A split of a single file or of a saved set without splits.
        DataError: Nothing can be read there; says what was tried.
        UnknownNameError: A generated task that does not exist.
    """
    wrong = source_problems(source)
    if wrong:
        raise DataError(f"{wrong[0]}.")
    if source == ARITHMETIC:
        return _sums(split, limit or DEFAULT_GENERATED)
    if source.startswith(GENERATED):
        return _generated(source.removeprefix(GENERATED), split, limit or DEFAULT_GENERATED)
    path = Path(source).expanduser()
    if path.is_file():
        if split != "train":
            raise ConfigError(
                f"split {split!r} of {source}: a file has no splits. Pass the file that holds "
                "those rows, and leave split out."
            )
        return _named([path]), READERS[path.suffix](path)
    files = _files_of(path, split)
    if files:
        return _named(files), _all_of(files)
    return _through_datasets(str(path) if path.is_dir() else source, split, streaming=streaming)


def _parted(source: str) -> tuple[str, str | None]:
    """The address of a data set, and which part of it is meant: what stands behind an ``@``."""
    if "@" not in source or Path(source).expanduser().exists():
        return source, None
    place, _, part = source.rpartition("@")
    return place, part


def source_problems(source: str) -> list[str]:
    """Why nothing can be read from there, in words, found without reading."""
    path = Path(source).expanduser()
    if not source.strip():
        return ["the source of rows is an empty text; pass a file, a folder or a name"]
    if source == ARITHMETIC or source.startswith(GENERATED) or path.is_dir():
        return []
    if path.is_file():
        known = path.suffix in READERS
        ending = path.suffix or "a file without an ending"
        return [] if known else [f"{source}: cannot read {ending}; known: {', '.join(READERS)}"]
    if path.suffix in READERS:
        return [f"{source}: there is no such file, looked for at {path.absolute()}"]
    place, part = _parted(source)
    if part is not None and Path(place).expanduser().is_dir():
        return []
    missing = _not_on_the_hub(place, Path(place).expanduser())
    if missing is None:
        return []
    known = ", ".join(READERS)
    nowhere = (
        f"{source}: {path.absolute()} is neither a file nor a folder, and on the hub: "
        f"{missing}. Pass a file ({known}), a folder, a hub name that can be reached, "
        f"{ARITHMETIC!r} or '{GENERATED}<task>'"
    )
    return [nowhere]


def _not_on_the_hub(source: str, path: Path) -> str | None:
    if path.is_absolute() or source.startswith(".") or source.count("/") > 1:
        return "a path like this is not looked for there"
    from datasets.config import HF_DATASETS_CACHE

    kept = Path(HF_DATASETS_CACHE) / source.replace("/", "___")
    return None if kept.is_dir() else hub_problem(source, "dataset")


def _named(files: Sequence[Path]) -> str:
    """A name with a hash of the content."""
    digest = hashlib.sha256(b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files))
    stem = files[0].stem if len(files) == 1 else files[0].parent.name
    return f"{stem}-{digest.hexdigest()[:8]}"


def _files_of(folder: Path, split: str) -> list[Path]:
    """The files of a split in a folder, none where it is not one or ``datasets`` saved it."""
    if not folder.is_dir() or any((folder / n).is_file() for n in SAVED_BY_DATASETS):
        return []
    known = sorted(f for f in folder.iterdir() if f.suffix in READERS)
    names = {f: f"_{re.sub('[^a-z0-9]+', '_', f.stem.lower())}_" for f in known}
    chosen = [f for f in known if f"_{split}_" in names[f]]
    unnamed = not any(f"_{word}_" in name for name in names.values() for word in SPLIT_WORDS)
    if not chosen and known and not (unnamed and split == "train"):
        raise DataError(
            f"{folder} has no file of the split {split!r} in its name; it holds "
            f"{[f.name for f in known]}. Pass one of these files."
        )
    return chosen or known


def _all_of(files: Sequence[Path]) -> Rows:
    for file in files:
        for number, record in READERS[file.suffix](file):
            yield (number if len(files) == 1 else f"{file.name}:{number}"), record


def _through_datasets(source: str, split: str, *, streaming: bool) -> tuple[str, Rows]:
    from datasets.exceptions import DatasetsError

    folder = Path(source)
    failures = (OSError, ValueError, KeyError, RuntimeError, DatasetsError)

    def stopped(done: int, error: Exception) -> DataError:
        what = "a folder" if folder.is_dir() else "neither a file nor a folder"
        why = (str(error) or type(error).__name__).splitlines()[0]
        where = f" behind row {done}" if done else ""
        return DataError(
            f"{source}: {folder.absolute()} is {what}, and datasets cannot load it with "
            f"split {split!r}{where}: {why}. Pass a file ({', '.join(READERS)}), a folder, a hub "
            f"name that can be reached, 'arithmetic' or '{GENERATED}<task>'."
        )

    def rows() -> Rows:
        number = 0
        try:
            for number, row in enumerate(data, start=1):
                yield number, dict(row)
        except failures as error:
            raise stopped(number, error) from error

    try:
        mark, data = _opened(source, split, streaming=streaming)
    except failures as error:
        if isinstance(error, ConfigError):
            raise
        raise stopped(0, error) from error
    return f"{folder.name}-{split}-{mark}", rows()


def _opened(source: str, split: str, *, streaming: bool) -> tuple[str, Any]:
    """What tells the data from others, and the data, whole or as a stream."""
    import datasets

    place, part = _parted(source)
    if not any((Path(place).expanduser() / name).is_file() for name in SAVED_BY_DATASETS):
        chosen: dict[str, Any] = {"split": split}
        if part is not None:
            named = part in datasets.get_dataset_config_names(place)
            chosen |= {"name": part} if named else {"data_dir": part}
        if streaming:
            address = hashlib.sha256(source.encode()).hexdigest()
            return address[:8], datasets.load_dataset(place, streaming=True, **chosen)
        data = datasets.load_dataset(place, **chosen)
        return data._fingerprint[:8], data
    if part is not None:
        raise ConfigError(
            f"{source}: a data set that datasets saved has no parts but its splits. Drop '@{part}'."
        )
    loaded = datasets.load_from_disk(source)
    if isinstance(loaded, datasets.DatasetDict):
        loaded = loaded[split]
    elif split != "train":
        raise ConfigError(
            f"split {split!r} of {source}: this saved data set has no splits. Save a DatasetDict, "
            "or leave split out."
        )
    return loaded._fingerprint[:8], loaded.to_iterable_dataset() if streaming else loaded


def _sums(split: str, count: int) -> tuple[str, Rows]:
    made = arithmetic_prompts(count, start=0, seed=0, split=split).table
    columns = (made.column(name).to_pylist() for name in ("prompt", "label"))
    rows = ({"prompt": prompt, "label": label} for prompt, label in zip(*columns, strict=True))
    return f"arithmetic-{split}", enumerate(rows)


def _generated(task: str, split: str, count: int) -> tuple[str, Rows]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise unknown_name("reasoning-gym task", task, DATASETS)
    if split not in GENERATED_SPLITS:
        raise unknown_name(f"split of {GENERATED}{task}", split, GENERATED_SPLITS)
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


def report_bad_rows(
    source: str, wanted: str, good: int, bad: Sequence[Mapping[str, Any]], *, stacklevel: int
) -> None:
    """Warn of rows that were left out, by number and reason.

    Args:
        source: Where the rows come from, as a message names it.
        wanted: What a row should have been, e.g. ``"a prompt"``.
        good: How many rows are left.
        bad: A ``row`` and a ``reason`` for each of the others.
        stacklevel: Of the warning, from the caller on.

    Raises:
        DataError: No row is left.
    """
    named = "; ".join(f"row {b['row']}: {b['reason']}" for b in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    if not good:
        reasons = named + more if bad else "it has no rows"
        raise DataError(f"{source}: no row is {wanted} ({reasons}).")
    if bad:
        warnings.warn(
            f"{source}: {len(bad)} of {good + len(bad)} rows were left out: {named}{more}.",
            stacklevel=stacklevel + 1,
        )
