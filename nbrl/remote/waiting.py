"""The one way to wait for actors: in short slices, so that a Ctrl-C and a death are seen at once.

Imports ray and ``errors``.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from nbrl.errors import NbrlError, SessionError

SLICE_SECONDS = 0.2
CONTROL_SECONDS = 10.0
STOP_SECONDS = 60.0
SETTLE_SECONDS = 2.0


def first_done(pending: Sequence[Any], tick: Callable[[], None]) -> list[Any]:
    """Those that are done after at most one slice; ``tick`` is called afterwards.

    ``tick`` may raise: nothing is lost, the others still run.
    """
    done, _ = ray.wait(list(pending), num_returns=1, timeout=SLICE_SECONDS)
    tick()
    return done


def value_of(ref: Any) -> Any:
    """What a finished call gave.

    Raises:
        Exception: What the call raised; what nbrl did not raise itself has the remote traceback.
        RayActorError: The actor died.
    """
    try:
        return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, NbrlError):
            raise error.cause from None
        raise error.as_instanceof_cause() from None


def all_of(
    refs: Sequence[Any], tick: Callable[[], None], *, asked: str, deadline: float | None = None
) -> list[Any]:
    """What all calls gave, in order; the first failure ends the waiting.

    Args:
        refs: The calls.
        tick: Called in every slice; it may raise.
        asked: What is waited for, for messages.
        deadline: Seconds after which it is an error; None waits as long as all are alive.

    Raises:
        SessionError: An actor died, or the deadline passed; names those not done.
    """
    start, pending = time.monotonic(), list(refs)
    while pending:
        for ref in first_done(pending, tick):
            try:
                value_of(ref)
            except RayActorError as error:
                raise died(asked, refs.index(ref), error) from error
            except Exception:
                _settle(refs)
                raise
            pending.remove(ref)
        waited = time.monotonic() - start
        if deadline is not None and waited > deadline and pending:
            late = [refs.index(ref) for ref in pending]
            raise SessionError(
                f"{asked}: {len(late)} of {len(refs)} workers did not answer within {deadline:.0f} "
                f"s (numbers {late}; the others did). Close the session and connect again."
            )
    return [value_of(ref) for ref in refs]


def _settle(refs: Sequence[Any]) -> None:
    """Take note of what the others raise at the same time, which Ray would print else."""
    done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=SETTLE_SECONDS)
    for ref in done:
        with suppress(Exception):
            ray.get(ref)


def died(asked: str, number: int, error: BaseException) -> SessionError:
    """The error for a worker whose process ended."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return SessionError(
        f"{asked}: the process of worker {number} died ({first}). Look into its log in Ray's "
        "session folder (memory, a killed process); close the session and connect again."
    )


def control(refs: Sequence[Any], default: Any) -> list[Any]:
    """The answers of control calls; ``default`` where an actor is dead or too busy to say."""
    found = []
    for ref in refs:
        try:
            found.append(ray.get(ref, timeout=CONTROL_SECONDS))
        except (RayActorError, GetTimeoutError):
            found.append(default)
    return found
