"""Matplotlib pictures of values and runs; may import ``types``, ``errors`` and matplotlib.

Every function draws on the Axes it is given, or on those of a new figure, and returns them. None
shows a figure or touches global settings. A legend says how many runs, prompts, samples or tokens
stand behind what is drawn; bands and bars are 95 % intervals of a mean (Student's t).
"""

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nbrl.errors import DataError, unknown_name
from nbrl.types import SOURCE_POLICY, Advantaged, Evaluation, History, Rollouts, Scored
from nbrl.types.columns import ragged

Curves = History | pd.DataFrame | Sequence[History | pd.DataFrame]

# Okabe and Ito (2008), "Color Universal Design": told apart under all common colour-blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "xxx")
SECONDS = "seconds_"
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; the normal's beyond.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
T_95_MORE = 2.0
MOST_BINS = 40


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Mean and half-width of its 95 % t interval; that of fewer than two values is nan."""
    count = len(values)
    if count < 2:
        return (float(values.mean()) if count else float("nan")), float("nan")
    quantile = T_95[count - 2] if count - 2 < len(T_95) else T_95_MORE
    return float(values.mean()), quantile * float(values.std(ddof=1)) / count**0.5


def curve(histories: Curves, name: str) -> pd.DataFrame:
    """A metric over the steps of one or several runs: ``mean, low, high, n`` a version.

    ``low`` and ``high`` are the ends of the 95 % interval over runs, nan where there is one run.

    Raises:
        UnknownNameError: A run has no such metric; the message lists those it has.
    """
    frames = [_frame(h) for h in _listed(histories)]
    for frame in frames:
        if len(frame) and name not in frame.columns:
            raise unknown_name("metric", name, map(str, frame.columns))
    joined = pd.concat([frame[name] for frame in frames if len(frame)] or [pd.Series()], axis=1)
    rows = [mean_interval(row[~np.isnan(row)]) for row in joined.to_numpy(dtype=float)]
    mean, half = np.array(rows, dtype=float).reshape(-1, 2).T
    counts = joined.notna().sum(axis=1).to_numpy()
    columns = {"mean": mean, "low": mean - half, "high": mean + half, "n": counts}
    return pd.DataFrame(columns, index=joined.index)


def plot_metric(
    histories: Curves, name: str, *, ax: Axes | None = None, label: str | None = None
) -> Axes:
    """One metric over training steps; several runs give their mean, its interval and thin lines."""
    ax = _axes(ax)
    data, runs = curve(histories, name), _listed(histories)
    at = _next_style(ax)
    colour, line = COLOURS[at % len(COLOURS)], LINES[at % len(LINES)]
    if len(runs) > 1:
        for run in runs:
            ax.plot(curve(run, name)["mean"], color=colour, linewidth=0.7, alpha=0.45)
        ax.fill_between(
            data.index, data["low"], data["high"], color=colour, alpha=0.18, linewidth=0
        )
    said = f"mean of n={len(runs)} runs, 95 % interval" if len(runs) > 1 else "n=1 run"
    marker = "o" if len(data) <= 12 else None
    shown = f"{label or name} ({said})"
    ax.plot(data["mean"], color=colour, linestyle=line, linewidth=2, marker=marker, label=shown)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _dress(ax, "policy version", name)


def plot_reward(histories: Curves, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """The mean reward of each step's samples, as :func:`plot_metric` draws it."""
    ax = plot_metric(histories, "reward", ax=ax, label=label)
    return _dress(ax, "policy version", "mean reward")


