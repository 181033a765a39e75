"""Ctrl-C held back while state changes, so that it is never torn; imports nothing of the house."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_LATER_SECONDS = 0.05


class Held:
    """The interrupts of one block: noted when they come, raised when somebody asks."""

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        """No interrupt yet; ``before`` is what happens elsewhere when one comes."""
        self._before = before
        self._came = False
        self._strikes = False

    def check(self) -> None:
        """Raise the interrupt that came, if one did."""
        if self.taken():
            raise KeyboardInterrupt

    def taken(self) -> bool:
        """Whether one came; it counts as dealt with."""
        came, self._came = self._came, False
        return came

    @contextmanager
    def striking(self) -> Iterator[None]:
        """In this block Ctrl-C does what it does elsewhere; it is noted all the same."""
        self._strikes = True
        try:
            yield
        finally:
            self._strikes = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """What the system calls when the signal comes."""
        self._came = True
        if self._strikes:
            self._before(number, frame)


def at_once() -> None:
    """Hand a held interrupt on: the handler that was installed before gets it."""
    signal.raise_signal(signal.SIGINT)


def after_returning() -> None:
    """Hand a held interrupt on, so that the caller has the result before it is interrupted.

    Where the handler would raise KeyboardInterrupt, the signal comes again a moment later, as if
    pressed then.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        if callable(handler):
            handler(signal.SIGINT, None)
    except KeyboardInterrupt:
        ident = threading.main_thread().ident
        assert ident is not None
        later = threading.Timer(_LATER_SECONDS, signal.pthread_kill, (ident, signal.SIGINT))
        later.daemon = True
        later.start()


@contextmanager
def held_interrupts(hand_on: Callable[[], None] = at_once) -> Iterator[Held]:
    """Hold Ctrl-C back for the block.

    Without this, KeyboardInterrupt may strike between an optimizer step and the note that it
    was taken. One that came and was neither raised nor taken is handed on when the block has
    ended without an error. Nothing is held outside the main thread, where Python delivers no
    signals, where they are ignored, and under a handler that is not Python's.

    Args:
        hand_on: :func:`at_once` or :func:`after_returning`.
    """
    before = signal.getsignal(signal.SIGINT)
    held = Held(before if callable(before) else signal.default_int_handler)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is None or before is signal.SIG_IGN:
        yield held
        return
    signal.signal(signal.SIGINT, held.handle)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
    if held.taken():
        hand_on()


def guarded(
    advance: Callable[[int, int], None], check: Callable[[], None]
) -> Callable[[int, int], None]:
    """``advance`` that asks for an interrupt each time it is called."""

    def both(units: int, tokens: int) -> None:
        advance(units, tokens)
        check()

    return both
