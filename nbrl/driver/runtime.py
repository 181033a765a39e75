"""What a session holds between verbs, and the guard that every verb passes.

May import ``protocols``, ``types``, ``config``, ``errors``, ``backends.sources`` and its neighbours
``progress`` and ``store``.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nbrl.backends.sources import PromptSource
from nbrl.driver.progress import Progress
from nbrl.driver.store import RunFolder
from nbrl.errors import SessionError
from nbrl.protocols import RolloutEngine, Trainer
from nbrl.types import Prompts


@dataclass(kw_only=True, slots=True)
class Runtime:
    """The parts of a session and the few things that change: version, cursor, what was trained.

    ``encode`` turns prompts into token ids, ``decode`` token ids into text.
    """

    name: str
    run_id: str
    """Tells this run's samples from those of any other."""
    seed: int
    spec: dict[str, Any]
    engine: RolloutEngine
    trainer: Trainer
    source: PromptSource
    encode: Callable[[Prompts], list[tuple[int, ...]]]
    decode: Callable[[list[list[int]]], list[str]]
    has_critic: bool
    micro_batch_tokens: int
    weights_to_send: Callable[[], Iterable[tuple[str, Tensor]]]
    """What the engine must be given after a step; nothing where it shares the trainer's weights."""
    progress: Progress
    folder: RunFolder
    version: int = 0
    cursor: int = 0
    trained: dict[str, int] = field(default_factory=dict)
    """Digest of each trained batch, and the version that the step started from."""
    records: list[dict[str, float | int]] = field(default_factory=list)
    """One record a training step, in order."""
    unwritten: list[dict[str, float | int]] = field(default_factory=list)
    """The last of them, where the disk refused them."""
    busy: str | None = None
    closed: bool = False


@contextmanager
def verb(runtime: Runtime, name: str) -> Iterator[None]:
    """Refuse the verb on a closed session, or while another verb runs in another thread.

    Raises:
        SessionError: The session is closed or busy.
    """
    if runtime.closed:
        raise SessionError(f"{name}: session {runtime.name!r} is closed; call nbrl.connect again.")
    if runtime.busy is not None:
        raise SessionError(
            f"{name}: session {runtime.name!r} is busy with {runtime.busy}; wait for it to return."
        )
    runtime.busy = name
    try:
        yield
    finally:
        runtime.busy = None


def close(runtime: Runtime) -> None:
    """Let go of the models; their memory is free when nothing else holds them."""
    if runtime.closed:
        return
    if runtime.busy is not None:
        raise SessionError(
            f"close: session {runtime.name!r} is busy with {runtime.busy}; wait for it to return."
        )
    runtime.closed = True
    del runtime.engine, runtime.trainer, runtime.weights_to_send, runtime.encode, runtime.decode
    gc.collect()


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def read(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start
