"""The client of reward servers: OpenRLHF's request and reply, over several addresses.

May import its neighbours ``calling`` and ``places`` and, inside functions, httpx and tenacity.
"""

import asyncio
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbrl.backends.rewards.calling import Advance, Outcome, Row, _in_own_loop
from nbrl.backends.rewards.places import TOKEN_VARIABLE, RewardServer

if TYPE_CHECKING:
    import httpx

MOST_REPLY = 64 << 20
FIRST_WAIT, MOST_WAIT = 0.2, 10.0


def score_remote(server: RewardServer, rows: Sequence[Row], advance: Advance) -> list[Outcome]:
    """One outcome a row, in order; without rows nothing is asked.

    A row has ``prompt``, ``response`` and ``label``. The rows of a request that failed get the
    status ``timeout`` or ``error``, and so do those of a reply with too few or too many numbers;
    a number that is not finite is an error of its row. ``scores`` and ``extra_logs`` are extras.
    """
    if not rows:
        return []
    parts = [rows[at : at + server.batch] for at in range(0, len(rows), server.batch)]
    found = _in_own_loop(_ask_all(server, parts, advance))
    return [outcome for outcomes in found for outcome in outcomes]


async def _ask_all(
    server: RewardServer, parts: Sequence[Sequence[Row]], advance: Advance
) -> list[list[Outcome]]:
    import httpx

    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    under_way = dict.fromkeys(server.addresses, 0)
    free = asyncio.Semaphore(server.concurrency)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=server.concurrency)
    async with httpx.AsyncClient(headers=headers, timeout=server.timeout, limits=limits) as client:

        async def one(part: Sequence[Row]) -> list[Outcome]:
            async with free:
                start = asyncio.get_running_loop().time()
                outcomes = await _ask(server, client, under_way, part)
                advance(len(part), 0)
                seconds = (asyncio.get_running_loop().time() - start) / len(part)
                return [replace(outcome, seconds=seconds) for outcome in outcomes]

        return list(await asyncio.gather(*(one(part) for part in parts)))


class _NoReplyError(Exception):
    """A try that may be made again: no connection, no whole reply in time, or a 5xx."""


class _RefusedError(Exception):
    """An answer that asking again would not change: a 4xx, or no reply in this form."""


async def _ask(
    server: RewardServer,
    client: "httpx.AsyncClient",
    under_way: dict[str, int],
    part: Sequence[Row],
) -> list[Outcome]:
    """The outcomes of one request's rows."""
    from tenacity import (
        AsyncRetrying,
        retry_if_exception_type,
        stop_after_attempt,
        wait_random_exponential,
    )

    body = json.dumps(
        {
            "query": [row["prompt"] + row["response"] for row in part],
            "prompts": [row["prompt"] for row in part],
            "labels": ["" if row["label"] is None else row["label"] for row in part],
        }
    ).encode()
    failed: set[str] = set()
    again = AsyncRetrying(
        retry=retry_if_exception_type(_NoReplyError),
        stop=stop_after_attempt(int(server.tries)),
        wait=wait_random_exponential(multiplier=FIRST_WAIT, min=FIRST_WAIT, max=MOST_WAIT),
        reraise=True,
    )
    try:
        reply = await again(_try_once, server, client, (under_way, failed), body)
        return _read(reply, len(part))
    except _NoReplyError as error:
        status = "timeout" if isinstance(error.__cause__, TimeoutError) else "error"
        return _all(part, status, f"{error}; it was the last of {server.tries} tries")
    except _RefusedError as error:
        return _partly(error.args[1:], len(part)) or _all(part, "error", error.args[0])


def _partly(reply: tuple[Any, ...], count: int) -> list[Outcome]:
    """The rows' own outcomes, which a server of ours gives where some of them failed; or none."""
    try:
        each = reply[0]["detail"]["outcomes"]
        read = [_outcome(o["value"], {}) if o["error"] is None else _failure(o) for o in each]
    except (IndexError, KeyError, TypeError):
        return []
    return read if len(read) == count else []


