"""Processes that reward code runs in, so that what it does to its process costs one sample.

A worker answers sample by sample. One that dies, or is silent for longer than a sample may take,
is killed with all that it started, the sample that it was at is marked, and another worker goes
on behind it. No signal handler is touched, so this holds in any thread and under a running event
loop. Imports cloudpickle when a reward is first sent; may import its neighbours.
"""

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from nbrl.backends.rewards.calling import Advance, Outcome, Row
from nbrl.backends.rewards.loading import RewardFn
from nbrl.backends.rewards.worker import READY
from nbrl.errors import ConfigError

MEMORY = 4 << 30
"""Bytes that reward code may take beyond what its process has at the start."""
CHUNKS = 8
"""Jobs a worker: small ones keep all workers busy, large ones save messages."""
LOADING = 120.0
"""Seconds that a worker may take to start and to load a reward's code."""
Part = tuple[int, list[Row]]


@dataclass(kw_only=True, slots=True, eq=False)
class Worker:
    """One process, the pipes to it, and the parts that it has not answered."""

    process: subprocess.Popen[bytes]
    given: Connection
    said: Connection
    code: bytes = b""
    parts: deque[Part] = field(default_factory=deque)
    ready: bool = False
    since: float = 0.0
    """When it began with its code, or with the part that it is at, by the monotonic clock."""

    def deadline(self, timeout: float) -> float:
        """When it has taken too long; the first one of a batch speaks for all of its rows."""
        return self.since + (timeout * len(self.parts[0][1]) if self.ready else LOADING)


