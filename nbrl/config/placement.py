"""Where the parts of a session run on a cluster, and what cannot be.

May import ``settings`` and ``rules``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nbrl.config.rules import among, bounded, flag, make_plain
from nbrl.config.settings import Engine

COLOCATIONS = ("all", "actor_ref", "critic_reward")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """How many processes a trainer has, and what ZeRO splits over them.

    ``zero_stage`` splits nothing (0), the optimizer's state (1), gradients too (2), and
    parameters too (3).
    """

    count: int = 1
    zero_stage: int = 2

    def __post_init__(self) -> None:
        make_plain(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where the parts of a session run on a cluster.

    ``colocate="all"`` puts engine ``i`` and trainer rank ``i`` on the same device, which engines
    give up while the trainer works; there must be as many of the one as of the other, and
    ``Engine(sleep=True)``. ``"actor_ref"`` keeps the reference in the trainer's ranks;
    ``"critic_reward"`` is for a critic. ``None`` gives each part its own.

    ``engine_cpus`` and ``trainer_cpus`` are those of one engine and one rank. GPUs are one a rank
    and one a device of an engine where ``gpus`` is True, none where it is False.
    """

    colocate: str | None = None
    engine_cpus: float = 1.0
    trainer_cpus: float = 1.0
    gpus: bool = False

    def __post_init__(self) -> None:
        make_plain(self)


def placement_checks(c: Placement) -> Iterator[str]:
    """What cannot be about a placement by itself."""
    if c.colocate is not None:
        yield from among("Placement.colocate", c.colocate, COLOCATIONS)
    for name in ("engine_cpus", "trainer_cpus"):
        yield from bounded(f"Placement.{name}", getattr(c, name), 0.0, open_low=True)
    yield from flag("Placement.gpus", c.gpus)


def placement_problems(placement: Placement, engine: Engine, ranks: Ranks) -> Iterator[str]:
    """What sizes and colocation cannot be together; nothing is turned off in silence."""
    devices = engine.count * engine.tensor_parallel
    if placement.colocate == "all" and ranks.count != devices:
        yield (
            f"Placement.colocate='all': {ranks.count} trainer ranks and {engine.count} engines x "
            f"{engine.tensor_parallel} devices must be the same number"
        )
    if placement.colocate == "all" and engine.tensor_parallel != 1:
        yield "Placement.colocate='all' needs Engine(tensor_parallel=1): an engine beside a rank"
    if placement.colocate == "all" and not engine.sleep:
        yield "Placement.colocate='all' needs Engine(sleep=True): both share a device's memory"
    if placement.colocate != "all" and engine.sleep:
        yield "Engine.sleep has no effect without Placement(colocate='all'); drop it"
    if placement.colocate == "critic_reward":
        yield "Placement.colocate='critic_reward' has no effect: ranks train no critic; drop it"
