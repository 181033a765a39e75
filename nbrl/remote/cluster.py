"""Places the parts of a session on a cluster, and ends them; what fails leaves nothing behind.

May import ``config``, ``errors`` and its neighbours.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nbrl.config import Engine, Model, Placement, Trainer
from nbrl.errors import ConfigError
from nbrl.protocols import Advance
from nbrl.remote import connection
from nbrl.remote.groups import RemoteEngines, RemoteTrainer
from nbrl.remote.preflight import check_cluster
from nbrl.remote.waiting import all_of
from nbrl.remote.workers import EngineWorker, RankParts, RankWorker

PLACEMENT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is to run there, and the seeds of an adapter's first weights and its dropout."""

    model: Model
    engine: Engine
    trainer: Trainer
    placement: Placement
    adapter_seed: int
    trainer_seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterParts:
    """An engine and a trainer on the cluster, and what ends them."""

    engine: RemoteEngines
    trainer: RemoteTrainer
    release: Callable[[], None]


def open_cluster(where: str, asked: Asked, advance: Advance) -> ClusterParts:
    """Connect, check, place and start.

    Args:
        where: ``"ray"`` takes the connection that there is, or starts a cluster on this machine;
            ``"auto"`` joins the cluster of this machine, ``"ray://host:port"`` another.
        asked: What to start.
        advance: Called while waiting, with the workers that have come up since; it may raise.

    Raises:
        ConfigError: No connection, or a cluster that these settings cannot run on.
        SessionError: A worker died while it started.
    """
    place = _Place(where)
    try:
        place.join(advance)
        bundles = _bundles(asked)
        check_cluster((asked.engine.kind, asked.trainer.kind), bundles, advance)
        place.reserve(bundles, advance)
        # All load at the same time.
        ranks = place.start_ranks(asked)
        learner = RemoteTrainer(ranks)
        engines = RemoteEngines(
            lambda number: place.start_engine(number, asked),
            asked.engine.count,
            learner.publish,
            sleeps=asked.engine.sleep,
        )
        _meet(ranks, asked, advance)
        engines.ready(advance)
    except BaseException:
        place.release()
        raise
    return ClusterParts(engine=engines, trainer=learner, release=place.release)


class _Place:
    """Every actor that was started, and their placement group, so that all can be ended."""

    def __init__(self, where: str) -> None:
        self._where, self._session = where, uuid.uuid4().hex
        self._group: PlacementGroup | None = None
        self._actors: list[Any] = []

    def join(self, tick: Advance) -> None:
        """Connect."""
        connection.join(self._where, self._session, tick)

    def reserve(self, bundles: Sequence[Mapping[str, float]], tick: Advance) -> None:
        """One placement group for all.

        Raises:
            ConfigError: No nodes hold these bundles.
        """
        self._group = placement_group([dict(b) for b in bundles], strategy="PACK")
        ready = self._group.ready()
        for _ in range(int(PLACEMENT_SECONDS)):
            if ray.wait([ready], timeout=1.0)[0]:
                return
            tick(0, 0)
        shown = [node.get("Resources") for node in ray.nodes() if node.get("Alive")]
        raise ConfigError(
            f"connect: the cluster did not place {list(bundles)} within "
            f"{PLACEMENT_SECONDS:.0f} s; its nodes have {shown}, and others may use them. Ask "
            "for fewer engines or ranks, or wait until they are free."
        )

    def start_engine(self, number: int, asked: Asked) -> Any:
        """Engine ``number`` in its bundle; returns before it has loaded."""
        placement, settings = asked.placement, asked.engine
        gpus = settings.tensor_parallel * _share(placement)
        made = self._started(EngineWorker, number, placement.engine_cpus, gpus)
        # The trainer sends whole weights, with its adapter in them.
        made.start.remote(replace(_placed(asked), lora=None), settings)
        return made

    def start_ranks(self, asked: Asked) -> list[Any]:
        """A process for each rank, beside the engines or in bundles after theirs; all empty."""
        placement, ranks = asked.placement, range(asked.trainer.ranks)
        first = 0 if placement.colocate == "all" else asked.engine.count
        cpus, gpus = placement.trainer_cpus, _share(placement)
        return [self._started(RankWorker, first + rank, cpus, gpus, rank) for rank in ranks]

    def release(self) -> None:
        """End every actor, free the placement, and leave a cluster that was joined here."""
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                remove_placement_group(self._group)
        self._actors.clear()
        self._group = None
        connection.leave(self._session)

    def _started(self, kind: type, bundle: int, cpus: float, gpus: float, *arguments: Any) -> Any:
        assert self._group is not None
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle
        )
        made = cast(Any, ray.remote)(concurrency_groups={"control": 2})(kind)
        actor = made.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy).remote(
            *arguments
        )
        self._actors.append(actor)
        return actor


def _meet(ranks: Sequence[Any], asked: Asked, advance: Advance) -> None:
    """Wait until all ranks have met and loaded."""
    told = "start of the trainer's ranks"
    (meeting,) = all_of([ranks[0].address.remote()], lambda: advance(0, 0), asked=told)
    parts = RankParts(
        model=_placed(asked),
        settings=asked.trainer,
        adapter_seed=asked.adapter_seed,
        seed=asked.trainer_seed,
    )
    starts = [rank.start.remote(parts, len(ranks), meeting) for rank in ranks]
    all_of(starts, lambda: advance(0, 0), asked=told)
    advance(len(ranks), 0)


def _placed(asked: Asked) -> Model:
    """The model on the GPU that Ray gives a worker, or on the CPU where it gives none."""
    return replace(asked.model, device=None if asked.placement.gpus else "cpu")


def _share(placement: Placement) -> float:
    """How much of a GPU an engine's device or a rank takes."""
    if not placement.gpus:
        return 0.0
    return 0.5 if placement.colocate == "all" else 1.0


def _bundles(asked: Asked) -> list[dict[str, float]]:
    """What is reserved: one entry an engine and then one a rank, or one for both together."""
    placement, engine, ranks = asked.placement, asked.engine, asked.trainer.ranks

    def bundle(cpus: float, gpus: int) -> dict[str, float]:
        return {"CPU": cpus} | ({"GPU": float(gpus)} if placement.gpus else {})

    if placement.colocate == "all":
        return [bundle(placement.engine_cpus + placement.trainer_cpus, 1)] * ranks
    engines = [bundle(placement.engine_cpus, engine.tensor_parallel)] * engine.count
    return [*engines, *[bundle(placement.trainer_cpus, 1)] * ranks]
