"""Estimators side by side, and scorings side by side."""

import numpy as np
import pandas as pd
import pytest

from nbrl.errors import ConfigError
from nbrl.functional.dialects import dialect
from nbrl.stages.comparison import compare_estimators, summarize_estimators
from tests.values import make_prompts, make_rollouts, make_scored


def toy(totals=(1.0, 0.0, 0.0, 0.0)):
    rollouts = make_rollouts(make_prompts(1), [2, 1, 3, 1][: len(totals)])
    return make_scored(rollouts, list(totals))


def test_one_row_a_sample_and_estimator():
    got = compare_estimators(toy(), ["grpo", "dr_grpo"])
    assert got["estimator"].tolist() == ["grpo"] * 4 + ["dr_grpo"] * 4
    wanted = [1.5, -0.5, -0.5, -0.5, 0.75, -0.25, -0.25, -0.25]
    assert got["advantage"].tolist() == pytest.approx(wanted)
    assert got["sample_id"].tolist() == [f"p0@0#{i}" for i in range(4)] * 2
    assert got["reward"].tolist() == [1, 0, 0, 0] * 2
    assert set(got["group_id"]) == {"p0@0"}


def test_a_mapping_names_dialects_of_one_estimator():
    libraries = ("trl-1.9", "prime-rl-0.8", "nemo-0.7")
    got = compare_estimators(toy(), {name: dialect(name, "grpo") for name in libraries})
    first = got.groupby("estimator", sort=False)["advantage"].first()
    assert first.to_dict() == pytest.approx(
        {"trl-1.9": 1.4997, "prime-rl-0.8": 0.75, "nemo-0.7": 1.0}, abs=5e-5
    )


def test_the_same_name_twice_is_refused():
    with pytest.raises(ConfigError, match="grpo more than once"):
        compare_estimators(toy(), ["grpo", "group_norm"])
    with pytest.raises(ConfigError, match="at least one"):
        compare_estimators(toy(), [])


def test_the_summary_by_hand():
    rollouts = make_rollouts(make_prompts(2), [1, 1, 1, 1])
    scored = make_scored(rollouts, [3.0, 1.0, 0.5, 0.5])
    compared = compare_estimators(scored, ["reinforce_pp", "dr_grpo"])
    got = summarize_estimators(compared)
    assert got.index.tolist() == ["reinforce_pp", "dr_grpo"]
    assert got["samples"].tolist() == [4, 4]
    assert got["dead_groups"].tolist() == [0, 1]
    assert got["sign_flips"].tolist() == [0, 0]
    assert got.loc["dr_grpo", "mean"] == 0
    assert got.loc["dr_grpo", "std"] == pytest.approx(0.5**0.5)
    assert got["largest"].tolist() == pytest.approx([1.75 / np.std([3, 1, 0.5, 0.5]), 1.0])
    wanted = np.corrcoef([3, 1, 0.5, 0.5], [1, -1, 0, 0])[0, 1]
    assert got["correlation"].tolist() == pytest.approx([1, wanted])


def test_the_summary_counts_opposite_pushes_and_joins_by_id():
    compared = pd.DataFrame(
        {
            "estimator": ["one"] * 3 + ["two"] * 2,
            "sample_id": ["a", "b", "c", "c", "a"],
            "group_id": ["g"] * 5,
            "advantage": [1.0, 1.0, 0.0, 2.0, -1.0],
        }
    )
    got = summarize_estimators(compared)
    assert got["sign_flips"].tolist() == [0, 1]
    assert got.loc["two", "correlation"] == pytest.approx(-1)


def test_a_constant_estimator_has_no_correlation():
    got = summarize_estimators(compare_estimators(toy((0.5, 0.5)), ["rloo"]))
    assert got.loc["rloo", "dead_groups"] == 1
    assert np.isnan(got.loc["rloo", "correlation"])
