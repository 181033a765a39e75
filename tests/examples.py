"""Small tokenized examples of every kind, for the tests of stages, trainers and sessions."""

import numpy as np
import pyarrow as pa

from nbrl.types import KINDS, Examples
from nbrl.types.columns import list_column

PLAIN = {
    "conversations": {"prompt": "p", "response": "r"},
    "pairs": {"prompt": "p", "chosen": "c", "rejected": "r", "margin": 0.0},
    "labelled": {"prompt": "p", "response": "r", "desirable": True},
    "steps": {"prompt": "p", "steps": ["s"], "labels": [1.0]},
}


def make_examples(kind: str, count: int, **columns) -> Examples:
    """So many rows of a kind, with these columns in the place of the plain ones."""
    rows = [{"example_id": f"e{i}", **PLAIN[kind], "metadata": "{}"} for i in range(count)]
    made = Examples(kind=kind, table=pa.Table.from_pylist(rows, schema=KINDS[kind].columns))
    return made.with_columns({n: pa.array(x) for n, x in columns.items()})


def make_tokenized(
    kind: str, count: int, *, seed: int = 0, vocabulary: int = 50, reference: bool = True
) -> Examples:
    """Random tokens: 1 to 4 of a prompt, 1 to 6 of each answer, drawn row by row."""
    rng = np.random.default_rng(seed)
    sides = KINDS[kind].sides
    found: dict[str, list] = {}
    labels = []
    for _ in range(count):
        prompt = rng.integers(1, vocabulary, int(rng.integers(1, 5))).tolist()
        for side in sides:
            answer = rng.integers(1, vocabulary, int(rng.integers(1, 7))).tolist()
            mask = [False] * len(prompt) + [True] * len(answer)
            found.setdefault(f"{side}token_ids", []).append(prompt + answer)
            found.setdefault(f"{side}mask", []).append(mask)
            drawn = np.where(mask, rng.normal(-4, 0.3, len(mask)), 0.0).tolist()
            found.setdefault(f"{side}ref_logprobs", []).append(drawn)
        labels.append(np.where(mask, rng.uniform(0, 1, len(mask)), 0.0).tolist())
    margins = rng.normal(0, 1, count)
    desirable = rng.uniform(size=count) > 0.4
    types = {"token_ids": pa.int32(), "mask": pa.bool_(), "ref_logprobs": pa.float32()}
    columns = {
        name: list_column(rows, next(t for end, t in types.items() if name.endswith(end)))
        for name, rows in found.items()
        if reference or "ref_" not in name
    }  # fmt: skip
    if kind == "steps":
        columns["step_labels"] = list_column(labels, pa.float32())
    if kind == "pairs":
        columns["margin"] = pa.array(margins)
    if kind == "labelled":
        columns["desirable"] = pa.array(desirable)
    return make_examples(kind, count).with_columns(columns)
