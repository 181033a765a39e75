"""Calls a reward on samples and judges what it returns: numbers, or errors that name the sample."""

import asyncio
import inspect
import json
import math
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbrl.backends.rewards.loading import RewardFn
from nbrl.errors import RewardError

Advance = Callable[[int, int], None]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reward:
    """What a reward function may return where a bare number says too little.

    Example: ``Reward(1.0, extras={"parsed": "49"})``.
    """

    value: float
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one reward said of one sample.

    ``value`` is None where ``status`` is not ``ok``. ``components`` are the numbers of a reward that
    returns several by name; their sum is ``value``.
    """

    value: float | None
    status: str = "ok"
    error: str | None = None
    seconds: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)


def score_samples(
    reward: RewardFn, rows: Sequence[Row], *, on_error: str, advance: Advance
) -> list[Outcome]:
    """One outcome a row, in order.

    A row has ``sample_id``, ``prompt``, ``response``, ``label``, ``messages``, ``metadata`` and
    ``rollout``. With ``on_error="exclude"`` a sample whose reward fails gets the status ``error``;
    a reward that is called once for all samples fails for all of them.

    Raises:
        RewardError: With ``on_error="raise"``, at the first failure: names the reward, the sample, and
            what was wanted and given; the reward's own traceback is chained. A batch reward that
            returns another count than it was asked for raises in either case.
    """
    return _FORMS[reward.form](reward, rows, on_error, advance)


def _each(
    reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance
) -> list[Outcome]:
    if inspect.iscoroutinefunction(reward.function):
        return _in_own_loop(_each_async(reward, rows, on_error, advance))
    outcomes = []
    for row in rows:
        started = time.perf_counter()
        try:
            said = reward.function(**{name: row[name] for name in reward.parameters})
            outcomes.append(_judged(reward, row, said, time.perf_counter() - started))
        except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
            outcomes.append(_failed(reward, row, error, on_error, time.perf_counter() - started))
        advance(1, 0)
    return outcomes


async def _each_async(
    reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance
) -> list[Outcome]:
    async def one(row: Row) -> Outcome:
        started = time.perf_counter()
        try:
            said = await reward.function(**{name: row[name] for name in reward.parameters})
            outcome = _judged(reward, row, said, time.perf_counter() - started)
        except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
            outcome = _failed(reward, row, error, on_error, time.perf_counter() - started)
        advance(1, 0)
        return outcome

    return list(await asyncio.gather(*(one(row) for row in rows)))


def _in_own_loop(work: Coroutine[Any, Any, list[Outcome]]) -> list[Outcome]:
    """The result of a coroutine, run in a thread of its own: the caller's thread may have a loop."""
    result: list[list[Outcome]] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 -- handed to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=target, name="nbrl-rewards", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if failure:
        raise failure[0]
    return result[0]


def _trl(reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance) -> list[Outcome]:
    given = {"completions": [r["response"] for r in rows], "prompts": [r["prompt"] for r in rows]}
    data = [{**r["metadata"], "label": r["label"]} for r in rows]
    columns = {name: [d.get(name) for d in data] for name in dict.fromkeys(n for d in data for n in d)}
    given |= {name: values for name, values in columns.items() if name not in given}
    everything = "**" in reward.parameters
    passed = {n: v for n, v in given.items() if everything or n in reward.parameters}
    return _batch(reward, rows, lambda: reward.function(**passed), on_error, advance)


def _openrlhf(
    reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance
) -> list[Outcome]:
    """Queries are prompt and response together; the answer's ``scores`` and logs become extras."""
    prompts = [r["prompt"] for r in rows]
    queries = [r["prompt"] + r["response"] for r in rows]
    labels = [r["label"] if r["label"] is not None else "" for r in rows]
    call = lambda: _openrlhf_rewards(  # noqa: E731
        reward, reward.function(queries, prompts, labels), len(rows)
    )
    return _batch(reward, rows, call, on_error, advance)


def _openrlhf_rewards(reward: RewardFn, said: Any, count: int) -> list[Reward]:
    if not isinstance(said, Mapping) or "rewards" not in said:
        raise RewardError(
            f"reward {reward.name!r} must return a dict with 'rewards' (and may give 'scores' and "
            f"'extra_logs'); got {_shown(said)}."
        )
    values = _listed(reward, said["rewards"], count)
    columns = {"scores": said.get("scores"), **(said.get("extra_logs") or {})}
    extras = {n: _listed(reward, c, count) for n, c in columns.items() if c is not None and not np.isscalar(c)}
    return [
        Reward(value, extras={name: _number(column[i]) for name, column in extras.items()})
        for i, value in enumerate(values)
    ]


