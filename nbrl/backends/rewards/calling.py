"""Calls a reward on samples and judges what it returns: numbers, or errors that name the sample."""

import asyncio
import inspect
import json
import math
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from nbrl.backends.rewards.loading import SAMPLE_PARAMETERS, RewardFn
from nbrl.errors import ConfigError, RewardError
from nbrl.frozen import frozen

Advance = Callable[[int, int], None]
Row = Mapping[str, Any]
CONCURRENT = 64
"""How many calls of an async reward are under way at once."""


@frozen(kw_only=False)
class Reward:
    """What a reward function may return where a bare number says too little.

    ``value`` is what it could return bare: a number of any kind, or numbers by component; it is
    judged when the function has returned. ``extras`` is data that JSON can hold.

    Example: ``Reward(1.0, extras={"parsed": "49"})``.
    """

    value: Any
    extras: Mapping[str, Any] = field(default_factory=dict)


@frozen()
class Outcome:
    """What one reward said of one sample.

    ``value`` is None where ``status`` is not ``ok``. ``components`` are the numbers of a reward
    that returns several by name; their sum is ``value``.
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

    Async rewards run in a loop and thread of their own, at most 64 calls at once.

    Raises:
        ConfigError: A TRL-style reward requires a column that the data does not have.
        RewardError: With ``on_error="raise"``, at the first failure: names the reward, the sample,
            and what was wanted and given; the reward's own traceback is chained. A batch reward
            that returns another count than it was asked for raises in either case.
    """
    return _FORMS[reward.form](reward, rows, on_error, advance) if rows else []


def _each(reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance) -> list[Outcome]:
    if _is_async(reward.function):
        return _in_own_loop(_each_async(reward, rows, on_error, advance))
    outcomes = []
    for row in rows:
        started = time.perf_counter()
        try:
            said = reward.function(**_bound(reward, row))
            outcomes.append(_judged(reward, row, said, time.perf_counter() - started))
        except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
            outcomes.append(_failed(reward, row, error, on_error, time.perf_counter() - started))
        advance(1, 0)
    return outcomes


async def _each_async(
    reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance
) -> list[Outcome]:
    free = asyncio.Semaphore(CONCURRENT)

    async def one(row: Row) -> Outcome:
        async with free:
            started = time.perf_counter()
            try:
                said = await reward.function(**_bound(reward, row))
                outcome = _judged(reward, row, said, time.perf_counter() - started)
            except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
                outcome = _failed(reward, row, error, on_error, time.perf_counter() - started)
            advance(1, 0)
            return outcome

    return list(await asyncio.gather(*(one(row) for row in rows)))


def _bound(reward: RewardFn, row: Row) -> dict[str, Any]:
    """The arguments of one call on one sample."""
    return {n: row[n] for n in (SAMPLE_PARAMETERS if reward.takes_more else reward.parameters)}


