"""Loads what a session is made of, in this process or on a cluster, and wires it together.

May import ``backends``, ``config``, and ``remote`` inside of the function that needs it.
"""

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from nbrl.backends.exporting import export_adapter, export_model
from nbrl.backends.forward import balances_experts
from nbrl.backends.freezing import freeze
from nbrl.backends.machine import machine_problems
from nbrl.backends.models import (
    LoadedModel,
    load_critic,
    load_facts,
    load_policy,
    load_reference,
)
from nbrl.backends.packing import refuse_leaks
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Engine, Lora, Model, Placement, Store, Trainer, placement_problems
from nbrl.driver.engines import ENGINES, engine_problems
from nbrl.driver.progress import Progress
from nbrl.driver.seeds import derive
from nbrl.errors import ConfigError
from nbrl.protocols import RolloutEngine
from nbrl.protocols import Trainer as TrainerProtocol
from nbrl.rules import shown
from nbrl.types import Prompts

PLACES = ("local", "ray", "auto", "ray://host:port")
CLUSTERS = ("ray", "auto")
CLIENT = "ray://"

Rows = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a session is opened with; :func:`nbrl.connect` says what each means."""

    model: Model
    engine: Engine
    trainer: Trainer
    prompts: str | Prompts
    seed: int
    run_dir: str | os.PathLike | None
    name: str | None
    store: Store = field(default_factory=Store)
    prompts_seed: int | None = None
    """Of the order of the prompts, where it is not that of ``seed``: a fork keeps its parent's."""
    where: str = "local"
    placement: Placement | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a session drives; ``weights_to_send`` and ``release`` as in ``Runtime``.

    ``policy`` has the tokenizer and the facts; its module has weights where they are in this
    process. ``export`` is that of ``ExampleTools``; ``rows`` says what runs where.
    """

    policy: LoadedModel
    engine: RolloutEngine
    trainer: TrainerProtocol
    weights_to_send: Callable[[], Iterable[tuple[str, Tensor]]]
    release: Callable[[], None]
    export: Callable[[Path, bool, Mapping[str, Any] | None], None]
    rows: Callable[[], Rows]
    balances: bool


def is_place(where: object) -> bool:
    """Whether something names a place that sessions can run in."""
    return isinstance(where, str) and (where == "local" or is_cluster(where))


def is_cluster(where: object) -> bool:
    """Whether something names a place where parts run in processes of a cluster."""
    return isinstance(where, str) and (
        where in CLUSTERS or (where.startswith(CLIENT) and len(where) > len(CLIENT))
    )


def place_problems(asked: Mapping[str, Any]) -> Iterator[str]:
    """What cannot work in the place asked for, or is not installed here.

    Args:
        asked: As of :func:`~nbrl.driver.admission.refuse_request`; kinds are judged elsewhere.
    """
    where, engine, trainer, model = (asked.get(n) for n in ("where", "engine", "trainer", "model"))
    if is_cluster(where):
        yield from _cluster_problems(asked)
        return
    if isinstance(model, Model):
        yield from machine_problems(model)
    if isinstance(engine, Engine):
        yield from engine_problems(engine)
    if asked.get("placement") is not None:
        yield "placement has no effect in one process; drop it, or connect to a cluster"
    if isinstance(trainer, Trainer) and trainer.kind == "deepspeed":
        yield (
            "Trainer('deepspeed') runs on a cluster: nbrl.connect('ray', ...) starts one on this "
            "machine where there is none. Or take Trainer('local')"
        )


def open_parts(settings: Settings, progress: Progress) -> Parts:
    """Everything loaded and started.

    Raises:
        ConfigError: A model, a library or a cluster that is not there, or refuses.
    """
    if settings.where == "local":
        return _open_local(settings)
    return _open_cluster(settings, progress)


def _cluster_problems(asked: Mapping[str, Any]) -> Iterator[str]:
    where, engine, trainer, model = (asked.get(n) for n in ("where", "engine", "trainer", "model"))
    placement = asked.get("placement") or Placement()
    if isinstance(engine, Engine) and isinstance(trainer, Trainer):
        judged = placement if isinstance(placement, Placement) else Placement()
        yield from placement_problems(judged, engine, trainer)
    if isinstance(trainer, Trainer) and trainer.kind != "deepspeed":
        yield (
            f"Trainer({trainer.kind!r}) works in one process; on a cluster take "
            "Trainer('deepspeed', ranks=...)"
        )
    if isinstance(model, Model):
        yield from _model_problems(model)
    if importlib.util.find_spec("ray") is None:
        yield f"place {where!r} needs Ray, which is not installed; run pip install 'nbrl[ray]'"


def _model_problems(model: Model) -> Iterator[str]:
    """What a cluster's ranks do not train; what their machines lack they say themselves."""
    alone = "is trained in one process; connect without a cluster"
    if model.head != "lm":
        yield f"Model.head={model.head!r} {alone}"
    if model.attention == "varlen":
        yield f"Model.attention='varlen' {alone}, or take 'sdpa'"
    if isinstance(model.lora, Lora) and model.lora.base_bits is not None:
        yield f"Lora.base_bits={shown(model.lora.base_bits)} {alone}, or drop base_bits"
    if model.device is not None:
        yield (
            f"Model.device={model.device!r}: devices of a cluster are given out by Ray; drop it, "
            "and take Placement(gpus=True) where there are GPUs"
        )


