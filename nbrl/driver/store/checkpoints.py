"""Checkpoints of a run folder: parts, a manifest that names each with its hash, and ``latest``.

May import ``errors`` and its neighbours, and torch and safetensors inside functions. Nothing is
pickled. A checkpoint is what its manifest says; files that no manifest names were never finished.
"""

import contextlib
import hashlib
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.driver.store.files import UNFINISHED, read_json, write_json, write_whole
from nbrl.driver.store.folder import SCHEMA_NUMBER, RunFolder
from nbrl.errors import ConfigError, StoreError, unknown_name

MANIFEST, LATEST = "manifest.json", "latest.json"
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*")
MOST_BYTES_A_FILE = 1 << 30
OWNERS = {"learners-0": "policy", "learners-1": "critic"}
TENSOR = "$tensor"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state: its folder and its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def tag(self) -> str:
        """What it was saved as."""
        return self.path.name

    @property
    def version(self) -> int:
        """The policy's version in it."""
        return self.manifest["version"]

    @property
    def size(self) -> int:
        """Bytes of all its parts."""
        return sum(part["bytes"] for part in self.manifest["parts"])


def save_checkpoint(
    folder: RunFolder, tag: str, state: Mapping[str, Any], facts: Mapping[str, Any]
) -> Checkpoint:
    """Write a state under a tag and make it the latest; one of the same tag is replaced whole.

    Args:
        folder: Whose checkpoint.
        tag: Letters, digits, ``.``, ``_``, ``=`` and ``-``.
        state: By the name of each part, plain data with tensors in it.
        facts: What the manifest says beside the parts; ``version`` among them.

    Raises:
        ConfigError: No such tag can be.
        StoreError: The disk refused it; the checkpoints that were there stay, and the latest too.
    """
    if not TAG.fullmatch(tag):
        raise ConfigError(
            f"checkpoint tag {tag!r}: pass letters, digits and . _ = - only, a letter or digit "
            "first."
        )
    path = folder.checkpoints_path / tag
    token = uuid.uuid4().hex[:8]
    try:
        path.mkdir(parents=True, exist_ok=True)
        parts = _written(path, state, token)
        manifest = {"nbrl": SCHEMA_NUMBER, "tag": tag, "saved": time.time(), **facts}
        write_json(path / MANIFEST, {**manifest, "parts": parts})
        write_json(folder.checkpoints_path / LATEST, {"tag": tag})
    except OSError as error:
        held = latest_tag(folder)
        stays = f"the latest checkpoint is still {held!r}" if held else "there is no checkpoint yet"
        raise StoreError(f"checkpoint {tag!r} could not be saved, {stays}: {error}") from error
    finally:
        _discard_unnamed(path)
    return Checkpoint(path, read_json(path / MANIFEST))


def load_state(checkpoint: Checkpoint, parts: Sequence[str]) -> dict[str, Any]:
    """The state of a checkpoint, after every part was found unchanged.

    Raises:
        StoreError: A part is absent or changed; the message names it.
    """
    import safetensors.torch

    files = {part["name"]: part for part in checkpoint.manifest["parts"]}
    others = f"checkpoint {checkpoint.tag!r} at {checkpoint.path}"
    absent = [name for name in parts if name not in files]
    if absent:
        raise StoreError(f"{others} lacks the parts {absent}. Load another checkpoint.")
    problems = [p for part in files.values() if (p := _problem(checkpoint.path, part))]
    if problems:
        raise StoreError(f"{others} cannot be loaded: {'; '.join(problems)}. Load another one.")
    tensors: dict[str, Any] = {}
    for name, part in files.items():
        if part["file"].endswith(".safetensors"):
            loaded = safetensors.torch.load_file(checkpoint.path / part["file"])
            tensors |= {f"{part['of']}:{key}": tensor for key, tensor in loaded.items()}
        elif name not in parts:
            raise StoreError(f"{others} has the part {name!r}, which is not known here.")
    plain = {name: read_json(checkpoint.path / files[name]["file"]) for name in parts}
    return {name: _unpacked(value, tensors, others) for name, value in plain.items()}


def checkpoints_of(folder: RunFolder) -> list[Checkpoint]:
    """The checkpoints that are whole, by version and time."""
    found = []
    for path in folder.checkpoints_path.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(StoreError):
            found.append(Checkpoint(path.parent, read_json(path)))
    return sorted(found, key=lambda c: (c.version, c.manifest["saved"]))


def find_checkpoint(folder: RunFolder, asked: str | int | None) -> Checkpoint:
    """The checkpoint with a tag, or of a version; the latest for None.

    Raises:
        StoreError: There is none, or its manifest is damaged.
        UnknownNameError: Others are there.
    """
    known = checkpoints_of(folder)
    wanted = latest_tag(folder) if asked is None else str(asked)
    if wanted is None:
        raise StoreError(
            f"{folder.path} has no checkpoint. Save one with session.save(tag), or connect with "
            "store=nbrl.Store(save_every=...)."
        )
    for checkpoint in known:
        if checkpoint.tag == wanted:
            return checkpoint
    same = [c for c in known if wanted.isdigit() and c.version == int(wanted)]
    if same:
        return same[-1]
    if (folder.checkpoints_path / wanted / MANIFEST).is_file():
        read_json(folder.checkpoints_path / wanted / MANIFEST)
    raise unknown_name("checkpoint", wanted, [c.tag for c in known])


