"""Traces of episodes, put down as the rows of ``Rollouts``.

May import ``backends.agents`` and ``types``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nbrl.backends.agents.traces import Trace
from nbrl.types.columns import list_column

Decode = Callable[[list[list[int]]], list[str]]


def rollout_table(traces: Sequence[Trace], decode: Decode, spec: Mapping[str, Any]) -> pa.Table:
    """One row a trace, in their order; with the agent's columns where ``spec`` names an agent.

    ``response`` is the text of all that follows the prompt. ``version_min`` and ``version_max``
    are those of the policy's tokens, or the policy's version where there are none.
    """
    responses = decode([t.token_ids[t.prompt_length :].tolist() for t in traces])
    columns = _sample_columns(traces, spec) | {
        "response": pa.array(responses, pa.string()),
        **_token_columns(traces),
    }
    return pa.table(columns | (_agent_columns(traces) if spec.get("agent") else {}))


def _sample_columns(traces: Sequence[Trace], spec: Mapping[str, Any]) -> dict[str, pa.Array]:
    """The columns with one entry a sample, ids among them."""
    version, sampling = spec["version"], spec["sampling"]
    salt = f"s{sampling['seed']}" if sampling["seed"] else ""
    groups = [f"{t.prompt_id}@{version}{salt}" for t in traces]
    ids = [f"{g}#{t.sample_index}" for g, t in zip(groups, traces, strict=True)]
    oldest, newest = _version_range(traces, version)
    return {
        "sample_id": pa.array(ids, pa.string()),
        "prompt_id": pa.array([t.prompt_id for t in traces], pa.string()),
        "group_id": pa.array(groups, pa.string()),
        "finish_reason": pa.array([t.finish_reason for t in traces], pa.string()),
        "truncated": pa.array([t.finish_reason == "length" for t in traces], pa.bool_()),
        # Greedy answers have their log-probs at temperature 1.
        "temperature": pa.array([sampling["temperature"] or 1.0] * len(traces), pa.float64()),
        "seed": pa.array([t.seed for t in traces], pa.uint64()),
        "version_min": pa.array(oldest, pa.int64()),
        "version_max": pa.array(newest, pa.int64()),
        "num_turns": pa.array([t.num_turns for t in traces], pa.int32()),
        "seconds": pa.array([t.seconds for t in traces], pa.float64()),
        "error": pa.array([t.error for t in traces], pa.string()),
    }


def _version_range(traces: Sequence[Trace], version: int) -> tuple[list[int], list[int]]:
    spoken = [[turn.version for turn in t.turns] or [_answered_by(t, version)] for t in traces]
    return [min(versions) for versions in spoken], [max(versions) for versions in spoken]


def _answered_by(trace: Trace, version: int) -> int:
    """The version of a single turn's tokens."""
    return int(trace.versions[-1]) if trace.prompt_length < len(trace.versions) else version


def _token_columns(traces: Sequence[Trace]) -> dict[str, pa.ListArray]:
    """The columns with one entry a token, 0 where they do not apply."""
    return {
        "token_ids": list_column([t.token_ids for t in traces], pa.int32()),
        "source": list_column([t.source for t in traces], pa.int8()),
        "rollout_logprobs": list_column([t.logprobs for t in traces], pa.float32()),
        "policy_version": list_column([t.versions for t in traces], pa.int64()),
    }


def _agent_columns(traces: Sequence[Trace]) -> dict[str, pa.Array]:
    """What an episode has beside: its turns as JSON, and what ended it."""
    return {
        "turns": pa.array([t.turns_json() for t in traces], pa.string()),
        "ended_by": pa.array([t.ended_by for t in traces], pa.string()),
    }
