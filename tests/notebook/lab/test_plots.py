"""Pictures of the labs: they draw what the values hold, on the Axes they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nbrl.errors import ConfigError, DataError
from nbrl.notebook.lab import plots
from nbrl.stages.comparison import compare_estimators
from nbrl.types import LossComparison
from tests.notebook.conftest import HOSTILE


@pytest.fixture
def ax():
    figure, made = plt.subplots()
    yield made
    plt.close(figure)


def legend(ax):
    return [t.get_text() for t in ax.get_legend().get_texts()]


def test_estimator_pair_marks_opposite_pushes(scored, ax):
    compared = compare_estimators(scored, ["grpo", "rloo"])
    compared.loc[
        (compared.estimator == "rloo") & (compared.sample_id == "p0@0#0"), "advantage"
    ] = -1
    assert plots.plot_estimator_pair(compared, "grpo", "rloo", ax=ax) is ax
    assert legend(ax) == ["same direction (n=1)", "opposite (n=1)"]
    with pytest.raises(ConfigError, match="no estimator"):
        plots.plot_estimator_pair(compared, "grpo", "ppo", ax=ax)


def test_cosines_stand_in_their_cells(advantaged, ax):
    names = [HOSTILE, "$x^2$"]
    square = pd.DataFrame([[1.0, -0.5], [-0.5, 1.0]], index=names, columns=names)
    compared = LossComparison(
        table=pd.DataFrame(index=names),
        cosines=square,
        tokens={},
        batch=advantaged,
        version=0,
        parts=2,
    )
    plots.plot_loss_cosines(compared, ax=ax)
    assert [t.get_text() for t in ax.texts] == ["1.00", "-0.50", "-0.50", "1.00"]
    ax.figure.canvas.draw()
    assert ax.get_xticklabels()[1].get_text() == "\\$x^2\\$"


def test_length_against_reward(scored, ax):
    plots.plot_length_reward(scored, ax=ax)
    assert ax.collections[0].get_offsets().tolist() == [[2.0, 1.0], [1.0, 0.0], [3.0, 0.0]]
    assert legend(ax)[0] == "n=3 samples, rank correlation 0.00"


def test_group_map_is_sorted(scored):
    made = plots.plot_group_rewards(scored)
    grid = np.ma.filled(made.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(grid, [[1.0, 0.0], [0.0, np.nan]])
    plt.close(made.figure)


def test_pass_at_k_by_hand(scored, ax):
    plots.plot_pass_at_k(scored, ax=ax)
    # one of two right for the first prompt, none for the second
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.25, 0.5])
    with pytest.raises(DataError, match=r"\[1, 2\]"):
        plots.plot_pass_at_k(scored.filter([True, True, True, False]), ax=ax)


def test_calibration_needs_both(rollouts, ax):
    with pytest.raises(DataError, match="old_logprobs"):
        plots.plot_calibration(rollouts, ax=ax)
    same = rollouts.table.column("rollout_logprobs")
    moved = pa.array([[x + 0.1 for x in row] for row in same.to_pylist()], pa.list_(pa.float32()))
    plots.plot_calibration(rollouts.with_columns({"old_logprobs": moved}), ax=ax)
    gap = np.exp(-0.4) - np.exp(-0.5)
    assert legend(ax) == [f"n=8 tokens, largest difference {gap:.1e}"]


def test_without_axes_a_new_figure_is_made_and_the_style_left_alone(scored):
    before = dict(plt.rcParams)
    made = plots.plot_length_reward(scored)
    assert dict(plt.rcParams) == before
    plt.close(made.figure)
