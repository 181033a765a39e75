"""The verbs ``next_prompts`` and ``rollout``: prompts to sampled answers.

May import ``backends.agents``, ``backends.interrupts``, ``record`` and what ``runtime`` may.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbrl.backends.agents.loading import AgentFactory, load_agent
from nbrl.backends.agents.traces import Trace, trace_of
from nbrl.backends.agents.turns import Start, play
from nbrl.backends.interrupts import held_interrupts
from nbrl.config import Agent, Sampling, check_config, to_spec
from nbrl.driver.lineage import session_spec
from nbrl.driver.record import rollout_table
from nbrl.driver.runtime import Runtime, Stopwatch
from nbrl.driver.seeds import derive
from nbrl.protocols import Advance, GenerationRequest
from nbrl.rules import kind_problems, shown, whole_problems
from nbrl.types import Prompts, Rollouts

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
    agent: Any = None,
    branch: str = TRAINING,
) -> Rollouts:
    """``n`` answers to each prompt, drawn by the policy as it is.

    With an agent, ``n`` episodes: the policy and the agent's environment speak in turns. Without
    one, an episode is one turn. The seed of a sample is that of its place in the tree (run,
    version, prompt, sample), so the same call gives the same answers. After Ctrl-C the episodes
    that were finished are returned, with ``spec["interrupted"]`` True, also where it came after
    the last of them.

    Raises:
        ConfigError: Sampling settings, ``n``, the prompts or the agent cannot work; nothing was
            generated.
    """
    kinds = {"prompts": (prompts, Prompts), "sampling": (sampling, Sampling)}
    problems = [*kind_problems(kinds), *whole_problems({"n": (n, 1)})]
    if isinstance(prompts, Prompts) and not len(prompts):
        problems.append("there are no prompts; pass at least one")
    judged = sampling if isinstance(sampling, Sampling) else None
    played_by = agent if isinstance(agent, Agent) or agent is None else Agent(agent)
    check_config(f"rollout with n={shown(n)}", judged, played_by, extra=problems)
    factory = None if played_by is None else load_agent(played_by.source)
    watch, n = Stopwatch(), int(n)
    starts = _starts(runtime, prompts, n, (branch, sampling.seed), played_by)
    # Held but for the sampling itself, so that answers are kept whenever it comes.
    with held_interrupts() as held:
        with runtime.progress.phase("rollout", len(starts), "samples") as advance:
            with held.striking():
                traces = (
                    _answer(runtime, starts, n, sampling, advance)
                    if factory is None or played_by is None
                    else play(
                        runtime.engine,
                        factory,
                        starts,
                        agent=played_by,
                        sampling=sampling,
                        codec=runtime.codec,
                        advance=advance,
                    )
                )
            if len(traces) < len(starts):
                runtime.progress.note(f"interrupted with {len(traces)} answers finished")
        spec = {
            "model": runtime.name,
            "tokenizer": runtime.spec["model"]["path"],
            "run": runtime.run_id,
            "version": runtime.version,
            "n": n,
            "sampling": to_spec(sampling),
            "seed": runtime.seed,
            **_agent_spec(played_by, factory),
            "seconds": {"rollout": watch.read()},
            **session_spec(runtime),
        }
        table = rollout_table(traces, runtime.decode, spec)
        interrupted = held.taken() or len(traces) < len(starts)
        used = {t.prompt_id for t in traces}
        ids = prompts.table.column("prompt_id").to_pylist()
        kept = prompts.filter([p in used for p in ids])
        return Rollouts(table=table, prompts=kept, spec={**spec, "interrupted": interrupted})


def _starts(
    runtime: Runtime, prompts: Prompts, n: int, where: tuple[str, int], agent: Agent | None
) -> list[Start]:
    """Each sample's beginning, prompt by prompt; a single turn has one seed."""
    branch, salt = where
    path = (runtime.seed, branch, runtime.version, salt)
    later = range(1, agent.max_turns if agent else 1)
    table = prompts.table
    rows = zip(
        table.column("prompt_id").to_pylist(),
        table.column("label").to_pylist(),
        runtime.encode(prompts),
        strict=True,
    )
    return [
        Start(
            prompt_id=prompt_id,
            sample_index=i,
            token_ids=ids,
            label=label,
            seeds=(
                derive(*path, prompt_id, i),
                *(derive(*path, prompt_id, i, "turn", t) for t in later),
            ),
        )
        for prompt_id, label, ids in rows
        for i in range(n)
    ]


def _answer(
    runtime: Runtime, starts: Sequence[Start], n: int, sampling: Sampling, advance: Advance
) -> list[Trace]:
    """The traces of single turns: a prompt is asked once for all its samples."""
    requests = [
        GenerationRequest(
            prompt_id=group[0].prompt_id,
            token_ids=group[0].token_ids,
            seeds=tuple(start.seeds[0] for start in group),
        )
        for group in (starts[i : i + n] for i in range(0, len(starts), n))
    ]
    asked = {r.prompt_id: (np.asarray(r.token_ids, np.int32), r.seeds) for r in requests}
    made = runtime.engine.generate(requests, sampling, advance)
    return [
        trace_of(prompt, seeds[g.sample_index], g)
        for g in made
        for prompt, seeds in (asked[g.prompt_id],)
    ]


def _agent_spec(agent: Agent | None, factory: AgentFactory | None) -> dict[str, Any]:
    if agent is None or factory is None:
        return {}
    named = {"name": factory.name, "fingerprint": factory.fingerprint}
    return {"agent": {**to_spec(agent), **named}}
