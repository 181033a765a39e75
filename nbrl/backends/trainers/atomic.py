"""Ctrl-C held back while weights are being written; imports nothing of the house."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LATER_SECONDS = 0.05


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT back for the block, then hand it to the handler that was installed.

    Where that handler would raise KeyboardInterrupt, the signal comes again a moment later, as if
    pressed then: what was written is whole, and the caller learns of it before it is interrupted.
    Outside the main thread, where Python delivers no signals, there is nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        try:
            before(came[0], None)
        except KeyboardInterrupt:
            ident = threading.main_thread().ident
            assert ident is not None
            later = threading.Timer(_LATER_SECONDS, signal.pthread_kill, (ident, signal.SIGINT))
            later.daemon = True
            later.start()
