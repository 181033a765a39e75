"""The verb ``score``: rollouts and rewards to scored samples.

May import ``backends.rewards`` and what ``runtime`` may.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nbrl.backends.rewards import Outcome, RewardFn, RewardPool, score_samples
from nbrl.config import to_spec
from nbrl.driver.progress import Progress
from nbrl.driver.replaying import replay_problems, replayed
from nbrl.driver.rewards import Combine, asked_rewards, refuse
from nbrl.driver.runtime import Runtime, Stopwatch
from nbrl.errors import RewardError
from nbrl.rules import among, is_number, kind_problems
from nbrl.types import Rollouts, Scored

ON_ERROR = ("raise", "exclude")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Isolation:
    """The processes that reward code is called in: how many, and seconds for each sample.

    Example: ``Isolation(pool=RewardPool(), workers=2, timeout=30.0)``; 0 workers are this process.
    """

    pool: RewardPool
    workers: int
    timeout: float


def score(  # noqa: PLR0913 -- as wide as the verb
    runtime: Runtime,
    rollouts: Rollouts,
    rewards: Any,
    *,
    combine: Any = None,
    on_error: str = "raise",
    workers: int = 0,
    timeout: float = 30.0,
    replay: bool = False,
) -> Scored:
    """Rewards for each sample; nothing is generated, so a batch can be scored again and again.

    Samples whose generation failed are not shown to the rewards: their status is ``excluded``.

    Raises:
        ConfigError: No such reward, combination or error policy; all that is wrong is named, and
            nothing was called.
        RewardError: A reward failed on a sample, and ``on_error`` is ``"raise"``.
    """
    return score_showing(
        runtime.progress,
        rollouts,
        rewards,
        combine=combine,
        on_error=on_error,
        isolation=Isolation(pool=runtime.reward_pool, workers=workers, timeout=timeout),
        replay=replay,
    )


def score_showing(
    progress: Progress,
    rollouts: Rollouts,
    rewards: Any,
    *,
    combine: Any,
    on_error: str,
    isolation: Isolation | None = None,
    replay: bool = False,
) -> Scored:
    """As :func:`score`, without a session; without ``isolation`` in this process."""
    watch = Stopwatch()
    prompts = rollouts.prompts if isinstance(rollouts, Rollouts) else None
    asked = asked_rewards(rewards, combine, prompts)
    kinds = kind_problems({"rollouts": (rollouts, Rollouts)})
    policy = [*among("on_error", on_error, ON_ERROR), *isolation_problems(isolation)]
    functions = asked.functions
    replays = replay_problems(rewards, functions, rollouts, replay)
    refuse("score", extra=[*kinds, *policy, *replays], rewards=asked)
    good = [e is None for e in rollouts.table.column("error").to_pylist()]
    whole = any("rollout" in function.parameters for function in functions.values())
    every = reward_rows(rollouts, whole=whole)
    rows = [row for row, keep in zip(every, good, strict=True) if keep]
    found: dict[str, list[Outcome]] = {}
    with progress.phase("score", len(rows) * len(functions), "rewards") as advance:
        for name, function in functions.items():
            said = said_of(function, rows, isolation, on_error, advance)
            found[name] = _spread(said, good)
    if on_error == "raise":
        _refuse_failures(found, functions, every)
    spec = {
        "rewards": {name: f.name for name, f in functions.items()},
        "fingerprints": {name: f.fingerprint for name, f in functions.items()},
        "replayed": replayed(rewards, functions, rollouts),
        "combine": to_spec("sum" if combine is None else combine),
        "on_error": on_error,
        **_isolation_echo(isolation),
        "seconds": {"score": watch.read()},
    }
    ids = rollouts.table.column("sample_id")
    columns = {**_totals(found, asked.total_of, ids), **_filter_score(found), **_columns(found)}
    table = pa.table({"sample_id": ids, **columns})
    return Scored(table=table, rollouts=rollouts, spec=spec)


def said_of(
    function: RewardFn,
    rows: Sequence[Mapping[str, Any]],
    isolation: Isolation | None,
    on_error: str,
    advance: Callable[[int, int], None],
) -> list[Outcome]:
    """One outcome a row: from workers, or from this process where there are none.

    Servers and models are asked from here in any case.
    """
    if isolation is None or isolation.workers == 0 or function.form == "rows":
        return score_samples(function, rows, on_error=on_error, advance=advance)
    return isolation.pool.score(
        function, rows, workers=isolation.workers, timeout=isolation.timeout, advance=advance
    )


def _isolation_echo(isolation: Isolation | None) -> dict[str, int | float]:
    if isolation is None or isolation.workers == 0:
        return {"workers": 0}
    return {"workers": isolation.workers, "timeout": float(isolation.timeout)}


def isolation_problems(isolation: Isolation | None) -> Iterator[str]:
    """What is wrong with the number of workers or the time."""
    if isolation is None:
        return
    workers: Any = isolation.workers
    timeout: Any = isolation.timeout
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        yield (
            "workers must be a whole number of processes, or 0 to call rewards in this one; got "
            f"{workers!r:.80}"
        )
    if not is_number(timeout) or not 0 < timeout < math.inf:
        yield f"timeout must be seconds a sample, more than 0; got {timeout!r:.80}"


def _refuse_failures(
    found: Mapping[str, Sequence[Outcome]],
    functions: Mapping[str, RewardFn],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Raise for the first sample that failed in a process of its own; all were scored by then."""
    failed = [
        (functions[name].name, row["sample_id"], outcome)
        for name, outcomes in found.items()
        for row, outcome in zip(rows, outcomes, strict=True)
        if outcome.status in ("error", "timeout")
    ]
    if failed:
        name, sample, outcome = failed[0]
        raise RewardError(
            f"reward {name!r} on sample {sample!r}: {outcome.error}. {len(failed)} of "
            f"{len(rows) * len(found)} scores failed. Fix the function, or pass "
            "on_error='exclude' to leave such samples out."
        )


