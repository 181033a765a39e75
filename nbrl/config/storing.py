"""What a run leaves in its folder, and the rules of these settings.

May import ``rules``.
"""

from collections.abc import Iterator

from nbrl.frozen import frozen
from nbrl.rules import among, flag, make_plain, text, whole

MIRRORS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Where metrics can be shown beside the run folder."""


@frozen()
class Store:
    """What a run leaves in its folder, and how much of it stays.

    ``samples`` writes the rollouts and scores of every training step. Where these take more than
    ``quota`` bytes, those of the oldest steps are removed, never those of the last ``keep_steps``.
    ``save_every`` saves a checkpoint after every so many steps; of these automatic ones the
    ``keep_checkpoints`` newest stay, as long as all take at most ``checkpoint_quota`` bytes, and
    beside them the ``best`` by a metric (the largest value). The newest one always stays, and so
    does every checkpoint that was saved under a tag. ``mirrors`` show the metrics elsewhere too.
    """

    samples: bool = True
    quota: int | None = None
    keep_steps: int = 10
    save_every: int | None = None
    keep_checkpoints: int | None = 3
    checkpoint_quota: int | None = None
    best: str | None = None
    mirrors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        make_plain(self)


def store_problems(c: Store) -> Iterator[str]:
    """What cannot work about the settings, or would have no effect."""
    yield from flag("Store.samples", c.samples)
    yield from whole("Store.keep_steps", c.keep_steps, 1)
    optional = {
        "quota": c.quota,
        "save_every": c.save_every,
        "keep_checkpoints": c.keep_checkpoints,
        "checkpoint_quota": c.checkpoint_quota,
    }
    for name, value in optional.items():
        if value is not None:
            yield from whole(f"Store.{name}", value, 1)
    if c.best is not None:
        yield from text("Store.best", c.best)
    if c.samples is False and c.quota is not None:
        yield "Store.quota has no effect with samples=False; drop one of them"
    if not isinstance(c.mirrors, tuple | list):
        yield f"Store.mirrors must be a tuple of names; got {c.mirrors!r}"
        return
    for name in c.mirrors:
        yield from among("Store.mirrors", name, MIRRORS)
