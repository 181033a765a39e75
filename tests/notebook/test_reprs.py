"""The HTML of values: escaped, small, readable without style, and beside the plain repr."""

import dataclasses
import unicodedata
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbrl
from nbrl.notebook import reprs
from nbrl.notebook.progress import running_shell
from nbrl.notebook.reprs import results, samples, summaries, text
from nbrl.stages.agreement import diff_scores
from nbrl.types import Evaluation, History, LossComparison, Metric, Probe, RewardCheck, StepResult
from tests.examples import make_examples, make_tokenized
from tests.notebook.conftest import HOSTILE, make_prompts, make_rollouts, make_scored

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


WHOLE = "\u2588"
ALLOWED = {
    "div", "b", "table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre",
}  # fmt: skip


@pytest.fixture
def session(tmp_path):
    opened = nbrl.connect(run_dir=tmp_path / "run", progress="quiet")
    yield opened
    opened.close()


@pytest.fixture
def values(prompts, rollouts, scored, advantaged, session):
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
        compared(advantaged),
        diffed(scored),
        checked(),
        session,
        examples(),
    ]


def examples():
    """Pairs with tokens, two of them hostile, and a row that was left out."""
    made = make_tokenized("pairs", 9)
    chosen = pa.array([HOSTILE] * 2 + ["c"] * 7)
    left_out = {"dropped": [{"row": 3, "reason": HOSTILE}]}
    return dataclasses.replace(made.with_columns({"chosen": chosen}), spec=left_out)


def compared(batch):
    table = pd.DataFrame(
        {"grad_norm": [0.0, 2.0], "signal_to_noise": [np.nan, 0.9]}, index=[HOSTILE, "ppo"]
    )
    cosines = pd.DataFrame([[1.0, -0.5], [-0.5, 1.0]], index=table.index, columns=table.index)
    return LossComparison(table=table, cosines=cosines, tokens={}, batch=batch, version=0, parts=2)


def diffed(scored):
    """Against a scoring in which the first sample failed and the second turned round."""
    totals = scored.table.column("total").to_pylist()
    turned = [None, 1.0 - (totals[1] or 0.0), *totals[2:]]
    after = make_scored(scored.rollouts, turned)
    return diff_scores(scored, dataclasses.replace(after, spec={"replayed": [HOSTILE]}))


def checked():
    row = ("errors", 0.5, "look", f"2 of 4 samples failed; the first: {HOSTILE}")
    columns = ["check", "value", "verdict", "meaning"]
    return RewardCheck(name=HOSTILE, samples=4, table=pd.DataFrame([row], columns=columns))


def test_two_scorings_show_counts_texts_and_notes(scored):
    diff = diffed(scored)
    words = page(reprs.HTML[type(diff)](diff)).words
    for wanted in ("components", "b passes", "a fails", "flips", "kappa"):
        assert wanted in words
    assert any(HOSTILE in w and "depends on the world" in w for w in words)
    assert any("1 samples have a number in a and none in b" in w for w in words)
    flipped = diff.examples[diff.examples["flip"]]
    assert len(flipped) == 1
    assert flipped["prompt"][0] in words