def latest_tag(folder: RunFolder) -> str | None:
    """The tag of the checkpoint that was finished last; None where there is none."""
    path = folder.checkpoints_path / LATEST
    return read_json(path)["tag"] if path.is_file() else None


def retain(
    folder: RunFolder, *, keep: int | None, most_bytes: int | None, best: str | None
) -> list[str]:
    """Remove old automatic checkpoints; the tags of those that went.

    The latest stays, the best by a metric, and whatever was saved under a tag of its own.
    """
    everything = checkpoints_of(folder)
    automatic = [c for c in everything if c.manifest["automatic"]]
    held = {latest_tag(folder), best_tag(everything, best)}
    rest = [c for c in automatic if c.tag not in held]
    room = len(rest) if keep is None else max(keep - (len(automatic) - len(rest)), 0)
    gone = rest[: len(rest) - room] if room < len(rest) else []
    if most_bytes is not None:
        left = sum(c.size for c in automatic) - sum(c.size for c in gone)
        for checkpoint in (c for c in rest if c not in gone):
            if left <= most_bytes:
                break
            gone.append(checkpoint)
            left -= checkpoint.size
    for checkpoint in gone:
        remove_checkpoint(checkpoint)
    return [c.tag for c in gone]


def best_tag(known: Sequence[Checkpoint], metric: str | None) -> str | None:
    """The checkpoint whose step had the largest value of a metric; the earliest of equals."""
    valued = [c for c in known if metric in c.manifest["metrics"]]
    if metric is None or not valued:
        return None
    return max(valued, key=lambda c: c.manifest["metrics"][metric]).tag


def remove_checkpoint(checkpoint: Checkpoint) -> None:
    """Remove a checkpoint; its manifest goes first, so that it is never half there."""
    (checkpoint.path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint.path, ignore_errors=True)


def _written(path: Path, state: Mapping[str, Any], token: str) -> list[dict[str, Any]]:
    """The parts of a state as files, each with its name, bytes and hash."""
    import safetensors.torch

    parts = []
    tensors: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        plain = _packed(value, (), tensors)
        file = f"{name}-{token}.json"
        digest = write_json(path / file, plain)
        parts.append({"name": name, "file": file, "sha256": digest})
    for owner, named in tensors.items():
        for number, shard in enumerate(_shards(named)):
            name = owner if number == 0 else f"{owner}-{number}"
            data = safetensors.torch.save({k: named[k].contiguous() for k in shard})
            file = f"{name}-{token}.safetensors"
            write_whole(path / file, data)
            digest = hashlib.sha256(data).hexdigest()
            parts.append({"name": name, "file": file, "sha256": digest, "of": owner})
    return [{**part, "bytes": (path / part["file"]).stat().st_size} for part in parts]


def _packed(value: Any, path: tuple[str, ...], tensors: dict[str, dict[str, Any]]) -> Any:
    """Plain data with each tensor replaced by where it is kept."""
    import torch

    if isinstance(value, torch.Tensor):
        above = "-".join(path[:2])
        owner = OWNERS.get(above, above)
        part, key = "-".join([owner, *path[2:3]]), "/".join(path[3:]) or "value"
        tensors.setdefault(part, {})[key] = value.detach().cpu()
        return {TENSOR: f"{part}:{key}"}
    if isinstance(value, Mapping):
        return {str(k): _packed(v, (*path, str(k)), tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(v, (*path, str(i)), tensors) for i, v in enumerate(value)]
    return value


def _unpacked(value: Any, tensors: Mapping[str, Any], where: str) -> Any:
    if isinstance(value, dict):
        if set(value) == {TENSOR}:
            if value[TENSOR] not in tensors:
                raise StoreError(f"{where} lacks the tensor {value[TENSOR]!r}. Load another one.")
            return tensors[value[TENSOR]]
        return {k: _unpacked(v, tensors, where) for k, v in value.items()}
    if isinstance(value, list):
        return [_unpacked(v, tensors, where) for v in value]
    return value


def _shards(named: Mapping[str, Any]) -> list[list[str]]:
    """The names of tensors in groups of at most ``MOST_BYTES_A_FILE``, or one tensor."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in named.items():
        if groups[-1] and size + tensor.nbytes > MOST_BYTES_A_FILE:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.nbytes
    return groups


def _problem(path: Path, part: Mapping[str, Any]) -> str | None:
    """What is wrong with a file of a checkpoint, in words."""
    file = path / part["file"]
    if not file.is_file():
        return f"{part['name']} is absent ({file.name})"
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        return f"{part['name']} cannot be read ({error})"
    if digest != part["sha256"]:
        size = file.stat().st_size
        return (
            f"{part['name']} was changed or cut ({file.name}: {size} bytes, saved as "
            f"{part['bytes']})"
        )
    return None


def _discard_unnamed(path: Path) -> None:
    """Remove what a save that did not finish, or that was replaced, left behind."""
    with contextlib.suppress(StoreError, OSError):
        manifest = path / MANIFEST
        named = {MANIFEST}
        if manifest.is_file():
            named |= {part["file"] for part in read_json(manifest)["parts"]}
        for file in path.iterdir():
            if file.name not in named or file.name.endswith(UNFINISHED):
                file.unlink(missing_ok=True)
        if not manifest.is_file():
            path.rmdir()
