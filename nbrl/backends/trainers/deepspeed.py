"""ZeRO: the trainer of many ranks, each a process that makes the same calls.

May import what ``local`` may; deepspeed is imported when a trainer is made. The objectives, passes
and denominators are those of ``local``: only where gradients add up and parameters lie differs.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nbrl.backends.trainers.objectives import Share, compute, counted, finished, merge, prepare
from nbrl.backends.trainers.optimizers import make_optimizer, schedule
from nbrl.backends.trainers.passes import annotated, gather_models, merged_weights, training
from nbrl.backends.trainers.requests import check_annotations, check_room, with_old_logprobs
from nbrl.backends.trainers.sharding import Piece, assign, joined
from nbrl.config import Loss, Optimizer, PolicyLoss
from nbrl.config.checks import ZERO_STAGES
from nbrl.errors import ConfigError, StepError
from nbrl.functional.reductions import Totals
from nbrl.protocols import Advance, LossTerms, MicroBatch
from nbrl.types import Metric

BUCKET_ELEMENTS = 50_000_000
"""Gradients that are reduced together; DeepSpeed allocates the whole bucket at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PieceShare:
    """A share of the step's metrics, and which :class:`Piece` of the work it is of."""

    index: int
    start: int
    counts: bool
    share: Share


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankShares:
    """What one rank found in an optimizer step, and whether it was told to stop."""

    shares: list[_PieceShare]
    stopped: bool


