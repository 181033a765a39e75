"""The verbs ``save`` and ``load``: all that decides what a session will do next.

May import what ``runtime`` may. There is no loss scaler and no adaptive coefficient of the KL in a
session, so none is kept; each call of a verb names its own.
"""

import base64
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from nbrl.backends.interrupts import held_interrupts
from nbrl.driver.runtime import Runtime
from nbrl.driver.store.checkpoints import (
    Checkpoint,
    find_checkpoint,
    load_state,
    retain,
    save_checkpoint,
)
from nbrl.errors import StoreError, all_problems
from nbrl.protocols import Restorable

PARTS = ("trainer", "session", "random")
"""What every checkpoint has; the tensors of the trainer stand in parts of their own."""


def save(runtime: Runtime, tag: str | None) -> Checkpoint:
    """The checkpoint of the session as it is, saved and made the latest.

    Under the tag ``step-<version>`` where none is given; only such ones are removed again, by
    ``nbrl.Store``.

    Raises:
        ConfigError: No such tag can be.
        StoreError: The disk refused it; the latest checkpoint is the one it was.
    """
    write_metrics(runtime)
    runtime.recorder.flush()
    name = f"step-{runtime.version:06d}" if tag is None else tag
    facts = {
        "version": runtime.version,
        "run": runtime.run_id,
        "automatic": tag is None,
        "trainer": _kind(runtime),
        "ranks": _ranks(runtime),
        "metrics": dict(runtime.records[-1]) if runtime.records else {},
        "prompts": {"name": runtime.source.name, "fingerprint": runtime.source.fingerprint},
        "rewards": dict(runtime.rewards),
        "spec": runtime.spec,
    }
    state = {"trainer": _restorable(runtime).state(), "session": _session_state(runtime)}
    saved = save_checkpoint(runtime.folder, name, {**state, "random": random_state()}, facts)
    runtime.recorder.event("saved", {"tag": name, "version": runtime.version})
    settings = runtime.recorder.settings
    gone = retain(
        runtime.folder,
        keep=settings.keep_checkpoints,
        most_bytes=settings.checkpoint_quota,
        best=settings.best,
    )
    if gone:
        runtime.recorder.event("checkpoints removed", {"tags": gone})
    return saved


def load(runtime: Runtime, tag: str | int | None) -> Checkpoint:
    """Become what the session was when it saved; the run folder's later steps stay as they are.

    Raises:
        StoreError: A part is absent or changed; the session is as it was.
        ConfigError: The checkpoint is of other data, another model or another trainer.
    """
    checkpoint = find_checkpoint(runtime.folder, tag)
    restore(runtime, checkpoint)
    runtime.recorder.event("loaded", {"tag": checkpoint.tag, "version": checkpoint.version})
    return checkpoint


def restore(
    runtime: Runtime, checkpoint: Checkpoint, *, new_data: bool = False, new_pace: bool = False
) -> None:
    """Take over a checkpoint: all of it or, where it cannot be loaded, nothing.

    Args:
        runtime: What becomes as the checkpoint says.
        checkpoint: Of this run or of its parent.
        new_data: The prompts were changed on purpose: they start at their beginning.
        new_pace: The optimizer's settings were changed on purpose: the learning rate follows the
            new ones, from the step that the old schedule had come to.

    Raises:
        StoreError: A part is absent or changed.
        ConfigError: The checkpoint is of other data, another model or another trainer.
    """
    state = load_state(checkpoint, PARTS)
    problems = _mismatches(runtime, checkpoint, new_data=new_data)
    if problems:
        raise all_problems(f"load checkpoint {checkpoint.tag!r} of {checkpoint.path}", problems)
    session = state["session"]
    with held_interrupts():
        _restorable(runtime).load_state(state["trainer"], own_schedule=new_pace)
        runtime.version = session["version"]
        runtime.engine.load_weights(runtime.weights_to_send(), runtime.version)
        runtime.cursor = 0 if new_data else session["cursor"]
        runtime.trained = dict(session["trained"])
        runtime.records[:] = session["records"]
        runtime.unwritten.clear()
        runtime.rewards = dict(session["rewards"])
        runtime.score_scale = session["score_scale"]
        runtime.last_scored = None
        set_random_state(state["random"])


def write_metrics(runtime: Runtime) -> None:
    """Write what the disk has not taken yet, in order.

    Raises:
        StoreError: It refuses still.
    """
    while runtime.unwritten:
        runtime.folder.append_metrics(runtime.unwritten[0])
        del runtime.unwritten[0]


def random_state() -> dict[str, Any]:
    """The state of every generator of this process, as plain data."""
    name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), place, has_gauss, gauss],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in devices],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put every generator of this process where it was."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, words, *rest = state["numpy"]
    np.random.set_state((name, np.array(words, np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_bytes(text) for text in state["cuda"]])


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _session_state(runtime: Runtime) -> dict[str, Any]:
    return {
        "version": runtime.version,
        "cursor": runtime.cursor,
        "seed": runtime.seed,
        "trained": dict(runtime.trained),
        "records": list(runtime.records),
        "rewards": dict(runtime.rewards),
        "score_scale": runtime.score_scale,
    }


def _restorable(runtime: Runtime) -> Restorable:
    trainer = runtime.trainer
    if not isinstance(trainer, Restorable):
        raise StoreError(
            f"the trainer {_kind(runtime)!r} keeps no state that can be saved. Use "
            "Trainer('local')."
        )
    return trainer


def _kind(runtime: Runtime) -> str:
    return str(runtime.trainer.describe()["kind"])


def _ranks(runtime: Runtime) -> int:
    ranks = runtime.trainer.describe().get("ranks", 1)
    assert isinstance(ranks, int)
    return ranks


def _mismatches(runtime: Runtime, checkpoint: Checkpoint, *, new_data: bool) -> list[str]:
    """Why a session cannot go on from a checkpoint, each with the way out."""
    said = []
    manifest = checkpoint.manifest
    saved, here = manifest["prompts"], runtime.source
    if saved["fingerprint"] != here.fingerprint and not new_data:
        said.append(
            f"the data has changed: saved with {saved['name']!r} ({saved['fingerprint'][:12]}), "
            f"given {here.name!r} ({here.fingerprint[:12]}). Rows would be skipped or repeated. "
            "Bring back the same data, or fork with prompts=..., which starts it from the beginning"
        )
    kinds: Sequence[tuple[str, Any, Any]] = (
        ("trainer", manifest["trainer"], _kind(runtime)),
        ("number of ranks", manifest["ranks"], _ranks(runtime)),
    )
    for what, then, now in kinds:
        if then != now:
            said.append(
                f"the {what} was {then!r} and is {now!r}. Connect with {then!r}, or start from "
                "the weights alone: session.export, then connect(model=folder)"
            )
    told = {"path", "head", "lora", "dtype"}
    models = [{k: v for k, v in s.items() if k in told} for s in _models(runtime, checkpoint)]
    if models[0] != models[1]:
        said.append(
            f"the model was {models[0]} and is {models[1]}. Connect with the one it was saved with"
        )
    return said


def _models(runtime: Runtime, checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    return checkpoint.manifest["spec"]["model"], runtime.spec["model"]
