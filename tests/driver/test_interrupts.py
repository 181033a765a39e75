"""Ctrl-C held back until it is asked for."""

import signal
import threading

import pytest

from nbrl.driver.interrupts import cooperative_interrupts, guarded


def interrupted_inside(done, *, ask):
    """Work that is interrupted half-way, and asks or does not ask."""
    with cooperative_interrupts() as check:
        signal.raise_signal(signal.SIGINT)
        done.append("the work in between")
        if ask:
            check()
            done.append("never")


def test_an_interrupt_waits_for_the_question():
    done = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_inside(done, ask=True)
    assert done == ["the work in between"]


def test_an_interrupt_nobody_asked_for_comes_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_inside(done, ask=False)
    assert done == ["the work in between"]


def test_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="inside"), cooperative_interrupts():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is before


def nested(done):
    """An interrupt in an inner block that nobody asks for there."""
    with cooperative_interrupts() as outer:
        with cooperative_interrupts():
            signal.raise_signal(signal.SIGINT)
        done.append("after the inner block")
        outer()
        done.append("never")


def test_nested_blocks_hand_the_interrupt_out():
    done = []
    with pytest.raises(KeyboardInterrupt):
        nested(done)
    assert done == ["after the inner block"]


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with cooperative_interrupts() as check:
            check()
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_guarded_advances_first_and_asks_then():
    calls = []
    guarded(lambda u, t: calls.append((u, t)), lambda: calls.append("check"))(2, 7)
    assert calls == [(2, 7), "check"]