class DeepSpeedTrainer:
    """One rank of a policy's trainer; fulfils ``Trainer`` when every rank makes the same calls.

    Each call takes the whole batch on every rank, works on this rank's share of it, and answers
    the whole on every rank. Denominators are counts over the whole optimizer step, so any number
    of ranks and any cut into micro-batches gives the same step. Ranks must have been joined.
    """

    def __init__(
        self,
        policy: nn.Module,
        *,
        optimizer: Optimizer,
        zero_stage: int,
        reference: Callable[[], nn.Module] | None = None,
        gradient_checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        """Take over the module, which must be equal on all ranks.

        Args:
            policy: A causal language model of transformers, or PEFT's around one.
            optimizer: Its optimizer.
            zero_stage: What is split over ranks: nothing, optimizer (1), and gradients (2), and
                parameters (3).
            reference: As in ``LocalTrainer``.
            gradient_checkpointing: Compute activations again in the backward pass.
            seed: Of the adapter's dropout.

        Raises:
            ConfigError: A stage that does not exist.
        """
        if zero_stage not in ZERO_STAGES:
            raise ConfigError(f"zero_stage must be one of {ZERO_STAGES}; got {zero_stage!r}.")
        import deepspeed

        models = gather_models(policy, None, gradient_checkpointing=gradient_checkpointing)
        self._raw, self._stage, self._settings = policy, zero_stage, optimizer
        trained = [p for p in policy.parameters() if p.requires_grad]
        inner = make_optimizer(trained, optimizer)
        self._schedule = schedule(inner, optimizer)
        self._inner = inner
        self._count = sum(p.numel() for p in policy.parameters())
        self._trainable = sum(p.numel() for p in trained)
        narrow = next(policy.parameters()).dtype == torch.bfloat16
        self._engine, _, _, _ = deepspeed.initialize(
            model=policy,
            optimizer=inner,
            lr_scheduler=self._schedule,  # pyright: ignore[reportArgumentType] -- torch's schedulers are taken; the annotation names a class of theirs that is private
            config=_engine_config(zero_stage, optimizer, narrow, self._count),
        )
        self._engine.train(False)
        self._models = dataclasses.replace(models, policy=self._engine)
        self._load_reference, self._reference = reference, None
        self._world = torch.distributed.get_world_size()
        self._rank = torch.distributed.get_rank()
        self._seed, self._updates, self._version = seed, 0, 0

    def annotate(
        self, batches: Sequence[MicroBatch], wanted: Sequence[str], advance: Advance
    ) -> dict[str, list[Tensor]]:
        """The columns asked for, ``[n, T]`` float32 a micro-batch; nothing changes.

        Raises:
            UnknownNameError: A column that is not known here.
            StepError: ``values``, which need a critic; ``ref_logprobs`` without a reference.
        """
        check_annotations(wanted)
        if "values" in wanted:
            raise StepError("annotate 'values': the deepspeed trainer holds no critic.")
        self._need_reference(wanted)
        mine: list[tuple[Piece, dict[str, Tensor]]] = []
        stopped = False
        for piece in assign(batches, self._world)[self._rank]:
            mine.append((piece, annotated(self._models, self._reference, piece.batch, wanted)))
            stopped |= _told_to_stop(advance, piece)
        gathered = self._gathered((mine, stopped))
        if any(ends for _, ends in gathered):
            raise KeyboardInterrupt
        told = [said for rank, _ in gathered for said in rank]
        return {
            name: joined([(piece, columns[name]) for piece, columns in told], len(batches))
            for name in wanted
        }

    def probe(
        self, batches: Sequence[MicroBatch], losses: Mapping[str, PolicyLoss], advance: Advance
    ) -> dict[str, LossTerms]:
        """Not offered here.

        Raises:
            StepError: Always; gradients of several losses cannot be kept apart over ranks.
        """
        raise StepError(
            "probe: the deepspeed trainer cannot look at gradients without changing its buffers. "
            "Probe in a session with trainer=Trainer('local')."
        )

    def step(
        self, minibatches: Sequence[Sequence[MicroBatch]], loss: Loss, advance: Advance
    ) -> list[LossTerms]:
        """One optimizer step a minibatch, in order; all of them or, on any exception, none.

        Raises:
            StepError: As in ``LocalTrainer``; the same one on every rank.
        """
        counts = counted(minibatches, [loss])
        taken, total = self._schedule.last_epoch, self._settings.total_steps
        check_room(len(minibatches), taken=taken, total=total)
        undo = self._copy() if len(minibatches) > 1 else None
        terms: list[LossTerms] = []
        updates = self._updates
        try:
            current = with_old_logprobs(minibatches, loss, self._old_logprobs)
            for batches, total in zip(current, counts, strict=True):
                place = f"optimizer step {len(terms) + 1} of {len(minibatches)}"
                told = prepare(self._models, batches, loss)
                terms.append(self._update(told, loss, advance, total=total, place=place))
        except BaseException:
            self._drop_gradients()
            if undo is not None:
                undo()
                self._updates = updates
            raise
        self._version += 1
        return terms

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's parameters by their names in the checkpoint; every rank must take all."""
        if self._models.adapted:
            with self._whole(list(self._raw.parameters())):
                yield from merged_weights(self._raw)
            return
        for name, parameter in self._raw.named_parameters():
            with self._whole([parameter]):
                yield name, parameter.detach().clone()

    def describe(self) -> Mapping[str, object]:
        """What is resident on this rank; ``version`` counts the steps that were taken."""
        parameter = next(self._raw.parameters())
        split = self._world if self._stage == 3 else 1
        return {
            "kind": "deepspeed",
            "device": str(parameter.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "parameters": self._count,
            "trainable": self._trainable,
            "critic": False,
            "reference": self._reference is not None,
            "bytes": self._count * parameter.element_size() // split,
            "ranks": self._world,
            "zero_stage": self._stage,
            "updates": self._schedule.last_epoch,
            "version": self._version,
        }

    def _update(
        self,
        batches: Sequence[MicroBatch],
        loss: Loss,
        advance: Advance,
        *,
        total: Totals,
        place: str,
    ) -> LossTerms:
        """One optimizer step; nothing is written before all ranks know that all is finite."""
        mine = assign(batches, self._world)[self._rank]
        found: list[_PieceShare] = []
        stopped = False
        for at, piece in enumerate(mine):
            seeds = np.random.SeedSequence([self._seed, self._updates, piece.index, piece.start])
            with training(self._models, dropout_seed=int(seeds.generate_state(1)[0])):
                value, share = compute(self._models, piece.batch, loss, total)
                # The ranks' gradients are averaged; what is wanted is their sum.
                self._engine.set_gradient_accumulation_boundary(at == len(mine) - 1)
                scaled = value * (self._world if piece.counts else 0.0)
                self._engine.backward(scaled, scale_wrt_gas=False)
            found.append(
                _PieceShare(index=piece.index, start=piece.start, counts=piece.counts, share=share)
            )
            stopped |= _told_to_stop(advance, piece)
        told: list[_RankShares] = self._gathered(_RankShares(shares=found, stopped=stopped))
        if any(rank.stopped for rank in told):
            raise KeyboardInterrupt
        # Repeats, which fill up a rank with fewer pieces, are in no metric.
        real = [piece for rank in told for piece in rank.shares if piece.counts]
        metrics = merge([piece.share for piece in real], total, loss)
        metrics["grad_norm"] = Metric(value=self._gradient_norm())
        metrics["lr"] = Metric(value=self._inner.param_groups[0]["lr"])
        terms = finished([], metrics, place=place)
        self._engine.step()
        self._updates += 1
        return dataclasses.replace(terms, tokens=_merged(real, len(batches)))

    def _gradient_norm(self) -> float:
        """The 2-norm of the whole gradient before clipping; every rank gets the same."""
        from deepspeed.utils import safe_get_full_grad

        square = torch.zeros((), dtype=torch.float64)
        for parameter in self._raw.parameters():
            if parameter.requires_grad:
                gradient = safe_get_full_grad(parameter)
                if gradient is not None:
                    square += gradient.double().square().sum().cpu()
        return float(square.sqrt())

    def _old_logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """The policy's log-probs as it is now, ``[n, T]`` a micro-batch."""
        wanted = "old_logprobs"
        return self.annotate(batches, [wanted], lambda units, tokens: None)[wanted]

    def _need_reference(self, wanted: Sequence[str]) -> None:
        if "ref_logprobs" not in wanted or self._models.adapted or self._reference is not None:
            return
        if self._load_reference is None:
            raise StepError("annotate 'ref_logprobs': this trainer has no reference. Give it one.")
        device = next(self._raw.parameters()).device
        with torch.random.fork_rng(devices=[]):
            self._reference = self._load_reference().to(device)

    def _gathered(self, mine: Any) -> list[Any]:
        """What each rank has, by rank."""
        found: list[Any] = [None] * self._world
        torch.distributed.all_gather_object(found, mine)
        return found

    def _whole(self, parameters: list[nn.Parameter]) -> Any:
        """A block in which these parameters are all here."""
        if self._stage < 3:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters(parameters)

    def _copy(self) -> Callable[[], None]:
        """A copy of all that a step changes on this rank; calling it puts the copy back."""
        parameters = list(self._raw.parameters())
        masters = [p for group in self._inner.param_groups for p in group["params"]]
        zero: Any = self._engine.optimizer
        if self._stage == 3:
            parameters = [cast(Any, p).ds_tensor for p in parameters]
            masters = list(zero.fp32_partitioned_groups_flat)
        moments = [t for state in self._inner.state.values() for t in state.values()]
        tensors = [t for t in (*parameters, *masters, *moments) if isinstance(t, Tensor)]
        copies = [tensor.detach().clone() for tensor in tensors]
        rates = [group["lr"] for group in self._inner.param_groups]
        fresh, planned = not self._inner.state, dict(self._schedule.state_dict())

        def put_back() -> None:
            with torch.no_grad():
                for tensor, copy in zip(tensors, copies, strict=True):
                    tensor.data.copy_(copy)
            if self._stage == 3 and zero.persistent_parameters:
                # Of small parameters each rank keeps the whole beside its part.
                zero.persistent_parameters[0].partition(zero.persistent_parameters)
                zero.persistent_parameters[0].all_gather(zero.persistent_parameters)
            if fresh:
                self._inner.state.clear()
            for group, rate in zip(self._inner.param_groups, rates, strict=True):
                group["lr"] = rate
            self._schedule.load_state_dict(planned)

        return put_back

    def _drop_gradients(self) -> None:
        """Forget what backward passes have added up, as ZeRO does where a step overflows."""
        zero: Any = self._engine.optimizer
        if self._stage == 0:
            self._engine.zero_grad()
            return
        zero.zero_grad(set_to_none=True)
        # In place: ZeRO has handed these tables out.
        if self._stage == 3:
            zero.averaged_gradients.clear()
            return
        for table in (zero.averaged_gradients, zero.all_grad_tensors):
            table.update(dict.fromkeys(table))
        zero.micro_step_id = -1


def _engine_config(stage: int, optimizer: Optimizer, narrow: bool, elements: int) -> dict[str, Any]:
    """DeepSpeed's settings; the optimizer and the count of micro-batches are ours."""
    bucket = min(BUCKET_ELEMENTS, max(elements, 1))
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": optimizer.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": narrow},
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_prefetch_bucket_size": bucket,
        },
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }


def _told_to_stop(advance: Advance, piece: Piece) -> bool:
    """Whether an interrupt came; it is noted, since the other ranks wait for this one's calls."""
    try:
        if piece.counts:
            advance(len(piece.batch.rows), int(piece.batch.mask.sum()))
    except KeyboardInterrupt:
        return True
    return False


def _merged(told: Sequence[_PieceShare], count: int) -> list[Mapping[str, Tensor]]:
    """The token columns of each micro-batch, from those of its pieces in the order of rows."""
    pieces: list[list[Share]] = [[] for _ in range(count)]
    for piece in sorted(told, key=lambda piece: piece.start):
        pieces[piece.index].append(piece.share)
    return [
        {name: torch.cat([share.tokens[name] for share in shares]) for name in shares[0].tokens}
        for shares in pieces
    ]