class RewardPool:
    """Workers that are started when first needed and kept until :meth:`close`."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        atexit.register(_close_if_there, weakref.ref(self))

    def score(
        self,
        reward: RewardFn,
        rows: Sequence[Row],
        *,
        workers: int,
        timeout: float,
        advance: Advance,
    ) -> list[Outcome]:
        """One outcome a row, in order; failures are outcomes of status ``error`` or ``timeout``.

        ``workers`` processes share the rows of a reward that takes one sample a call. A batch goes
        to one of them, whole, with ``timeout`` seconds for each of its rows.

        Raises:
            ConfigError: The function cannot be sent to another process.
        """
        code = packed(reward)
        single = reward.form == "sample"
        parts: list[Part] = (
            [(i, [row]) for i, row in enumerate(rows)] if single else [(0, list(rows))]
        )
        todo = _chunks(parts, workers)
        found: list[Outcome | None] = [None] * len(rows)
        try:
            while todo or any(worker.parts for worker in self._workers):
                self._hand_out(code, todo, workers)
                for place, outcomes in self._answers(todo, timeout):
                    found[place : place + len(outcomes)] = outcomes
                    advance(len(outcomes), 0)
        except BaseException:
            self.close()
            raise
        return [outcome for outcome in found if outcome is not None]

    def close(self) -> None:
        """End all workers and what they started; closing twice is harmless."""
        while self._workers:
            _end(self._workers.pop())

    def _hand_out(self, code: bytes, todo: deque[list[Part]], workers: int) -> None:
        """Give each free worker a chunk; start those that are missing."""
        while todo:
            free = next((w for w in self._workers if not w.parts), None)
            if free is None:
                if len(self._workers) >= workers:
                    return
                free = _started()
                self._workers.append(free)
            chunk = todo.popleft()
            free.parts.extend(chunk)
            try:
                free.given.send_bytes(pickle.dumps((None if free.code == code else code, chunk)))
            except OSError:
                # It died between two jobs, which is no sample's fault.
                self._workers.remove(free)
                _end(free)
                todo.appendleft(chunk)
                continue
            free.code, free.ready, free.since = code, False, time.monotonic()

    def _answers(self, todo: deque[list[Part]], timeout: float) -> list[tuple[int, list[Outcome]]]:
        """What the workers said since; the sample of one that died or hangs is marked."""
        busy = {worker.said: worker for worker in self._workers if worker.parts}
        limits = {s: w.deadline(timeout) for s, w in busy.items()}
        rest = max(0.0, min(limits.values()) - time.monotonic())
        ready = set(wait(list(busy), rest))
        answers: list[tuple[int, list[Outcome]]] = []
        for said, worker in busy.items():
            if said in ready:
                answers += self._read(worker, todo)
            elif time.monotonic() >= limits[said]:
                took = time.monotonic() - worker.since
                answers += self._lose(worker, todo, "timeout", f"no answer within {took:.3g} s")
        return answers

    def _read(self, worker: Worker, todo: deque[list[Part]]) -> list[tuple[int, list[Outcome]]]:
        answers = []
        try:
            while worker.parts and worker.said.poll():
                message = worker.said.recv_bytes()
                worker.ready, worker.since = True, time.monotonic()
                if message != READY:
                    answers.append(pickle.loads(message))
                    worker.parts.popleft()
        except (EOFError, OSError, pickle.UnpicklingError):
            status = worker.process.wait(1.0)
            answers += self._lose(worker, todo, "error", _death(status))
        return answers

    def _lose(
        self, worker: Worker, todo: deque[list[Part]], status: str, error: str
    ) -> list[tuple[int, list[Outcome]]]:
        """End a worker; the outcomes of the part it was at. The parts behind it go to another.

        Where the code could not even be loaded, no other worker can: all parts are lost.
        """
        self._workers.remove(worker)
        _end(worker)
        seconds = time.monotonic() - worker.since
        lost = [worker.parts.popleft()]
        if not worker.ready:
            error = f"while its code was loaded: {error}"
            lost += [*worker.parts, *(part for chunk in todo for part in chunk)]
            todo.clear()
        elif worker.parts:
            todo.appendleft(list(worker.parts))
        outcome = Outcome(value=None, status=status, error=error, seconds=seconds)
        return [(place, [outcome] * len(rows)) for place, rows in lost]


def packed(reward: RewardFn) -> bytes:
    """The reward's code by value, with the folders that it may import from.

    Raises:
        ConfigError: It holds what no other process can have, as a lock or an open file.
    """
    import cloudpickle

    module = sys.modules.get(_module_of(reward.function))
    by_value = module is not None and _is_the_users(module.__name__)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            paths = [str(Path(path).absolute()) for path in sys.path]
            return pickle.dumps((paths, cloudpickle.dumps(reward)))
        finally:
            if by_value:
                cloudpickle.unregister_pickle_by_value(module)
    except Exception as error:
        raise ConfigError(
            f"reward {reward.name!r} cannot be sent to another process: {type(error).__name__}: "
            f"{error}. Make what it holds inside the function, or pass workers=0 to call it in "
            "this process."
        ) from error


def _module_of(function: Any) -> str:
    while "func" in dir(function) and callable(function.func):
        function = function.func
    return function.__module__ if "__module__" in dir(function) else ""


def _is_the_users(name: str) -> bool:
    """Whether a module is neither installed nor built in: its text may change at any time."""
    spelled = sys.modules[name].__dict__.get("__file__") or ""
    installed = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
    ours = name == "__main__" or name.startswith("nbrl.")
    return bool(spelled) and not ours and not any(part in spelled for part in installed)


def _chunks(parts: list[Part], workers: int) -> deque[list[Part]]:
    size = max(1, min(64, -(-len(parts) // (workers * CHUNKS))))
    return deque(parts[at : at + size] for at in range(0, len(parts), size))


def _started() -> Worker:
    """A new process, in a process group of its own so that its children end with it."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    call = f"main({their_in}, {their_out}, {MEMORY})"
    command = [sys.executable, "-c", f"from nbrl.backends.rewards.worker import main; {call}"]
    paths = [str(Path(path).absolute()) for path in sys.path]
    try:
        process = subprocess.Popen(
            command,
            pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    finally:
        os.close(their_in)
        os.close(their_out)
    return Worker(
        process=process,
        given=Connection(our_out, readable=False),
        said=Connection(our_in, writable=False),
    )


def _end(worker: Worker) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    worker.given.close()
    worker.said.close()


def _death(status: int) -> str:
    if status < 0:
        return f"its process died by {signal.Signals(-status).name}"
    return f"its process ended with exit status {status}"


def _close_if_there(there: "weakref.ref[RewardPool]") -> None:
    pool = there()
    if pool is not None:
        pool.close()
