"""Values as folders: one Parquet file a link of the chain, and a manifest that names them.

May import ``errors`` only. The manifest is replaced in one step after all files are on the disk,
so a folder holds the old value or the new one, whatever happens between.
"""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.errors import DataError, StoreError

SCHEMA_NUMBER = 1
MANIFEST = "manifest.json"
_LINKS = (
    "prompts|rollouts|scored|advantaged|conversations|pairs|labelled|steps"
    "|step|sketch|probe|evaluation|history"
)
_OWN_FILE = re.compile(rf"({_LINKS})-[0-9a-f]{{8}}\.parquet|manifest-.*\.tmp")

Links = Mapping[str, tuple[pa.Table, Mapping[str, Any]]]
"""The table and the spec of each link from ``prompts`` on, first parent first."""


def save(links: Links, path: str | os.PathLike) -> None:
    """Write a value and its parents to a folder.

    Args:
        links: Table and spec of each link. A spec is plain JSON data; its tuples come back as
            lists.
        path: A folder that does not exist, is empty, or holds a saved value, which is replaced.

    Raises:
        DataError: A spec that is not plain data.
        StoreError: The path holds something else, or writing failed; what was there still loads.
    """
    target = folder_of(path)
    specs = {link: plain(spec, f"{link}.spec") for link, (_, spec) in links.items()}
    token = uuid.uuid4().hex[:8]
    files = {link: f"{link}-{token}.parquet" for link in links}
    manifest = {
        "nbrl": SCHEMA_NUMBER,
        "links": [{"name": k, "file": files[k], "spec": specs[k]} for k in links],
    }
    fresh = [*files.values(), f"manifest-{token}.tmp"]
    created = not target.exists()
    superfluous = _own_files(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for link, (table, _) in links.items():
            with (target / files[link]).open("wb") as file:
                pq.write_table(table.replace_schema_metadata(None), file, compression="zstd")
                _to_disk(file)
        with (target / fresh[-1]).open("w", encoding="utf-8") as file:
            json.dump(manifest, file)
            _to_disk(file)
        (target / fresh[-1]).replace(target / MANIFEST)
    except (OSError, pa.ArrowException) as error:
        _discard(target, fresh)
        if created and target.is_dir():
            target.rmdir()
        raise StoreError(f"could not save to {target}: {error}. What was there still loads.") from (
            error
        )
    _discard(target, superfluous)


def is_saved_value(path: str | os.PathLike) -> bool:
    """Whether the folder holds a value that :func:`save` finished."""
    return (folder_of(path) / MANIFEST).is_file()


def read_links(path: str | os.PathLike) -> list[tuple[str, pa.Table, dict[str, Any]]]:
    """The saved links: name, table, spec; first parent first.

    Raises:
        DataError: Nothing is there, it is damaged, or a newer schema wrote it.
    """
    folder = folder_of(path)
    manifest = _read_manifest(folder)
    found = []
    for link in manifest["links"]:
        file = folder / link["file"]
        try:
            # not read_table: it would take "lr=0.1" in the path for a column
            with pq.ParquetFile(file) as parquet:
                table = parquet.read()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file} cannot be read: {error}. The saved value is damaged.") from (
                error
            )
        found.append((link["name"], table, link["spec"]))
    return found


def plain(value: Any, where: str) -> Any:
    """The value as JSON data: dicts with string keys, lists, strings, numbers, booleans, null.

    Raises:
        DataError: Anything else; the message says where in the value it stands.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise DataError(f"{where} has the key {key!r}; keys must be strings.")
        return {k: plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    raise DataError(
        f"{where} is a {type(value).__name__}; a spec holds only dicts, lists, strings, numbers, "
        f"booleans and None. Convert it, e.g. with nbrl.config.to_spec."
    )


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not is_saved_value(folder):
        raise DataError(f"{folder} holds no saved nbrl value (no {MANIFEST} in it).")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / MANIFEST} is not an nbrl manifest: {error!r}.") from error
    schema = manifest.get("nbrl") if isinstance(manifest, dict) else None
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA_NUMBER:
        raise DataError(
            f"{folder} has schema {schema}; this nbrl reads up to {SCHEMA_NUMBER}. Upgrade nbrl."
        )
    problem = _manifest_problem(manifest)
    if problem:
        raise DataError(
            f"{folder / MANIFEST} is not an nbrl manifest: {problem}. The saved value is damaged; "
            "save it again."
        )
    return manifest


def _manifest_problem(manifest: Any) -> str | None:
    """What a manifest lacks, in words; None where it is whole."""
    if not isinstance(manifest, dict):
        return f"it holds {type(manifest).__name__}, not an object"
    if manifest.get("nbrl") != SCHEMA_NUMBER or isinstance(manifest["nbrl"], bool):
        return f"its schema number is {manifest.get('nbrl')!r}, not {SCHEMA_NUMBER}"
    links = manifest.get("links")
    if not isinstance(links, list) or not links:
        return f"'links' must be a list of at least one link; it is {links!r:.80}"
    for number, link in enumerate(links):
        kinds = {"name": str, "file": str, "spec": dict}
        if not isinstance(link, dict):
            return f"link {number} is {type(link).__name__}, not an object"
        for key, kind in kinds.items():
            if not isinstance(link.get(key), kind):
                return f"{key!r} of link {number} is {link.get(key)!r:.80}, not {kind.__name__}"
        if link["name"] not in _LINKS.split("|"):
            return f"link {number} is {link['name']!r}; known: {_LINKS.replace('|', ', ')}"
        # A file elsewhere would be somebody else's.
        if not _OWN_FILE.fullmatch(link["file"]) or link["file"].endswith(".tmp"):
            return f"the file of link {number} is {link['file']!r}, which no save writes"
    return None


def folder_of(path: str | os.PathLike) -> Path:
    """The folder of a path, ``~`` being the home folder.

    Raises:
        DataError: It is no path, or an empty one.
    """
    if not isinstance(path, str | os.PathLike) or not str(path).strip():
        raise DataError(f"a value is kept in a folder; got {path!r:.80}. Pass the folder's path.")
    return Path(path).expanduser()


def _own_files(target: Path) -> list[str]:
    """The files of earlier saves, finished or not; raises where ``target`` is no place for one."""
    if not target.exists():
        return []
    if not target.is_dir():
        raise StoreError(f"{target} is a file; a value is saved to a folder. Pass another path.")
    names = [entry.name for entry in target.iterdir()]
    foreign = sorted(name for name in names if not _OWN_FILE.fullmatch(name))
    if foreign and not is_saved_value(target):
        raise StoreError(
            f"{target} exists and is not a saved nbrl value (it holds {foreign[:3]}). "
            f"Pass another path."
        )
    return [name for name in names if _OWN_FILE.fullmatch(name)]


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _discard(folder: Path, names: list[str]) -> None:
    """Remove files that no manifest names; one that stays does no harm."""
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
