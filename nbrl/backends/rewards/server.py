"""A reward server: OpenRLHF's request and reply before any function of rows, with batching.

May import ``errors``, its neighbours, FastAPI, uvicorn and prometheus-client.
"""

import asyncio
import contextlib
import ipaddress
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import prometheus_client as prometheus
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from nbrl.backends.rewards.calling import Outcome, Row, score_samples
from nbrl.backends.rewards.loading import load_code
from nbrl.backends.rewards.places import RewardModel
from nbrl.errors import ConfigError, all_problems

ScoreRows = Callable[[Sequence[Row]], Sequence[Outcome]]
FEWEST_TOKEN_CHARACTERS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """How a server listens and what it takes.

    Requests that arrive within ``wait`` seconds of each other are scored together, up to
    ``batch`` rows. ``body`` bounds a request in bytes, ``patience`` the seconds in which its body
    must have come, ``waiting`` the requests that wait at once. ``token`` is demanded as a bearer
    token of all routes but ``/health``.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    token: str | None = None
    batch: int = 64
    wait: float = 0.005
    body: int = 32 << 20
    patience: float = 30.0
    waiting: int = 1024


def check_settings(settings: ServerSettings) -> None:
    """Raise a ConfigError that lists what must not or cannot be served so."""
    problems = []
    if not _is_loopback(settings.host) and settings.token is None:
        problems.append(
            f"host {settings.host!r} can be reached from other machines, so a token is needed: set "
            "NBRL_REWARD_TOKEN in the environment, for the server and for its clients"
        )
    if settings.token is not None and len(settings.token) < FEWEST_TOKEN_CHARACTERS:
        problems.append(f"the token must have at least {FEWEST_TOKEN_CHARACTERS} characters")
    if not 0 <= settings.port < 65536:
        problems.append(f"port must be from 0 to 65535; got {settings.port}")
    problems += [
        f"{name} must be above 0; got {value}"
        for name, value in {
            "batch": settings.batch,
            "body": settings.body,
            "patience": settings.patience,
            "waiting": settings.waiting,
        }.items()
        if not value > 0
    ]
    if not settings.wait >= 0:
        problems.append(f"wait must be 0 or more seconds; got {settings.wait}")
    if problems:
        raise all_problems("serve-reward", problems)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Asked(BaseModel):
    """A request: texts of prompt and answer together, and of each alone what is known.

    ``query`` holds prompt and answer one after the other, ``prompts`` and ``labels`` one entry
    each, or nothing at all. An answer is its query without the prompt that it begins with.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    query: list[str]
    prompts: list[str] | None = None
    labels: list[Any] | None = None

    @model_validator(mode="after")
    def _as_many(self) -> "Asked":
        for name, column in (("prompts", self.prompts), ("labels", self.labels)):
            if column is not None and len(column) != len(self.query):
                raise ValueError(f"{len(self.query)} query but {len(column)} {name}")
        return self

    def rows(self) -> list[dict[str, Any]]:
        """The rows that a reward is shown."""
        prompts = self.prompts or [""] * len(self.query)
        labels = self.labels or [None] * len(self.query)
        return [
            {
                "sample_id": f"request-{at}",
                "prompt": prompt,
                "response": query.removeprefix(prompt),
                "label": None if label == "" else label,
                "messages": None,
                "metadata": {},
                "rollout": {},
            }
            for at, (query, prompt, label) in enumerate(
                zip(self.query, prompts, labels, strict=True)
            )
        ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Meters:
    """What ``/metrics`` shows; each server has a registry of its own."""

    registry: prometheus.CollectorRegistry
    requests: prometheus.Counter
    rows: prometheus.Counter
    seconds: prometheus.Histogram
    batches: prometheus.Histogram
    waiting: prometheus.Gauge


def _meters() -> _Meters:
    registry = prometheus.CollectorRegistry()
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    return _Meters(
        registry=registry,
        requests=prometheus.Counter(
            "nbrl_reward_requests", "Requests by status.", ["status"], registry=registry
        ),
        rows=prometheus.Counter(
            "nbrl_reward_rows", "Rows scored, by status.", ["status"], registry=registry
        ),
        seconds=prometheus.Histogram(
            "nbrl_reward_seconds", "Seconds from a request to its reply.", registry=registry
        ),
        batches=prometheus.Histogram(
            "nbrl_reward_batch_rows", "Rows scored together.", buckets=sizes, registry=registry
        ),
        waiting=prometheus.Gauge(
            "nbrl_reward_waiting", "Requests that wait for their scores.", registry=registry
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Waiting:
    """A request's rows and where their outcomes go."""

    rows: list[dict[str, Any]]
    done: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def application(score: ScoreRows, settings: ServerSettings, name: str) -> FastAPI:
    """The server's routes: ``POST /get_reward``, ``GET /health``, ``GET /metrics``.

    Args:
        score: Outcomes of rows, in order; called in one thread, for one batch at a time.
        settings: Limits and the token.
        name: What is served; ``/health`` says it.

    Raises:
        ConfigError: An address that others reach without a token, or a limit that allows nothing.
    """
    check_settings(settings)
    meters = _meters()
    queue: asyncio.Queue[_Waiting] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with ThreadPoolExecutor(1, thread_name_prefix="nbrl-reward") as thread:
            work = asyncio.create_task(_score_batches(queue, score, settings, meters, thread))
            yield
            work.cancel()

    async def allowed(request: Request) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        wanted = settings.token
        if wanted is not None and not secrets.compare_digest(given, wanted.encode()):
            raise HTTPException(401, f"{request.url.path} needs the server's bearer token")

    made = FastAPI(title="nbrl reward server", lifespan=lifespan, docs_url=None, openapi_url=None)

    @made.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "serves": name}

    @made.get("/metrics", dependencies=[Depends(allowed)])
    async def metrics() -> Response:
        kind = prometheus.CONTENT_TYPE_LATEST
        return Response(prometheus.generate_latest(meters.registry), media_type=kind)

    @made.post("/get_reward", dependencies=[Depends(allowed)])
    async def get_reward(request: Request) -> dict[str, Any]:
        start, status = time.monotonic(), 500
        try:
            reply = await _reply(request, queue, settings, meters)
            status = 200
            return reply
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            meters.requests.labels(str(status)).inc()
            meters.seconds.observe(time.monotonic() - start)

    return made


async def _reply(
    request: Request, queue: asyncio.Queue[_Waiting], settings: ServerSettings, meters: _Meters
) -> dict[str, Any]:
    asked = _parsed(await _body(request, settings))
    if queue.qsize() >= settings.waiting:
        raise HTTPException(503, f"{settings.waiting} requests wait already", {"Retry-After": "1"})
    waiting = _Waiting(rows=asked.rows())
    if not waiting.rows:
        return {"rewards": [], "scores": [], "extra_logs": {}}
    with meters.waiting.track_inprogress():
        queue.put_nowait(waiting)
        outcomes = await waiting.done
    failed = sum(outcome.value is None for outcome in outcomes)
    if failed:
        # asking again would not help; a client of ours reads each row's outcome out of this
        each = [{"value": o.value, "status": o.status, "error": o.error} for o in outcomes]
        raise HTTPException(422, {"failed": failed, "of": len(each), "outcomes": each})
    values = [o.value for o in outcomes]
    scores = [o.extras.get("scores", o.value) for o in outcomes]
    parts = dict.fromkeys(part for o in outcomes for part in o.components)
    logs = {part: [o.components.get(part) for o in outcomes] for part in parts}
    return {"rewards": values, "scores": scores, "extra_logs": logs}


async def _body(request: Request, settings: ServerSettings) -> bytes:
    """The request's body, never more of it than is allowed, nor for longer."""
    read = bytearray()
    try:
        async with asyncio.timeout(settings.patience):
            async for chunk in request.stream():
                read += chunk
                if len(read) > settings.body:
                    raise HTTPException(413, f"a body has at most {settings.body} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body did not come in {settings.patience:g} s") from None
    return bytes(read)


def _parsed(body: bytes) -> Asked:
    try:
        # not by pydantic's own reader, which refuses texts that are not well-formed Unicode
        return Asked.model_validate(json.loads(body))
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise HTTPException(400, f"the body is no JSON: {error}"[:300]) from None
        first = error.errors(include_url=False, include_input=False, include_context=False)[:3]
        raise HTTPException(400, {"wanted": "query, prompts, labels", "problems": first}) from None


async def _score_batches(
    queue: asyncio.Queue[_Waiting],
    score: ScoreRows,
    settings: ServerSettings,
    meters: _Meters,
    thread: ThreadPoolExecutor,
) -> None:
    """Scores what waits, whole requests together, until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        together = await _gathered(queue, settings)
        rows = [row for waiting in together for row in waiting.rows]
        meters.batches.observe(len(rows))
        try:
            outcomes = list(await loop.run_in_executor(thread, score, rows))
            assert len(outcomes) == len(rows), "one outcome a row"
        except Exception as error:  # noqa: BLE001 -- a served function may raise anything
            said = f"{type(error).__name__}: {error}"
            outcomes = [Outcome(value=None, status="error", error=said) for _ in rows]
        for outcome in outcomes:
            meters.rows.labels(outcome.status).inc()
        at = 0
        for waiting in together:
            # a client that went away has cancelled its future
            if not waiting.done.done():
                waiting.done.set_result(outcomes[at : at + len(waiting.rows)])
            at += len(waiting.rows)


async def _gathered(queue: asyncio.Queue[_Waiting], settings: ServerSettings) -> list[_Waiting]:
    """The requests that go together: the first that comes, and those soon after it."""
    together = [await queue.get()]
    end = asyncio.get_running_loop().time() + settings.wait
    while sum(len(waiting.rows) for waiting in together) < settings.batch:
        left = end - asyncio.get_running_loop().time()
        if queue.empty() and left <= 0:
            break
        try:
            together.append(await asyncio.wait_for(queue.get(), max(left, 0.001)))
        except TimeoutError:
            break
    return together


def scorer_of(source: str, *, normalize: bool = False) -> ScoreRows:
    """The function of rows that a reward file (``file.py:name``) or a reward model's folder is.

    Raises:
        ConfigError: There is no such file or model, or ``normalize`` has no effect.
        RewardError: The file cannot be run.
    """
    if source.endswith(".py") or ".py:" in source:
        if normalize:
            raise ConfigError(f"normalize has no effect on the reward file {source!r}; drop it.")
        reward = load_code(source)
        return lambda rows: score_samples(
            reward, rows, on_error="exclude", advance=lambda done, tokens: None
        )
    # torch and transformers are loaded for a model only
    from nbrl.backends.rewards.models import load_reward_model, score_by_model

    model = RewardModel(source, normalize=normalize)
    load_reward_model(model)
    return lambda rows: score_by_model(model, rows, lambda done, tokens: None)


def serve(
    score: ScoreRows, settings: ServerSettings, name: str, *, said: Callable[[str], None]
) -> None:
    """Serve until the process is told to end; ``said`` gets the address, once it is listened on.

    Raises:
        ConfigError: As :func:`application`; or the address is taken.
    """
    import socket

    import uvicorn

    served = application(score, settings, name)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((settings.host, settings.port))
        except OSError as error:
            raise ConfigError(
                f"serve-reward cannot listen on {settings.host}:{settings.port}: {error.strerror}. "
                "Pass another --port or --host."
            ) from error
        listening.listen()
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        said(f"{name} is served at http://{shown}:{port}/get_reward (also /health, /metrics)")
        config = uvicorn.Config(served, log_level="warning", timeout_graceful_shutdown=10)
        uvicorn.Server(config).run(sockets=[listening])
