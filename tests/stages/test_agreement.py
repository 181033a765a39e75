"""Two scorings side by side: flips, movers, agreement, examples, notes."""

import math

import numpy as np
import pyarrow as pa
import pytest

import nbrl
from nbrl.errors import ConfigError, DataError, UnknownNameError
from nbrl.stages.agreement import diff_scores
from nbrl.types import Scored
from tests.values import make_prompts, make_rollouts, make_scored


def toy(totals=(1.0, 0.0, 0.0, 0.0), **spec):
    rollouts = make_rollouts(make_prompts(1), [2, 1, 3, 1, 2, 2][: len(totals)])
    return make_scored(rollouts, list(totals), **spec)


def with_parts(scored: Scored, **parts: list[float | None]) -> Scored:
    table = scored.table
    for name, values in parts.items():
        table = table.append_column(name, pa.array(values, pa.float64()))
        states = ["error" if v is None else "ok" for v in values]
        table = table.append_column(f"{name}.status", pa.array(states))
        table = table.append_column(f"{name}.seconds", pa.array([0.1] * len(values)))
    return Scored(table=table, rollouts=scored.rollouts, spec=scored.spec)


def test_scorings_are_joined_by_id():
    a, b = toy((1.0, 0.0, 0.25, None)), toy((1.0, 1.0, 0.5, 0.0))
    got = diff_scores(a, b.take(np.array([3, 1, 0, 2]))).table
    assert got["sample_id"].tolist() == ["p0@0#3", "p0@0#1", "p0@0#2"]
    assert got["difference"].tolist()[1:] == [1, 0.25]
    assert got["flip"].tolist() == [False, True, False]
    assert got["status_a"].tolist() == ["error", "ok", "ok"]
    assert np.isnan(got["a"][0])


def test_samples_that_only_one_has_are_kept():
    a, b = toy((1.0, 0.0)), toy((1.0, 0.0)).take(np.array([1]))
    got = diff_scores(a, b)
    assert got.table["sample_id"].tolist() == ["p0@0#0"]
    assert got.table["status_b"].tolist() == ["missing"]
    assert got.notes == ("1 samples are not in b",)
    # its text comes from the side that has it
    assert got.examples["prompt"].tolist() == ["0+1="]
    assert (got.summary.loc["total", "lost"], got.summary.loc["total", "gained"]) == (1, 0)


def test_equal_scorings_do_not_differ():
    got = diff_scores(toy((1.0, None)), toy((1.0, None)))
    assert (len(got), len(got.examples), len(got.movers())) == (0, 0, 0)
    wanted = ["sample_id", "a", "b", "difference", "status_a", "status_b", "flip"]
    assert got.table.columns.tolist() == wanted
    assert repr(got) == "ScoreDiff(1 samples, 0 moved, 0 flips)"


def test_the_summary_by_hand():
    a = toy((1.0, 1.0, 1.0, 0.0, 0.0, 0.0))
    b = toy((1.0, 1.0, 0.0, 0.0, 0.0, 1.0))
    got = diff_scores(a, b)
    row = got.summary.loc["total"]
    assert (row["samples"], row["moved"], row["flips"]) == (6, 2, 2)
    assert row["agreement"] == pytest.approx(4 / 6)
    # by chance half of them would agree
    assert row["kappa"] == pytest.approx((4 / 6 - 0.5) / 0.5)
    assert row["spearman"] == pytest.approx(1 / 3)
    assert row["kendall"] == pytest.approx(1 / 3)
    assert got.tables["total"].to_numpy().tolist() == [[2, 1], [1, 2]]
    assert got.tables["total"].loc["pass", "fail"] == 1
    assert repr(got) == "ScoreDiff(6 samples, 2 moved, 2 flips, kappa 0.33, rank correlation 0.33)"


def test_the_threshold_says_what_passes():
    a, b = toy((0.2, 0.8, 0.6, 0.4)), toy((0.4, 0.7, 0.3, 0.9))
    assert len(diff_scores(a, b).flips) == 0
    got = diff_scores(a, b, threshold=0.5)
    assert got.flips["sample_id"].tolist() == ["p0@0#3", "p0@0#2"]
    assert got.movers(3)["difference"].tolist() == pytest.approx([0.5, -0.3, 0.2])
    assert got.tables["total"].to_numpy().tolist() == [[1, 1], [1, 1]]


def test_each_component_has_its_row_and_can_be_looked_at():
    a = with_parts(toy((1.0, 0.0, 1.0)), right=[1.0, 0.0, 1.0], old=[0.0, 0.0, 0.0])
    b = with_parts(toy((1.0, 0.0, 1.0)), right=[0.0, 0.0, None], new=[0.0, 0.0, 0.0])
    got = diff_scores(a, b)
    assert got.summary.index.tolist() == ["total", "right"]
    assert got.summary.loc["right", ["samples", "flips", "lost"]].tolist() == [2, 1, 1]
    assert math.isnan(got.summary.loc["right", "spearman"])
    assert got.tables["right"].to_numpy().tolist() == [[0, 1], [0, 1]]
    assert got.unshared == {"a": ["old"], "b": ["new"]}
    assert len(got) == 0
    part = diff_scores(a, b, component="right")
    assert part.table["sample_id"].tolist() == ["p0@0#2", "p0@0#0"]
    assert part.table["status_b"].tolist() == ["error", "ok"]
    assert repr(part).startswith("ScoreDiff('right', 2 samples, 1 moved, 1 flips, 1 lost")


def test_examples_show_flips_first_with_their_texts():
    a, b = toy((9.0, 0.0, 1.0)), toy((1.0, 1.0, 1.0))
    got = diff_scores(a, b).examples
    assert got[["sample_id", "a", "b", "flip"]].to_numpy().tolist() == [
        ["p0@0#1", 0.0, 1.0, True], ["p0@0#0", 9.0, 1.0, False]
    ]  # fmt: skip
    assert got[["prompt", "response", "label"]].to_numpy().tolist() == [
        ["0+1=", "x", "1"], ["0+1=", "xx", "1"]
    ]  # fmt: skip


def test_the_same_answer_is_shown_once():
    rollouts = make_rollouts(make_prompts(1), [2, 2, 1])
    a, b = make_scored(rollouts, [0.0, 0.0, 0.0]), make_scored(rollouts, [1.0, 1.0, 1.0])
    got = diff_scores(a, b)
    assert len(got.flips) == 3
    assert got.examples["response"].tolist() == ["xx", "x"]


def test_what_a_reader_must_know_is_noted():
    same = {"fingerprints": {"reward": "f"}, "combine": "sum"}
    a, b = toy((1.0, 0.0), **same), toy((1.0, 1.0), **same, replayed=["prices"])
    said = diff_scores(a, b).notes
    assert any(note.startswith("both were scored by the same code") for note in said)
    assert any(note.startswith("b: prices depends on the world") for note in said)
    assert diff_scores(a, a).notes == ()


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="threshold must be a finite number"):
        diff_scores(toy(), toy(), threshold=float("nan"))
    with pytest.raises(UnknownNameError, match="unknown component 'form'; known: total"):
        diff_scores(toy(), toy(), component="form")
    other = make_scored(make_rollouts(make_prompts(2), [1, 1])[1:], [1.0])
    with pytest.raises(DataError, match="none in common"):
        diff_scores(toy((1.0,)), other)


def test_no_samples_do_not_differ():
    nothing = toy().filter(np.zeros(4, bool))
    assert len(nbrl.diff_scores(nothing, nothing)) == 0
