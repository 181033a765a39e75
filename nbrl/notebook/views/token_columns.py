"""The numbers held for each token of a sample, named as a reader knows them, ready to colour by.

May import ``types``.
"""

import math
from collections.abc import Sequence
from typing import Any

from nbrl.types import SOURCE_POLICY

SOURCES = ["prompt", "policy", "environment"]
NO_YES = ["no", "yes"]

# name: (column, what it is, the middle of a two-sided scale or None, which end is striking)
NUMBERS = {
    "logprob": ("rollout_logprobs", "nats, by the engine that sampled", None, "low"),
    "logprob at sampling (trainer)": ("old_logprobs", "nats, by the trainer", None, "low"),
    "logprob (reference)": ("ref_logprobs", "nats, by the reference", None, "low"),
    "entropy": ("entropy", "nats", None, "high"),
    "KL": ("kl", "nats, to the reference", 0.0, "high"),
    "advantage": ("advantages", "", 0.0, "high"),
    "return": ("returns", "", 0.0, "high"),
    "value": ("values", "expected return, by the critic", None, "high"),
    "token reward": ("token_rewards", "", 0.0, "high"),
    "ratio": ("ratio", "policy now to policy at sampling", 1.0, "high"),
    "loss term": ("loss", "", 0.0, "high"),
}
FLAGS = {"mask": ("mask", "tokens that count"), "clipped": ("clipped", "the clip stops the token")}
# what is there before any annotation, from two log-probs
DIFFERENCES = {
    "trainer minus sampler": ("old_logprobs", "rollout_logprobs", "nats"),
    "policy minus reference": ("rollout_logprobs", "ref_logprobs", "nats"),
}


def token_columns(
    record: dict[str, Any], step: dict[str, Any], most: int
) -> dict[str, dict[str, Any]]:
    """Columns by name: values with None where not finite, kind, unit, scale; ``most`` tokens.

    Args:
        record: A row of the value with its parents' columns.
        step: The sample's row of a step's or probe's tokens, or empty.
        most: Where to cut.
    """
    held = {**record, **{n: v for n, v in step.items() if n != "sample_id"}}
    drawn = [s == SOURCE_POLICY for s in record["source"][:most]]
    found = {}
    for name, (column, unit, centre, striking) in NUMBERS.items():
        if held.get(column) is not None:
            found[name] = _numbers(held[column][:most], drawn, unit, centre) | {"high": striking}
    for name, (one, other, unit) in DIFFERENCES.items():
        if held.get(one) is not None and held.get(other) is not None:
            values = [a - b for a, b in zip(held[one], held[other], strict=True)][:most]
            found[name] = _numbers(values, drawn, unit, 0.0)
    for name, (column, unit) in FLAGS.items():
        if held.get(column) is not None:
            found[name] = _words([int(x) for x in held[column][:most]], NO_YES, unit)
    versions = record["policy_version"][:most]
    known = sorted({v for v, is_drawn in zip(versions, drawn, strict=True) if is_drawn})
    at = {version: place for place, version in enumerate(known, start=1)}
    found["policy version"] = _words(
        [at[v] if d else 0 for v, d in zip(versions, drawn, strict=True)],
        ["none", *map(str, known)],
        "which policy drew the token",
    )
    found["source"] = _words(record["source"][:most], SOURCES, "")
    return found


def _numbers(
    values: Sequence[float | None], drawn: Sequence[bool], unit: str, centre: float | None
) -> dict[str, Any]:
    """Only sampled tokens hold a number; elsewhere columns are filled with zeros."""
    shown = [
        float(f"{x:.5g}") if d and x is not None and math.isfinite(x) else None
        for x, d in zip(values, drawn, strict=True)
    ]
    return {"kind": "number", "values": shown, "unit": unit, "centre": centre, "everywhere": False}


def _words(codes: Sequence[int], words: Sequence[str], unit: str) -> dict[str, Any]:
    return {
        "kind": "word",
        "values": list(codes),
        "words": list(words),
        "unit": unit,
        "centre": None,
        "everywhere": True,
    }
