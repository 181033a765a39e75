"""The verb ``evaluate``: held-out prompts to pass@k with intervals. May import what verbs may."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nbrl.config import Sampling, to_spec
from nbrl.driver.averaging import averaged_policy, averaging_problems
from nbrl.driver.lineage import session_spec
from nbrl.driver.rewards import asked_rewards, refuse
from nbrl.driver.rollout import EVALUATION, rollout
from nbrl.driver.runtime import Runtime
from nbrl.driver.scoring import score
from nbrl.driver.seeds import derive
from nbrl.errors import RolloutError
from nbrl.functional.statistics import bootstrap_interval, pass_at_k
from nbrl.rules import bounded, kind_problems, whole_problems
from nbrl.types import Evaluation, Prompts, Scored


def evaluate(
    runtime: Runtime,
    prompts: Prompts,
    rewards: Any,
    *,
    n: int,
    sampling: Sampling,
    threshold: float,
    averaged: bool = False,
) -> Evaluation:
    """pass@k for k = 1, 2, 4, ... up to ``n``, and the mean reward, each with a 95 % interval.

    A sample passes where its total reward is at least ``threshold``. Intervals are bootstrapped
    over prompts, which is too narrow for few of them (of 95 % intervals over 8 prompts some 83 %
    cover, over 32 some 94 %). Samples that could not be generated are left out of their prompt's
    count; a prompt without ``k`` others does not count for pass@k. Draws on its own branch of the
    seed tree. With ``averaged`` it is the running average of the weights that answers, and its
    samples are those of another run to this policy.

    Raises:
        ConfigError: Prompts, rewards or settings cannot work; all that is wrong is named, and
            nothing was generated.
        RewardError: A reward failed: leaving such samples out would flatter the policy.
        RolloutError: Generation was interrupted, so that the estimate would be of a part.
    """
    given = prompts if isinstance(prompts, Prompts) else None
    kinds = kind_problems({"prompts": (prompts, Prompts), "sampling": (sampling, Sampling)})
    problems = [*kinds, *whole_problems({"n": (n, 1)}), *bounded("threshold", threshold)]
    problems += averaging_problems(runtime, averaged)
    if given is not None and not len(given):
        problems.append("there are no prompts; pass at least one")
    judged = sampling if isinstance(sampling, Sampling) else None
    refuse("evaluate", judged, extra=problems, rewards=asked_rewards(rewards, None, given))
    n, threshold = int(n), float(threshold)
    with runtime.progress.phase("evaluate", len(prompts) * n, "samples") as advance:
        with averaged_policy(runtime) if averaged else nullcontext():
            rollouts = rollout(runtime, prompts, n=n, sampling=sampling, branch=EVALUATION)
        if averaged:
            own = {"run": f"{runtime.run_id}-averaged", "averaged": True}
            rollouts = replace(rollouts, spec={**rollouts.spec, **own})
        if rollouts.spec["interrupted"]:
            raise RolloutError(
                f"evaluate was interrupted with {len(rollouts)} of {len(prompts) * n} answers; "
                "call it again."
            )
        scored = score(runtime, rollouts, rewards, combine=None)
        advance(len(scored), 0)
    counts, passed, means = _per_prompt(scored, threshold)
    if not len(counts):
        raise RolloutError(
            "evaluate: no sample got a reward; look at the errors with session.score."
        )
    seed = derive(runtime.seed, "bootstrap", runtime.version) % 2**31
    pass_at = {}
    for k in (2**i for i in range(n.bit_length()) if 2**i <= n):
        enough = counts >= k
        if enough.any():
            estimates = pass_at_k(counts[enough], passed[enough], k)
            pass_at[k] = _interval(estimates, seed)
    return Evaluation(
        version=runtime.version,
        pass_at=pass_at,
        reward=_interval(torch.as_tensor(means), seed),
        scored=scored,
        spec={
            "n": n,
            "threshold": threshold,
            "averaged": averaged,
            "sampling": to_spec(sampling),
            **session_spec(runtime),
        },
    )


def _per_prompt(scored: Scored, threshold: float) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Samples with a reward, how many pass, and their mean reward, for each prompt that has any."""
    total = scored.table.column("total").to_numpy()
    groups, place = np.unique(
        scored.rollouts.table.column("group_id").to_numpy(), return_inverse=True
    )
    good = np.isfinite(total)
    counts = np.bincount(place[good], minlength=len(groups))
    passed = np.bincount(place[good], weights=total[good] >= threshold, minlength=len(groups))
    sums = np.bincount(place[good], weights=total[good], minlength=len(groups))
    some = counts > 0
    return (
        torch.as_tensor(counts[some]),
        torch.as_tensor(passed[some].astype(np.int64)),
        sums[some] / counts[some],
    )


def _interval(values: torch.Tensor, seed: int) -> tuple[float, float, float]:
    low, high = bootstrap_interval(values, seed=seed)
    return float(values.double().mean()), float(low), float(high)
