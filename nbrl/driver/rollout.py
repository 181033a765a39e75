"""The verbs ``next_prompts`` and ``rollout``: prompts to sampled answers.

May import what ``runtime`` may.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nbrl.config import Sampling, check_config, to_spec
from nbrl.driver.runtime import Runtime, Stopwatch
from nbrl.driver.seeds import derive
from nbrl.errors import ConfigError
from nbrl.protocols import Generation, GenerationRequest
from nbrl.types import SOURCE_POLICY, SOURCE_PROMPT, Prompts, Rollouts
from nbrl.types.columns import list_column

TRAINING, EVALUATION = "sample", "evaluate"
"""Branches of the seed tree: evaluating never changes what training will sample."""


def next_prompts(runtime: Runtime, k: int) -> Prompts:
    """The next ``k`` prompts; moves the cursor.

    Raises:
        ConfigError: ``k`` is less than one, or more than one pass over the data holds.
    """
    prompts = runtime.source.take(k, runtime.cursor)
    runtime.cursor += k
    return prompts


def rollout(
    runtime: Runtime,
    prompts: Prompts,
    *,
    n: int,
    sampling: Sampling,
    branch: str = TRAINING,
) -> Rollouts:
    """``n`` answers to each prompt, drawn by the policy as it is.

    The seed of a sample is that of its place in the tree (run, version, prompt, sample), so the
    same call gives the same answers. After Ctrl-C the answers that were finished are returned,
    with ``spec["interrupted"]`` True.

    Raises:
        ConfigError: Sampling settings, ``n`` or the prompts cannot work; nothing was generated.
    """
    few = [] if n >= 1 else [f"n must be >= 1 answers a prompt; got {n}"]
    empty = [] if len(prompts) else ["there are no prompts; pass at least one"]
    check_config(f"rollout of {len(prompts)} prompts, n={n}", sampling, extra=[*few, *empty])
    watch = Stopwatch()
    token_ids = runtime.encode(prompts)
    prompt_ids = prompts.table.column("prompt_id").to_pylist()
    path = (runtime.seed, branch, runtime.version, sampling.seed)
    requests = [
        GenerationRequest(
            prompt_id=prompt_id,
            token_ids=ids,
            seeds=tuple(derive(*path, prompt_id, i) for i in range(n)),
        )
        for prompt_id, ids in zip(prompt_ids, token_ids, strict=True)
    ]
    with runtime.progress.phase("rollout", len(prompts) * n, "samples") as advance:
        generations = runtime.engine.generate(requests, sampling, advance)
        if len(generations) < len(prompts) * n:
            runtime.progress.note(f"interrupted with {len(generations)} answers finished")
    spec = {
        "model": runtime.name,
        "version": runtime.version,
        "n": n,
        "sampling": to_spec(sampling),
        "seed": runtime.seed,
        "interrupted": len(generations) < len(prompts) * n,
        "seconds": {"rollout": watch.read()},
    }
    return _build(runtime, prompts, requests, generations, spec)


def _build(
    runtime: Runtime,
    prompts: Prompts,
    requests: Sequence[GenerationRequest],
    generations: Sequence[Generation],
    spec: dict,
) -> Rollouts:
    """The value, one row a finished sample, in the order of prompts and samples."""
    asked = {request.prompt_id: request for request in requests}
    version, salt = spec["version"], spec["sampling"]["seed"]
    suffix = f"@{version}" + (f"s{salt}" if salt else "")
    of_prompt = [np.asarray(asked[g.prompt_id].token_ids, np.int32) for g in generations]
    counts = [(len(p), len(g.token_ids)) for p, g in zip(of_prompt, generations, strict=True)]
    lists = {
        "token_ids": (
            [np.concatenate([p, g.token_ids]) for p, g in zip(of_prompt, generations, strict=True)],
            pa.int32(),
        ),
        "source": (
            [np.repeat(np.int8([SOURCE_PROMPT, SOURCE_POLICY]), c) for c in counts],
            pa.int8(),
        ),
        "rollout_logprobs": (
            [
                np.concatenate([np.zeros(c[0], np.float32), g.logprobs])
                for c, g in zip(counts, generations, strict=True)
            ],
            pa.float32(),
        ),
        "policy_version": (
            [
                np.repeat(np.int64([0, g.version]), c)
                for c, g in zip(counts, generations, strict=True)
            ],
            pa.int64(),
        ),
    }
    reasons = [g.finish_reason for g in generations]
    temperature = spec["sampling"]["temperature"]
    rows = len(generations)
    table = {
        "sample_id": pa.array(
            [f"{g.prompt_id}{suffix}#{g.sample_index}" for g in generations], pa.string()
        ),
        "prompt_id": pa.array([g.prompt_id for g in generations], pa.string()),
        "group_id": pa.array([f"{g.prompt_id}{suffix}" for g in generations], pa.string()),
        "response": pa.array(
            runtime.decode([g.token_ids.tolist() for g in generations]), pa.string()
        ),
        "finish_reason": pa.array(reasons, pa.string()),
        "truncated": pa.array([r == "length" for r in reasons], pa.bool_()),
        "temperature": pa.array([temperature or 1.0] * rows, pa.float64()),
        "seed": pa.array(
            [asked[g.prompt_id].seeds[g.sample_index] for g in generations], pa.uint64()
        ),
        "version_min": pa.array([g.version for g in generations], pa.int64()),
        "version_max": pa.array([g.version for g in generations], pa.int64()),
        "num_turns": pa.array([1] * rows, pa.int32()),
        "seconds": pa.array([g.seconds for g in generations], pa.float64()),
        "error": pa.array([g.error for g in generations], pa.string()),
    }
    table |= {name: list_column(values, kind) for name, (values, kind) in lists.items()}
    used = {g.prompt_id for g in generations}
    kept = prompts.filter([p in used for p in prompts.table.column("prompt_id").to_pylist()])
    return Rollouts(table=pa.table(table), prompts=kept, spec=spec)


def check_same_policy(rollouts: Rollouts, runtime: Runtime, asked: str) -> None:
    """Raise where samples claim a version that this session's policy has not reached.

    Raises:
        ConfigError: A sample is of a later version.
    """
    newest = rollouts.table.column("version_max").to_numpy().max(initial=0)
    if newest > runtime.version:
        raise ConfigError(
            f"{asked}: the batch holds samples of policy version {newest}, this session's policy "
            f"is at version {runtime.version}. They come from another run; connect to that one, or "
            "roll out again."
        )
