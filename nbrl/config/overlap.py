"""How far generation may run ahead of training, and the rules for it. May import ``rules``."""

from collections.abc import Iterator

from nbrl.frozen import frozen
from nbrl.rules import among, bounded, make_plain, whole

STALE_RULES = ("wait", "drop")


@frozen()
class Overlap:
    """How far generation may run ahead of training.

    ``max_staleness`` bounds, in versions, how old the oldest token of a trained sample may be; 0
    is synchronous. ``queue_size`` bounds how many batches may wait for the trainer.
    ``over_sampling`` begins that share of groups more than a batch takes: the first to come are
    trained, so that long answers hold up less. What becomes of groups that the bound would
    overtake: with ``stale="wait"`` the step waits for them, with ``"drop"`` they are dropped.
    ``min_groups`` is how many groups make the last batch when the prompts run out; by default a
    whole batch.
    """

    max_staleness: int = 1
    queue_size: int = 1
    over_sampling: float = 0.0
    stale: str = "wait"
    min_groups: int | None = None

    def __post_init__(self) -> None:
        make_plain(self)


def overlap_problems(c: Overlap) -> Iterator[str]:
    """What is wrong with the fields of one ``Overlap``."""
    yield from whole("Overlap.max_staleness", c.max_staleness, 0)
    yield from whole("Overlap.queue_size", c.queue_size, 1)
    yield from bounded("Overlap.over_sampling", c.over_sampling, 0.0)
    yield from among("Overlap.stale", c.stale, STALE_RULES)
    if c.min_groups is not None:
        yield from whole("Overlap.min_groups", c.min_groups, 1)
