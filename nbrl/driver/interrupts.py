"""Ctrl-C as a question that work asks between two units, so that state is never torn.

Imports nothing of the house.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cooperative_interrupts() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back for the block; yields ``check()``, which raises it if one came.

    Without this, KeyboardInterrupt may strike between an optimizer step and the note that it
    was taken. Outside the main thread, where Python delivers no signals, ``check`` does nothing.
    A Ctrl-C that no ``check`` has raised comes when the block has ended without an error.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []

    def check() -> None:
        if came:
            came.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def guarded(
    advance: Callable[[int, int], None], check: Callable[[], None]
) -> Callable[[int, int], None]:
    """``advance`` that asks for an interrupt each time it is called."""

    def both(units: int, tokens: int) -> None:
        advance(units, tokens)
        check()

    return both