def _failure(said: Mapping[str, Any]) -> Outcome:
    status = "timeout" if said["status"] == "timeout" else "error"
    return Outcome(value=None, status=status, error=str(said["error"])[:2000])


def _all(part: Sequence[Row], status: str, error: str) -> list[Outcome]:
    return [Outcome(value=None, status=status, error=error) for _ in part]


async def _try_once(
    server: RewardServer,
    client: "httpx.AsyncClient",
    load: tuple[dict[str, int], set[str]],
    body: bytes,
) -> Any:
    """The parsed reply of the least loaded address, one that has not failed this request first."""
    import httpx

    under_way, failed = load
    url = min(server.addresses, key=lambda u: (u in failed, under_way[u]))
    under_way[url] += 1
    try:
        # the client's own limits are for each chunk: a trickle would go on for ever
        async with asyncio.timeout(server.timeout):
            status, text = await _post(client, url, body)
    except TimeoutError as error:
        failed.add(url)
        raise _NoReplyError(f"{url} gave no reply within {server.timeout:g} s") from error
    except httpx.TransportError as error:
        failed.add(url)
        timed_out = isinstance(error, httpx.TimeoutException)
        cause = TimeoutError(str(error)) if timed_out else error
        raise _NoReplyError(f"{url}: {type(error).__name__} {error}".rstrip()) from cause
    finally:
        under_way[url] -= 1
    shown = text[:300].decode("utf-8", "replace")
    if status >= 500:
        failed.add(url)
        raise _NoReplyError(f"{url} replied {status}: {shown}")
    if status not in (200, 422):
        raise _RefusedError(f"{url} replied {status}: {shown}")
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"{url} replied {status} and no JSON: {shown}") from error
    if status == 422:
        raise _RefusedError(f"{url} replied 422: {shown}", reply)
    return reply


async def _post(client: "httpx.AsyncClient", url: str, body: bytes) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"}
    async with client.stream("POST", url, content=body, headers=headers) as reply:
        read = bytearray()
        async for chunk in reply.aiter_bytes():
            read += chunk
            if len(read) > MOST_REPLY:
                raise _RefusedError(f"{url} replied more than {MOST_REPLY >> 20} MiB")
        return reply.status_code, bytes(read)


def _read(reply: Any, count: int) -> list[Outcome]:
    """The outcomes of a reply; one that is not in OpenRLHF's form is refused as a whole."""
    if not isinstance(reply, Mapping) or "rewards" not in reply:
        raise _RefusedError(f"a reply is an object with 'rewards'; got {str(reply)[:120]}")
    columns = {"rewards": reply["rewards"]}
    if reply.get("scores") is not None:
        columns["scores"] = reply["scores"]
    logs = reply.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        raise _RefusedError(f"'extra_logs' is an object of columns; got {str(logs)[:120]}")
    columns |= {
        str(name): log if isinstance(log, list) else [log] * count for name, log in logs.items()
    }
    for name, column in columns.items():
        if not isinstance(column, list) or len(column) != count:
            got = len(column) if isinstance(column, list) else f"{type(column).__name__} {column!r}"
            raise _RefusedError(
                f"{name!r} of the reply must hold {count} entries, one a sample; got {got}"[:300]
            )
    rewards = columns.pop("rewards")
    return [
        _outcome(value, {name: column[at] for name, column in columns.items()})
        for at, value in enumerate(rewards)
    ]


def _outcome(value: Any, extras: Mapping[str, Any]) -> Outcome:
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        said = f"the server's reward is {type(value).__name__} {value!r}"[:200]
        return Outcome(value=None, status="error", error=f"{said}; it must be a finite number")
    odd = [n for n, v in extras.items() if isinstance(v, float) and not math.isfinite(v)]
    if odd:
        return Outcome(value=None, status="error", error=f"the server's {odd} are not finite")
    return Outcome(value=float(value), extras=extras)
