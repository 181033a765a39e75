"""What runs inside an actor: an engine or a trainer's rank, its progress, and a way to stop it.

May import ``backends``, ``protocols``, ``config`` and its neighbour ``weights``. Plain classes,
made into actors by ``cluster``; methods of the group ``control`` answer while work runs.
"""

import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch

from nbrl.backends.engines.hf import HFEngine
from nbrl.backends.engines.vllm import open_vllm
from nbrl.backends.models import load_policy, load_reference
from nbrl.backends.trainers.deepspeed import DeepSpeedTrainer
from nbrl.backends.trainers.joining import Place, join_ranks
from nbrl.config import Engine, Loss, Model, PolicyLoss, Sampling, Trainer
from nbrl.errors import RolloutError
from nbrl.protocols import Generation, GenerationRequest, LossTerms, MicroBatch
from nbrl.remote.weights import Packed, pack, unpack


class Meter:
    """What work has been done since it began; says stop to the work when it is told so."""

    def __init__(self) -> None:
        self._units = self._tokens = 0
        self._stop = threading.Event()

    def begin(self) -> None:
        """Count from nothing, and go on."""
        self._units = self._tokens = 0
        self._stop.clear()

    def advance(self, units: int, tokens: int) -> None:
        """The callback of the work itself."""
        self._units += units
        self._tokens += tokens
        if self._stop.is_set():
            raise KeyboardInterrupt

    def read(self) -> tuple[int, int]:
        """Units and tokens so far."""
        return self._units, self._tokens

    def stop(self) -> None:
        """Interrupt the work at its next call of :meth:`advance`."""
        self._stop.set()


class EngineWorker:
    """One rollout engine in a process of its own."""

    def __init__(self, model: Model, settings: Engine) -> None:
        """Load the model and start the engine."""
        policy = load_policy(model)
        makers = {
            "hf": lambda: HFEngine(policy, max_batch=settings.max_batch),
            "vllm": lambda: open_vllm(policy, model, settings),
        }
        self._engine = makers[settings.kind]()
        self._sleeps = settings.sleep
        self._meter = Meter()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> list[Generation]:
        """The engine's answer; after :meth:`interrupt`, what is finished."""
        self._meter.begin()
        return self._engine.generate(requests, sampling, self._advance)

    def load(self, packed: Packed, version: int) -> str:
        """Take over weights; gives back the digest of what arrived.

        Raises:
            RolloutError: Something else arrived than was sent.
        """
        weights, digest = unpack(packed)
        if digest != packed.digest:
            raise RolloutError(
                f"weights of version {version} arrived damaged: digest {digest}, sent as "
                f"{packed.digest}. The engine still serves the version before; sync again."
            )
        self._engine.load_weights(weights, version)
        return digest

    def sleep(self) -> None:
        """Give memory up, where the settings say so."""
        if self._sleeps and not isinstance(self._engine, HFEngine):
            self._engine.sleep()

    def wake(self) -> None:
        """Be ready to generate."""
        if self._sleeps and not isinstance(self._engine, HFEngine):
            self._engine.wake()

    def describe(self) -> Mapping[str, object]:
        """What is resident, and on which node."""
        return {**self._engine.describe(), "node": ray.util.get_node_ip_address()}

    @ray.method(concurrency_group="control")
    def progress(self) -> tuple[int, int]:
        """Samples and tokens done in the running call."""
        return self._meter.read()

    @ray.method(concurrency_group="control")
    def interrupt(self) -> None:
        """Make the running call return what is finished."""
        self._meter.stop()

    def _advance(self, units: int, tokens: int) -> None:
        try:
            self._meter.advance(units, tokens)
        except KeyboardInterrupt:
            if isinstance(self._engine, HFEngine):
                raise
            self._engine.interrupt()


class RankWorker:
    """One rank of a trainer in a process of its own."""

    def __init__(self, rank: int) -> None:
        """Nothing is loaded before :meth:`start`."""
        self._rank = rank
        self._meter = Meter()
        self._trainer: DeepSpeedTrainer | None = None

    def address(self) -> tuple[str, int]:
        """This node, and a port that is free on it."""
        with socket.socket() as sock:
            sock.bind(("", 0))
            return ray.util.get_node_ip_address(), sock.getsockname()[1]

    def start(
        self,
        parts: tuple[Model, Trainer, int],
        world: int,
        meeting: tuple[str, int],
        seed: int,
    ) -> None:
        """Meet the other ranks, load the policy and split it among them."""
        (model, settings, zero_stage), (host, port) = parts, meeting
        join_ranks(Place(rank=self._rank, world=world, host=host, port=port))
        policy = load_policy(model).module
        if torch.cuda.is_available():
            policy = policy.to("cuda")
        self._trainer = DeepSpeedTrainer(
            policy,
            optimizer=settings.optimizer,
            zero_stage=zero_stage,
            reference=None if model.lora is not None else lambda: load_reference(model),
            gradient_checkpointing=settings.gradient_checkpointing,
            seed=seed,
        )

    def annotate(
        self, batches: Sequence[MicroBatch], wanted: Sequence[str]
    ) -> dict[str, list[torch.Tensor]] | None:
        """The trainer's answer, from rank 0; None after an interrupt."""
        self._meter.begin()
        try:
            found = self._here.annotate(batches, wanted, self._meter.advance)
        except KeyboardInterrupt:
            return None
        return found if self._rank == 0 else {}

    def probe(self, batches: Sequence[MicroBatch], losses: Mapping[str, PolicyLoss]) -> Any:
        """The trainer's answer."""
        self._meter.begin()
        return self._here.probe(batches, losses, self._meter.advance)

    def step(
        self, minibatches: Sequence[Sequence[MicroBatch]], loss: Loss
    ) -> list[LossTerms] | None:
        """The trainer's answer, from rank 0; None after an interrupt, when nothing was changed."""
        self._meter.begin()
        try:
            found = self._here.step(minibatches, loss, self._meter.advance)
        except KeyboardInterrupt:
            return None
        return found if self._rank == 0 else []

    def weights(self) -> Packed | None:
        """All weights, from rank 0; every rank must be asked."""
        if self._rank == 0:
            return pack(self._here.weights())
        for _ in self._here.weights():
            pass
        return None

    def describe(self) -> Mapping[str, object]:
        """What is resident, and on which node."""
        return {**self._here.describe(), "node": ray.util.get_node_ip_address()}

    @ray.method(concurrency_group="control")
    def progress(self) -> tuple[int, int]:
        """Samples and tokens done in the running call."""
        return self._meter.read()

    @ray.method(concurrency_group="control")
    def interrupt(self) -> None:
        """Make the running call end without a change, if it is not too late."""
        self._meter.stop()

    @property
    def _here(self) -> DeepSpeedTrainer:
        assert self._trainer is not None
        return self._trainer
