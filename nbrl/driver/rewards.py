"""The rewards of a request: found, named and combined, and all that is wrong with them in words.

May import ``backends.rewards``, ``types``, ``config`` and ``errors``. Nothing is called here: a
problem that can be known is known before a sample is drawn.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from nbrl.backends.rewards import RewardFn, load_reward
from nbrl.config import check_config
from nbrl.errors import ConfigError, RewardError
from nbrl.rules import among, call_problems, is_number, shown
from nbrl.types import Prompts

Combine = Callable[[Mapping[str, float]], float]
COMBINES: Mapping[str, Combine] = {
    "sum": lambda values: math.fsum(values.values()),
    "product": lambda values: math.prod(values.values()),
}
TAKEN = frozenset({"sample_id", "total", "status", "error", "token_rewards", "score"})
"""Columns of scored samples that no reward may be called like."""
ALWAYS_GIVEN = frozenset({"prompts", "completions", "label"})
"""What a reward of TRL's form gets whatever columns the data has."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AskedRewards:
    """Rewards by the name of their column, how they add up, and what is wrong with them.

    ``cause`` is an error of a user's own file, to be shown beside the problems. Where there are
    problems, functions may be missing and ``total_of`` is the sum.
    """

    functions: Mapping[str, RewardFn]
    total_of: Combine
    problems: tuple[str, ...] = ()
    cause: Exception | None = None


def asked_rewards(rewards: Any, combine: Any, prompts: Prompts | None) -> AskedRewards:
    """The rewards of a request, each loaded, with every problem of all of them.

    Args:
        rewards: A callable, a path, or a dict of them.
        combine: A name, weights, a function, or ``None`` for the sum.
        prompts: What they will be asked about, for those that want columns of the data.
    """
    given = rewards if isinstance(rewards, Mapping) else {"reward": rewards}
    problems = list(_name_problems(given))
    functions: dict[str, RewardFn] = {}
    cause: Exception | None = None
    for name, reward in given.items():
        try:
            functions[name] = load_reward(reward)
        except (ConfigError, RewardError) as error:
            problems.append(str(error).rstrip("."))
            cause = cause or error
    problems += _combine_problems(combine, given)
    problems += _column_problems(functions, prompts)
    total_of = COMBINES["sum"] if problems else _combination(combine)
    return AskedRewards(
        functions=functions, total_of=total_of, problems=tuple(problems), cause=cause
    )


def refuse(asked: str, *components: object, extra: list[str], rewards: AskedRewards) -> None:
    """As ``check_config``, the rewards' problems among the others and their cause beside them."""
    try:
        check_config(asked, *components, extra=[*extra, *rewards.problems])
    except ConfigError as error:
        raise error from rewards.cause


def _name_problems(given: Mapping[Any, Any]) -> Iterator[str]:
    if not given:
        yield "there are no rewards; pass a callable, a path, or a dict with at least one"
    for name in given:
        if not isinstance(name, str) or not name.strip() or "." in name or "/" in name:
            yield f"a reward's key must be a word without dots and slashes; got {shown(name)}"
        elif name in TAKEN:
            yield f"a reward cannot be called {name!r}; choose another key"


def _combine_problems(combine: Any, given: Mapping[Any, Any]) -> Iterator[str]:
    if combine is None:
        return
    if isinstance(combine, str):
        yield from among("combine", combine, COMBINES)
    elif isinstance(combine, Mapping):
        if set(combine) != set(given):
            yield (
                f"combine gives weights for {_names(combine)}, the rewards are {_names(given)}; "
                "give one weight to each"
            )
        for name, weight in combine.items():
            if not is_number(weight) or not math.isfinite(weight):
                yield f"combine: the weight of {name!r} must be a finite number; got {weight!r:.80}"
    elif not callable(combine):
        yield (
            f"combine must be one of {', '.join(COMBINES)}, a dict of weights, or a function of "
            f"{{name: value}}; got {shown(combine)}"
        )
    else:
        yield from call_problems("combine", combine, ({},), {}, "({name: value})")


def _combination(combine: Any) -> Combine:
    if combine is None or isinstance(combine, str):
        return COMBINES[combine or "sum"]
    if isinstance(combine, Mapping):
        weights = {name: float(weight) for name, weight in combine.items()}
        return lambda values: math.fsum(weights[n] * v for n, v in values.items())
    return cast(Combine, combine)


def _column_problems(functions: Mapping[str, RewardFn], prompts: Prompts | None) -> Iterator[str]:
    """A problem for each reward of TRL's form that requires a column which no prompt has."""
    wanting = {
        f.name: set(f.required) - ALWAYS_GIVEN for f in functions.values() if f.form == "trl"
    }
    if prompts is None or not any(wanting.values()):
        return
    rows = prompts.table.column("metadata").to_pylist()
    there = dict.fromkeys(key for row in rows if row for key in json.loads(row))
    for name, wanted in wanting.items():
        missing = sorted(wanted - set(there))
        if missing:
            yield (
                f"reward {name!r} asks for {missing}; the data has the columns "
                f"{[*sorted(ALWAYS_GIVEN), *there]}. Rename the parameter, give it a default, or "
                "load the prompts with that column"
            )


def _names(keys: Mapping[Any, Any]) -> list[str]:
    return sorted(map(str, keys))
