"""Numbers about a reward in plain words."""

import numpy as np
import pytest

from nbrl.driver.reward_verdicts import verdicts

NAN = float("nan")


def said(values, again=None, *, seconds=0.001, errors=None, groups=None, lengths=None, forms=None):
    values = np.array(values, float)
    count = len(values)
    found = verdicts(
        values,
        values if again is None else np.array(again, float),
        seconds=np.full(count, seconds),
        errors=errors or [None] * count,
        groups=groups or [f"g{i // 2}" for i in range(count)],
        lengths=np.arange(count, dtype=float) if lengths is None else np.array(lengths, float),
        forms=forms or {},
    )
    return found.set_index("check")


def row(found, check):
    return found.loc[check, ["value", "verdict", "meaning"]].tolist()


def test_each_question_by_hand():
    found = said([0, 1, 1, 1], again=[0, 1, 1, 0], lengths=[1, 3, 2, 4])
    assert row(found, "errors") == [0.0, "ok", "none of 4 samples failed"]
    assert row(found, "determinism")[:2] == [0.75, "look"]
    assert row(found, "spread") == [2.0, "ok", "0 for 1, 1 for 3"]
    assert row(found, "dead groups") == [
        0.5, "ok", "in 1 of 2 groups all answers get the same and teach nothing"
    ]  # fmt: skip
    value, verdict, meaning = row(found, "length")
    assert (value, verdict) == (pytest.approx(np.sqrt(0.6)), "look")
    assert meaning == "longer answers get more: rank correlation with the answer's length is 0.77"


def test_failures_are_left_out_and_shown():
    found = said([NAN, 1, NAN, 0], errors=["Key\nError: 'x'", None, None, None])
    assert row(found, "errors") == [
        0.5, "look", "2 of 4 samples failed; the first: Key Error: 'x'"
    ]  # fmt: skip
    assert row(found, "determinism")[:2] == [1.0, "ok"]
    assert row(found, "dead groups")[1:] == ["unknown", "no group has two answers with a value"]


def test_slow_ones_say_what_a_batch_takes():
    value, verdict, meaning = row(said([0, 1], seconds=0.5), "latency")
    assert (value, verdict) == (0.5, "look")
    assert meaning == (
        "500 ms a sample, the slowest 500 ms; 256 samples one after another take 128 s"
    )
    assert row(said([0, 1], seconds=0.00042), "latency")[2].startswith("420 us a sample")


def test_the_form_that_changes_most_is_named():
    base = [0.0, 1.0, 1.0, 0.0]
    forms = {
        "format": {
            "a box": np.array([1.0, 1.0, 1.0, 1.0]),
            "tags": np.array([0.0, 0.0, NAN, 1.0]),
            "a fence": np.array(base),
        },
        "case": {"case": np.array(base)},
    }
    found = said(base, forms=forms)
    assert row(found, "format") == [
        0.75, "look", "tags: 75% of the values change (1 up, 1 down, 1 failed); so do a box"
    ]  # fmt: skip
    assert row(found, "case") == [0.0, "ok", "the same answer gets the same: case"]


def test_nothing_is_said_of_nothing():
    found = said([], forms={"case": {"case": np.array([])}})
    assert set(found["verdict"]) == {"unknown"}
