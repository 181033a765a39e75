"""L1, the joints: what the driver asks of engines, trainers and sinks, and what it hands them.

May import ``types``, ``config``, ``functional`` and ``errors``. Rooms of ``backends`` meet only
through this file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbrl.config import Loss, PolicyLoss, Sampling
from nbrl.frozen import frozen
from nbrl.types import Metric

Advance = Callable[[int, int], None]
"""Called by a worker with (units done, tokens done) since the last call."""
ANNOTATIONS = ("old_logprobs", "ref_logprobs", "values", "entropy")
"""The token columns that a trainer computes of samples."""


@frozen()
class GenerationRequest:
    """One prompt and the seeds of the samples wanted from it; the prompt is prefilled once.

    Example: ``GenerationRequest(prompt_id="arithmetic-0", token_ids=(5, 9, 3), seeds=(17, 18))``
    asks for two samples.
    """

    prompt_id: str
    token_ids: tuple[int, ...]
    seeds: tuple[int, ...]


@frozen(eq=False)
class Generation:
    """One sampled answer.

    ``token_ids`` int32 ``[T]`` are the sampled ids, EOS included where it was sampled.
    ``logprobs`` float32 ``[T]`` are those of the full softmax at the sampling temperature.
    ``finish_reason`` is ``stop`` (EOS or a stop string), ``length`` or ``error``. A sample that
    is not finished when generation is interrupted is left out.
    """

    prompt_id: str
    sample_index: int
    token_ids: np.ndarray
    logprobs: np.ndarray
    finish_reason: str
    version: int
    seconds: float
    error: str | None = None


@runtime_checkable
class RolloutEngine(Protocol):
    """Something that samples from the policy."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, advance: Advance
    ) -> list[Generation]:
        """Finished samples, those of a request in order of their seeds.

        A sample depends on the weights, its prompt, its seed and the sampling settings only, not
        on what is generated beside it. On KeyboardInterrupt the finished samples are returned.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over the trainer's weights under this version number."""
        ...

    def describe(self) -> Mapping[str, object]:
        """What is resident: kind, device, bytes, version."""
        ...


@frozen(eq=False)
class MicroBatch:
    """Some samples as tensors: prompts padded on the left, responses on the right.

    Columns ``prompt_width:`` of ``input_ids`` are the response region of ``T`` columns; every
    token column below is ``[n, T]`` over it. ``mask`` is True on policy tokens that count.
    ``columns`` holds those of ``advantages, returns, old_logprobs, rollout_logprobs,
    ref_logprobs, values`` that apply. ``temperature`` divides each row's logits.

    Example: prompts of 3 and 4 tokens answered with 2 and 1 tokens give ``input_ids [2, 6]``,
    ``prompt_width`` 4, ``T`` 2 and ``mask [[1, 1], [1, 0]]``.
    """

    rows: Int[np.ndarray, " n"]
    """Where each sample stands in the batch that was cut into micro-batches."""
    input_ids: Int[Tensor, "n L"]
    attention_mask: Bool[Tensor, "n L"]
    prompt_width: int
    mask: Bool[Tensor, "n T"]
    temperature: Float[Tensor, " n"]
    columns: Mapping[str, Float[Tensor, "n T"]] = field(default_factory=dict)
    per_row: Mapping[str, Float[Tensor, " n"]] = field(default_factory=dict)
    """What an objective knows of whole rows: ``margin``, ``desirable``, ``mismatched``."""


@frozen(eq=False)
class LossTerms:
    """What a loss says of a batch: metrics, and the token columns ``ratio, clipped, loss``."""

    metrics: Mapping[str, Metric]
    tokens: Sequence[Mapping[str, Tensor]]
    """One mapping a micro-batch, each tensor ``[n, T]``, in the order they were given."""
    sketch: np.ndarray | None = None
    """A seeded random projection of the gradient, float32 ``[D]``; from ``probe`` only."""


