"""Calls of many environments at once, each with a deadline; imports nothing of the house.

Each call has a thread of its own, so one that blocks, sleeps or never returns holds up nobody
else, and no signal is used. Coroutines run in the episode's own event loop, which stays the same
from call to call: an environment may keep connections open.
"""

import asyncio
import queue
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a call gave: a value, or an error in words."""

    value: Any = None
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """One method with its argument, and the loop that its coroutine runs in."""

    method: Callable[[Any], Awaitable[Any] | Any]
    argument: Any
    loop: asyncio.AbstractEventLoop


def call_all(calls: Sequence[Call], timeout: float) -> list[Reply]:
    """One reply a call, in order, after at most ``timeout`` seconds.

    A thread whose call is late is left to itself; it is a daemon, and its result is not looked at.
    """
    replies: queue.SimpleQueue[tuple[int, Reply]] = queue.SimpleQueue()
    started = time.perf_counter()
    for index, call in enumerate(calls):
        thread = threading.Thread(
            target=_answer, args=(index, call, replies), name="nbrl-agent", daemon=True
        )
        thread.start()
    found: dict[int, Reply] = {}
    while len(found) < len(calls):
        left = started + timeout - time.perf_counter()
        try:
            # in slices, so that Ctrl-C is heard
            index, reply = replies.get(timeout=max(min(left, 0.1), 0.0))
        except queue.Empty:
            if left <= 0:
                break
        else:
            found[index] = reply
    late = Reply(error=f"no answer within {timeout:g} s", seconds=timeout)
    return [found.get(index, late) for index in range(len(calls))]


def _answer(index: int, call: Call, replies: "queue.SimpleQueue[tuple[int, Reply]]") -> None:
    started = time.perf_counter()
    try:
        said = call.method(call.argument)
        if asyncio.iscoroutine(said):
            said = call.loop.run_until_complete(said)
        reply = Reply(value=said, seconds=time.perf_counter() - started)
    except BaseException as error:  # noqa: BLE001 -- a user's environment may raise anything
        reply = Reply(error=_told(error), seconds=time.perf_counter() - started)
    replies.put((index, reply))


def _told(error: BaseException) -> str:
    """The error and the line of the environment that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return "".join(traceback.format_exception_only(error)).strip() + where
