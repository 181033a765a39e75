"""Several losses on one batch, two scorings of the same samples; nothing was changed to learn it.

May import ``samples`` beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import pandas as pd
import pyarrow as pa

from nbrl.frozen import frozen
from nbrl.types.samples import Advantaged


@frozen(eq=False)
class LossComparison:
    """What each of several losses would do to the same batch.

    ``table`` has one row a loss:

    * ``loss``, ``grad_norm`` (from sketches of 4096 numbers: right to about 1 %);
    * ``signal_to_noise``: the length of the mean gradient over the standard error of that mean,
      over ``parts`` disjoint sets of prompts; about 1 is noise alone, nan for one part;
    * ``clipped``: share of counted tokens that the clip stops; ``masked``: share of sampled tokens
      that do not count; ``silent``: share of counted tokens whose loss term is exactly 0;
    * ``update_size``: the length of a plain gradient step at the trainer's rate and norm limit (an
      adaptive optimizer rescales it for each parameter).

    ``cosines`` is the square of cosines between the gradients, standard error about 0.016.
    ``tokens`` maps each loss to the rows of :class:`~nbrl.types.Probe`'s ``tokens``.

    Example: ``comparison.cosines.loc["ppo", "cispo"]`` is 0.97.
    """

    table: pd.DataFrame
    cosines: pd.DataFrame
    tokens: Mapping[str, pa.Table]
    batch: Advantaged
    version: int
    parts: int
    spec: Mapping[str, Any] = field(default_factory=dict)

    def to_pandas(self) -> pd.DataFrame:
        """The table, one row a loss."""
        return self.table.copy()

    def __repr__(self) -> str:
        lowest = float(self.cosines.to_numpy().min())
        return (
            f"LossComparison({len(self.table)} losses, {len(self.batch)} samples, version "
            f"{self.version}, lowest cosine {lowest:.2f})"
        )


@frozen(eq=False)
class ScoreDiff:
    """How two scorings of the same samples differ: ``a`` is before, ``b`` after.

    ``table`` has one row a sample on which the ``component`` (the total by default) or its status
    differs, the largest difference first: ``sample_id``, ``a``, ``b``, ``difference`` (b - a),
    ``status_a``, ``status_b`` (``missing`` where one side does not have the sample), ``flip``:
    above ``threshold`` in one and not in the other. ``examples`` are the first of its flips and,
    where those are few, of its other rows, with ``prompt``, ``response`` and ``label``.

    ``summary`` has one row for ``total`` and one for each component that both have:

    * ``samples`` with a number in both, ``moved`` and ``flips`` among them, ``mean_a``, ``mean_b``;
    * ``lost`` and ``gained``: samples with a number in ``a`` alone, in ``b`` alone;
    * ``spearman`` and ``kendall`` (tau-b), NaN where one of the two is constant;
    * ``agreement``, the share of samples that both pass or both fail, and ``kappa``, Cohen's: NaN
      where both pass all or both fail all.

    ``tables`` has for each of those the counts of pass and fail, rows for ``a``, columns for ``b``.
    ``unshared`` names the components that only ``a`` or only ``b`` has. ``notes`` say in words
    what a reader must know before comparing.

    Example: ``diff.tables["total"].loc["fail", "pass"]`` is 3: three samples pass under ``b`` only.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    examples: pd.DataFrame
    component: str
    threshold: float
    unshared: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flips(self) -> pd.DataFrame:
        """The samples that pass in one scoring and not in the other."""
        return self.table.loc[self.table["flip"].to_numpy(bool)].reset_index(drop=True)

    def movers(self, k: int = 10) -> pd.DataFrame:
        """The ``k`` samples that moved furthest, of those with a number on both sides."""
        both = self.table.loc[self.table["difference"].notna().to_numpy(bool)]
        return both.head(k).reset_index(drop=True)

    def to_pandas(self) -> pd.DataFrame:
        """The table, one row a sample that differs."""
        return self.table.copy()

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        row = self.summary.loc[self.component]
        kappa, rank = row["kappa"], row["spearman"]
        parts = [f"{int(row['moved'])} moved", f"{int(row['flips'])} flips"]
        parts += [f"{int(row[n])} {n}" for n in ("lost", "gained") if row[n]]
        parts += [f"kappa {kappa:.2f}"] if not math.isnan(kappa) else []
        parts += [f"rank correlation {rank:.2f}"] if not math.isnan(rank) else []
        what = "" if self.component == "total" else f"{self.component!r}, "
        return f"ScoreDiff({what}{int(row['samples'])} samples, {', '.join(parts)})"


@frozen(eq=False)
class RewardCheck:
    """What a reward does on samples at hand: a question a row, ``look`` where one should.

    ``table`` has the columns ``check``, ``value``, ``verdict`` (``ok``, ``look``, ``unknown``) and
    ``meaning``, a sentence. Printed, it is that table.

    Example: ``check.table.set_index("check").loc["spread", "meaning"]`` is ``"0 for 12, 1 for 4"``.
    """

    name: str
    table: pd.DataFrame
    samples: int
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def concerns(self) -> list[str]:
        """What to look at, each as ``check: meaning``; empty where all is well."""
        rows = self.table.to_dict("records")
        return [f"{r['check']}: {r['meaning']}" for r in rows if r["verdict"] == "look"]

    def to_pandas(self) -> pd.DataFrame:
        """The table, one row a question."""
        return self.table.copy()

    def __str__(self) -> str:
        rows = self.table.to_dict("records")
        width = max((len(str(r["check"])) for r in rows), default=0)
        lines = [f"  {r['check']:<{width}}  {r['verdict']:<7}  {r['meaning']}" for r in rows]
        return "\n".join([repr(self), *lines])

    def __repr__(self) -> str:
        looks = list(self.table.loc[(self.table["verdict"] == "look").to_numpy(bool), "check"])
        more = f" and {len(looks) - 3} more" if len(looks) > 3 else ""
        said = f"look at {', '.join(looks[:3])}{more}" if looks else "nothing to look at"
        return f"RewardCheck({self.name[:40]!r}, {self.samples} samples, {said})"
