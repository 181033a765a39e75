"""Small hand-made values and Hypothesis strategies for them, for the tests of every room."""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from nbrl.types import Advantaged, Prompts, Rollouts, Scored
from nbrl.types.columns import list_column
from nbrl.types.schemas import (
    ADVANTAGED_COLUMNS,
    PROMPT_COLUMNS,
    ROLLOUT_COLUMNS,
    SCORED_COLUMNS,
)


def make_prompts(num_prompts: int = 2, extra: dict | None = None, **spec) -> Prompts:
    """``p0, p1, ...`` with the texts ``0+1=``, ``1+1=``, ... and their answers as labels."""
    rows = {
        "prompt_id": [f"p{i}" for i in range(num_prompts)],
        "prompt": [f"{i}+1=" for i in range(num_prompts)],
        "messages": [None] * num_prompts,
        "label": [str(i + 1) for i in range(num_prompts)],
        "metadata": ["{}"] * num_prompts,
    }
    return Prompts(table=_table(rows, PROMPT_COLUMNS, extra), spec=spec)


def make_rollouts(
    prompts: Prompts, lengths: list[int], extra: dict | None = None, **spec
) -> Rollouts:
    """One sample a length: a prompt token and ``length`` policy tokens; prompts in equal runs."""
    num = len(lengths)
    ids = prompts.table.column("prompt_id").to_pylist()
    asked = [ids[i * len(ids) // num] for i in range(num)]
    rows = {
        "sample_id": [f"{p}@0#{i}" for i, p in enumerate(asked)],
        "prompt_id": asked,
        "group_id": [f"{p}@0" for p in asked],
        "response": ["x" * n for n in lengths],
        "finish_reason": ["stop"] * num,
        "truncated": [False] * num,
        "temperature": [1.0] * num,
        "seed": [2**64 - 1 - i for i in range(num)],
        "version_min": [0] * num,
        "version_max": [0] * num,
        "num_turns": [1] * num,
        "seconds": [0.5] * num,
        "error": [None] * num,
        "token_ids": [[7, *range(n)] for n in lengths],
        "source": [[0, *[1] * n] for n in lengths],
        "rollout_logprobs": [[0.0, *np.linspace(-2, -1, n)] for n in lengths],
        "policy_version": [[0] * (n + 1) for n in lengths],
    }
    return Rollouts(table=_table(rows, ROLLOUT_COLUMNS, extra), prompts=prompts, spec=spec)


def rollouts_of(
    sources: list[list[int]], token_ids: list | None = None, **columns: pa.Array
) -> Rollouts:
    """Samples of one prompt with these token sources; ids count up from 1 unless they are given.

    ``columns`` are put in the place of others, or added.
    """
    counted = [list(range(1, len(row) + 1)) for row in sources]
    zeros = [[0] * len(row) for row in sources]
    token_columns = {
        "token_ids": list_column(counted if token_ids is None else token_ids, pa.int32()),
        "source": list_column(sources, pa.int8()),
        "rollout_logprobs": list_column(zeros, pa.float32()),
        "policy_version": list_column(zeros, pa.int64()),
    }
    made = make_rollouts(make_prompts(1), [1] * len(sources), sampling={"max_new_tokens": 100})
    return made.with_columns(token_columns | columns)


def make_scored(rollouts: Rollouts, totals: list[float | None], **spec) -> Scored:
    """The totals as rewards; None is a sample whose reward failed."""
    rows = {
        "sample_id": rollouts.table.column("sample_id").to_pylist(),
        "total": totals,
        "status": ["error" if t is None else "ok" for t in totals],
        "error": ["boom" if t is None else None for t in totals],
    }
    return Scored(table=_table(rows, SCORED_COLUMNS, None), rollouts=rollouts, spec=spec)


def make_advantaged(scored: Scored, **spec) -> Advantaged:
    """Every policy token has the sample's total as its advantage."""
    tokens = scored.rollouts.table.column("source").to_pylist()
    totals = [t or 0.0 for t in scored.table.column("total").to_pylist()]
    per_token = [[t * s for s in row] for t, row in zip(totals, tokens, strict=True)]
    rows = {
        "sample_id": scored.table.column("sample_id").to_pylist(),
        "reward": totals,
        "group_mean": [0.0] * len(scored),
        "group_std": [1.0] * len(scored),
        "live": [True] * len(scored),
        "mask": [[s == 1 for s in row] for row in tokens],
        "advantages": per_token,
        "returns": per_token,
        "kl": [[0.0] * len(row) for row in tokens],
    }
    return Advantaged(table=_table(rows, ADVANTAGED_COLUMNS, None), scored=scored, spec=spec)


def make_chain(num_prompts: int = 2, group: int = 2) -> Advantaged:
    """A whole chain with answers of 1, 2, 3, ... tokens and rewards 0, 1, 2, ..."""
    num = num_prompts * group
    rollouts = make_rollouts(make_prompts(num_prompts), list(range(1, num + 1)))
    return make_advantaged(make_scored(rollouts, [float(i) for i in range(num)]))


def _table(rows: dict, schema: pa.Schema, extra: dict | None) -> pa.Table:
    table = pa.table(rows, schema=schema)
    for name, column in (extra or {}).items():
        table = table.append_column(name, column)
    return table


SPECS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=5,
    ),
    max_size=3,
)
TEXTS = st.none() | st.text(max_size=8)


@st.composite
def chains(draw: st.DrawFn) -> Advantaged:
    """Whole chains: none or a few samples, odd text, nulls, NaN, infinities, further columns."""
    num_prompts = draw(st.integers(1, 3))
    texts = draw(st.lists(TEXTS, min_size=num_prompts, max_size=num_prompts))
    extra = {"note": pa.array(texts, pa.string()), "day": pa.array([0] * num_prompts, pa.date32())}
    prompts = make_prompts(num_prompts, extra, **draw(SPECS))
    lengths = draw(st.lists(st.integers(0, 4), min_size=0, max_size=5))
    odd = st.none() | st.floats(width=32)
    columns = {
        "old_logprobs": pa.array(
            [draw(st.lists(odd, min_size=n + 1, max_size=n + 1)) for n in lengths],
            pa.list_(pa.float32()),
        ),
        "tag": pa.array(draw(st.lists(TEXTS, min_size=len(lengths), max_size=len(lengths)))).cast(
            pa.string()
        ),
    }
    rollouts = make_rollouts(prompts, lengths, columns, **draw(SPECS))
    totals = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    drawn = draw(st.lists(totals, min_size=len(lengths), max_size=len(lengths)))
    return make_advantaged(make_scored(rollouts, drawn, **draw(SPECS)), **draw(SPECS))
