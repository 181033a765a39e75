"""What was found out about a reward, in plain words. Pure; may import numpy, pandas, functional.

Each row of the table is a question; its meaning is a sentence that can be acted on.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from nbrl.functional.agreement import spearman

SLOW, LONG, DEAD = 0.1, 0.5, 0.5
"""Seconds a sample from which latency is noted, rank correlation with length, share of groups."""
FEW, MOST_TEXT = 4, 300
Found = tuple[str, float, bool, str]
"""A question, its number, whether one should look, and what it means."""


def verdicts(
    values: np.ndarray,
    again: np.ndarray,
    *,
    seconds: np.ndarray,
    errors: Sequence[str | None],
    groups: Sequence[str],
    lengths: np.ndarray,
    forms: Mapping[str, Mapping[str, np.ndarray]],
) -> pd.DataFrame:
    """One row a question: ``check``, ``value``, ``verdict``, ``meaning``.

    Args:
        values: What the reward said of each sample, NaN where it failed.
        again: The same, asked a second time.
        seconds: How long each took.
        errors: What it failed with.
        groups: Each sample's group.
        lengths: Characters of each answer.
        forms: By the question's name, the values of answers that say the same in another form.
    """
    found = [
        _errors(values, errors),
        _determinism(values, again),
        _latency(seconds),
        _spread(values),
        _dead_groups(values, groups),
        _length(values, lengths),
        *(_form(name, values, changed) for name, changed in forms.items()),
    ]
    rows = [
        (name, value, "unknown" if np.isnan(value) else "look" if look else "ok", meaning)
        for name, value, look, meaning in found
    ]
    return pd.DataFrame(rows, columns=["check", "value", "verdict", "meaning"])


def _errors(values: np.ndarray, errors: Sequence[str | None]) -> Found:
    failed = int(np.isnan(values).sum())
    share = failed / len(values) if len(values) else float("nan")
    if not failed:
        return "errors", share, False, f"none of {len(values)} samples failed"
    first = " ".join(next((e for e in errors if e), "no reason was given").split())[:MOST_TEXT]
    return "errors", share, True, f"{failed} of {len(values)} samples failed; the first: {first}"


def _determinism(values: np.ndarray, again: np.ndarray) -> Found:
    share = _share_changed(values, again)
    said = "asked twice, it said the same"
    if share > 0:
        said = f"asked twice, it said something else of {share:.0%}: that is noise in the gradient"
    return "determinism", 1.0 - share, share > 0, said


def _latency(seconds: np.ndarray) -> Found:
    median = float(np.median(seconds)) if len(seconds) else float("nan")
    said = f"{_time(median)} a sample, the slowest {_time(float(seconds.max(initial=0.0)))}"
    if median > SLOW:
        said += f"; 256 samples one after another take {_time(256 * median)}"
    return "latency", median, median > SLOW, said


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} us"
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _spread(values: np.ndarray) -> Found:
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if not len(distinct):
        return "spread", float("nan"), True, "no sample has a value"
    if len(distinct) == 1:
        return "spread", 1.0, True, f"every sample gets {distinct[0]:g}: nothing can be learnt"
    said = f"{len(distinct)} values from {distinct[0]:.3g} to {distinct[-1]:.3g}"
    if len(distinct) <= FEW:
        said = ", ".join(f"{v:g} for {n}" for v, n in zip(distinct, counts, strict=True))
    return "spread", float(len(distinct)), False, said


def _dead_groups(values: np.ndarray, groups: Sequence[str]) -> Found:
    frame = pd.DataFrame({"value": values, "group": groups}).dropna()
    grouped = frame.groupby("group")["value"].agg(["size", "nunique"])
    several = grouped[grouped["size"] > 1]
    if not len(several):
        return "dead groups", float("nan"), False, "no group has two answers with a value"
    dead = int(np.sum(np.asarray(several["nunique"]) == 1))
    share = dead / len(several)
    said = f"in {dead} of {len(several)} groups all answers get the same and teach nothing"
    return "dead groups", share, share > DEAD, said


def _length(values: np.ndarray, lengths: np.ndarray) -> Found:
    kept = ~np.isnan(values)
    rank = spearman(torch.from_numpy(values[kept]), torch.from_numpy(lengths[kept]))
    if np.isnan(rank):
        return "length", rank, False, "values or lengths are all equal"
    said = f"rank correlation with the answer's length is {rank:.2f}"
    if abs(rank) > LONG:
        more = "longer" if rank > 0 else "shorter"
        said = f"{more} answers get more: {said}"
    return "length", rank, abs(rank) > LONG, said


def _form(name: str, values: np.ndarray, changed: Mapping[str, np.ndarray]) -> Found:
    """The share of values that change under the form that changes most."""
    shares = {form: _share_changed(values, said) for form, said in changed.items()}
    known = {form: share for form, share in shares.items() if not np.isnan(share)}
    if not known:
        return name, float("nan"), False, "no sample has a value"
    worst = max(known, key=lambda form: known[form])
    if not known[worst]:
        return name, 0.0, False, f"the same answer gets the same: {', '.join(known)}"
    up = int(np.sum(changed[worst] > values))
    down = int(np.sum(changed[worst] < values))
    failed = int(np.sum(np.isnan(changed[worst]) & ~np.isnan(values)))
    moves = [f"{n} {way}" for n, way in ((up, "up"), (down, "down"), (failed, "failed")) if n]
    said = f"{worst}: {known[worst]:.0%} of the values change ({', '.join(moves)})"
    others = [form for form, share in known.items() if share and form != worst]
    return name, known[worst], True, said + (f"; so do {', '.join(others)}" if others else "")


def _share_changed(a: np.ndarray, b: np.ndarray) -> float:
    """Share of samples with other values or none, of those that had one in either; NaN of none."""
    there = ~(np.isnan(a) & np.isnan(b))
    return float((a[there] != b[there]).mean()) if there.any() else float("nan")
