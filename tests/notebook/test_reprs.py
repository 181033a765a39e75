"""The HTML of values: escaped, small, readable without style, and beside the plain repr."""

import unicodedata
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbrl.notebook import reprs
from nbrl.types import Evaluation, History, Metric, Probe, StepResult
from tests.notebook.conftest import HOSTILE, make_prompts, make_rollouts

TOKENS = pa.table({"sample_id": ["p0@0#0"]})
METRICS = {"loss": Metric(value=-0.0125, count=1280, of="tokens"), "grad_norm": Metric(value=0.5)}


class Page(HTMLParser):
    """Elements, attributes and words of a piece of HTML."""

    def __init__(self):
        HTMLParser.__init__(self)
        self.elements, self.attributes, self.words = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.words.append(data)


def page(markup):
    found = Page()
    found.feed(markup)
    return found


@pytest.fixture
def values(prompts, rollouts, scored, advantaged):
    return [
        prompts,
        rollouts,
        scored,
        advantaged,
        StepResult(
            version_before=0,
            version_after=1,
            metrics=METRICS,
            tokens=TOKENS,
            seconds={"train": 0.25},
            warnings=["2 groups without signal", HOSTILE],
        ),
        Probe(
            name=HOSTILE, version=0, metrics=METRICS, tokens=TOKENS, sketch=np.ones(2, np.float32)
        ),
        Evaluation(version=3, pass_at={1: (0.5, 0.4, 0.6)}, reward=(0.5, 0.4, 0.6), scored=scored),
        History(records=[{"version": i, "reward": i / 10} for i in range(20)]),
    ]


def test_every_registered_type_is_tried_here(values):
    assert {type(v) for v in values} == set(reprs.HTML)


def test_shell_shows_html_and_the_plain_repr(values):
    shell = InteractiveShell()
    reprs.register(shell)
    reprs.register(shell)
    for value in values:
        bundle, _ = shell.display_formatter.format(value)
        assert set(bundle) == {"text/plain", "text/html"}
        assert bundle["text/plain"] == repr(value)
        assert bundle["text/html"] == reprs.HTML[type(value)](value)
    shell.history_manager.end_session()


def test_without_a_shell_there_is_nothing_to_teach():
    assert reprs.register() is None
    assert reprs.running_shell() is None


def test_no_data_becomes_an_element_or_an_attribute(values):
    for value in values:
        found = page(reprs.HTML[type(value)](value))
        assert found.elements == {"div", "b", "table", "thead", "tbody", "tr", "th", "td"} - (
            set() if "td" in found.elements else {"td"}
        )
        assert found.attributes == {"scope", "style"}


def test_untrusted_prompt_is_shown_as_written(rollouts):
    assert HOSTILE in " ".join(page(reprs.rollouts_html(rollouts)).words)


def test_unseen_characters_are_named():
    assert reprs.visible("a\n\t\x7f\u200b\u202e") == "a\u240a\u2409\u2421[U+200B][U+202E]"


@pytest.mark.parametrize("code", [0x00, 0x1B, 0x85, 0xAD, 0x2028, 0x2066, 0xFEFF, 0xE0041])
def test_nothing_invisible_is_left(code):
    shown = reprs.visible(chr(code))
    assert all(unicodedata.category(c)[0] not in "CZ" for c in shown)


def test_long_text_is_cut_and_its_length_said():
    shown = reprs.visible("x" * 5000)
    assert shown == "x" * reprs.MOST_CHARACTERS + " ... (5,000 characters)"


def test_numbers_of_a_step_and_its_warnings(values):
    words = page(reprs.step_html(values[4])).words
    at = words.index("loss")
    assert words[at : at + 4] == ["loss", "-0.0125", "1,280", "tokens"]
    assert words[words.index("train, seconds") + 1] == "0.25"
    assert words[-1] == f"2 groups without signal; {HOSTILE}"


def test_scored_rows_hold_reward_length_and_finish(scored):
    words = page(reprs.scored_html(scored)).words
    at = words.index("p1@0#0")
    assert words[at : at + 7] == ["p1@0#0", HOSTILE, "345", "3", "length", "0", "ok"]
    assert words[0] == "Scored(4 samples, mean reward 0.333, 1 excluded)"


def test_advantaged_rows_hold_the_mean_over_counted_tokens(advantaged):
    words = page(reprs.advantaged_html(advantaged)).words
    at = words.index("p0@0#1")
    assert words[at + 6 : at + 10] == ["0", "0.5", "-1", "yes"]


def test_history_shows_first_and_last_step(values):
    words = page(reprs.history_html(values[7])).words
    assert words[1:3] == ["version", "reward"]
    assert words[3:5] == ["0", "0"]
    assert words[-3:] == ["19", "1.9", "6 of 20 steps; .to_pandas() has all"]


def test_history_shows_what_is_looked_at_first():
    record = {f"m{i}": 0.5 for i in range(20)} | {"reward": 0.25, "version": 3, "grad_norm": 2.0}
    words = page(reprs.history_html(History(records=[record]))).words
    assert words[1:5] == ["version", "reward", "grad_norm", "m0"]
    assert words[13:16] == ["3", "0.25", "2"]


@pytest.mark.parametrize("count", [0, 1, 2000])
def test_size_stays_small_and_rows_are_spread(count):
    text = "<&'\"\x00\u202e" * 400
    prompts = make_prompts([text] * count, [text] * count)
    rollouts = make_rollouts(prompts, [[text[:300]]] * count)
    markup = reprs.rollouts_html(rollouts)
    assert len(markup.encode()) <= 64_000
    assert len(reprs.prompts_html(prompts).encode()) <= 64_000
    words = page(markup).words
    assert ("6 of 2,000 rows; .to_pandas() has all" in words) == (count == 2000)
    assert ("1,999" in words) == (count == 2000)


def test_many_metrics_stay_small():
    metrics = {f"{'m' * 300}{i}": Metric(value=1.0) for i in range(5000)}
    step = StepResult(version_before=0, version_after=1, metrics=metrics, tokens=TOKENS, seconds={})
    history = History(records=[dict.fromkeys(metrics, 1.0) | {"version": i} for i in range(3)])
    assert len(reprs.step_html(step).encode()) <= 64_000
    assert len(reprs.history_html(history).encode()) <= 64_000
