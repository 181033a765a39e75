"""Two scorings of the same samples: what flipped, what moved, how far they agree. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from nbrl.errors import DataError, all_problems, unknown_name
from nbrl.functional.agreement import cohens_kappa, kendall, spearman
from nbrl.rules import is_number, kind_problems
from nbrl.types import Scored, ScoreDiff

MOST_EXAMPLES, MOST_LOOKED_AT = 12, 400
VERDICTS = ["pass", "fail"]
ASIDE = ("sample_id", "score")
"""Columns of numbers or ids that are no component of a reward."""


def diff_scores(
    a: Scored, b: Scored, *, threshold: float = 0.0, component: str = "total"
) -> ScoreDiff:
    """What changes between two scorings of the same samples, joined by ``sample_id``.

    Components are compared where both have one of that name. The texts of the examples are those
    of the rollouts.

    Args:
        a: The scoring from before.
        b: The one after; samples that only one of the two has are kept and counted.
        threshold: A sample passes above it: by default a positive reward is a pass.
        component: What ``table`` and ``examples`` are about; ``summary`` and ``tables`` have all.

    Raises:
        ConfigError: Something else than scored samples, a threshold that is no finite number, or
            a component that the two do not share.
        DataError: The two have no sample in common.
    """
    _check(a, b, threshold)
    left, right = _numbers(a), _numbers(b)
    ids = left.index.intersection(right.index, sort=False)
    if not len(ids) and (len(a) or len(b)):
        raise DataError(
            f"diff_scores joins by sample_id; {a!r} and {b!r} have none in common. Score the same "
            "rollouts twice."
        )
    shared = [name for name in left.columns if name in right.columns]
    if component not in shared:
        raise unknown_name("component", component, shared)
    table = _moved(a, b, threshold, component)
    columns = {n: _aligned(left, right, n) for n in shared}
    rows = {n: _row(x, y, threshold) for n, (x, y) in columns.items()}
    return ScoreDiff(
        table=table,
        summary=pd.DataFrame.from_dict(rows, orient="index").rename_axis("component"),
        tables={n: _crossed(x, y, threshold) for n, (x, y) in columns.items()},
        examples=_examples(a, b, table),
        component=component,
        threshold=float(threshold),
        unshared={
            side: [n for n in own.columns if n not in shared]
            for side, own in (("a", left), ("b", right))
        },
        notes=tuple(_notes(a, b, table)),
        spec={"a": dict(a.spec), "b": dict(b.spec)},
    )


def _check(a: Any, b: Any, threshold: Any) -> None:
    problems = list(kind_problems({"a": (a, Scored), "b": (b, Scored)}))
    if not is_number(threshold) or not np.isfinite(threshold):
        problems.append(
            f"threshold must be a finite number, above which a sample passes; got {threshold!r:.80}"
        )
    if problems:
        raise all_problems("diff_scores", problems)


def _numbers(scored: Scored) -> pd.DataFrame:
    """The total and every component by sample id, NaN where there is no number."""
    fields = [f.name for f in scored.table.schema if pa.types.is_floating(f.type)]
    kept = [n for n in fields if not n.endswith(".seconds") and n not in ASIDE]
    frame = scored.table.select(["sample_id", *kept]).to_pandas().set_index("sample_id")
    return frame.astype(float)[["total", *(n for n in kept if n != "total")]]


def _aligned(left: pd.DataFrame, right: pd.DataFrame, name: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = left[[name]].align(right[[name]], join="outer")
    return a.to_numpy()[:, 0], b.to_numpy()[:, 0]


def _moved(a: Scored, b: Scored, threshold: float, component: str) -> pd.DataFrame:
    """The samples whose number or status differs, those without a number on a side first."""
    joined = _said(a, "a", component).join(_said(b, "b", component), how="outer")
    joined[["status_a", "status_b"]] = joined[["status_a", "status_b"]].fillna("missing")
    left, right = joined["a"].to_numpy(), joined["b"].to_numpy()
    joined["difference"] = right - left
    both = ~np.isnan(left) & ~np.isnan(right)
    joined["flip"] = both & ((left > threshold) != (right > threshold))
    equal = (left == right) | (np.isnan(left) & np.isnan(right))
    equal &= (joined["status_a"] == joined["status_b"]).to_numpy()
    size = np.where(both, np.abs(right - left), np.inf)
    order = np.argsort(-size, kind="stable")
    ordered = joined.iloc[order[~equal[order]]]
    shown = ["a", "b", "difference", "status_a", "status_b", "flip"]
    return ordered[shown].rename_axis("sample_id").reset_index()


def _said(scored: Scored, side: str, component: str) -> pd.DataFrame:
    """One component and its status; a part of a reward has the status of the reward."""
    status = "status" if component == "total" else f"{component.partition('/')[0]}.status"
    frame = scored.table.select(["sample_id", component, status]).to_pandas()
    renamed = {component: side, status: f"status_{side}"}
    return frame.set_index("sample_id").rename(columns=renamed).astype({side: float})


def _row(left: np.ndarray, right: np.ndarray, threshold: float) -> dict[str, int | float]:
    there_a, there_b = ~np.isnan(left), ~np.isnan(right)
    both = there_a & there_b
    x, y = torch.from_numpy(left[both]), torch.from_numpy(right[both])
    passed = x > threshold, y > threshold
    count = len(x)
    return {
        "samples": count,
        "moved": int((x != y).sum()),
        "flips": int((passed[0] != passed[1]).sum()),
        "lost": int((there_a & ~there_b).sum()),
        "gained": int((there_b & ~there_a).sum()),
        "mean_a": float(x.mean()) if count else float("nan"),
        "mean_b": float(y.mean()) if count else float("nan"),
        "spearman": spearman(x, y),
        "kendall": kendall(x, y),
        "agreement": float((passed[0] == passed[1]).double().mean()) if count else float("nan"),
        "kappa": cohens_kappa(*passed),
    }


def _crossed(left: np.ndarray, right: np.ndarray, threshold: float) -> pd.DataFrame:
    both = ~np.isnan(left) & ~np.isnan(right)
    x, y = left[both] > threshold, right[both] > threshold
    counts = [[int(np.sum((x == i) & (y == j))) for j in (True, False)] for i in (True, False)]
    return pd.DataFrame(
        counts, index=pd.Index(VERDICTS, name="a"), columns=pd.Index(VERDICTS, name="b")
    )


def _examples(a: Scored, b: Scored, table: pd.DataFrame) -> pd.DataFrame:
    """The first flips, then the first of the other rows, with what was asked and answered.

    The same answer to the same prompt is shown once.
    """
    flips = table["flip"].to_numpy(bool)
    order = np.concatenate([np.flatnonzero(flips), np.flatnonzero(~flips)])
    some = table.iloc[order[:MOST_LOOKED_AT]].reset_index(drop=True)
    asked = ["sample_id", "prompt", "response", "label"]
    texts: dict[str, Mapping[str, Any]] = {}
    for side in (b, a):
        here = side.table.column("sample_id").to_pylist()
        wanted = set(some["sample_id"])
        rows = np.array([row for row, sample in enumerate(here) if sample in wanted], np.int64)
        found = side.rollouts.take(rows).to_arrow().select(asked).to_pylist()
        texts |= {row["sample_id"]: row for row in found}
    said = pd.DataFrame([texts[s] for s in some["sample_id"]], columns=asked)
    numbers = some.loc[:, ["a", "b", "status_a", "status_b", "flip"]]
    together = pd.concat([said, numbers], axis=1)
    once = together.drop_duplicates(["prompt", "response", "a", "b", "status_a", "status_b"])
    return once.head(MOST_EXAMPLES).reset_index(drop=True)


def _notes(a: Scored, b: Scored, table: pd.DataFrame) -> Iterator[str]:
    for side, scored in (("a", a), ("b", b)):
        replayed = scored.spec.get("replayed", [])
        if replayed:
            yield (
                f"{side}: {', '.join(replayed)} depends on the world and was asked again about "
                "stored samples"
            )
    for side in "ab":
        missing = int(np.count_nonzero(table[f"status_{side}"].to_numpy() == "missing"))
        if missing:
            yield f"{missing} samples are not in {side}"
    prints = [scored.spec.get("fingerprints") for scored in (a, b)]
    settings = [scored.spec.get("combine") for scored in (a, b)]
    if len(table) and prints[0] and prints[0] == prints[1] and settings[0] == settings[1]:
        yield "both were scored by the same code: what differs is chance or the world"