@runtime_checkable
class Measurer(Protocol):
    """A trainer that can say what an objective is on other data, changing nothing."""

    def measure(
        self, batches: Sequence[MicroBatch], loss: Loss, advance: Advance
    ) -> Mapping[str, Metric]:
        """The objective's metrics over all the micro-batches together, without gradients."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """A trainer whose state can be kept and taken over again."""

    def state(self) -> dict[str, Any]:
        """A copy of all that steps change: plain data with tensors in it."""
        ...

    def load_state(self, state: Mapping[str, Any], *, own_schedule: bool = False) -> None:
        """Become, bit by bit, what :meth:`state` described; nothing where it does not fit.

        ``own_schedule`` takes the learning rate from the trainer's own settings, at the step that
        the state had come to.
        """
        ...


@runtime_checkable
class Averaging(Protocol):
    """A trainer that may keep a running average of the policy's weights."""

    @property
    def keeps_average(self) -> bool:
        """Whether it does."""
        ...

    def averaged(self) -> AbstractContextManager[None]:
        """A block in which the policy holds the average; after it its own weights, bit by bit."""
        ...


@runtime_checkable
class Unloading(Protocol):
    """A trainer that can let go of the models that it does not train."""

    def unload(self) -> None:
        """Free the reference and a teacher; they are loaded again when they are needed."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """Something that holds the policy's weights and changes them."""

    def annotate(
        self, batches: Sequence[MicroBatch], wanted: Sequence[str], advance: Advance
    ) -> dict[str, list[Tensor]]:
        """Of each wanted one of ``ANNOTATIONS``: a column ``[n, T]`` a micro-batch."""
        ...

    def probe(
        self, batches: Sequence[MicroBatch], losses: Mapping[str, PolicyLoss], advance: Advance
    ) -> dict[str, LossTerms]:
        """Each loss's value, metrics and gradient sketch on one forward pass; changes nothing."""
        ...

    def step(
        self,
        minibatches: Sequence[Sequence[MicroBatch]],
        loss: Loss,
        advance: Advance,
    ) -> list[LossTerms]:
        """One optimizer step a minibatch, in order; all of them or, on any exception, none.

        Where ``old_logprobs`` is not among a micro-batch's columns, the weights before the step
        are the ones it was sampled with, and the log-probs of its own forward pass are used.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's parameters by their names in the checkpoint."""
        ...

    def describe(self) -> Mapping[str, object]:
        """What is resident: kind, device, dtype, parameters, bytes, version."""
        ...


@frozen()
class Bar:
    """The state of one phase at one moment.

    Example: ``Bar(name="rollout", unit="samples", total=256, done=64, tokens=310, seconds=0.2)``
    runs at 320 samples a second and has 0.6 s to go.
    """

    name: str
    unit: str
    total: int
    done: int = 0
    tokens: int = 0
    seconds: float = 0.0
    note: str = ""
    outcome: str = "running"
    """``running``, ``done``, ``interrupted`` or ``failed``."""

    @property
    def rate(self) -> float:
        """Units a second so far; 0 before the first one."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def token_rate(self) -> float:
        """Tokens a second so far; 0 where none are counted."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds to go at the rate so far; None while unknown or when over."""
        if self.outcome != "running" or self.rate == 0:
            return None
        return max(self.total - self.done, 0) / self.rate

    def line(self) -> str:
        """One line of text: state, counts, rates, time."""
        tokens = f", {self.token_rate:,.0f} tokens/s" if self.token_rate else ""
        rest = f", {self.eta:.0f} s to go" if self.eta is not None else ""
        note = f" ({self.note})" if self.note else ""
        state = "" if self.outcome in ("running", "done") else f" {self.outcome}"
        return (
            f"{self.name}{state}: {self.done}/{self.total} {self.unit} in {self.seconds:.1f} s, "
            f"{self.rate:,.1f} {self.unit}/s{tokens}{rest}{note}"
        )


@runtime_checkable
class Sink(Protocol):
    """Where bars are shown: one output that is updated in place."""

    def show(self, bars: Sequence[Bar], final: bool) -> None:
        """Show the bars, outermost first.

        ``final`` is the last call, whatever happened; after the outermost bar it holds, by
        name, what the inner phases did together.
        """
        ...
