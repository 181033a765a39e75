"""The verbs that make samples and judge them.

May import ``types``, ``config`` and the rest of ``driver``.
"""

from collections.abc import Sequence
from typing import Any

from nbrl.config import Sampling
from nbrl.driver import evaluate as evaluating
from nbrl.driver import rollout as rolling
from nbrl.driver import scoring, training
from nbrl.driver.verbs.calling import Opened, call
from nbrl.types import Evaluation, Prompts, Rollouts, Scored


def next_prompts(session: Opened, k: int) -> Prompts:
    """The next ``k`` prompts of the session's source; moves its cursor."""
    return call(session, "next_prompts", rolling.next_prompts, k)


def rollout(
    session: Opened,
    prompts: Prompts,
    n: int = 1,
    sampling: Sampling | None = None,
    agent: Any = None,
) -> Rollouts:
    """``n`` sampled answers to each prompt. After Ctrl-C: those that were finished.

    Args:
        prompts: What is answered.
        n: How many answers, or episodes, to each.
        sampling: How they are drawn.
        agent: An environment that answers the policy, turn by turn: an
            :class:`~nbrl.Agent`, or what its ``source`` may be.
    """
    return call(
        session,
        "rollout",
        rolling.rollout,
        prompts,
        n=n,
        sampling=Sampling() if sampling is None else sampling,
        agent=agent,
    )


def annotate(session: Opened, rollouts: Rollouts, columns: Sequence[str]) -> Rollouts:
    """Token columns added: ``old_logprobs``, ``ref_logprobs``, ``values``, ``entropy``."""
    return call(session, "annotate", training.annotate, rollouts, columns)


def score(  # noqa: PLR0913 -- one parameter an option
    session: Opened,
    rollouts: Rollouts,
    rewards: Any,
    combine: Any = None,
    on_error: str = "raise",
    *,
    workers: int = 0,
    timeout: float = 30.0,
    replay: bool = False,
) -> Scored:
    """Rewards for each sample.

    Args:
        rollouts: What to score; it can be scored again with other rewards at any time.
        rewards: A callable, a path to a Python file (``file.py:name``), or a dict of them.
        combine: How several add up: ``"sum"``, ``"product"``, a dict of weights, or a function
            of ``{name: value}``; the sum by default.
        on_error: ``"raise"`` stops at the first failure, or with ``workers`` after all are
            scored; ``"exclude"`` keeps it as data and leaves the sample out of training.
        workers: Processes to call reward code in, so that a hang, an exit or a crash costs
            one sample; 0 calls it in this process. Servers and models are asked from here.
        timeout: Seconds that a sample may take in such a process; of a batch, each sample's.
        replay: That stored samples may be scored by rewards that depend on the world, those with
            ``replayable = False``; the result shows it.
    """
    return call(
        session,
        "score",
        scoring.score,
        rollouts,
        rewards,
        combine=combine,
        on_error=on_error,
        workers=workers,
        timeout=timeout,
        replay=replay,
    )


def evaluate(
    session: Opened,
    prompts: Prompts,
    rewards: Any,
    n: int = 4,
    *,
    sampling: Sampling | None = None,
    threshold: float = 1.0,
    averaged: bool = False,
) -> Evaluation:
    """pass@k with intervals over prompts; a sample passes from a reward of ``threshold`` on.

    With ``averaged`` the running average of the weights answers, which ``Trainer.ema_decay`` keeps.
    """
    return call(
        session,
        "evaluate",
        evaluating.evaluate,
        prompts,
        rewards,
        n=n,
        sampling=Sampling() if sampling is None else sampling,
        threshold=threshold,
        averaged=averaged,
    )
