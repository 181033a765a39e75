"""Matplotlib pictures of comparisons and of samples; every function takes and returns Axes.

Style and rules are those of ``nbrl.notebook.plots``. May import ``types``, ``errors``,
``functional`` and matplotlib.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from nbrl.errors import ConfigError, DataError
from nbrl.functional.statistics import pass_at_k
from nbrl.notebook.plots import COLOURS, _axes, _dress, mean_interval
from nbrl.notebook.reprs.summaries import floats, group_codes, sampled_tokens
from nbrl.notebook.reprs.text import plain
from nbrl.types import SOURCE_POLICY, LossComparison, Rollouts, Scored
from nbrl.types.columns import ragged

MOST_GROUPS = 40
GREY = "#808080"
MOST_LABEL = 40


def label_of(name: object) -> str:
    """A name as matplotlib shows it letter by letter: no mathematics, nothing unseen, not long."""
    return plain(str(name), MOST_LABEL).replace("\\", "\\\\").replace("$", "\\$")


def plot_estimator_pair(compared: pd.DataFrame, x: str, y: str, *, ax: Axes | None = None) -> Axes:
    """One estimator's advantages against another's; crosses are pushed in opposite directions.

    Args:
        compared: What ``nbrl.compare_estimators`` gives.
        x: The estimator across.
        y: The estimator up.
        ax: Where to draw.

    Raises:
        ConfigError: The table has no such estimator.
    """
    known = list(dict.fromkeys(compared["estimator"]))
    if unknown := [name for name in (x, y) if name not in known]:
        raise ConfigError(f"the table has no estimator {unknown}; it has {known}.")
    ax = _axes(ax)
    wide = compared.pivot(index="sample_id", columns="estimator", values="advantage")
    both = wide[[x]].assign(up=wide[y]).dropna()
    across, up = both[x].to_numpy(), both["up"].to_numpy()
    flip = across * up < 0
    alike = f"same direction (n={np.count_nonzero(~flip)})"
    ax.scatter(across[~flip], up[~flip], s=18, alpha=0.6, color=COLOURS[0], label=alike)
    if flip.any():
        apart = f"opposite (n={np.count_nonzero(flip)})"
        ax.scatter(across[flip], up[flip], s=28, marker="x", color=COLOURS[1], label=apart)
    ax.axhline(0.0, color=GREY, linewidth=0.8)
    ax.axvline(0.0, color=GREY, linewidth=0.8)
    return _dress(ax, f"advantage, {label_of(x)}", f"advantage, {label_of(y)}")


def plot_loss_cosines(compared: LossComparison, *, ax: Axes | None = None) -> Axes:
    """The cosines between the gradients of all pairs of losses, as a square of numbers."""
    ax = _axes(ax)
    names = [label_of(n) for n in compared.cosines.index]
    values = compared.cosines.to_numpy()
    ax.imshow(values, cmap="PuOr", vmin=-1.0, vmax=1.0)
    for (i, j), value in np.ndenumerate(values):
        ink = "white" if abs(value) > 0.6 else "black"
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=ink, fontsize="small")
    ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
    ax.set_yticks(range(len(names)), names)
    ax.set_title("cosines of the gradients", fontsize="medium")
    return ax


def plot_length_reward(scored: Scored, *, ax: Axes | None = None) -> Axes:
    """Reward against sampled tokens, one point a sample, and the mean of equal shares of lengths.

    The legend has Spearman's correlation: a strong one may mean that length itself is rewarded.
    """
    ax = _axes(ax)
    lengths, rewards = sampled_tokens(scored.rollouts), floats(scored.table.column("total"))
    good = np.isfinite(rewards)
    lengths, rewards = lengths[good], rewards[good]
    said = f"n={len(rewards)} samples, rank correlation {rank_correlation(lengths, rewards):.2f}"
    ax.scatter(lengths, rewards, s=14, alpha=0.35, color=COLOURS[0], label=said)
    parts = [p for p in np.array_split(np.argsort(lengths, kind="stable"), 8) if len(p)]
    points = np.array([(lengths[p].mean(), *mean_interval(rewards[p])) for p in parts])
    if len(points):
        x, y, half = points.T
        ax.errorbar(x, y, yerr=half, color=COLOURS[1], capsize=3, label="mean of an eighth, 95 %")
    return _dress(ax, "sampled tokens", "reward")


def plot_group_rewards(scored: Scored, *, ax: Axes | None = None) -> Axes:
    """Rewards as a heat-map: one row a group, its answers best first; the hardest groups below.

    Rows of one colour are dead groups. At most 40 groups, spread over all, best mean first.
    """
    ax = _axes(ax)
    codes, groups = group_codes(scored.rollouts)
    totals = floats(scored.table.column("total"))
    rows = [-np.sort(-totals[codes == g]) for g in range(groups)]
    rows.sort(key=lambda r: -np.nanmean(r) if np.isfinite(r).any() else np.inf)
    at = np.unique(np.linspace(0, groups - 1, min(groups, MOST_GROUPS)).astype(int))
    shown = [rows[i] for i in at]
    width = max((len(r) for r in shown), default=1)
    grid = np.full((max(len(shown), 1), width), np.nan)
    for line, row in enumerate(shown):
        grid[line, : len(row)] = row
    image = ax.imshow(grid, cmap="cividis", aspect="auto", interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="reward")
    ax.set_xlabel("answer, best first")
    ax.set_ylabel(f"group, best mean first ({len(shown)} of {groups})")
    return ax


def plot_pass_at_k(
    scored: Scored, *, threshold: float = 1.0, ax: Axes | None = None, label: str | None = None
) -> Axes:
    """pass@k over k for the samples of equal groups, with a 95 % interval over prompts.

    Args:
        scored: Groups of equal size.
        threshold: The reward from which a sample passes.
        ax: Where to draw.
        label: What to call the line.

    Raises:
        DataError: The groups are of different sizes.
    """
    ax = _axes(ax)
    codes, groups = group_codes(scored.rollouts)
    sizes = np.bincount(codes, minlength=groups)
    if not groups or sizes.min() != sizes.max():
        raise DataError(f"pass@k needs groups of one size; got {sorted(set(sizes.tolist()))}.")
    passed = np.bincount(
        codes, weights=floats(scored.table.column("total")) >= threshold, minlength=groups
    )
    size = int(sizes[0])
    points = []
    for k in range(1, size + 1):
        each = pass_at_k(size, torch.as_tensor(passed.astype(np.int64)), k).numpy()
        points.append((k, *mean_interval(each)))
    k, mean, half = np.array(points).T
    at = len(ax.get_legend_handles_labels()[0])
    said = f"{label or 'pass@k'} (n={groups} prompts, {size} answers each)"
    colour = COLOURS[at % len(COLOURS)]
    ax.plot(k, mean, marker="o", color=colour, label=said)
    ax.fill_between(k, mean - half, mean + half, alpha=0.18, color=colour, linewidth=0)
    return _dress(ax, "k", "pass@k")


def plot_calibration(rollouts: Rollouts, *, ax: Axes | None = None) -> Axes:
    """Trainer's probability of each sampled token against the sampler's; on the line they agree.

    Raises:
        DataError: The rollouts have no ``old_logprobs``.
    """
    if "old_logprobs" not in rollouts.table.column_names:
        raise DataError(
            "the rollouts have no column 'old_logprobs'; add it with "
            "session.annotate(rollouts, ['old_logprobs'])."
        )
    ax = _axes(ax)
    drawn = ragged(rollouts.table.column("source"))[0] == SOURCE_POLICY
    ours, theirs = (
        np.exp(ragged(rollouts.table.column(c))[0][drawn].astype(float))
        for c in ("old_logprobs", "rollout_logprobs")
    )
    gap = float(np.abs(ours - theirs).max()) if len(ours) else 0.0
    said = f"n={len(ours)} tokens, largest difference {gap:.1e}"
    ax.scatter(theirs, ours, s=8, alpha=0.3, color=COLOURS[0], label=said)
    ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
    return _dress(ax, "probability, sampler", "probability, trainer")


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's, ties sharing ranks; nan where one of the two is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    one, other = (pd.Series(x).rank().to_numpy() for x in (a, b))
    return float(np.corrcoef(one, other)[0, 1])
