"""Goes on from a checkpoint: in the same run folder, or as a fork in another one.

May import what ``opening`` may.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from nbrl.backends.sources import fingerprint
from nbrl.config import Critic, Engine, Lora, Model, Optimizer, Store, Trainer, to_spec
from nbrl.driver.admission import path_problems, refuse_request
from nbrl.driver.checkpointing import PARTS, save
from nbrl.driver.opening import Settings, Start, open_session
from nbrl.driver.runtime import Runtime
from nbrl.driver.session import Session
from nbrl.driver.store import RunFolder
from nbrl.driver.store.checkpoints import Checkpoint, find_checkpoint, load_state
from nbrl.driver.store.rewinding import rewind
from nbrl.errors import ConfigError, StoreError
from nbrl.protocols import Sink
from nbrl.types import Prompts

NESTED = {"lora": Lora, "optimizer": Optimizer, "critic": Critic}
"""The settings that stand inside others, by the field's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """What a resumed or forked session has that its run had not; None leaves the run's own."""

    model: Model | None = None
    engine: Engine | None = None
    trainer: Trainer | None = None
    prompts: str | Prompts | None = None
    seed: int | None = None
    run_dir: str | os.PathLike | None = None
    name: str | None = None
    store: Store | None = None


def find_run(asked: str | os.PathLike) -> tuple[RunFolder, str | None]:
    """The run folder and tag of ``run@tag``, ``run@version`` or ``run``.

    The run is a folder, or the name of one in ``runs/``.

    Raises:
        StoreError: There is no such run folder.
    """
    text = os.fspath(asked)
    whole, at, tag = text.rpartition("@")
    candidates = [(text, None)] if not at else [(text, None), (whole, tag)]
    for name, wanted in candidates:
        for path in (Path(name).expanduser(), Path("runs") / name):
            if RunFolder(path).config_path.is_file():
                return RunFolder(path.resolve()), wanted
    raise StoreError(
        f"resume {text!r}: no run folder at {Path(candidates[-1][0]).absolute()}, nor in "
        f"{Path('runs').absolute()}. Pass 'folder', 'folder@tag' or 'folder@version'."
    )


def resume(
    asked: str | os.PathLike,
    overrides: Overrides,
    make_sink: Callable[[], Sink],
    *,
    extra: Sequence[str] = (),
) -> Session:
    """A session that goes on from a checkpoint.

    With nothing changed it is the same run, in the same folder; what that run did after the
    checkpoint is set aside. With anything changed, or another ``run_dir``, it is a fork: a new run
    that names its parent.

    Raises:
        StoreError: No such run or checkpoint; a part of it is absent or changed.
        ConfigError: The data, the model or the trainer is another one; or, before anything is
            looked for, settings that cannot work, those of ``extra`` among them.
    """
    given = {f.name: getattr(overrides, f.name) for f in fields(overrides)}
    named = {"resume": asked} | {name: v for name, v in given.items() if v is not None}
    own = named.pop("run_dir", None)
    refuse_request(named, [*extra, *(() if own is None else path_problems("run_dir", own))])
    folder, tag = find_run(asked)
    return _opened(folder, find_checkpoint(folder, tag), overrides, make_sink)


def fork(runtime: Runtime, tag: str | int | None, overrides: Overrides) -> Session:
    """A session of its own that begins at a checkpoint of this one, which is saved if need be.

    Raises:
        StoreError: No such checkpoint; a part of it is absent or changed.
        ConfigError: The data, the model or the trainer is another one.
    """
    if tag is None:
        save(runtime, f"fork-{runtime.version:06d}")
    checkpoint = find_checkpoint(runtime.folder, tag)
    given = overrides
    if overrides.prompts is None:
        given = replace(overrides, prompts=runtime.prompts)
    make_sink = runtime.progress.make_sink
    return _opened(runtime.folder, checkpoint, given, make_sink, forked=True)


def _opened(
    folder: RunFolder,
    checkpoint: Checkpoint,
    overrides: Overrides,
    make_sink: Callable[[], Sink],
    forked: bool | None = None,
) -> Session:
    """The session; a fork where that is said, or where anything is changed."""
    state = load_state(checkpoint, PARTS)
    spec = checkpoint.manifest["spec"]
    changed = _changes(spec, overrides, folder)
    if forked is None:
        forked = replace(changed, store=None) != Overrides()
    new_data = changed.prompts is not None
    settings = _settings(spec, overrides, folder, new_data=new_data)
    start = Start(
        checkpoint=checkpoint,
        parent=folder,
        in_place=not forked,
        new_data=new_data,
        new_pace=changed.trainer is not None,
        prepare=lambda: rewind(folder, checkpoint, state["session"]["records"]),
    )
    return open_session(settings, make_sink, start)


def _changes(spec: Mapping[str, Any], overrides: Overrides, folder: RunFolder) -> Overrides:
    """The overrides without those that say again what the run has."""
    same: dict[str, None] = {}
    for name in ("model", "engine", "trainer", "seed", "name", "store"):
        if to_spec(getattr(overrides, name)) == spec[name]:
            same[name] = None
    prompts, own = overrides.prompts, spec["prompts"]
    if prompts is not None and (
        fingerprint(prompts) == own["fingerprint"]
        if isinstance(prompts, Prompts)
        else prompts == own["source"]
    ):
        same["prompts"] = None
    if overrides.run_dir is not None and Path(overrides.run_dir).resolve() == folder.path:
        same["run_dir"] = None
    return replace(overrides, **same)


def _settings(
    spec: Mapping[str, Any], overrides: Overrides, folder: RunFolder, *, new_data: bool
) -> Settings:
    """The run's own settings with the overrides in them."""
    prompts = overrides.prompts
    if prompts is None:
        prompts = spec["prompts"].get("source")
    if prompts is None:
        raise ConfigError(
            f"resume {folder.path}: its prompts were given as a value, which a run folder does not "
            f"hold ({spec['prompts']['name']!r}, {spec['prompts']['fingerprint'][:12]}). Pass the "
            "same ones: connect(resume=..., prompts=...)."
        )
    own = {"model": Model, "engine": Engine, "trainer": Trainer, "store": Store}
    given = {
        name: from_spec(kind, spec[name]) if (value := getattr(overrides, name)) is None else value
        for name, kind in own.items()
    }
    return Settings(
        **given,
        prompts=prompts,
        seed=spec["seed"] if overrides.seed is None else overrides.seed,
        run_dir=overrides.run_dir,
        name=overrides.name or spec["name"],
        prompts_seed=None if new_data else spec["prompts"]["seed"],
    )


def from_spec(kind: Any, spec: Mapping[str, Any]) -> Any:
    """Settings from the plain data that :func:`nbrl.config.to_spec` made of them."""
    given = {
        name: from_spec(NESTED[name], value) if name in NESTED and value is not None else value
        for name, value in spec.items()
    }
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
