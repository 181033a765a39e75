"""Whole files and whole lines on a disk that may fill up, fail or lose its power.

May import ``errors`` and ``secrets`` beside it. Every byte of a run folder goes through
:func:`write_whole` or :func:`append_line`, and through ``os`` only, so that a test can make each
call fail.
"""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbrl.driver.store.secrets import without_secrets
from nbrl.errors import StoreError

UNFINISHED = ".part"
"""The ending of a file that is being written; one that bears it was never finished."""


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file that appears whole, and on the disk, or not at all.

    It is written under a temporary name, synchronised, renamed, and its folder synchronised.

    Raises:
        StoreError: The disk refused it; what had the name before has it still.
    """
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        with _opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            _write(file, data)
        os.replace(fresh, path)  # noqa: PTH105 -- all through os
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise StoreError(f"could not write {path}: {error}") from error


def write_json(path: Path, value: Any) -> str:
    """Write plain data as a whole file; the SHA-256 of its bytes.

    Raises:
        StoreError: The disk refused it; what had the name before has it still.
    """
    data = (without_secrets(json.dumps(value, indent=2, default=str)) + "\n").encode()
    write_whole(path, data)
    return hashlib.sha256(data).hexdigest()


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        StoreError: It is absent, cannot be read, or is damaged.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise StoreError(f"{path} is not there.") from error
    except OSError as error:
        raise StoreError(f"could not read {path}: {error}") from error
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}. Restore it from a copy.") from error


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON line and see it on the disk; all of it or nothing.

    What a killed writer left of a last line is cut off first, so that no record joins it.

    Raises:
        StoreError: The disk refused it; the lines before it are as they were.
    """
    line = (without_secrets(json.dumps(record, default=str)) + "\n").encode()
    try:
        with _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            whole = _mended(file)
            try:
                _write(file, line)
            except BaseException:
                os.ftruncate(file, whole)
                raise
    except OSError as error:
        raise StoreError(f"could not write {path}: {error}") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records, oldest first; a last line that a kill tore off is not one, nor is no file.

    Raises:
        StoreError: The file cannot be read, or another line than the last is broken.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"could not read {path}: {error}") from error
    tail, records = _record(lines.pop()), []
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is None:
            raise StoreError(
                f"{path} is broken at line {number} of {len(lines)}: expected a "
                f"JSON object, found {line[:60]!r}. Remove the line, or restore the file."
            )
        records.append(record)
    return records if tail is None else [*records, tail]


def sync_folder(folder: Path) -> None:
    """Wait until the disk knows the names in a folder."""
    with _opened(folder, os.O_RDONLY) as file:
        os.fsync(file)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _write(file: int, data: bytes | memoryview) -> None:
    """Write all of it, and wait until the disk has it."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    os.fsync(file)


def _mended(file: int) -> int:
    """The size of a file of lines, after a torn last line was cut off or a whole one ended."""
    size = os.lseek(file, 0, os.SEEK_END)
    if size == 0 or os.pread(file, 1, size - 1) == b"\n":
        return size
    whole, end, tail = _content(file, size).rpartition(b"\n")
    if _record(tail) is None:
        os.ftruncate(file, len(whole) + len(end))
    else:
        _write(file, b"\n")
    return os.lseek(file, 0, os.SEEK_END)


def _content(file: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += os.pread(file, size - len(found), len(found))
    return found


def _record(line: bytes) -> dict[str, Any] | None:
    """A line's JSON object; None where it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