def _is_async(function: Callable[..., Any]) -> bool:
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _in_own_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, run in its own thread: the caller's may have a running loop."""
    loops: list[asyncio.AbstractEventLoop] = []
    results: list[Any] = []
    failures: list[BaseException] = []

    def target() -> None:
        try:
            with asyncio.Runner() as runner:
                loops.append(runner.get_loop())
                results.append(runner.run(work))
        except BaseException as error:  # noqa: BLE001 -- handed to the caller's thread
            failures.append(error)

    thread = threading.Thread(target=target, name="nbrl-rewards", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        for loop in loops:
            loop.call_soon_threadsafe(_cancel_all, loop)
        raise
    if failures:
        raise failures[0]
    return results[0]


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _trl(reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance) -> list[Outcome]:
    """TRL's convention: conversations are lists of messages, texts are texts, columns are lists."""
    given: dict[str, list[Any]] = {
        "prompts": [r["prompt"] if r["messages"] is None else r["messages"] for r in rows],
        "completions": [
            r["response"]
            if r["messages"] is None
            else [{"role": "assistant", "content": r["response"]}]
            for r in rows
        ],
        "label": [r["label"] for r in rows],
    }
    for name in dict.fromkeys(n for r in rows for n in r["metadata"]):
        given.setdefault(name, [r["metadata"].get(name) for r in rows])
    missing = [n for n in reward.required if n not in given]
    if missing:
        raise ConfigError(
            f"reward {reward.name!r} asks for {missing}; the data has the columns {list(given)}. "
            "Rename the parameter, give it a default, or load the prompts with that column."
        )
    passed = {n: v for n, v in given.items() if reward.takes_more or n in reward.parameters}
    return _batch(reward, rows, lambda: reward.function(**passed), on_error, advance)


def _openrlhf(
    reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance
) -> list[Outcome]:
    """OpenRLHF's convention, called by position, a missing label as ``""``.

    Queries are prompt and response one after the other, as text. The ``scores`` and the
    ``extra_logs`` that it returns become extras.
    """
    prompts = [r["prompt"] for r in rows]
    queries = [r["prompt"] + r["response"] for r in rows]
    labels = [r["label"] if r["label"] is not None else "" for r in rows]

    def call() -> list[Reward]:
        return _openrlhf_rewards(reward, reward.function(queries, prompts, labels), len(rows))

    return _batch(reward, rows, call, on_error, advance)


def _openrlhf_rewards(reward: RewardFn, said: Any, count: int) -> list[Reward]:
    if not isinstance(said, Mapping) or "rewards" not in said:
        raise RewardError(
            f"reward {reward.name!r} must return a dict with 'rewards' (and may give 'scores' and "
            f"'extra_logs'); got {_shown(said)}."
        )
    values = _listed(reward, said["rewards"], count)
    extras: dict[str, list[Any]] = {}
    if said.get("scores") is not None:
        extras["scores"] = _listed(reward, said["scores"], count)
    for name, column in (said.get("extra_logs") or {}).items():
        # A single log line is about the whole batch, so it stands beside each of its samples.
        extras[name] = [column] * count if np.ndim(column) == 0 else _listed(reward, column, count)
    return [
        Reward(value, extras={name: column[i] for name, column in extras.items()})
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
        said = _in_own_loop(call()) if _is_async(reward.function) else call()
        values = _listed(reward, said, len(rows))
    except RewardError:
        raise
    except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
        seconds = (time.perf_counter() - started) / len(rows)
        outcomes = [_failed(reward, row, error, on_error, seconds, len(rows)) for row in rows]
        advance(len(rows), 0)
        return outcomes
    seconds = (time.perf_counter() - started) / len(rows)
    outcomes = []
    for row, value in zip(rows, values, strict=True):
        try:
            outcomes.append(_judged(reward, row, value, seconds))
        except RewardError as error:
            outcomes.append(_failed(reward, row, error, on_error, seconds))
    advance(len(rows), 0)
    return outcomes


def _of_rows(
    reward: RewardFn, rows: Sequence[Row], on_error: str, advance: Advance
) -> list[Outcome]:
    """Servers and models: they say each row's outcome themselves."""
    outcomes = list(reward.function(rows, advance))
    if on_error == "raise":
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome.value is None:
                raise RewardError(
                    f"reward {reward.name!r} on sample {row['sample_id']!r}: {outcome.error}. "
                    "on_error='exclude' leaves such samples out."
                )
    return outcomes


_FORMS: Mapping[str, Callable[[RewardFn, Sequence[Row], str, Advance], list[Outcome]]] = {
    "sample": _each,
    "trl": _trl,
    "openrlhf": _openrlhf,
    "rows": _of_rows,
}


def _judged(reward: RewardFn, row: Row, said: Any, seconds: float) -> Outcome:
    """The outcome of what a reward said, if it is a reward."""
    extras: Mapping[str, Any] = {}
    if isinstance(said, Reward):
        said, extras = said.value, _checked_extras(reward, row, said.extras)
    if isinstance(said, Mapping):
        # Made texts of, two names could become one; an empty one would name no column.
        odd = [n for n in said if not isinstance(n, str) or not n.strip()]
        if odd or not said:
            given = f"the component names {odd} are no texts" if odd else "an empty dict"
            raise _not_a_reward(reward, row, given)
        components = {n: _finite(reward, row, v, f"component {n!r}") for n, v in said.items()}
        total = math.fsum(components.values())
        return Outcome(value=total, seconds=seconds, components=components, extras=extras)
    return Outcome(value=_finite(reward, row, said, "the reward"), seconds=seconds, extras=extras)


def _checked_extras(reward: RewardFn, row: Row, extras: Mapping[str, Any]) -> Mapping[str, Any]:
    """Extras as plain data: they are stored as JSON, so what cannot be is said now."""
    try:
        return json.loads(json.dumps(dict(extras), default=_number))
    except (TypeError, ValueError) as error:
        raise _not_a_reward(reward, row, f"extras that JSON cannot hold ({error})") from error


def _finite(reward: RewardFn, row: Row, said: Any, what: str) -> float:
    try:
        value = _number(said)
    except (TypeError, ValueError, OverflowError):
        raise _not_a_reward(reward, row, f"{what} is {_shown(said)}") from None
    if not math.isfinite(value):
        raise _not_a_reward(reward, row, f"{what} is {value}")
    return value


def _number(said: Any) -> float:
    """A bool, int, float, or a NumPy or torch scalar, as a float; anything else raises."""
    if isinstance(said, bool | int | float | np.bool_ | np.number):
        return float(said)
    if (isinstance(said, np.ndarray) or _is_tensor(said)) and math.prod(said.shape) == 1:
        return float(said.item())
    raise TypeError(f"{_shown(said)} is no number")


def _is_tensor(said: Any) -> bool:
    # By name: a reward that does without torch must not wait for its import.
    return f"{type(said).__module__}.{type(said).__name__}" == "torch.Tensor"


def _listed(reward: RewardFn, said: Any, count: int) -> list[Any]:
    """The values of a batch, one a sample; never broadcast."""
    if isinstance(said, np.ndarray) or _is_tensor(said):
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


def _not_a_reward(reward: RewardFn, row: Row, given: str) -> RewardError:
    return RewardError(
        f"reward {reward.name!r} on sample {row['sample_id']!r}: {given}. Return a finite number "
        "or bool, a dict of them by component, or nbrl.Reward; on_error='exclude' leaves such "
        "samples out."
    )


def _failed(
    reward: RewardFn,
    row: Row,
    error: Exception,
    on_error: str,
    seconds: float,
    batch: int | None = None,
) -> Outcome:
    """The outcome of a failure, or the failure itself; ``batch`` samples shared one call."""
    if on_error == "raise":
        if isinstance(error, RewardError):
            raise error
        where = f"sample {row['sample_id']!r}" if batch is None else f"a batch of {batch} samples"
        raise RewardError(
            f"reward {reward.name!r} on {where} raised {type(error).__name__}: {error}. "
            "Fix the function, or pass on_error='exclude' to leave such samples out."
        ) from error
    text = "".join(traceback.format_exception_only(error)).strip()
    return Outcome(value=None, status="error", error=text, seconds=seconds)


def _shown(said: Any) -> str:
    return f"{type(said).__name__} {said!r}"[:120]
