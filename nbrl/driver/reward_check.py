"""What to know of a reward before a run: asked twice, and of answers that differ in form alone.

May import ``backends.rewards``, ``types`` and ``scoring`` beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nbrl.backends.rewards import Outcome, RewardPool
from nbrl.driver.replaying import replay_problems
from nbrl.driver.reward_verdicts import verdicts
from nbrl.driver.rewards import asked_rewards, refuse
from nbrl.driver.scoring import Isolation, isolation_problems, reward_rows, said_of
from nbrl.rules import kind_problems
from nbrl.types import RewardCheck, Rollouts

FORMS: Mapping[str, Mapping[str, Callable[[str], str]]] = {
    "format": {
        "a sentence before it": lambda text: f"The answer is: {text}",
        "a box": lambda text: rf"\boxed{{{text}}}",
        "answer tags": lambda text: f"<answer>{text}</answer>",
        "a code fence": lambda text: f"```\n{text}\n```",
    },
    "white space": {"blanks around it": lambda text: f" {text} \n"},
    "case": {"case turned round": str.swapcase},
}
"""Answers that say the same: a reward that judges them differently depends on form."""


def check_reward(
    reward: Any,
    rollouts: Rollouts,
    *,
    workers: int = 2,
    timeout: float = 30.0,
    replay: bool = False,
) -> RewardCheck:
    """A short table on a reward, one row a question, made on samples that are there.

    Columns of its ``table``: ``check``, ``value``, ``verdict`` (``ok``, ``look``, or ``unknown``
    where nothing can be said) and ``meaning`` in plain words. The checks are ``errors`` (share of
    samples), ``determinism`` (share with the same value when asked twice), ``latency`` (median
    seconds a sample), ``spread`` (distinct values), ``dead groups`` (share of groups of two or
    more in which all values are equal), ``length`` (rank correlation of value and answer length),
    and ``format``, ``white space`` and ``case``: share of values that change when only those do,
    of several formats under the one that changes most.

    Args:
        reward: One reward, as ``session.score`` takes it. It is asked eight times a sample.
        rollouts: The samples to ask about; a few dozen do.
        workers: Processes to call it in; 0 is this one.
        timeout: Seconds a sample in such a process.
        replay: As ``session.score``.

    Raises:
        ConfigError: No such reward, or settings that cannot be.
    """
    with_pool = Isolation(pool=RewardPool(), workers=workers, timeout=timeout)
    prompts = rollouts.prompts if isinstance(rollouts, Rollouts) else None
    asked = asked_rewards({"reward": reward}, None, prompts)
    kinds = kind_problems({"rollouts": (rollouts, Rollouts)})
    replays = replay_problems({"reward": reward}, asked.functions, rollouts, replay)
    wrong = [*kinds, *isolation_problems(with_pool), *replays]
    refuse("check_reward", extra=wrong, rewards=asked)
    function = asked.functions["reward"]
    made = np.array([e is None for e in rollouts.table.column("error").to_pylist()], bool)
    rollouts = rollouts.filter(made)
    rows = reward_rows(rollouts, whole="rollout" in function.parameters)

    def ask(rows: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        return said_of(function, rows, with_pool, "exclude", lambda done, tokens: None)

    try:
        first, second = ask(rows), ask(rows)
        forms = {
            name: {form: _values(ask([_in_form(r, f) for r in rows])) for form, f in listed.items()}
            for name, listed in FORMS.items()
        }
    finally:
        with_pool.pool.close()
    table = verdicts(
        _values(first),
        _values(second),
        seconds=np.array([outcome.seconds for outcome in first], float),
        errors=[outcome.error for outcome in first],
        groups=rollouts.table.column("group_id").to_pylist(),
        lengths=np.array([len(row["response"]) for row in rows], float),
        forms=forms,
    )
    spec = {"fingerprint": function.fingerprint, "workers": workers, "timeout": float(timeout)}
    return RewardCheck(name=function.name, table=table, samples=len(rows), spec=spec)


def _in_form(row: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The row with its answer in another form, also where the whole rollout is shown."""
    answer = {"response": change(row["response"])}
    whole = {"rollout": {**row["rollout"], **answer}} if "rollout" in row else {}
    return {**row, **answer, **whole}


def _values(outcomes: Sequence[Outcome]) -> np.ndarray:
    return np.array([np.nan if o.value is None else o.value for o in outcomes], dtype=float)
