"""What to know of a reward before a run: asked twice, and of answers that differ in form alone.

May import ``backends.rewards``, ``types`` and ``scoring`` beside it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nbrl.backends.rewards import Outcome, RewardPool
from nbrl.config import kind_problems
from nbrl.driver.replaying import replay_problems
from nbrl.driver.rewards import asked_rewards, refuse
from nbrl.driver.scoring import Isolation, isolation_problems, reward_rows, said_of
from nbrl.types import Rollouts

VARIANTS = {
    "white space": lambda text: f" {text} \n",
    "case": lambda text: text.swapcase(),
}
"""Answers that say the same: a reward that judges them differently depends on form."""
SLOW, LONG = 0.1, 0.5
"""Seconds a sample from which latency is noted, and correlation from which length is."""


def check_reward(
    reward: Any,
    rollouts: Rollouts,
    *,
    workers: int = 2,
    timeout: float = 30.0,
    replay: bool = False,
) -> pd.DataFrame:
    """A short table on a reward, one row a question, made on samples that are there.

    Columns: ``check``, ``value``, ``verdict`` (``ok`` or ``look``) and ``meaning`` in plain words.
    The checks are ``errors`` (share of samples), ``determinism`` (share with the same value when
    asked twice), ``latency`` (median seconds a sample), ``spread`` (distinct values), ``dead
    groups`` (share of groups of two or more in which all values are equal), ``length`` (rank
    correlation of value and answer length), ``white space`` and ``case`` (share of values that
    change when only those do). NaN where nothing can be said.

    Args:
        reward: One reward, as ``session.score`` takes it. It is asked four times a sample.
        rollouts: The samples to ask about.
        workers: Processes to call it in; 0 is this one.
        timeout: Seconds a sample in such a process.
        replay: As ``session.score``.

    Raises:
        ConfigError: No such reward, or settings that cannot be.
    """
    with_pool = Isolation(pool=RewardPool(), workers=workers, timeout=timeout)
    prompts = rollouts.prompts if isinstance(rollouts, Rollouts) else None
    asked = asked_rewards({"reward": reward}, None, prompts)
    kinds = kind_problems({"rollouts": (rollouts, Rollouts)})
    replays = replay_problems({"reward": reward}, asked.functions, rollouts, replay)
    wrong = [*kinds, *isolation_problems(with_pool), *replays]
    refuse("check_reward", extra=wrong, rewards=asked)
    function = asked.functions["reward"]
    made = np.array([e is None for e in rollouts.table.column("error").to_pylist()])
    rollouts = rollouts.filter(made)
    rows = reward_rows(rollouts, whole="rollout" in function.parameters)

    def ask(rows: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        return said_of(function, rows, with_pool, "exclude", lambda done, tokens: None)

    try:
        first, second = ask(rows), ask(rows)
        changed = {n: ask([_changed(row, f) for row in rows]) for n, f in VARIANTS.items()}
    finally:
        with_pool.pool.close()
    groups = rollouts.table.column("group_id").to_pylist()
    lengths = np.array([len(row["response"]) for row in rows], dtype=float)
    return _table(first, second, changed, groups, lengths)


def _changed(row: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {**row, "response": change(row["response"])}


def _table(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    changed: Mapping[str, Sequence[Outcome]],
    groups: Sequence[str],
    lengths: np.ndarray,
) -> pd.DataFrame:
    values = _values(first)
    errors = float(np.isnan(values).mean()) if len(values) else float("nan")
    same = 1.0 - _share_changed(values, _values(second))
    latency = float(np.median([o.seconds for o in first])) if first else float("nan")
    distinct = len(np.unique(values[~np.isnan(values)]))
    dead = _dead(values, groups)
    length = _rank_correlation(values, lengths)
    error = next((o.error for o in first if o.value is None), None)
    found = [
        ("errors", errors, errors > 0, f"the first one: {error}" if error else "none failed"),
        ("determinism", same, same < 1, "share with the same value when asked twice"),
        ("latency", latency, latency > SLOW, "median seconds a sample"),
        ("spread", float(distinct), distinct < 2, "distinct values; one value teaches nothing"),
        ("dead groups", dead, dead > LONG, "share of groups whose answers all get the same"),
        ("length", length, abs(length) > LONG, "rank correlation with the answer's length"),
    ]
    for name, outcomes in changed.items():
        share = _share_changed(values, _values(outcomes))
        found.append((name, share, share > 0, f"share of values that change with {name} alone"))
    return pd.DataFrame(
        [(n, v, "look" if look else "ok", meaning) for n, v, look, meaning in found],
        columns=["check", "value", "verdict", "meaning"],
    )


def _values(outcomes: Sequence[Outcome]) -> np.ndarray:
    return np.array([np.nan if o.value is None else o.value for o in outcomes], dtype=float)


def _share_changed(a: np.ndarray, b: np.ndarray) -> float:
    """Share of samples with other values or none, of those that had one in either; NaN of none."""
    there = ~(np.isnan(a) & np.isnan(b))
    return float((a[there] != b[there]).mean()) if there.any() else float("nan")


def _dead(values: np.ndarray, groups: Sequence[str]) -> float:
    frame = pd.DataFrame({"value": values, "group": groups}).dropna()
    grouped = frame.groupby("group")["value"].agg(["size", "nunique"])
    grouped = grouped[grouped["size"] > 1]
    return float(np.mean(np.asarray(grouped["nunique"]) == 1)) if len(grouped) else float("nan")


def _rank_correlation(values: np.ndarray, lengths: np.ndarray) -> float:
    kept = ~np.isnan(values)
    a, b = pd.Series(values[kept]).rank(), pd.Series(lengths[kept]).rank()
    return float(a.corr(b)) if a.nunique() > 1 and b.nunique() > 1 else float("nan")
