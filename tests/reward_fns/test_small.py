"""Format, length and the tasks' own scorers: values by hand, and answers that are sent to hurt."""

import sys
import time

import pytest

from tests.reward_fns.files import HOSTILE, defined

FORMAT = defined("format")
LENGTH = defined("length")
GYM = defined("reasoning_gym")
GOOD = "<think>I add both of the numbers.</think>\n<answer>49</answer>"


# ---- format -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "kept"),
    [
        (GOOD, 1.0),
        (f"  {GOOD}\n", 1.0),
        ("<think>a</think><answer></answer>", 0.0),
        ("<think> </think><answer>49</answer>", 0.0),
        ("<think>a</think>49", 0.0),
        ("<answer>49</answer><think>a</think>", 0.0),
        (f"{GOOD} and more", 0.0),
        (f"before {GOOD}", 0.0),
        (f"{GOOD}{GOOD}", 0.0),
        ("<think>a<answer>49</answer></think>", 0.0),
        ("<think>a</think>b<answer>49</answer>", 0.0),
        ("</think>a<think><answer>49</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_tags(response, kept):
    assert FORMAT.tags(response) == kept


@pytest.mark.parametrize(("words", "kept"), [(0, 0.0), (1, 0.2), (5, 1.0), (800, 1.0), (1600, 0.5)])
def test_length_in_words(words, kept):
    assert FORMAT.length("word " * words) == kept


@pytest.mark.parametrize(
    ("response", "language", "kept"),
    [
        ("forty nine", "en", 1.0),
        ("sorok \u0441\u043e\u0440\u043e\u043a", "en", pytest.approx(5 / 10 / 0.9)),
        ("\u0441\u043e\u0440\u043e\u043a", "ru", 1.0),
        ("\u56db\u5341\u4e5d", "zh", 1.0),
        ("\u56db\u5341\u4e5d", "en", 0.0),
        ("49", "en", 0.0),
    ],
)
def test_language_by_script(response, language, kept):
    assert FORMAT.language(response, {"language": language}) == kept


def test_an_unknown_language_is_said():
    with pytest.raises(ValueError, match=r"'tlh'.*known"):
        FORMAT.language("x", {"language": "tlh"})


def test_the_components_add_up_to_one():
    assert sum(FORMAT.reward(GOOD, {}).values()) == pytest.approx(1.0)


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answers_keep_no_form(response):
    start = time.monotonic()
    kept = FORMAT.reward(response, {})
    assert kept["tags"] == 0.0
    assert all(0.0 <= value <= 1 / 3 for value in kept.values())
    assert time.monotonic() - start < 2.0


# ---- length -------------------------------------------------------------------------------------


def test_the_overlong_penalty_is_dapos():
    given = [LENGTH.overlong(n, 100, 20) for n in (80, 81, 90, 100, 130)]
    assert given == pytest.approx([0.0, -0.05, -0.5, -1.0, -1.0])


def test_stop_properly_scales_or_replaces():
    assert LENGTH.stop_properly(1.0, True, 0.2) == 0.2
    assert LENGTH.stop_properly(1.0, True, -0.5) == -0.5
    assert LENGTH.stop_properly(1.0, False, -0.5) == 1.0


def test_only_sampled_tokens_cost():
    source = [0] * 1000 + [1] * 448 + [2] * 1000
    rollout = {"source": source, "truncated": False}
    assert LENGTH.reward(rollout) == {"overlong": -0.5, "unfinished": 0.0}
    assert LENGTH.reward(rollout | {"truncated": True})["unfinished"] == -0.5
    assert LENGTH.reward({"source": [], "truncated": False}) == {"overlong": 0.0, "unfinished": 0.0}


# ---- the tasks' own scorers ---------------------------------------------------------------------

LETTERS = {"entry": {"source_dataset": "letter_counting"}}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_the_tasks_scorer_says_what_is_right():
    assert GYM.reward("<think>4?</think> 3", "3", LETTERS) == 1.0
    assert GYM.reward("so <answer> 3 </answer>.", "3", LETTERS) == 1.0
    assert GYM.reward("4", "3", LETTERS) < 0.1
    assert GYM.reward("", "3", LETTERS) == 0.0
    assert GYM.reward("<think>3", "3", LETTERS) == 0.0
    for response in HOSTILE:
        assert 0.0 <= GYM.reward(response, "3", LETTERS) < 0.1
    with pytest.raises(ValueError, match="names no 'source_dataset'"):
        GYM.reward("3", "3", {})


def test_a_missing_package_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r"pip install 'nbrl\[data\]'"):
        GYM.reward("3", "3", LETTERS)