def _open_local(settings: Settings) -> Parts:
    model, seed = settings.model, settings.seed
    policy = load_policy(model, head_seed=derive(seed, "head"), seed=derive(seed, "adapter"))
    if settings.trainer.packed:
        refuse_leaks(policy.module)
    freeze(policy.module, settings.trainer.frozen)
    trainer = _local_trainer(policy, settings)
    kind = settings.engine.kind if model.head == "lm" else "idle"
    opened = ENGINES[kind](policy, model, settings.engine, trainer)

    def export(path: Path, adapter: bool, scale: Mapping[str, Any] | None) -> None:
        if adapter:
            export_adapter(policy, path)
        else:
            export_model(policy, trainer.weights(), path, scale=scale)

    return Parts(
        policy=policy,
        engine=opened.engine,
        trainer=trainer,
        weights_to_send=opened.weights_to_send,
        release=opened.release,
        export=export,
        rows=lambda: {"engine": opened.engine.describe(), "trainer": trainer.describe()},
        balances=model.head == "lm" and balances_experts(policy.module),
    )


def _open_cluster(settings: Settings, progress: Progress) -> Parts:
    # Ray is loaded by those who use it.
    from nbrl.remote.cluster import Asked, open_cluster

    model, seed = settings.model, settings.seed
    policy = load_facts(model)
    asked = Asked(
        model=model,
        engine=settings.engine,
        trainer=settings.trainer,
        placement=settings.placement or Placement(),
        adapter_seed=derive(seed, "adapter"),
        trainer_seed=derive(seed, "trainer"),
    )
    workers = settings.engine.count + settings.trainer.ranks
    with progress.phase("connect", workers, "workers") as advance:
        found = open_cluster(settings.where, asked, advance)

    def export(path: Path, adapter: bool, scale: Mapping[str, Any] | None) -> None:
        if adapter:
            raise ConfigError(
                "export with adapter=True: the ranks of a cluster give whole weights, the adapter "
                "merged into them. Export the whole model."
            )
        export_model(policy, found.trainer.weights(), path, scale=scale)

    def rows() -> Rows:
        engines = {f"engine {i}": row for i, row in enumerate(found.engine.rows())}
        return engines | {f"rank {i}": row for i, row in enumerate(found.trainer.rows())}

    return Parts(
        policy=policy,
        engine=found.engine,
        trainer=found.trainer,
        # Nothing goes through this process: the engines take the weights from the ranks.
        weights_to_send=tuple,
        release=found.release,
        export=export,
        rows=rows,
        balances=balances_experts(policy.module),
    )


def _local_trainer(policy: LoadedModel, settings: Settings) -> LocalTrainer:
    """The trainer of the policy, with a critic where one is asked for."""
    model, trainer, seed = settings.model, settings.trainer, settings.seed
    asked, critic = trainer.critic, None
    if asked is not None:
        critic = load_critic(model, asked.path, seed=derive(seed, "critic"))
    return LocalTrainer(
        policy.module,
        optimizer=trainer.optimizer,
        critic=critic,
        critic_optimizer=None if asked is None else asked.optimizer,
        reference=None if model.lora is not None else lambda: load_reference(model),
        teacher=lambda path: load_reference(_named(model, path)),
        critic_warmup=0 if asked is None else asked.warmup_steps,
        ema_decay=trainer.ema_decay,
        gradient_checkpointing=trainer.gradient_checkpointing,
        packed=trainer.packed,
        seed=derive(seed, "trainer"),
    )


def _named(model: Model, path: str) -> Model:
    """The model of another name, in the same dtype and with the same attention."""
    if path == model.path:
        return model
    return replace(model, path=path, revision=None, gguf_file=None)
