"""What a session holds between verbs, and the guard that every verb passes.

May import ``protocols``, ``types``, ``config``, ``errors``, ``backends.sources``,
``backends.agents``, ``backends.rewards`` and its neighbours ``progress`` and ``store``.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from torch import Tensor

from nbrl.backends.agents.turns import Codec
from nbrl.backends.rewards import RewardPool
from nbrl.backends.sources import PromptSource
from nbrl.driver.progress import Progress
from nbrl.driver.store import RunFolder
from nbrl.driver.store.recording import Recorder
from nbrl.errors import SessionError
from nbrl.protocols import RolloutEngine, Trainer
from nbrl.types import Examples, Prompts, Scored

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleTools:
    """What verbs on training data need of the model and its tokenizer, beside the trainer.

    ``tokenize`` takes examples, the longest row (None: the model's context), which turns are
    learned and the placeholder of steps. ``token_ids`` are those of a text. ``export`` writes the
    model, or its adapter alone, with the scale of a reward model's scores. ``head`` is
    ``Model.head``, ``balances`` whether the model says how evenly its experts are used.
    """

    tokenize: Callable[[Examples, int | None, str, str], Examples]
    token_ids: Callable[[str], list[int]]
    export: Callable[[Path, bool, Mapping[str, Any] | None], None]
    head: str
    balances: bool = False


@dataclass(kw_only=True, slots=True)
class Runtime:
    """The parts of a session and the few things that change: version, cursor, what was trained.

    ``encode`` turns prompts into token ids, ``decode`` token ids into text; ``codec`` does so
    in the midst of a conversation.
    """

    name: str
    run_id: str
    """Tells this run's samples from those of any other."""
    seed: int
    spec: dict[str, Any]
    engine: RolloutEngine
    trainer: Trainer
    prompts: str | Prompts
    """What the source was made of."""
    source: PromptSource
    encode: Callable[[Prompts], list[tuple[int, ...]]]
    decode: Callable[[list[list[int]]], list[str]]
    codec: Codec
    has_critic: bool
    micro_batch_tokens: int
    packs_rows: bool
    """Whether the policy's passes lay rows end to end, so that padding costs nothing."""
    weights_to_send: Callable[[], Iterable[tuple[str, Tensor]]]
    """What the engine must be given after a step; nothing where it shares the trainer's weights."""
    rows: Callable[[], Mapping[str, Mapping[str, object]]]
    """What each part has, by name: its place, kind, size and version."""
    progress: Progress
    folder: RunFolder
    recorder: Recorder
    release: Callable[[], None] = lambda: None
    """Ends what garbage collection does not: processes, and libraries' global state."""
    example_tools: ExampleTools | None = None
    """None where the trainer takes no examples."""
    score_scale: dict[str, Any] | None = None
    """Mean and std of a reward model's scores, and the data that they are of."""
    version: int = 0
    cursor: int = 0
    trained: dict[str, int] = field(default_factory=dict)
    """Digest of each trained batch, and the version that the step started from."""
    records: list[dict[str, float | int]] = field(default_factory=list)
    """One record a training step, in order."""
    unwritten: list[dict[str, float | int]] = field(default_factory=list)
    """The last of them, where the disk refused them."""
    reward_pool: RewardPool = field(default_factory=RewardPool)
    """Processes for reward code; none until a reward asks for them."""
    rewards: dict[str, str] = field(default_factory=dict)
    """Fingerprint of each reward that the last trained batch was scored with."""
    promised: dict[str, str] = field(default_factory=dict)
    """The rewards that a resumed run must go on with."""
    last_scored: Scored | None = None
    """What advantages were computed of last, before a filter on rewards."""
    turns: list["Turn"] = field(default_factory=list)
    """The verb that runs is the first one; others are about to be refused."""
    closed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Turn:
    """One call of a verb."""

    name: str


def verb(runtime: Runtime, name: str, work: Callable[[], Result]) -> Result:
    """What ``work`` gives, refused on a closed session or while another verb runs.

    However the work ends, and wherever on its border an interrupt strikes, no bar stays open and
    the session is free again: what ends a turn can be done twice, and is.

    Raises:
        SessionError: The session is closed or busy.
    """
    turn = Turn(name=name)
    try:
        try:
            _begin(runtime, turn)
            return work()
        finally:
            _end(runtime, turn)
    finally:
        _end(runtime, turn)


def close(runtime: Runtime) -> None:
    """Let go of the models; their memory is free when nothing else holds them.

    Raises:
        SessionError: A verb is running.
    """
    turn = Turn(name="close")
    try:
        try:
            runtime.turns.append(turn)
            _refuse_a_second(runtime, turn)
            runtime.closed = True
            runtime.reward_pool.close()
            runtime.recorder.close()
            runtime.release()
            for part in (
                "engine",
                "trainer",
                "rows",
                "weights_to_send",
                "encode",
                "decode",
                "codec",
                "example_tools",
            ):
                # an interrupted close may have let go of some
                with contextlib.suppress(AttributeError):
                    delattr(runtime, part)
        finally:
            _end(runtime, turn)
    finally:
        _end(runtime, turn)
    gc.collect()


def _begin(runtime: Runtime, turn: Turn) -> None:
    if runtime.closed:
        raise SessionError(
            f"{turn.name}: session {runtime.name!r} is closed; call nbrl.connect again."
        )
    runtime.turns.append(turn)
    _refuse_a_second(runtime, turn)


def _refuse_a_second(runtime: Runtime, turn: Turn) -> None:
    first = runtime.turns[0]
    if first is not turn:
        raise SessionError(
            f"{turn.name}: session {runtime.name!r} is busy with {first.name}; wait for it to "
            "return."
        )


def _end(runtime: Runtime, turn: Turn) -> None:
    """Close the turn's bars and let others have theirs; nothing where it has ended already."""
    if turn in runtime.turns:
        if runtime.turns[0] is turn:
            runtime.progress.end()
        runtime.turns.remove(turn)


def resident(runtime: Runtime) -> pd.DataFrame:
    """One row a part, one column a property; empty where it does not apply."""
    rows = runtime.rows()
    known = dict.fromkeys(name for row in rows.values() for name in row)
    # Column by column: a frame made of rows turns a count into a float where another has none.
    columns = {name: [row.get(name, "") for row in rows.values()] for name in known}
    return pd.DataFrame(columns, index=list(rows), dtype=object)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def read(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start