def test_losses_that_are_noise_or_apart_are_a_concern(advantaged):
    assert results.loss_concerns(compared(advantaged)) == [
        f"{HOSTILE}: the gradient is zero on this batch",
        "mostly noise on this batch (signal to noise below 1.2): ['ppo']",
        f"{HOSTILE} and ppo pull apart: cosine -0.50",
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
        assert bundle["text/html"].startswith("<div><div><b>")
        assert len(repr(value)) <= 120
        assert "\n" not in repr(value)
    shell.history_manager.end_session()


def test_without_a_shell_there_is_nothing_to_teach():
    assert reprs.register() is None
    assert running_shell() is None


def test_no_data_becomes_an_element_or_an_attribute(values):
    for value in values:
        found = page(reprs.HTML[type(value)](value))
        assert found.elements <= ALLOWED
        assert found.attributes <= {"scope", "style", "tabindex", "role", "aria-label"}


def test_colours_are_left_to_the_page(values):
    for value in values:
        assert "color" not in reprs.HTML[type(value)](value).split("<pre>")[0]


def test_scrolling_tables_and_the_spec_are_reached_by_keyboard(values):
    for value in values:
        markup = reprs.HTML[type(value)](value)
        assert markup.count("<table>") == markup.count('tabindex="0"') > 0
    spec = reprs.HTML[type(values[3])](values[3])
    assert "<summary>spec</summary>" in spec


def test_closed_session_still_shows_itself(session):
    session.close()
    words = page(results.session_html(session)).words
    assert any("is closed" in w for w in words)
    assert words[0].startswith("Session('tiny', closed")


def test_concerns_are_said_in_words(rollouts, scored, advantaged):
    cut = rollouts.with_columns({"truncated": pa.array([True, False, False, False])})
    assert summaries.rollout_concerns(cut) == ["25% of the answers were cut at the length limit"]
    assert summaries.scored_concerns(scored) == ["1 of 4 samples have no reward; first error: boom"]
    assert summaries.advantaged_concerns(advantaged) == [
        "1 of 2 groups are dead: all their rewards are equal"
    ]


def test_equal_rewards_are_a_concern(rollouts):
    dead = make_scored(rollouts, [1.0, 0.0, 0.5, 0.5])
    (said,) = summaries.scored_concerns(dead)
    assert said.startswith("1 of 2 groups are dead: all their rewards are equal, so a group")
    same = make_scored(rollouts, [0.5] * 4)
    assert summaries.scored_concerns(same) == [
        "every sample has the same reward, 0.5: nothing can be learnt"
    ]


def test_sampler_and_trainer_apart_are_a_concern(rollouts):
    logprobs = rollouts.table.column("rollout_logprobs").to_pylist()
    apart = pa.array([[x - 0.25 for x in row] for row in logprobs], pa.list_(pa.float32()))
    off = rollouts.with_columns({"old_logprobs": apart})
    assert summaries.sampler_gap(off) == pytest.approx(0.25)
    assert any("differ by 0.25 on average" in c for c in summaries.rollout_concerns(off))
    same = rollouts.with_columns({"old_logprobs": rollouts.table.column("rollout_logprobs")})
    assert summaries.sampler_gap(same) == 0.0
    assert summaries.rollout_concerns(same) == summaries.rollout_concerns(rollouts)


def test_distribution_counts_finite_values_only():
    row = summaries.distribution("x", np.array([1.0, 2.0, 6.0, np.nan]))
    assert row[:6] == ("x", 3, 3.0, 1.0, 2.0, 6.0)
    assert row[6][0] == row[6][2] == WHOLE
    assert summaries.distribution("x", np.array([np.nan]))[1:3] == (0, None)


def test_spark_has_a_bar_a_bin_and_a_dot_where_nothing_is():
    assert text.spark(np.array([0.0, 0.0, 1.0, 1.0]), bins=4) == "\u2588\u00b7\u00b7\u2588"
    assert text.spark(np.array([2.0, 2.0])) == WHOLE
    assert text.spark(np.array([])) == ""


def test_untrusted_prompt_is_shown_as_written(rollouts):
    assert HOSTILE in " ".join(page(samples.rollouts_html(rollouts)).words)


def test_unseen_characters_are_named():
    assert text.visible("a\n\t\x7f\u200b\u202e") == "a\u240a\u2409\u2421[U+200B][U+202E]"


@pytest.mark.parametrize("code", [0x00, 0x1B, 0x85, 0xAD, 0x2028, 0x2066, 0xFEFF, 0xE0041])
def test_nothing_invisible_is_left(code):
    shown = text.visible(chr(code))
    assert all(unicodedata.category(c)[0] not in "CZ" for c in shown)


def test_long_text_is_cut_and_its_length_said():
    shown = text.visible("x" * 5000)
    assert shown == "x" * text.MOST_CHARACTERS + " ... (5,000 characters)"


def test_numbers_of_a_step_and_its_warnings(values):
    words = page(results.step_html(values[4])).words
    at = words.index("loss")
    assert words[at : at + 4] == ["loss", "-0.0125", "1,280", "tokens"]
    assert words[words.index("train, seconds") + 1] == "0.25"
    assert "2 groups without signal" in "".join(words)
    assert HOSTILE in "".join(words)


def test_scored_rows_hold_reward_length_and_finish(scored):
    words = page(samples.scored_html(scored)).words
    at = words.index("p1@0#0")
    assert words[at : at + 7] == ["p1@0#0", HOSTILE, "345", "3", "length", "0", "ok"]
    assert words[0] == "Scored(4 samples, mean reward 0.333, 1 excluded)"


def test_advantaged_rows_hold_the_mean_over_counted_tokens(advantaged):
    words = page(samples.advantaged_html(advantaged)).words
    at = words.index("p0@0#1")
    assert words[at + 6 : at + 10] == ["0", "0.5", "-1", "yes"]


def test_examples_show_their_texts_what_is_learned_and_what_was_left_out():
    value = examples()
    words = page(samples.examples_html(value)).words
    first = value[0]
    said = [
        f"{len(first[f'{s}_mask'])} ({sum(first[f'{s}_mask'])})" for s in ("chosen", "rejected")
    ]
    at = words.index("e0")
    assert (words[at + 1], words[at + 3]) == ("p", "r")
    assert words[at + 5 : at + 7] == said
    assert words[words.index("left out") + 1 :][:3] == ["row", "reason", "3"]
    plain = page(samples.examples_html(make_examples("steps", 2))).words
    assert "left out" not in plain
    assert plain.count("['s']") == 2


def test_history_shows_first_and_last_step(values):
    words = page(results.history_html(values[7])).words
    assert words[2:4] == ["version", "reward"]
    assert words[4:6] == ["0", "0"]
    assert words[-3:] == ["19", "1.9", "6 of 20 steps; .to_pandas() has all"]


def test_history_shows_what_is_looked_at_first():
    record = {f"m{i}": 0.5 for i in range(20)} | {"reward": 0.25, "version": 3, "grad_norm": 2.0}
    words = page(results.history_html(History(records=[record]))).words
    assert words[2:6] == ["version", "reward", "grad_norm", "m0"]
    assert words[14:17] == ["3", "0.25", "2"]


@pytest.mark.parametrize("count", [0, 1, 2000])
def test_size_stays_small_and_rows_are_spread(count):
    text = "<&'\"\x00\u202e" * 400
    prompts = make_prompts([text] * count, [text] * count)
    rollouts = make_rollouts(prompts, [[text[:300]]] * count)
    markup = samples.rollouts_html(rollouts)
    assert len(markup.encode()) <= 64_000
    assert len(samples.prompts_html(prompts).encode()) <= 64_000
    words = page(markup).words
    assert ("6 of 2,000 rows; .to_pandas() has all" in words) == (count == 2000)
    assert ("1,999" in words) == (count == 2000)


def test_many_metrics_stay_small():
    metrics = {f"{'m' * 300}{i}": Metric(value=1.0) for i in range(5000)}
    step = StepResult(version_before=0, version_after=1, metrics=metrics, tokens=TOKENS, seconds={})
    history = History(records=[dict.fromkeys(metrics, 1.0) | {"version": i} for i in range(3)])
    assert len(results.step_html(step).encode()) <= 64_000
    assert len(results.history_html(history).encode()) <= 64_000
