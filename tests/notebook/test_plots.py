"""Pictures: what they draw and say, and that they leave matplotlib as it was."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from nbrl.errors import DataError, UnknownNameError
from nbrl.notebook import plots
from nbrl.types import Evaluation, History
from tests.values import make_prompts, make_rollouts, make_scored

mpl.use("Agg")


def history(rewards, seconds=(0.3, 0.1)):
    rows = [
        {"version": i + 1, "reward": r, "seconds_rollout": seconds[0], "seconds_train": seconds[1]}
        for i, r in enumerate(rewards)
    ]
    return History(records=rows)


def evaluation(mean, scored):
    return Evaluation(
        version=0,
        pass_at={1: (mean, mean, mean)},
        reward=(mean, mean - 0.1, mean + 0.1),
        scored=scored,
    )


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def axes():
    return Figure().subplots()


def with_token_column(rollouts, name, value):
    rows = [[value] * len(r) for r in rollouts.table.column("token_ids").to_pylist()]
    return rollouts.with_columns({name: pa.array(rows, pa.list_(pa.float32()))})


def with_values(advantaged, values):
    """The batch with these critic values on its policy tokens, in order."""
    left = iter(values)
    source = advantaged.scored.rollouts.table.column("source").to_pylist()
    rows = [[next(left) if s == 1 else 0.0 for s in row] for row in source]
    added = {"values": pa.array(rows, pa.list_(pa.float32()))}
    rollouts = advantaged.scored.rollouts.with_columns(added)
    return replace(advantaged, scored=replace(advantaged.scored, rollouts=rollouts))


@pytest.fixture
def drawers(rollouts, scored, advantaged):
    return {
        "metric": lambda ax: plots.plot_metric(history([0.1, 0.2]), "reward", ax=ax),
        "reward": lambda ax: plots.plot_reward([history([0.1, 0.2]), history([0.3, 0.2])], ax=ax),
        "timings": lambda ax: plots.plot_timings(history([0.1, 0.2]), ax=ax),
        "distribution": lambda ax: plots.plot_reward_distribution(scored, ax=ax),
        "lengths": lambda ax: plots.plot_lengths(rollouts, ax=ax),
        "advantages": lambda ax: plots.plot_advantages(advantaged, ax=ax),
        "gap": lambda ax: plots.plot_logprob_gap(
            with_token_column(rollouts, "old_logprobs", -0.5), ax=ax
        ),
        "values": lambda ax: plots.plot_values(with_values(advantaged, [0.5] * 8), ax=ax),
        "evaluations": lambda ax: plots.plot_evaluations(
            {"before": evaluation(0.4, scored), "after": [evaluation(0.8, scored)] * 3}, ax=ax
        ),
    }


def test_all_draw_on_the_axes_given_and_leave_matplotlib_alone(drawers):
    before, figures = dict(mpl.rcParams), plots.plt.get_fignums()
    for name, draw in drawers.items():
        ax = axes()
        assert draw(ax) is ax, name
        assert ax.has_data(), name
        assert ax.get_ylabel(), name
        assert "n=" in " ".join(legend(ax)) or " of " in " ".join(legend(ax)), name
    assert dict(mpl.rcParams) == before
    assert plots.plt.get_fignums() == figures


def test_every_public_plot_is_covered_above(drawers):
    assert len(drawers) == len([n for n in dir(plots) if n.startswith("plot_")])


def test_all_make_their_own_axes(drawers):
    for name, draw in drawers.items():
        ax = draw(None)
        assert ax.has_data(), name
        plots.plt.close(ax.figure)


def test_mean_interval_by_hand():
    mean, half = plots.mean_interval(np.array([0.2, 0.4, 0.6]))
    assert mean == pytest.approx(0.4)
    assert half == pytest.approx(4.303 * 0.2 / 3**0.5)
    assert np.isnan(plots.mean_interval(np.array([0.5]))[1])


def test_curve_over_runs_has_mean_interval_and_count():
    data = plots.curve([history([0.0, 0.5]), history([1.0, 0.5]), history([0.5])], "reward")
    assert data["mean"].tolist() == pytest.approx([0.5, 0.5])
    assert data["n"].tolist() == [3, 2]
    assert data["low"].iloc[0] == pytest.approx(0.5 - 4.303 * 0.5 / 3**0.5)
    assert data["high"].iloc[1] == pytest.approx(0.5)


def test_curve_takes_frames_as_well():
    frame = history([0.25, 0.75]).to_pandas()
    assert plots.curve(frame, "reward")["mean"].tolist() == [0.25, 0.75]


def test_a_run_without_steps_is_an_empty_picture():
    for draw in (plots.plot_reward, plots.plot_timings):
        ax = draw(history([]), ax=axes())
        assert ax.get_xlabel() == "policy version"
    both = plots.curve([history([]), history([0.5])], "reward")
    assert both["n"].tolist() == [1]


def test_unknown_metric_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'rewrd'.*reward, seconds_rollout"):
        plots.plot_metric(history([0.1]), "rewrd", ax=axes())


def test_band_and_legend_say_the_number_of_runs():
    ax = plots.plot_reward([history([0.1, 0.2])] * 3, ax=axes(), label="grpo")
    assert legend(ax) == ["grpo (mean of n=3 runs, 95 % interval)"]
    assert len(ax.collections) == 1


def test_a_second_curve_looks_unlike_the_first():
    ax = axes()
    plots.plot_reward(history([0.1, 0.2]), ax=ax, label="a")
    plots.plot_reward(history([0.2, 0.3]), ax=ax, label="b")
    first, second = ax.get_lines()
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()


def test_timings_say_each_phase_share():
    ax = plots.plot_timings(history([0.0, 0.0], seconds=(0.3, 0.1)), ax=axes())
    assert legend(ax) == ["rollout, 75% of 0.8 s", "train, 25% of 0.8 s"]


def test_timings_need_phases():
    with pytest.raises(DataError, match="seconds_<phase>"):
        plots.plot_timings(pd.DataFrame({"reward": [1.0]}), ax=axes())


def test_reward_distribution_counts_what_is_left_out(scored):
    ax = plots.plot_reward_distribution(scored, ax=axes())
    assert legend(ax) == ["samples (n=3, 1 excluded)", "group means (n=2)"]
    samples, groups = ax.containers
    assert sum(bar.get_height() for bar in samples) == pytest.approx(1.0)
    assert max(bar.get_height() for bar in samples) == pytest.approx(2 / 3)
    assert sum(bar.get_height() for bar in groups) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rewards", "sizes", "middles"),
    [
        ([0, 1, 1, 0], [2, 2], [0.0, 0.5, 1.0]),
        ([-1, 0, 2, 0], [4], [-1 + i / 4 for i in range(13)]),
        ([0, 1, 1], [2, 1], [i / 12 for i in range(13)]),
        ([0.0, 0.31, 1.0], [3], [i / 12 for i in range(13)]),
        ([0, 1] * 50, [100], [i / 12 for i in range(13)]),
        ([0.3, 0.3], [2], [0.3]),
        ([], [], [0.0]),
    ],
)
def test_each_value_that_a_reward_can_have_stands_in_the_middle_of_a_bin(rewards, sizes, middles):
    edges = np.array(plots.reward_edges(np.array(rewards, float), np.array(sizes)))
    assert ((edges[1:] + edges[:-1]) / 2).tolist() == pytest.approx(middles)


def test_rewards_of_zero_and_one_stand_over_zero_and_one():
    scored = make_scored(make_rollouts(make_prompts(2), [2, 1, 3, 2]), [1.0, 0.0, 1.0, 1.0])
    samples, means = plots.plot_reward_distribution(scored, ax=axes()).containers
    assert [bar.get_height() for bar in samples] == pytest.approx([0.25, 0.0, 0.75])
    assert [bar.get_height() for bar in means] == pytest.approx([0.0, 0.5, 0.5])
    ends = zip(samples, means, strict=True)
    middles = [(left.get_x() + right.get_x() + right.get_width()) / 2 for left, right in ends]
    assert middles == pytest.approx([0.0, 0.5, 1.0])


def test_lengths_count_policy_tokens_only(rollouts):
    ax = plots.plot_lengths(rollouts, ax=axes())
    assert legend(ax) == ["ended (n=3)", "cut at the limit (n=1)"]
    ended = {round(b.get_x() + b.get_width() / 2): b.get_height() for b in ax.containers[0]}
    assert {k: v for k, v in ended.items() if v} == {1: 1.0, 2: 2.0}


def test_advantages_say_how_many_groups_are_dead(advantaged):
    ax = plots.plot_advantages({"grpo": advantaged, "rloo": advantaged}, ax=axes())
    said = "n=4 samples, 1 of 2 groups without signal"
    assert legend(ax) == [f"grpo ({said})", f"rloo ({said})"]
    middle = ax.containers[0][6]
    assert middle.get_height() == pytest.approx(0.5)


def test_token_means_ignore_prompt_tokens(advantaged):
    assert plots._token_means(advantaged).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_logprob_gap_is_trainer_minus_engine(rollouts):
    ax = plots.plot_logprob_gap(with_token_column(rollouts, "old_logprobs", -0.25), ax=axes())
    assert legend(ax) == ["n=8 tokens, mean |gap| 2.5e-01, max 2.5e-01"]


def test_missing_token_column_says_how_to_add_it(rollouts, advantaged):
    with pytest.raises(DataError, match=r"annotate\(rollouts, \['old_logprobs'\]\)"):
        plots.plot_logprob_gap(rollouts, ax=axes())
    with pytest.raises(DataError, match="'values'"):
        plots.plot_values(advantaged, ax=axes())


def test_values_are_binned_against_returns(advantaged):
    ax = plots.plot_values(with_values(advantaged, [0.1] * 4 + [0.9] * 4), ax=axes(), bins=2)
    points = ax.containers[0].lines[0].get_xydata()
    assert points.ravel().tolist() == pytest.approx([0.1, 0.5, 0.9, 0.5])


def test_evaluations_show_interval_over_runs(scored):
    runs = [evaluation(m, scored) for m in (0.7, 0.8, 0.9)]
    ax = plots.plot_evaluations({"before": evaluation(0.4, scored), "after": runs}, ax=axes())
    assert legend(ax) == ["before: 0.400 (n=2 prompts)", "after: 0.800 (n=3 runs)"]
    low, high = ax.containers[1].lines[2][0].get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(4.303 * 0.1 / 3**0.5)
