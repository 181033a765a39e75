"""The way in: ``nbrl.connect`` opens a session and shows its progress where the caller looks.

May import everything of the house.
"""

import os

from nbrl.config import Engine, Model, Trainer
from nbrl.driver.opening import Settings, open_session
from nbrl.driver.progress import Quiet
from nbrl.driver.session import Session
from nbrl.errors import ConfigError, unknown_name
from nbrl.notebook.progress import make_sink
from nbrl.notebook.reprs import register
from nbrl.types import Prompts

PLACES = ("local",)
SINKS = {"auto": make_sink, "quiet": Quiet}


def connect(  # noqa: PLR0913 -- the one wide door; everything behind it is narrow
    where: str = "local",
    *,
    model: str | Model = "tiny",
    engine: Engine | None = None,
    trainer: Trainer | None = None,
    prompts: str | Prompts = "arithmetic",
    seed: int = 0,
    run_dir: str | os.PathLike | None = None,
    name: str | None = None,
    progress: str = "auto",
) -> Session:
    """A session with a policy to train: in this process, with no cluster and no download.

    Args:
        where: ``"local"`` is this process.
        model: ``"tiny"``, another bundled name, a folder, a hub name, or a ``Model``.
        engine: What generates; transformers on the trainer's own weights by default.
        trainer: What learns, with its optimizer; plain torch by default.
        prompts: ``"arithmetic"``, ``"reasoning-gym:<task>"``, a file, a folder, a hub name, or
            ``Prompts`` that were loaded before.
        seed: The root of the seed tree; equal seeds give equal runs.
        run_dir: A new folder for the run's records; ``runs/<time>-<name>`` by default.
        name: What to call the session; the model's name by default.
        progress: ``"auto"`` shows it, ``"quiet"`` does not.

    Raises:
        ConfigError: Settings that cannot work, all in one message, before anything is loaded.
    """
    if where not in PLACES:
        raise unknown_name("place", where, PLACES)
    if progress not in SINKS:
        raise unknown_name("progress", progress, SINKS)
    if not isinstance(model, str | Model):
        raise ConfigError(
            f"connect: model must be a name or nbrl.Model; got {type(model).__name__}."
        )
    register()
    settings = Settings(
        model=Model(model) if isinstance(model, str) else model,
        engine=Engine() if engine is None else engine,
        trainer=Trainer() if trainer is None else trainer,
        prompts=prompts,
        seed=seed,
        run_dir=run_dir,
        name=name,
    )
    return open_session(settings, SINKS[progress])
