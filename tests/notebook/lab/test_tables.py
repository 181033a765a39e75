"""Tables of the labs, by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from nbrl.errors import ConfigError, DataError
from nbrl.notebook.lab import hacking
from nbrl.notebook.lab.estimators import estimator_lab
from nbrl.notebook.lab.plots import rank_correlation
from nbrl.stages.comparison import compare_estimators
from nbrl.stages.estimator_tables import changes, differences, group_sums, side_by_side
from tests.notebook.conftest import make_prompts, make_rollouts, make_scored


def long(**estimators):
    """Four samples in two groups."""
    frames = [
        pd.DataFrame(
            {
                "estimator": name,
                "sample_id": ["a", "b", "c", "d"],
                "group_id": ["g", "g", "h", "h"],
                "reward": 0.0,
                "advantage": values,
                "live": True,
            }
        ).dropna()
        for name, values in estimators.items()
    ]
    return pd.concat(frames, ignore_index=True)


def scored_of(texts, totals):
    prompts = make_prompts([f"q{i}" for i in range(len(texts))], [None] * len(texts))
    return make_scored(make_rollouts(prompts, texts), totals)


def test_side_by_side_keeps_order_and_leaves_holes():
    wide = side_by_side(long(x=[1.0, 2.0, 3.0, 4.0], w=[1.0, None, 3.0, 4.0]))
    assert list(wide.columns) == ["x", "w"]
    assert list(wide.index) == ["a", "b", "c", "d"]
    assert math.isnan(wide.loc["b", "w"])


def test_group_sums_by_hand():
    sums = group_sums(long(x=[1.0, -1.0, 3.0, 4.0]))
    assert sums["x"].to_dict() == {"g": 0.0, "h": 7.0}


def test_changes_name_flips_first_and_ranks():
    compared = long(x=[4.0, 3.0, 2.0, -1.0], y=[4.0, 2.0, 3.0, 1.0])
    moved = changes(compared)
    assert moved["sample_id"].tolist() == ["d", "b", "c"]
    assert moved["flip"].tolist() == [True, False, False]
    assert moved["rank_change"].tolist() == [0.0, -1.0, 1.0]


def test_differences_count_against_the_first():
    rows = differences(long(x=[4.0, 3.0, 2.0, -1.0], y=[4.0, 2.0, 3.0, 1.0]))
    assert rows.loc["x"].tolist() == [0, 0, 1.0, 7.0]
    assert rows.loc["y", ["sign_flips", "rank_changes", "largest_group_sum"]].tolist() == [
        1,
        2,
        6.0,
    ]
    assert rows.loc["y", "rank_correlation"] == pytest.approx(0.8)


def test_one_estimator_or_constant_ones_have_no_changes():
    assert len(changes(long(x=[1.0, 1.0, 1.0, 1.0]))) == 0
    assert math.isnan(differences(long(x=[1.0] * 4))["rank_correlation"].iloc[0])


def test_lab_on_real_estimators_links_to_samples(rollouts):
    scored = make_scored(rollouts, [1.0, 0.0, 0.5, 0.0])
    lab = estimator_lab(scored, ["grpo", "rloo", "reinforce_pp"])
    assert lab.names == ["grpo", "rloo", "reinforce_pp"]
    assert lab.table.loc["rloo", "sign_flips"] == 0
    pd.testing.assert_frame_equal(
        lab.samples, compare_estimators(scored, ["grpo", "rloo", "reinforce_pp"])
    )
    assert lab.group_sums[["grpo", "rloo"]].abs().to_numpy().max() < 1e-6
    browser = lab.browse("grpo", "reinforce_pp", mode="static")
    named = {d["name"]: a for d, a in browser._source.index}
    expected = lab.advantages["grpo"].reindex(scored.table.column("sample_id").to_pylist())
    np.testing.assert_allclose(named["A grpo"], expected.to_numpy(np.float32))
    assert len(lab._repr_html_().encode()) <= 100_000
    assert repr(lab).startswith("EstimatorLab(3 estimators, 4 samples")


def test_length_that_is_rewarded_is_seen():
    texts = [["a" * (i + 1)] for i in range(12)]
    frame = hacking.reward_correlates(scored_of(texts, [float(i) for i in range(12)]))
    assert frame.index[0] in ("sampled tokens", "characters")
    assert frame.loc["characters", "rank_correlation"] == pytest.approx(1.0)
    assert frame.loc["characters", "best quarter"] == 11.0
    assert frame.loc["characters", "worst quarter"] == 2.0
    assert math.isnan(frame.loc["digits", "rank_correlation"])


def test_repetition_is_the_share_of_runs_seen_before():
    assert hacking.repetition("a b c d") == 0.0
    assert hacking.repetition("a b c a b c") == 0.25
    assert hacking.repetition("a") == 0.0


def test_near_duplicates_differ_in_form_only():
    rollouts = scored_of([["Yes, it is."], ["yes it  is"], ["no"]], [1.0] * 3).rollouts
    found = hacking.near_duplicates(rollouts)
    assert found[["answer", "samples", "prompts"]].iloc[0].tolist() == ["Yes, it is.", 2, 2]
    assert len(found) == 1


def test_ngrams_that_tell_high_from_low():
    scored = scored_of([["as an AI"], ["as an AI"], ["twelve"], ["twelve"]], [0.0, 0.0, 1.0, 1.0])
    found = hacking.telling_ngrams(scored, 2)
    assert set(found["ngram"]) == {"as an", "an AI"}
    assert found[["high", "low"]].iloc[0].tolist() == [0, 2]
    # (0 + .5) / 3 against (2 + .5) / 3
    assert found["log_odds"].iloc[0] == pytest.approx(math.log(0.2) - math.log(5.0))
    with pytest.raises(ConfigError, match="n=0"):
        hacking.telling_ngrams(scored, 0)


def test_most_moved_prompts_by_hand():
    before = scored_of([["a", "b"], ["c", "d"]], [1.0, 0.0, 1.0, 1.0])
    after = scored_of([["a", "b"], ["c", "d"]], [1.0, 0.5, 0.0, None])
    found = hacking.most_moved(before, after)
    assert found["prompt_id"].tolist() == ["p1", "p0"]
    assert found["change"].tolist() == [-1.0, 0.25]
    assert found["n_after"].tolist() == [1, 2]
    other = before.filter([False] * 4)
    with pytest.raises(DataError, match="no prompt in common"):
        hacking.most_moved(before, other)


def test_rank_correlation_by_hand():
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])) == pytest.approx(
        1
    )
    assert math.isnan(rank_correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])))
