"""The math verifier: every pair gets its verdict, in time, in any thread, whatever is sent."""

import threading
import time

import pytest

from tests.reward_fns.answers import KIN, PAIRS
from tests.reward_fns.files import HOSTILE, LONG, defined

MATH = defined("math")


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """The first answer that needs Math-Verify waits for its import."""
    assert MATH.reward(r"\boxed{x+1}", "1+x") == 1.0


@pytest.mark.parametrize(("label", "answer", "right", "why"), PAIRS + KIN)
def test_answer_pairs(label, answer, right, why):
    start = time.monotonic()
    assert MATH.reward(answer, label) == float(right), why
    # a second of processor time; others may have the machine meanwhile
    assert MATH.SECONDS < 1.0
    assert time.monotonic() - start < 10.0


@pytest.mark.parametrize("label", [pair[0] for pair in PAIRS + KIN])
def test_every_label_is_right_for_itself(label):
    assert MATH.reward(rf"so \boxed{{{label}}}", label) == 1.0


def test_another_thread_gets_the_same_verdicts():
    found = []
    asked = [(r"\boxed{1+x}", "x+1"), (r"\boxed{99999999!}", "10"), (r"\boxed{2}", "x+1")]

    def work():
        found.append([MATH.reward(answer, label) for answer, label in asked])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert found == [[1.0, 0.0, 0.0]]
    assert len({grader.pid for grader in MATH.GRADERS.values()}) == 2


def test_an_answer_that_takes_too_long_does_not_slow_the_next():
    MATH.reward(r"\boxed{10^{999999999}+x}", "x+1")
    start = time.monotonic()
    assert MATH.reward(r"\boxed{1+x}", "x+1") == 1.0
    assert time.monotonic() - start < MATH.SECONDS + 2.0


def test_a_grader_ends_with_its_pipe_and_is_replaced():
    """The pipe closes with the process that holds it, however that one ends."""
    grader = MATH.GRADERS[threading.get_ident()]
    grader.stdin.close()
    assert grader.wait(10) == 0
    assert MATH.reward(r"\boxed{1+x}", "x+1") == 1.0


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answers_are_wrong_and_quick(answer):
    start = time.monotonic()
    assert MATH.reward(answer, "x+1") == 0.0
    assert MATH.reward(rf"\boxed{{{answer}}}", "x+1") == 0.0
    assert time.monotonic() - start < 5.0


def test_a_long_answer_is_right_where_it_is_the_label():
    assert MATH.reward(rf"\boxed{{{LONG}}}", LONG) == 1.0


@pytest.mark.parametrize("label", [42, "42", 42.0, "$42$", r"\boxed{42}", " 42 "])
def test_labels_of_all_spellings_grade_alike(label):
    assert [MATH.reward(rf"\boxed{{{a}}}", label) for a in ("42", "41")] == [1.0, 0.0]


@pytest.mark.parametrize("label", [None, True, [42], {"a": 1}])
def test_labels_of_other_kinds_are_refused(label):
    with pytest.raises(TypeError, match="label must be a text or a number"):
        MATH.reward(r"\boxed{42}", label)


@pytest.mark.parametrize("label", ["", "  ", "$ $", r"\boxed{}"])
def test_nothing_is_right_for_an_empty_label(label):
    with pytest.raises(ValueError, match="holds no answer"):
        MATH.reward(r"\boxed{}", label)


def test_a_label_that_cannot_be_read_raises():
    with pytest.raises(ValueError, match="no mathematics"):
        MATH.reward(r"\boxed{x+1}", r"\begin{")


def test_a_missing_library_is_said():
    program = MATH.start.__globals__
    kept, program["PROGRAM"] = program["PROGRAM"], "import sys; sys.exit('no math_verify')"
    try:
        with pytest.raises(RuntimeError, match=r"pip install 'nbrl\[rewards\]'"):
            MATH.start()
    finally:
        program["PROGRAM"] = kept
