"""The estimator lab: several estimators on the same rewards, from a table down to the sample.

May import ``stages``, ``types`` and the neighbour ``views``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from nbrl.config import KL, Shaping
from nbrl.frozen import frozen
from nbrl.notebook.reprs.markup import card, table
from nbrl.notebook.views.browse import browse
from nbrl.stages.comparison import Asked, compare_estimators, summarize_estimators
from nbrl.stages.estimator_tables import changes, differences, group_sums, side_by_side
from nbrl.types import Scored

MOST_ROWS = 12
MOST_COLUMNS = 12


@frozen(eq=False)
class EstimatorLab:
    """Advantages of several estimators on one frozen ``Scored``; the first is the yardstick.

    ``samples`` is the long table of :func:`nbrl.compare_estimators`. Shown in a cell it is a
    summary with the samples that moved most; :meth:`browse` links every point to its sample.

    Example: ``estimator_lab(scored, ["grpo", "rloo"]).table.loc["rloo", "sign_flips"]`` is 0.
    """

    scored: Scored
    samples: pd.DataFrame

    @property
    def names(self) -> list[str]:
        """The estimators, the yardstick first."""
        return list(dict.fromkeys(self.samples["estimator"]))

    @property
    def table(self) -> pd.DataFrame:
        """One row an estimator: spread, dead groups, sign flips, rank changes, group sums."""
        summary = summarize_estimators(self.samples)
        return summary.drop(columns=["sign_flips"]).join(differences(self.samples))

    @property
    def advantages(self) -> pd.DataFrame:
        """One row a sample, one column an estimator."""
        return side_by_side(self.samples)

    @property
    def changes(self) -> pd.DataFrame:
        """Samples that are treated unlike under the yardstick, flips and large moves first."""
        return changes(self.samples)

    @property
    def group_sums(self) -> pd.DataFrame:
        """The sum of advantages in each group, one column an estimator."""
        return group_sums(self.samples)

    def browse(self, x: str | None = None, y: str | None = None, *, mode: str = "auto") -> Any:
        """The samples with a column an estimator and a plot of two; a click opens the sample.

        Args:
            x: The estimator across; the first one by default.
            y: The estimator up; the last one by default.
            mode: As in :func:`nbrl.browse`.
        """
        frame = self.advantages.add_prefix("A ")
        plot = (f"A {self.names[0] if x is None else x}", f"A {self.names[-1] if y is None else y}")
        return browse(self.scored, columns=frame, plot=plot, mode=mode)

    def _repr_html_(self) -> str:
        frame = self.table
        rows = [(name, *row) for name, row in zip(frame.index, frame.to_numpy(), strict=True)]
        moved = self.changes.iloc[:MOST_ROWS]
        sums = self.group_sums.abs()
        worst = sums.loc[sums.max(axis=1).sort_values(ascending=False).index].iloc[:MOST_ROWS]
        totals = [(g, *r) for g, r in zip(worst.index, worst.to_numpy(), strict=True)]
        shown = ("group", *map(str, worst.columns[:MOST_COLUMNS]))
        parts = [
            table("estimators", ("estimator", *map(str, frame.columns)), rows[:MOST_COLUMNS]),
            table(
                f"samples treated unlike {self.names[0]}",
                tuple(map(str, moved.columns)),
                [tuple(row) for row in moved.itertuples(index=False)],
                f"{len(moved):,} of {len(self.changes):,}; .changes has all",
            ),
            table(
                "groups with the largest sums of advantages (absolute)",
                shown,
                [row[: MOST_COLUMNS + 1] for row in totals],
            ),
        ]
        return card(repr(self), parts)

    def __repr__(self) -> str:
        flips = int(self.table["sign_flips"].to_numpy().max())
        count, samples = len(self.names), len(self.scored)
        return f"EstimatorLab({count} estimators, {samples} samples, up to {flips} sign flips)"


def estimator_lab(
    scored: Scored,
    estimators: Sequence[Asked] | Mapping[str, Asked],
    *,
    kl: KL | None = None,
    shaping: Shaping | None = None,
) -> EstimatorLab:
    """Several estimators on the same rewards, side by side: tables, plots, and a browser.

    Arguments and errors are those of :func:`nbrl.compare_estimators`.
    """
    return EstimatorLab(
        scored=scored, samples=compare_estimators(scored, estimators, kl=kl, shaping=shaping)
    )
