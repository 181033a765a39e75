"""HTML of two scorings of the same samples, and of what was found out about a reward.

May import ``types`` and its neighbours.
"""

import numpy as np
import pandas as pd

from nbrl.notebook.reprs.markup import card, table
from nbrl.notebook.reprs.samples import shown
from nbrl.types import RewardCheck, ScoreDiff

MOST_COMPONENTS = 12
MOST_EXAMPLES = 8
ENOUGH = 0.99
SUMMARY = {
    "samples": "samples",
    "moved": "moved",
    "flips": "flips",
    "mean_a": "mean of a",
    "mean_b": "mean of b",
    "agreement": "agree",
    "kappa": "kappa",
    "spearman": "rank corr.",
    "kendall": "tau",
}
"""Columns of the summary and what they are called where space is short."""
EXAMPLE = ("prompt", "response", "label", "a", "b", "status_a", "status_b")


def diff_html(value: ScoreDiff) -> str:
    """What changed in words, a row a component, pass against fail, examples with their texts."""
    names = list(value.summary.index[:MOST_COMPONENTS])
    rows = [(n, *(_number(value.summary.loc[n, c]) for c in SUMMARY)) for n in names]
    parts = [
        table("components", ("", *SUMMARY.values()), rows, _unshared(value)),
        table(
            f"{value.component}: pass is above {value.threshold:g}",
            ("", "b passes", "b fails"),
            [
                (f"a {verb}", *map(int, value.tables[value.component].loc[name]))
                for name, verb in (("pass", "passes"), ("fail", "fails"))
            ],
        ),
    ]
    if len(value.examples):
        parts.append(_examples(value))
    return card(repr(value), parts, warnings=[*concerns(value), *value.notes], spec=value.spec)


def check_html(value: RewardCheck) -> str:
    """A row a question."""
    rows = [[_number(cell) for cell in row] for row in value.table.itertuples(index=False)]
    part = table("", tuple(value.table.columns), rows)
    return card(repr(value), [part], spec=value.spec)


def concerns(value: ScoreDiff) -> list[str]:
    """What changes without a flip, and samples that lost their reward."""
    row = value.summary.loc[value.component]
    said = []
    if row["lost"]:
        said.append(f"{int(row['lost']):,} samples have a number in a and none in b")
    if row["moved"] and not row["flips"] and row["spearman"] > ENOUGH:
        said.append("the order is almost the same: a group estimator sees little of this change")
    return said


def _examples(value: ScoreDiff) -> str:
    listed = value.examples.head(MOST_EXAMPLES)
    plain = set(listed["status_a"]) | set(listed["status_b"]) == {"ok"}
    columns = EXAMPLE[: -2 if plain else None]
    rows = [[_number(row[c]) for c in columns] for _, row in listed.iterrows()]
    flips = int(np.count_nonzero(listed["flip"]))
    caption = "examples of flips" if flips == len(listed) else f"examples, {flips or 'no'} flips"
    return table(caption, columns, rows, shown(len(listed), len(value), "samples that differ"))


def _unshared(value: ScoreDiff) -> str:
    said = [
        f"only {side} has {', '.join(n[:MOST_COMPONENTS])}"
        for side, n in value.unshared.items()
        if n
    ]
    return "; ".join(said)


def _number(value: object) -> object:
    """The value for a cell: whole numbers without a point, nothing for what is not there."""
    if isinstance(value, float | np.floating):
        if pd.isna(value):
            return None
        return int(value) if value == int(value) and abs(value) < 1e15 else float(value)
    return value
