"""Values made by hand: two prompts, two answers each, with the columns that pictures need."""

import numpy as np
import pyarrow as pa
import pytest

from nbrl.types import Advantaged, Prompts, Rollouts, Scored

HOSTILE = "<script>alert(1)</script>"


def make_prompts(texts, labels):
    """Prompts with ids p0, p1, ..."""
    count = len(texts)
    table = pa.table(
        {
            "prompt_id": pa.array([f"p{i}" for i in range(count)], pa.string()),
            "prompt": pa.array(texts, pa.string()),
            "messages": pa.nulls(count, pa.string()),
            "label": pa.array(labels, pa.string()),
            "metadata": pa.array(["{}"] * count, pa.string()),
        }
    )
    return Prompts(table=table)


def make_rollouts(prompts, responses):
    """Rollouts of three prompt tokens and one token a character; one list of answers a prompt."""
    rows = [(p, j, text) for p, texts in enumerate(responses) for j, text in enumerate(texts)]
    lengths = [len(text) for _, _, text in rows]
    tokens = [list(range(3 + k)) for k in lengths]
    logprobs = [[0.0] * 3 + [-0.5] * k for k in lengths]
    columns = {
        "sample_id": pa.array([f"p{p}@0#{j}" for p, j, _ in rows], pa.string()),
        "prompt_id": pa.array([f"p{p}" for p, _, _ in rows], pa.string()),
        "group_id": pa.array([f"p{p}@0" for p, _, _ in rows], pa.string()),
        "response": pa.array([text for _, _, text in rows], pa.string()),
        "finish_reason": pa.array(["length" if k >= 3 else "stop" for k in lengths], pa.string()),
        "truncated": pa.array([k >= 3 for k in lengths], pa.bool_()),
        "temperature": pa.array([1.0] * len(rows), pa.float64()),
        "seed": pa.array(range(len(rows)), pa.uint64()),
        "version_min": pa.array([0] * len(rows), pa.int64()),
        "version_max": pa.array([0] * len(rows), pa.int64()),
        "num_turns": pa.array([1] * len(rows), pa.int32()),
        "seconds": pa.array([0.1] * len(rows), pa.float64()),
        "error": pa.nulls(len(rows), pa.string()),
        "token_ids": pa.array(tokens, pa.list_(pa.int32())),
        "source": pa.array([[0] * 3 + [1] * k for k in lengths], pa.list_(pa.int8())),
        "rollout_logprobs": pa.array(logprobs, pa.list_(pa.float32())),
        "policy_version": pa.array([[0] * (3 + k) for k in lengths], pa.list_(pa.int64())),
    }
    return Rollouts(table=pa.table(columns), prompts=prompts)


def make_scored(rollouts, totals):
    """Scored with these totals; None is an excluded sample."""
    table = pa.table(
        {
            "sample_id": rollouts.table.column("sample_id"),
            "total": pa.array(totals, pa.float64()),
            "status": ["ok" if t is not None else "error" for t in totals],
            "error": pa.array([None if t is not None else "boom" for t in totals], pa.string()),
        }
    )
    return Scored(table=table, rollouts=rollouts)


def make_advantaged(scored, advantages, live):
    """Advantaged with one advantage a sample, on each of its policy tokens."""
    source = scored.rollouts.table.column("source").to_pylist()
    mask = [[s == 1 for s in row] for row in source]
    spread = [[a * m for m in row] for a, row in zip(advantages, mask, strict=True)]
    returns = [[0.5 * m for m in row] for row in mask]
    table = pa.table(
        {
            "sample_id": scored.table.column("sample_id"),
            "reward": scored.table.column("total"),
            "group_mean": np.full(len(scored), 0.5),
            "group_std": np.full(len(scored), 0.5),
            "live": pa.array(live, pa.bool_()),
            "mask": pa.array(mask, pa.list_(pa.bool_())),
            "advantages": pa.array(spread, pa.list_(pa.float32())),
            "returns": pa.array(returns, pa.list_(pa.float32())),
            "kl": pa.array([[0.0] * len(r) for r in mask], pa.list_(pa.float32())),
        }
    )
    return Advantaged(table=table, scored=scored, spec={"estimator_name": "grpo"})


@pytest.fixture
def prompts():
    return make_prompts(["7+5=", HOSTILE], ["12", None])


@pytest.fixture
def rollouts(prompts):
    return make_rollouts(prompts, [["12", "1"], ["345", "\u202e\n"]])


@pytest.fixture
def scored(rollouts):
    return make_scored(rollouts, [1.0, 0.0, 0.0, None])


@pytest.fixture
def advantaged(rollouts):
    return make_advantaged(
        make_scored(rollouts, [1.0, 0.0, 0.0, 0.0]),
        [1.0, -1.0, 0.0, 0.0],
        [True, True, False, False],
    )
