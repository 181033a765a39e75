"""The verbs ``next_prompts`` and ``rollout``: prompts to sampled answers.

May import ``backends.interrupts`` and what ``runtime`` may.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from nbrl.backends.interrupts import held_interrupts
from nbrl.config import (
    Sampling,
    check_config,
    kind_problems,
    shown,
    to_spec,
    whole_problems,
)
from nbrl.driver.lineage import session_spec
from nbrl.driver.runtime import Runtime, Stopwatch
from nbrl.driver.seeds import derive
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
    check_config("next_prompts", extra=whole_problems({"k": (k, 1)}))
    before, count = runtime.cursor, int(k)
    try:
        prompts = runtime.source.take(count, before)
        runtime.cursor = before + count
        return prompts
    except BaseException:
        runtime.cursor = before
        raise


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
    with ``spec["interrupted"]`` True, also where it came after the last of them.

    Raises:
        ConfigError: Sampling settings, ``n`` or the prompts cannot work; nothing was generated.
    """
    kinds = {"prompts": (prompts, Prompts), "sampling": (sampling, Sampling)}
    problems = [*kind_problems(kinds), *whole_problems({"n": (n, 1)})]
    if isinstance(prompts, Prompts) and not len(prompts):
        problems.append("there are no prompts; pass at least one")
    judged = sampling if isinstance(sampling, Sampling) else None
    check_config(f"rollout with n={shown(n)}", judged, extra=problems)
    watch, n = Stopwatch(), int(n)
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
    wanted = len(prompts) * n
    # Held but for the sampling itself, so that answers are kept whenever it comes.
    with held_interrupts() as held:
        with runtime.progress.phase("rollout", wanted, "samples") as advance:
            with held.striking():
                generations = runtime.engine.generate(requests, sampling, advance)
            if len(generations) < wanted:
                runtime.progress.note(f"interrupted with {len(generations)} answers finished")
        spec = {
            "model": runtime.name,
            "tokenizer": runtime.spec["model"]["path"],
            "run": runtime.run_id,
            "version": runtime.version,
            "n": n,
            "sampling": to_spec(sampling),
            "seed": runtime.seed,
            "seconds": {"rollout": watch.read()},
            **session_spec(runtime),
        }
        table = _table(runtime, requests, generations, spec)
        interrupted = held.taken() or len(generations) < wanted
        used = {g.prompt_id for g in generations}
        kept = prompts.filter([p in used for p in prompt_ids])
        return Rollouts(table=table, prompts=kept, spec={**spec, "interrupted": interrupted})


def _table(
    runtime: Runtime,
    requests: Sequence[GenerationRequest],
    generations: Sequence[Generation],
    spec: dict,
) -> pa.Table:
    """One row a finished sample, in the order of prompts and samples."""
    asked = {request.prompt_id: request for request in requests}
    responses = runtime.decode([g.token_ids.tolist() for g in generations])
    columns = _sample_columns(generations, asked, spec) | {
        "response": pa.array(responses, pa.string()),
        **_token_columns(generations, asked),
    }
    return pa.table(columns)


def _sample_columns(
    generations: Sequence[Generation], asked: Mapping[str, GenerationRequest], spec: dict
) -> dict[str, pa.Array]:
    """The columns with one entry a sample, ids among them."""
    version, sampling = spec["version"], spec["sampling"]
    salt = f"s{sampling['seed']}" if sampling["seed"] else ""
    groups = [f"{g.prompt_id}@{version}{salt}" for g in generations]
    indices = [g.sample_index for g in generations]
    seeds = [asked[g.prompt_id].seeds[g.sample_index] for g in generations]
    versions = pa.array([g.version for g in generations], pa.int64())
    reasons = [g.finish_reason for g in generations]
    rows = len(generations)
    return {
        "sample_id": pa.array(
            [f"{g}#{i}" for g, i in zip(groups, indices, strict=True)], pa.string()
        ),
        "prompt_id": pa.array([g.prompt_id for g in generations], pa.string()),
        "group_id": pa.array(groups, pa.string()),
        "finish_reason": pa.array(reasons, pa.string()),
        "truncated": pa.array([r == "length" for r in reasons], pa.bool_()),
        # Greedy answers have their log-probs at temperature 1.
        "temperature": pa.array([sampling["temperature"] or 1.0] * rows, pa.float64()),
        "seed": pa.array(seeds, pa.uint64()),
        "version_min": versions,
        "version_max": versions,
        "num_turns": pa.array([1] * rows, pa.int32()),
        "seconds": pa.array([g.seconds for g in generations], pa.float64()),
        "error": pa.array([g.error for g in generations], pa.string()),
    }


def _token_columns(
    generations: Sequence[Generation], asked: Mapping[str, GenerationRequest]
) -> dict[str, pa.ListArray]:
    """The columns with one entry a token: the prompt's first, with 0 where they do not apply."""
    marks = np.array([SOURCE_PROMPT, SOURCE_POLICY], np.int8)
    ids, source, logprobs, versions = [], [], [], []
    for g in generations:
        prompt = np.asarray(asked[g.prompt_id].token_ids, np.int32)
        counts = (len(prompt), len(g.token_ids))
        ids.append(np.concatenate([prompt, g.token_ids]))
        source.append(np.repeat(marks, counts))
        logprobs.append(np.concatenate([np.zeros(len(prompt), np.float32), g.logprobs]))
        versions.append(np.repeat(np.array([0, g.version], np.int64), counts))
    return {
        "token_ids": list_column(ids, pa.int32()),
        "source": list_column(source, pa.int8()),
        "rollout_logprobs": list_column(logprobs, pa.float32()),
        "policy_version": list_column(versions, pa.int64()),
    }
