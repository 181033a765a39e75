"""The process that reward code runs in: takes code and samples by pipe, answers sample by sample.

Started by ``pool`` as a fresh interpreter, so that no script of the user's runs twice. The parent
kills it where a sample takes too long, so nothing here needs signals. May import its neighbour
``calling``.
"""

import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nbrl.backends.rewards.calling import Outcome, score_samples

READY = b"ready"
"""Said once a job, when its code is loaded: what a sample may take counts from here."""


def main(given_fd: int, said_fd: int, memory: int) -> None:
    """Answers jobs from one pipe on the other, until the first one closes.

    A job is ``(code, [(place, rows), ...])``, the code None where it is that of the job before.
    The answers are ``(place, outcomes)``, one a part and in order.
    """
    given, said = Connection(given_fd, writable=False), Connection(said_fd, readable=False)
    _limit_memory(memory)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    reward: Any = None
    broken = ""
    while True:
        try:
            code, parts = pickle.loads(given.recv_bytes())
        except (EOFError, OSError):
            return
        if code is not None:
            reward, broken = _unpacked(code)
        said.send_bytes(READY)
        for place, rows in parts:
            outcomes = _asked(reward, rows) if not broken else [_lost(broken)] * len(rows)
            said.send_bytes(pickle.dumps((place, outcomes)))


def _unpacked(code: bytes) -> tuple[Any, str]:
    """The reward, or what kept it from being one here, as a module that is not installed."""
    try:
        paths, packed = pickle.loads(code)
        sys.path.extend(path for path in paths if path not in sys.path)
        return pickle.loads(packed), ""
    except BaseException as error:  # noqa: BLE001 -- unpickling runs the user's code
        return None, _text(error)


def _asked(reward: Any, rows: list[Mapping[str, Any]]) -> list[Outcome]:
    try:
        return score_samples(reward, rows, on_error="exclude", advance=lambda done, tokens: None)
    except BaseException as error:  # noqa: BLE001 -- a user's function may raise anything
        return [_lost(_text(error))] * len(rows)


def _lost(text: str) -> Outcome:
    return Outcome(value=None, status="error", error=text)


def _text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # noqa: BLE001 -- a user's exception may have a broken __str__
        return type(error).__name__


def _limit_memory(memory: int) -> None:
    """Let the process have ``memory`` bytes beyond those it has; a larger demand is an error."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _end_with_parent(parent: int) -> None:
    """Ends this process and its children where the kernel dies without a word."""
    waiting = threading.Event()
    while os.getppid() == parent:
        waiting.wait(1.0)
    os.killpg(0, signal.SIGKILL)