def plot_timings(history: History | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Seconds of each phase, stacked a step; the legend says each phase's share of all steps."""
    ax, frame = _axes(ax), _frame(history)
    phases = [c for c in map(str, frame.columns) if c.startswith(SECONDS)]
    if len(frame) and not phases:
        raise DataError(
            f"the history has no column {SECONDS}<phase>; it has {list(frame.columns)}."
        )
    total = frame[phases].to_numpy().sum()
    bottom = np.zeros(len(frame))
    for at, phase in enumerate(phases):
        height = frame[phase].fillna(0.0).to_numpy()
        share = height.sum() / total if total > 0 else 0.0
        ax.bar(
            frame.index, height, bottom=bottom, width=0.9, color=COLOURS[at % len(COLOURS)],
            hatch=HATCHES[at % len(HATCHES)], edgecolor="white", linewidth=0,
            label=f"{phase.removeprefix(SECONDS)}, {share:.0%} of {total:.1f} s",
        )  # fmt: skip
        bottom = bottom + height
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _dress(ax, "policy version", "seconds", headroom=0.25)


def plot_reward_distribution(scored: Scored, *, ax: Axes | None = None) -> Axes:
    """Shares of the samples' rewards and of the groups' means; excluded samples are counted."""
    ax = _axes(ax)
    rewards = scored.table.column("total").to_numpy().astype(float)
    groups = np.asarray(scored.rollouts.table.column("group_id").to_pylist())
    good = np.isfinite(rewards)
    frame = pd.DataFrame({"reward": rewards[good], "group": groups[good]})
    means = np.asarray(frame.groupby("group")["reward"].mean())
    out = f", {np.count_nonzero(~good)} excluded" if not good.all() else ""
    series = {
        f"samples (n={np.count_nonzero(good)}{out})": rewards[good],
        f"group means (n={len(means)})": means,
    }
    _shares(ax, series, reward_edges(rewards[good], frame.groupby("group").size().to_numpy()))
    return _dress(ax, "reward", "share", headroom=0.25)


def reward_edges(rewards: np.ndarray, sizes: np.ndarray) -> list[float]:
    """Edges of bins that have the rewards, and the means of groups of these sizes, in the middle.

    Rewards that stand on a grid (0 and 1, say) have a bin for each value that a reward or a mean of
    a group can have, if those are few; others have bins of one width from the least to the most.
    """
    if not len(rewards) or rewards.min() == rewards.max():
        at = float(rewards[0]) if len(rewards) else 0.0
        return [at - 0.5, at + 0.5]
    low, high = float(rewards.min()), float(rewards.max())
    distinct = np.unique(rewards)
    gap = np.diff(distinct).min()
    steps = (distinct - low) / gap
    on_grid = np.allclose(steps, steps.round(), atol=1e-6) and len(np.unique(sizes)) == 1
    cells = round(float(steps[-1])) * int(sizes[0])
    bins = cells + 1 if on_grid and cells < MOST_BINS else 13
    half = (high - low) / (bins - 1) / 2
    return np.linspace(low - half, high + half, bins + 1).tolist()


def plot_lengths(rollouts: Rollouts, *, ax: Axes | None = None) -> Axes:
    """Sampled tokens an answer: answers that ended by themselves, and those that were cut."""
    ax = _axes(ax)
    source, offsets = ragged(rollouts.table.column("source"))
    before = np.concatenate([[0], np.cumsum(source == SOURCE_POLICY)])
    lengths = before[offsets[1:]] - before[offsets[:-1]]
    cut = rollouts.table.column("truncated").to_numpy()
    width = max(1, math.ceil((lengths.max(initial=0) + 1) / MOST_BINS))
    edges = np.arange(0, lengths.max(initial=0) + 1 + width, width) - 0.5
    ax.hist(
        [lengths[~cut], lengths[cut]],
        bins=edges,
        stacked=True,
        color=COLOURS[:2],
        hatch=HATCHES[:2],
        edgecolor="white",
        label=[f"ended (n={(~cut).sum()})", f"cut at the limit (n={cut.sum()})"],
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _dress(ax, "sampled tokens", "samples", headroom=0.25)


def plot_advantages(
    advantaged: Advantaged | Mapping[str, Advantaged], *, ax: Axes | None = None
) -> Axes:
    """Mean advantage a sample, for one estimator or several by name; counts the dead groups."""
    ax = _axes(ax)
    named = advantaged if isinstance(advantaged, Mapping) else {_estimator(advantaged): advantaged}
    series = {}
    for name, batch in named.items():
        live = batch.table.column("live").to_numpy()
        groups = np.asarray(batch.scored.rollouts.table.column("group_id").to_pylist())
        dead = len(np.unique(groups[~live]))
        said = f"n={len(batch)} samples, {dead} of {len(np.unique(groups))} groups without signal"
        series[f"{name} ({said})"] = _token_means(batch)
    most = max((np.abs(v).max(initial=0.0) for v in series.values()), default=0.0) or 1.0
    # an odd number of bins, so that samples without signal stand in one of their own around 0
    _shares(ax, series, np.linspace(-most, most, 14).tolist())
    ax.axvline(0.0, color="#444444", linewidth=0.8)
    return _dress(ax, "mean advantage of a sample", "share", headroom=0.25)


def plot_logprob_gap(rollouts: Rollouts, *, ax: Axes | None = None) -> Axes:
    """Trainer's minus engine's log-prob of each sampled token; 0 where both agree.

    Raises:
        DataError: The rollouts have no ``old_logprobs``.
    """
    ax = _axes(ax)
    ours, engines = (_policy_tokens(rollouts, c) for c in ("old_logprobs", "rollout_logprobs"))
    gap = ours.astype(float) - engines
    said = f"n={len(gap)} tokens, mean |gap| {np.abs(gap).mean():.1e}, max {np.abs(gap).max():.1e}"
    ax.hist(gap, bins=40, color=COLOURS[0], label=said)
    ax.set_yscale("log")
    return _dress(ax, "trainer - engine log-prob", "tokens")


def plot_values(advantaged: Advantaged, *, ax: Axes | None = None, bins: int = 8) -> Axes:
    """The critic against what came: mean return of tokens whose predicted values are alike.

    On the dashed line the critic is right on average. Bins hold equal numbers of tokens; bars
    are 95 % intervals over the tokens of a bin.

    Raises:
        DataError: The rollouts have no ``values``.
    """
    ax = _axes(ax)
    _policy_tokens(advantaged.scored.rollouts, "values")
    mask, _ = ragged(advantaged.table.column("mask"))
    returns = ragged(advantaged.table.column("returns"))[0][mask].astype(float)
    values = ragged(advantaged.scored.rollouts.table.column("values"))[0][mask].astype(float)
    parts = [p for p in np.array_split(np.argsort(values, kind="stable"), bins) if len(p)]
    points = [(values[p].mean(), *mean_interval(returns[p])) for p in parts]
    x, y, half = np.array(points).T
    spread = returns.var()
    explained = 1.0 - (returns - values).var() / spread if spread > 0 else float("nan")
    said = f"n={len(values)} tokens in {len(parts)} bins, explained variance {explained:.2f}"
    ax.errorbar(x, y, yerr=half, fmt="o", color=COLOURS[0], capsize=3, label=said)
    ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
    ax.plot(ends, ends, color="#444444", linestyle="--", linewidth=1, label="value = return")
    return _dress(ax, "value predicted by the critic", "mean return")


def plot_evaluations(
    evaluations: Mapping[str, Evaluation | Sequence[Evaluation]], *, ax: Axes | None = None
) -> Axes:
    """Held-out mean reward by name, of one evaluation or of several runs'.

    One evaluation is drawn with its own interval over prompts; several under a name with one
    small mark each and the 95 % interval of their mean over runs.
    """
    ax = _axes(ax)
    for at, (name, given) in enumerate(evaluations.items()):
        listed = [given] if isinstance(given, Evaluation) else list(given)
        means = np.array([e.reward[0] for e in listed])
        if len(listed) == 1:
            mean, low, high = listed[0].reward
            said = f"{name}: {mean:.3f} (n={len(listed[0].scored.rollouts.prompts)} prompts)"
        else:
            mean, half = mean_interval(means)
            low, high, said = mean - half, mean + half, f"{name}: {mean:.3f} (n={len(means)} runs)"
            ax.plot([at + 0.12] * len(means), means, "x", color=COLOURS[at % len(COLOURS)])
        bars = [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]
        colour = COLOURS[at % len(COLOURS)]
        ax.errorbar([at], [mean], yerr=bars, fmt="o", capsize=4, color=colour, label=said)
    ax.set_xticks(range(len(evaluations)), list(evaluations))
    ax.set_xlim(-0.6, len(evaluations) - 0.4)
    return _dress(ax, "", "held-out mean reward, 95 % interval")


def _listed(histories: Curves) -> list[History | pd.DataFrame]:
    return [histories] if isinstance(histories, History | pd.DataFrame) else list(histories)


def _frame(history: History | pd.DataFrame) -> pd.DataFrame:
    return history if isinstance(history, pd.DataFrame) else history.to_pandas()


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(figsize=(6.0, 3.6), layout="constrained")[1] if ax is None else ax


def _next_style(ax: Axes) -> int:
    """How many labelled things the Axes hold, so that a second call looks unlike the first."""
    return len(ax.get_legend_handles_labels()[0])


def _dress(ax: Axes, xlabel: str, ylabel: str, headroom: float = 0.0) -> Axes:
    """Labels, grid, legend; ``headroom`` is the share of room kept for the legend above bars."""
    if headroom:
        ax.set_ylim(top=ax.get_ylim()[1] * (1.0 + headroom))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    if _next_style(ax):
        ax.legend(fontsize="small", framealpha=0.8)
    return ax


def _shares(ax: Axes, series: Mapping[str, np.ndarray], bins: int | Sequence[float] = 12) -> None:
    """Bars side by side, each series' adding up to 1."""
    weights = [np.full(len(v), 1.0 / max(len(v), 1)) for v in series.values()]
    colours = [COLOURS[at % len(COLOURS)] for at in range(len(series))]
    hatches = [HATCHES[at % len(HATCHES)] for at in range(len(series))]
    ax.hist(
        list(series.values()),
        bins=bins,
        weights=weights,
        color=colours,
        hatch=hatches,
        edgecolor="white",
        label=list(series),
    )


def _estimator(advantaged: Advantaged) -> str:
    return str(advantaged.spec.get("estimator_name", "custom"))


def _token_means(advantaged: Advantaged) -> np.ndarray:
    """The mean advantage over each sample's counted tokens; 0 for a sample without any."""
    flat, offsets = ragged(advantaged.table.column("advantages"))
    mask, _ = ragged(advantaged.table.column("mask"))
    sums = np.concatenate([[0.0], np.cumsum(np.where(mask, flat, 0.0), dtype=float)])
    counts = np.concatenate([[0], np.cumsum(mask)])
    return np.diff(sums[offsets]) / np.maximum(np.diff(counts[offsets]), 1)


def _policy_tokens(rollouts: Rollouts, column: str) -> np.ndarray:
    """A token column's entries on the sampled tokens, flat."""
    if column not in rollouts.table.column_names:
        raise DataError(
            f"the rollouts have no column {column!r}; "
            f"add it with session.annotate(rollouts, [{column!r}])."
        )
    source, _ = ragged(rollouts.table.column("source"))
    return ragged(rollouts.table.column(column))[0][source == SOURCE_POLICY]
