"""What runs inside an actor: an engine or a trainer's rank, its progress, and a way to stop it.

May import ``backends``, ``protocols``, ``config`` and its neighbour ``weights``. Plain classes,
made into actors by ``cluster``; methods of the group ``control`` answer while work runs.
"""

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
import torch

from nbrl.backends.engines.hf import HFEngine
from nbrl.backends.engines.vllm import VllmEngine, open_vllm
from nbrl.backends.freezing import freeze
from nbrl.backends.models import load_policy, load_reference
from nbrl.backends.trainers.deepspeed import DeepSpeedTrainer
from nbrl.backends.trainers.joining import Place, join_ranks
from nbrl.config import Engine, Loss, Model, PolicyLoss, Sampling, Trainer
from nbrl.errors import RolloutError, SessionError
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParts:
    """What a rank is made of, the same on all."""

    model: Model
    settings: Trainer
    adapter_seed: int
    seed: int
    """Of the adapter's dropout."""


class EngineWorker:
    """One rollout engine in a process of its own."""

    def __init__(self) -> None:
        """Nothing is loaded before :meth:`start`."""
        self._engine: HFEngine | VllmEngine | None = None
        self._failure: Exception | None = None
        self._sleeps = False
        self._meter = Meter()

    def start(self, model: Model, settings: Engine) -> None:
        """Load the model and start the engine; a failure is told by every later call."""
        try:
            self._load(model, settings)
        except Exception as error:  # noqa: BLE001 -- kept, and raised by the next call
            self._failure = error

    def started(self) -> None:
        """Nothing, when :meth:`start` has done its work.

        Raises:
            Exception: What kept it from that.
        """
        assert self._here

    def _load(self, model: Model, settings: Engine) -> None:
        policy = load_policy(model)
        makers = {
            "hf": lambda: HFEngine(policy, max_batch=settings.max_batch),
            "vllm": lambda: open_vllm(policy, model, settings),
        }
        self._engine = makers[settings.kind]()
        self._sleeps = settings.sleep

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> list[Generation]:
        """The engine's answer; after :meth:`interrupt`, what is finished."""
        self._meter.begin()
        return self._here.generate(requests, sampling, self._advance)

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
        self._here.load_weights(weights, version)
        return digest

    def sleep(self) -> None:
        """Give memory up, where the settings say so."""
        if self._sleeps and isinstance(self._engine, VllmEngine):
            self._engine.sleep()

    def wake(self) -> None:
        """Be ready to generate."""
        if self._sleeps and isinstance(self._engine, VllmEngine):
            self._engine.wake()

    def describe(self) -> Mapping[str, object]:
        """What is resident, and on which node."""
        return {**self._here.describe(), **_whereabouts()}

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
            if not isinstance(self._engine, VllmEngine):
                raise
            self._engine.interrupt()

    @property
    def _here(self) -> HFEngine | VllmEngine:
        if self._failure is not None:
            raise self._failure
        if self._engine is None:
            raise SessionError("this engine was not started.")
        return self._engine


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

    def start(self, parts: RankParts, world: int, meeting: tuple[str, int]) -> None:
        """Meet the other ranks, load the policy and split it among them."""
        model, settings, (host, port) = parts.model, parts.settings, meeting
        join_ranks(Place(rank=self._rank, world=world, host=host, port=port))
        policy = load_policy(model, seed=parts.adapter_seed).module
        freeze(policy, settings.frozen)
        self._trainer = DeepSpeedTrainer(
            policy,
            optimizer=settings.optimizer,
            zero_stage=settings.zero_stage,
            reference=None if model.lora is not None else lambda: load_reference(model),
            gradient_checkpointing=settings.gradient_checkpointing,
            seed=parts.seed,
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
        return {**self._here.describe(), "rank": self._rank, **_whereabouts()}

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


def _whereabouts() -> dict[str, object]:
    """The node and process of a worker, and the bytes of main memory that it holds."""
    return {
        "node": ray.util.get_node_ip_address(),
        "pid": os.getpid(),
        "memory": psutil.Process().memory_info().rss,
    }
