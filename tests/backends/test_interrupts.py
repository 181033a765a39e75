"""Ctrl-C held back until it is asked for."""

import signal
import threading
import time

import pytest

from nbrl.backends.interrupts import after_returning, guarded, held_interrupts


def interrupted_inside(done, *, ask):
    """Work that is interrupted half-way, and asks or does not ask."""
    with held_interrupts() as held:
        signal.raise_signal(signal.SIGINT)
        done.append("the work in between")
        if ask:
            held.check()
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
    with pytest.raises(ValueError, match="inside"), held_interrupts():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is before


def nested(done):
    """An interrupt in an inner block that nobody asks for there."""
    with held_interrupts() as outer:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
        done.append("after the inner block")
        outer.check()
        done.append("never")


def test_nested_blocks_hand_the_interrupt_out():
    done = []
    with pytest.raises(KeyboardInterrupt):
        nested(done)
    assert done == ["after the inner block"]


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with held_interrupts() as held:
            held.check()
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


def test_one_that_is_taken_is_not_raised():
    with held_interrupts() as held:
        assert not held.taken()
        signal.raise_signal(signal.SIGINT)
        assert held.taken()
        held.check()


def struck(done):
    """Work in which Ctrl-C strikes, and which goes on with what was whole."""
    with held_interrupts() as held:
        try:
            with held.striking():
                done.append("one")
                signal.raise_signal(signal.SIGINT)
                done.append("never")
        except KeyboardInterrupt:
            done.append("swallowed")
        signal.raise_signal(signal.SIGINT)
        done.append("held again")
        return held.taken()


def test_one_that_strikes_and_is_swallowed_is_known_all_the_same():
    done = []
    assert struck(done)
    assert done == ["one", "swallowed", "held again"]


def taken_over(done):
    """Work that is whole when the interrupt is handed on."""
    with held_interrupts(after_returning):
        signal.raise_signal(signal.SIGINT)
        done.append("whole")


def test_an_interrupt_can_wait_until_the_result_is_there():
    done = []

    def work():
        taken_over(done)
        done.append("returned")
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["whole", "returned"]
    with held_interrupts() as held:
        taken_over(done)
        assert held.taken()


@pytest.fixture
def handler():
    """Installs a handler for the test."""
    mine = signal.getsignal(signal.SIGINT)
    yield lambda before: signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGINT, mine)


def test_a_signal_that_is_ignored_stays_ignored(handler):
    handler(signal.SIG_IGN)
    with held_interrupts() as held:
        signal.raise_signal(signal.SIGINT)
        held.check()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_of_somebody_else_is_served(handler):
    seen = []

    def theirs(number, frame):
        seen.append(number)

    handler(theirs)
    with held_interrupts() as held:
        signal.raise_signal(signal.SIGINT)
        assert seen == []
        with held.striking():
            signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
    assert seen == [signal.SIGINT] * 2
    assert signal.getsignal(signal.SIGINT) is theirs