def _batch(
    reward: RewardFn,
    rows: Sequence[Row],
    call: Callable[[], Any],
    on_error: str,
    advance: Advance,
) -> list[Outcome]:
    started = time.perf_counter()
    try:
        said = call()
        values = _listed(reward, said, len(rows))
    except RewardError:
        raise
    except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
        seconds = (time.perf_counter() - started) / max(len(rows), 1)
        return [_failed(reward, row, error, on_error, seconds) for row in rows]
    seconds = (time.perf_counter() - started) / max(len(rows), 1)
    outcomes = []
    for row, value in zip(rows, values, strict=True):
        try:
            outcomes.append(_judged(reward, row, value, seconds))
        except RewardError as error:
            outcomes.append(_failed(reward, row, error, on_error, seconds))
    advance(len(rows), 0)
    return outcomes


_FORMS: Mapping[str, Callable[[RewardFn, Sequence[Row], str, Advance], list[Outcome]]] = {
    "sample": _each,
    "trl": _trl,
    "openrlhf": _openrlhf,
}


def _judged(reward: RewardFn, row: Row, said: Any, seconds: float) -> Outcome:
    """The outcome of what a reward said, if it is a reward."""
    extras: Mapping[str, Any] = {}
    if isinstance(said, Reward):
        said, extras = said.value, said.extras
        # Extras are stored as JSON: what cannot be is said now, not when the run is saved.
        json.dumps(dict(extras), default=_number)
    if isinstance(said, Mapping):
        components = {str(n): _finite(reward, row, v, f"component {n!r}") for n, v in said.items()}
        if not components:
            raise _not_a_reward(reward, row, said, "an empty dict")
        total = math.fsum(components.values())
        return Outcome(value=total, seconds=seconds, components=components, extras=extras)
    return Outcome(value=_finite(reward, row, said, "the reward"), seconds=seconds, extras=extras)


def _finite(reward: RewardFn, row: Row, said: Any, what: str) -> float:
    try:
        value = _number(said)
    except (TypeError, ValueError):
        raise _not_a_reward(reward, row, said, f"{what} is {_shown(said)}") from None
    if not math.isfinite(value):
        raise _not_a_reward(reward, row, said, f"{what} is {value}")
    return value


def _number(said: Any) -> float:
    """A bool, int, float, or a NumPy or torch scalar, as a float; anything else raises."""
    if isinstance(said, bool | int | float | np.bool_ | np.number):
        return float(said)
    if isinstance(said, str | bytes) or said is None:
        raise TypeError
    return float(said.item())


def _listed(reward: RewardFn, said: Any, count: int) -> list[Any]:
    """The values of a batch, one a sample; never broadcast."""
    if isinstance(said, np.ndarray) or type(said).__module__.partition(".")[0] == "torch":
        said = said.tolist()
    if not isinstance(said, list | tuple):
        raise RewardError(
            f"reward {reward.name!r} must return a list of {count} numbers, one a sample; got "
            f"{_shown(said)}. Nothing is broadcast."
        )
    if len(said) != count:
        raise RewardError(
            f"reward {reward.name!r} must return {count} numbers, one a sample; got {len(said)}."
        )
    return list(said)


def _not_a_reward(reward: RewardFn, row: Row, said: Any, given: str) -> RewardError:
    return RewardError(
        f"reward {reward.name!r} on sample {row['sample_id']!r}: {given}. Return a finite number or "
        "bool, a dict of them by component, or nbrl.Reward; on_error='exclude' leaves such samples out."
    )


def _failed(
    reward: RewardFn, row: Row, error: Exception, on_error: str, seconds: float
) -> Outcome:
    if on_error == "raise":
        if isinstance(error, RewardError):
            raise error
        raise RewardError(
            f"reward {reward.name!r} on sample {row['sample_id']!r} raised {type(error).__name__}: {error}. "
            "Fix the function, or pass on_error='exclude' to leave such samples out."
        ) from error
    text = "".join(traceback.format_exception_only(error)).strip()
    return Outcome(value=None, status="error", error=text, seconds=seconds)


def _shown(said: Any) -> str:
    return f"{type(said).__name__} {said!r}"[:120]