ROW_COLUMNS = ("sample_id", "prompt", "response", "label", "messages", "metadata")


def reward_rows(rollouts: Rollouts, *, whole: bool) -> list[dict[str, Any]]:
    """What a reward may ask of each sample, by parameter name.

    The token columns are made into lists only where a reward wants the ``whole`` rollout.
    """
    table = rollouts.to_arrow()
    records = (table if whole else table.select(ROW_COLUMNS)).to_pylist()
    return [
        {
            "sample_id": r["sample_id"],
            "prompt": r["prompt"],
            "response": r["response"],
            "label": r["label"],
            "messages": json.loads(r["messages"]) if r["messages"] is not None else None,
            "metadata": json.loads(r["metadata"]) if r["metadata"] else {},
            **({"rollout": r} if whole else {}),
        }
        for r in records
    ]


def _spread(outcomes: Sequence[Outcome], good: Sequence[bool]) -> list[Outcome]:
    """The outcomes in the rollouts' rows, ``excluded`` where nothing was generated."""
    left_out = Outcome(value=None, status="excluded", error="the sample was not generated")
    rest = iter(outcomes)
    return [next(rest) if keep else left_out for keep in good]


def _totals(
    found: Mapping[str, Sequence[Outcome]], total_of: Combine, ids: pa.ChunkedArray
) -> dict[str, pa.Array]:
    """The combined reward of each sample; null where one of its rewards could not be had."""
    totals: list[float | None] = []
    statuses, errors = [], []
    for sample_id, *outcomes in zip(ids.to_pylist(), *found.values(), strict=True):
        bad = next((o for o in outcomes if o.value is None), None)
        totals.append(
            None if bad else _total(dict(zip(found, outcomes, strict=True)), total_of, sample_id)
        )
        statuses.append(bad.status if bad else "ok")
        errors.append(bad.error if bad else None)
    return {
        "total": pa.array(totals, pa.float64()),
        "status": pa.array(statuses, pa.string()),
        "error": pa.array(errors, pa.string()),
    }


def _total(outcomes: Mapping[str, Outcome], total_of: Combine, sample_id: str) -> float:
    values = {name: o.value for name, o in outcomes.items() if o.value is not None}
    try:
        total = float(total_of(values))
    except Exception as error:  # a user's function may raise anything
        raise RewardError(
            f"combine on sample {sample_id!r} raised {type(error).__name__}: {error}. It got "
            f"{values} and must give a finite number."
        ) from error
    if not math.isfinite(total):
        raise RewardError(
            f"combine gives {total} on sample {sample_id!r} for {values}; it must give a finite "
            "number."
        )
    return total


def _filter_score(found: Mapping[str, Sequence[Outcome]]) -> dict[str, pa.Array]:
    """The column ``score``, where one reward gives such a signal beside its value."""
    giving = [n for n, outcomes in found.items() if any("scores" in o.extras for o in outcomes)]
    if len(giving) > 1:
        raise RewardError(
            f"the rewards {giving} all give 'scores', and groups are filtered by one. Let one of "
            "them give scores."
        )
    if not giving:
        return {}
    scores = [outcome.extras.get("scores") for outcome in found[giving[0]]]
    return {"score": pa.array(scores, pa.float64())}


def _columns(found: Mapping[str, Sequence[Outcome]]) -> dict[str, pa.Array]:
    """Each reward's columns: value, status, error, seconds, extras, and its own components."""
    columns = {}
    for name, outcomes in found.items():
        columns[name] = pa.array([o.value for o in outcomes], pa.float64())
        columns[f"{name}.status"] = pa.array([o.status for o in outcomes], pa.string())
        columns[f"{name}.error"] = pa.array([o.error for o in outcomes], pa.string())
        columns[f"{name}.seconds"] = pa.array([o.seconds for o in outcomes], pa.float64())
        columns[f"{name}.extras"] = pa.array([json.dumps(o.extras) for o in outcomes], pa.string())
        for part in dict.fromkeys(n for o in outcomes for n in o.components):
            columns[f"{name}/{part}"] = pa.array(
                [o.components.get(part) for o in outcomes], pa.float64()
            )
    return columns
