"""How estimators differ on the same samples: ranks, signs, sums of groups. Tables only. Pure.

All start from the long table of :func:`~nbrl.stages.comparison.compare_estimators`.
"""

import numpy as np
import pandas as pd


def side_by_side(compared: pd.DataFrame) -> pd.DataFrame:
    """Advantages, one row a sample and one column an estimator; NaN where one dropped it."""
    wide = compared.pivot(index="sample_id", columns="estimator", values="advantage")
    order = list(dict.fromkeys(compared["sample_id"]))
    return wide.reindex(index=order, columns=list(dict.fromkeys(compared["estimator"])))


def group_sums(compared: pd.DataFrame) -> pd.DataFrame:
    """The sum of the samples' advantages in each group, one column an estimator.

    About 0 for baselines that are the group's own mean; what is left elsewhere is a push on all
    answers to a prompt at once.
    """
    groups = list(dict.fromkeys(compared["group_id"]))
    wide = compared.pivot_table(
        index="group_id", columns="estimator", values="advantage", aggfunc="sum", sort=False
    )
    return wide.reindex(index=groups, columns=list(dict.fromkeys(compared["estimator"])))


def changes(compared: pd.DataFrame) -> pd.DataFrame:
    """Samples that an estimator treats unlike the first one, the most moved first.

    Columns: ``estimator``, ``sample_id``, ``first`` and ``advantage`` (of the first estimator and
    of this one), ``flip`` (they push in opposite directions), ``rank_change`` (places up among all
    samples that both keep, ties shared). Samples with the same rank and sign are left out.
    """
    wide = side_by_side(compared)
    yardstick = wide.columns[0]
    frames = []
    for name in wide.columns[1:]:
        both = wide[[yardstick, name]].dropna()
        ranks = both.rank(ascending=False, method="average")
        frame = pd.DataFrame(
            {
                "estimator": name,
                "sample_id": both.index,
                "first": np.asarray(both[yardstick]),
                "advantage": np.asarray(both[name]),
                "flip": np.asarray(both[yardstick] * both[name] < 0),
                "rank_change": np.asarray(ranks[yardstick] - ranks[name]),
            }
        )
        frames.append(frame[frame["flip"] | (frame["rank_change"] != 0)])
    if not frames:
        columns = ["estimator", "sample_id", "first", "advantage", "flip", "rank_change"]
        return pd.DataFrame(columns=columns)
    found = pd.concat(frames, ignore_index=True)
    moved = -np.abs(np.asarray(found["rank_change"], float))
    order = np.lexsort((moved, ~np.asarray(found["flip"], bool)))
    return found.iloc[order].reset_index(drop=True)


def differences(compared: pd.DataFrame) -> pd.DataFrame:
    """One row an estimator: sign flips, rank changes and group sums, against the first one.

    Columns: ``sign_flips``, ``rank_changes`` (samples whose rank differs), ``rank_correlation``
    (Spearman; NaN where one is constant), ``largest_group_sum`` (absolute).
    """
    moved, wide, sums = changes(compared), side_by_side(compared), group_sums(compared)
    first = wide.columns[0]
    rows = {}
    for name in wide.columns:
        mine = moved[moved["estimator"] == name]
        both = wide[[first, name]].dropna() if name != first else wide[[first, first]].dropna()
        ranks = both.rank().to_numpy()
        constant = len(ranks) < 2 or bool(np.ptp(ranks, axis=0).min() == 0)
        correlation = float("nan") if constant else float(np.corrcoef(ranks.T)[0, 1])
        rows[name] = {
            "sign_flips": np.count_nonzero(mine["flip"]),
            "rank_changes": np.count_nonzero(mine["rank_change"]),
            "rank_correlation": correlation,
            "largest_group_sum": float(np.abs(np.asarray(sums[name], float)).max()),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("estimator")
