"""Where the parts of a session run on a cluster, and what cannot be.

May import ``settings`` and ``rules``.
"""

from collections.abc import Iterator

from nbrl.config.settings import Engine, Trainer
from nbrl.frozen import frozen
from nbrl.rules import among, bounded, flag, make_plain

COLOCATIONS = ("actor_ref", "all")


@frozen()
class Placement:
    """Where the parts of a session run on a cluster.

    ``colocate="actor_ref"`` keeps the reference in the trainer's ranks, and gives engines devices
    of their own. ``"all"`` also puts engine ``i`` and rank ``i`` on the same device, which engines
    give up while the trainer works; there must be as many of the one as of the other, and
    ``Engine(sleep=True)``.

    ``engine_cpus`` and ``trainer_cpus`` are those of one engine and one rank. GPUs are one a rank
    and one a device of an engine where ``gpus`` is True, none where it is False.
    """

    colocate: str = "actor_ref"
    engine_cpus: float = 1.0
    trainer_cpus: float = 1.0
    gpus: bool = False

    def __post_init__(self) -> None:
        make_plain(self)


def placement_checks(c: Placement) -> Iterator[str]:
    """What cannot be about a placement by itself."""
    yield from among("Placement.colocate", c.colocate, COLOCATIONS)
    for name in ("engine_cpus", "trainer_cpus"):
        yield from bounded(f"Placement.{name}", getattr(c, name), 0.0, open_low=True)
    yield from flag("Placement.gpus", c.gpus)


def placement_problems(placement: Placement, engine: Engine, trainer: Trainer) -> Iterator[str]:
    """What sizes and colocation cannot be together; nothing is turned off in silence."""
    together = placement.colocate == "all"
    if together and trainer.ranks != engine.count:
        yield (
            f"Placement.colocate='all': {trainer.ranks} trainer ranks and {engine.count} engines "
            "must be the same number"
        )
    if together and engine.tensor_parallel != 1:
        yield "Placement.colocate='all' needs Engine(tensor_parallel=1): an engine beside a rank"
    if together and not engine.sleep:
        yield "Placement.colocate='all' needs Engine(sleep=True): both share a device's memory"
    if not together and engine.sleep:
        yield "Engine.sleep has no effect without Placement(colocate='all'); drop it"
