"""Many estimators over one Scored: tables, no pictures. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from nbrl.config import KL, Shaping
from nbrl.errors import ConfigError
from nbrl.functional.estimators import Estimator, EstimatorFn
from nbrl.stages.advantages import compute_advantages, estimator_name
from nbrl.types import Advantaged, Scored, columns

Asked = str | Estimator | EstimatorFn


def compare_estimators(
    scored: Scored,
    estimators: Sequence[Asked] | Mapping[str, Asked],
    *,
    kl: KL | None = None,
    shaping: Shaping | None = None,
) -> pd.DataFrame:
    """One row a sample and estimator: the same rewards under many rules, side by side.

    Columns: ``estimator``, ``sample_id``, ``group_id``, ``reward`` (shaped), ``advantage`` (mean
    over the sample's tokens), ``live``. A sample that one estimator drops is missing under it.
    Summarise with :func:`summarize_estimators`.

    Args:
        scored: Scored rollouts, with the token columns that the estimators need.
        estimators: What :func:`~nbrl.stages.advantages.compute_advantages` takes; a mapping gives
            them other names, e.g. for two dialects of ``grpo``.
        kl: As there, the same for all.
        shaping: As there, the same for all.

    Raises:
        ConfigError: No estimator, one name twice, or as ``compute_advantages``.
    """
    named = estimators if isinstance(estimators, Mapping) else _by_name(estimators)
    if not named:
        raise ConfigError("compare_estimators needs at least one estimator; got none.")
    frames = [
        _frame(name, compute_advantages(scored, asked, kl=kl, shaping=shaping))
        for name, asked in named.items()
    ]
    return pd.concat(frames, ignore_index=True)


def summarize_estimators(compared: pd.DataFrame) -> pd.DataFrame:
    """One row an estimator of :func:`compare_estimators`, the first one being the yardstick.

    ``samples``, and of their advantages ``mean``, ``std`` (population) and ``largest`` absolute
    value; ``dead_groups``, groups in which all advantages are 0; and against the first estimator:
    ``sign_flips``, samples that both keep and push in opposite directions, and ``correlation``
    (Pearson; NaN where one of the two is constant).
    """
    first = None
    rows = {}
    for name, frame in compared.groupby("estimator", sort=False):
        values = frame.set_index("sample_id")["advantage"]
        first = values if first is None else first
        ours, theirs = values.align(first, join="inner")
        ours, theirs = ours.to_numpy(), theirs.to_numpy()
        signal = np.asarray(frame["advantage"].abs().groupby(frame["group_id"]).max())
        rows[name] = {
            "samples": len(values),
            "mean": values.mean(),
            "std": values.std(ddof=0),
            "largest": values.abs().max(),
            "dead_groups": int(np.count_nonzero(signal == 0)),
            "sign_flips": int(np.count_nonzero(ours * theirs < 0)),
            "correlation": _correlation(ours, theirs),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("estimator")


def _by_name(estimators: Sequence[Asked]) -> dict[str, Asked]:
    names = [estimator_name(asked) for asked in estimators]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"compare_estimators got {', '.join(repeated)} more than once; pass a mapping from "
            "names of your own to estimators."
        )
    return dict(zip(names, estimators, strict=True))


def _frame(name: str, advantaged: Advantaged) -> pd.DataFrame:
    table = advantaged.table
    flat, offsets = columns.ragged(table.column("advantages"))
    mask, _ = columns.ragged(table.column("mask"))
    total = columns.row_sums(np.where(mask, flat, 0.0), offsets)
    tokens = columns.row_sums(mask, offsets)
    return pd.DataFrame(
        {
            "estimator": name,
            "sample_id": table.column("sample_id").to_pylist(),
            "group_id": advantaged.scored.rollouts.table.column("group_id").to_pylist(),
            "reward": table.column("reward").to_numpy(),
            "advantage": total / np.maximum(tokens, 1),
            "live": table.column("live").to_numpy(),
        }
    )


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
