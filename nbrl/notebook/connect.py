"""The way in: ``nbrl.connect`` opens a session and shows its progress where the caller looks.

May import everything of the house.
"""

import os
from collections.abc import Iterator

from nbrl.config import Engine, Model, Placement, Store, Trainer
from nbrl.driver.opening import Settings, open_session
from nbrl.driver.parts import is_cluster
from nbrl.driver.progress import Quiet
from nbrl.driver.resuming import Overrides
from nbrl.driver.resuming import resume as resume_session
from nbrl.driver.session import Session
from nbrl.notebook.progress import make_sink
from nbrl.notebook.reprs import register
from nbrl.rules import among, is_among
from nbrl.types import Prompts

SINKS = {"auto": make_sink, "quiet": Quiet}
TRAINERS = {False: "local", True: "deepspeed"}
"""The default of each place: in one process, and on a cluster."""


def connect(  # noqa: PLR0913 -- the one wide door; everything behind it is narrow
    where: str = "local",
    *,
    model: str | os.PathLike | Model | None = None,
    engine: Engine | None = None,
    trainer: Trainer | None = None,
    placement: Placement | None = None,
    prompts: str | os.PathLike | Prompts | None = None,
    seed: int | None = None,
    run_dir: str | os.PathLike | None = None,
    name: str | None = None,
    store: Store | None = None,
    resume: str | os.PathLike | None = None,
    progress: str = "auto",
) -> Session:
    """A session with a policy to train: in this process, or on a Ray cluster.

    On a cluster of this process, asking again with equal settings gives the running session.

    Args:
        where: ``"local"`` is this process, with no cluster and no download. ``"ray"`` is the
            cluster that ``ray.init`` has connected to, or a new one on this machine; ``"auto"``
            the one that runs on this machine; ``"ray://host:port"`` another.
        model: ``"tiny"`` (the default), another bundled name, a folder (``~`` is the home folder),
            a hub name, or a ``Model``.
        engine: What generates; transformers on the trainer's own weights by default.
        trainer: What learns, with its optimizer; plain torch by default, and on a cluster
            DeepSpeed with one rank.
        placement: Where the parts run on a cluster, and which of them share devices.
        prompts: ``"arithmetic"`` (the default), ``"reasoning-gym:<task>"``, a file, a folder, a hub
            name, or ``Prompts`` that were loaded before.
        seed: The root of the seed tree, 0 by default; equal seeds give equal runs.
        run_dir: A new folder for the run's records; ``runs/<time>-<name>`` by default.
        name: What to call the session; the model's name by default.
        store: What is kept in the run folder, and how much; the samples of every step by default.
        resume: ``"run"``, ``"run@tag"`` or ``"run@version"``: go on from a checkpoint of that run
            folder, in it. The settings are the run's own; where others are given, or another
            ``run_dir``, the session is a fork with a folder of its own.
        progress: ``"auto"`` shows it, ``"quiet"`` does not.

    Raises:
        ConfigError: Settings that cannot work, all in one message, before anything is loaded; a
            cluster that cannot be reached or cannot run them; or a session of that name runs on it
            with others.
    """
    problems = list(among("progress", progress, SINKS))
    sink = SINKS[progress] if is_among(progress, SINKS) else Quiet
    register()
    chosen = Model(os.fspath(model)) if isinstance(model, str | os.PathLike) else model
    prompts = os.fspath(prompts) if isinstance(prompts, os.PathLike) else prompts
    if resume is not None:
        overrides = Overrides(
            model=chosen,
            engine=engine,
            trainer=trainer,
            prompts=prompts,
            seed=seed,
            run_dir=run_dir,
            name=name,
            store=store,
        )
        problems += _not_resumed(where, placement)
        return resume_session(resume, overrides, sink, extra=problems)
    settings = Settings(
        model=Model() if chosen is None else chosen,
        engine=Engine() if engine is None else engine,
        trainer=Trainer(TRAINERS[is_cluster(where)]) if trainer is None else trainer,
        prompts="arithmetic" if prompts is None else prompts,
        seed=0 if seed is None else seed,
        run_dir=run_dir,
        name=name,
        store=Store() if store is None else store,
        where=where,
        placement=placement,
    )
    return open_session(settings, sink, extra=problems)


def _not_resumed(where: str, placement: Placement | None) -> Iterator[str]:
    """Why a checkpoint cannot be gone on with in that place."""
    if where != "local":
        yield (
            f"resume goes on in this process, not at {where!r}: ranks of a cluster keep no "
            "checkpoints. Connect with model= a folder that session.export wrote"
        )
    if placement is not None:
        yield "placement has no effect with resume; drop it"
