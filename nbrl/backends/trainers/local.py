"""Plain torch in one process: the embedded default trainer, and the reference for others.

May import ``interrupts``, ``protocols``, ``types``, ``config``, ``functional``, ``errors`` and
torch.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nbrl.backends.interrupts import after_returning, held_interrupts
from nbrl.backends.trainers.averaging import Average
from nbrl.backends.trainers.devices import brought_back, device_of, placed
from nbrl.backends.trainers.objectives import (
    Share,
    compute,
    counted,
    finished,
    merge,
    prepare,
    row_of,
)
from nbrl.backends.trainers.optimizers import Learner
from nbrl.backends.trainers.passes import (
    Models,
    annotated,
    check_head,
    gather_models,
    merged_weights,
    resident,
    standing_still,
    training,
)
from nbrl.backends.trainers.probing import probe_losses
from nbrl.backends.trainers.requests import check_annotations, with_old_logprobs
from nbrl.backends.trainers.sketch import gradient_norm
from nbrl.config import Distillation, Loss, Optimizer, PolicyLoss
from nbrl.errors import ConfigError, StepError
from nbrl.functional.reductions import Totals
from nbrl.protocols import Advance, LossTerms, MicroBatch
from nbrl.types import Metric


class LocalTrainer:
    """Holds a policy, and a critic where there is one, and changes them step by step.

    The modules stay in evaluation mode: dropout of the checkpoint would make the log-probs of
    training other ones than those of sampling. Only a LoRA adapter's own dropout is on during a
    step. The policy may be shared with an engine; it is changed in place. All models work on the
    policy's device; micro-batches come from main memory, and columns go back there.
    """

    def __init__(  # noqa: PLR0913 - the parts that a trainer is made of
        self,
        policy: nn.Module,
        *,
        optimizer: Optimizer,
        critic: nn.Module | None = None,
        critic_optimizer: Optimizer | None = None,
        reference: Callable[[], nn.Module] | None = None,
        teacher: Callable[[str], nn.Module] | None = None,
        critic_warmup: int = 0,
        ema_decay: float | None = None,
        gradient_checkpointing: bool = False,
        packed: bool = False,
        seed: int = 0,
    ) -> None:
        """Take over the modules; parameters that require no gradient are left alone.

        Args:
            policy: A causal language model of transformers, PEFT's around one, or a reward model
                as ``models.ValueModel``.
            optimizer: The policy's.
            critic: Called like ``models.ValueModel``; goes with ``critic_optimizer``.
            critic_optimizer: The critic's.
            reference: Loads the reference policy, called when it is needed and not there. None
                where the policy carries an adapter: the reference is then the policy without it.
            teacher: Loads the model of a name, for distillation; one is held at a time.
            critic_warmup: The policy stands still for so many of the critic's optimizer steps.
            ema_decay: Of the running average of the policy's weights; None keeps none.
            gradient_checkpointing: Compute activations again in the backward pass.
            packed: Lay the rows of a micro-batch end to end in every pass.
            seed: Of the adapter's dropout.

        Raises:
            ConfigError: Half of critic and ``critic_optimizer``; checkpointing without support.
        """
        if (critic is None) != (critic_optimizer is None):
            raise ConfigError("a critic and a critic_optimizer go together; pass both or neither.")
        self._models = gather_models(
            policy, critic, gradient_checkpointing=gradient_checkpointing, packed=packed
        )
        self._learners = [Learner(policy, optimizer)]
        if critic is not None and critic_optimizer is not None:
            self._learners.append(Learner(critic, critic_optimizer))
        self._warmup, (own, *_) = critic_warmup, self._learners
        self._average = (
            None if ema_decay is None else Average(own.parameters, own.masters, decay=ema_decay)
        )
        self._load_reference = reference
        self._reference: nn.Module | None = None
        self._load_teacher = teacher
        self._teachers: dict[str, nn.Module] = {}
        self._seed, self._updates, self._version = seed, 0, 0
        self._device = device_of(policy)

    def annotate(
        self, batches: Sequence[MicroBatch], wanted: Sequence[str], advance: Advance
    ) -> dict[str, list[Tensor]]:
        """The columns asked for, ``[n, T]`` float32 a micro-batch; nothing changes.

        Raises:
            UnknownNameError: A column that is not known here.
            StepError: ``values`` without a critic, ``ref_logprobs`` without a reference.
        """
        check_annotations(wanted)
        check_head(self._models, "lm", f"annotate {list(wanted)}")
        if "values" in wanted and self._models.critic is None:
            raise StepError("annotate 'values': this trainer has no critic. Give it one.")
        if "ref_logprobs" in wanted and self._load_reference is None and not self._models.adapted:
            raise StepError("annotate 'ref_logprobs': this trainer has no reference. Give it one.")
        if "ref_logprobs" in wanted and self._reference is None and self._load_reference:
            with torch.random.fork_rng(devices=[]):
                self._reference = self._load_reference().to(self._device)
        found: dict[str, list[Tensor]] = {name: [] for name in wanted}
        for batch in batches:
            ((there,),) = placed([[batch]], self._device)
            said = annotated(self._models, self._reference, there, wanted)
            for name, column in brought_back(said).items():
                found[name].append(column)
            advance(len(batch.rows), int(batch.mask.sum()))
        return found

    def probe(
        self, batches: Sequence[MicroBatch], losses: Mapping[str, PolicyLoss], advance: Advance
    ) -> dict[str, LossTerms]:
        """Each loss's value, metrics and gradient of the policy, on one shared forward pass.

        Parameters, optimizer, ``.grad`` fields and random states stay as they are, bit by bit.
        ``grad_norm`` is exact and before clipping. A critic's ``value_loss`` is in the value and
        the metrics; its gradient is not looked at.

        Raises:
            StepError: No token counts, a column is missing, or a loss is not finite.
        """
        check_head(self._models, "lm", "probe")
        parameters = list(self._learners[0].parameters.values())
        (there,) = placed([batches], self._device)
        return probe_losses(self._models, parameters, there, losses, advance)

    def step(
        self, minibatches: Sequence[Sequence[MicroBatch]], loss: Loss, advance: Advance
    ) -> list[LossTerms]:
        """One optimizer step a minibatch, in order; all of them or, on any exception, none.

        Gradients of a minibatch's micro-batches add up over denominators of the whole minibatch.
        ``advance`` is called before the minibatch's update, so it may raise; a Ctrl-C that comes
        while weights are written is handed on after that. With several minibatches the state is
        copied first, so that it can be put back.

        Advantages that are all 0 make a step all the same: the moments of AdamW move the weights
        (the metric ``nonzero_advantages`` says so).

        Raises:
            StepError: No token counts in a minibatch, a column is missing, the schedule has ended,
                or a loss or gradient norm is not finite.
        """
        counts = counted(minibatches, [loss])
        models = self._models_for(loss)
        for learner in self._learners:
            learner.check_room(len(minibatches))
        undo = self.state() if len(minibatches) > 1 else None
        for learner in self._learners:
            learner.allocate()
        terms: list[LossTerms] = []
        try:
            there = placed(minibatches, self._device)
            current = with_old_logprobs(there, loss, self._old_logprobs)
            for batches, total in zip(current, counts, strict=True):
                place = f"optimizer step {len(terms) + 1} of {len(minibatches)}"
                told = prepare(models, batches, loss)
                with standing_still(self._at_rest(told, loss)):
                    share = self._shares(models, told, loss, advance, total)
                terms.append(self._update(share, loss, total=total, place=place))
        except BaseException:
            with held_interrupts(after_returning):
                for learner in self._learners:
                    learner.drop_gradients()
                if undo is not None:
                    self.load_state(undo)
            raise
        self._version += 1
        return terms

    def measure(
        self, batches: Sequence[MicroBatch], loss: Loss, advance: Advance
    ) -> dict[str, Metric]:
        """The objective's metrics over all micro-batches as one; no gradient, nothing changes.

        Raises:
            StepError: As :meth:`step`, or for a policy loss, which :meth:`probe` is for.
        """
        (total,) = counted([batches], [loss])
        models = self._models_for(loss)
        shares = []
        with torch.no_grad():
            (there,) = placed([batches], self._device)
            for batch in prepare(models, there, loss):
                shares.append(compute(models, batch, loss, total)[1])
                advance(len(batch.rows), int(batch.mask.sum()))
        return merge(shares, total, loss)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's parameters by their names in the checkpoint, an adapter merged into them."""
        if self._models.adapted:
            return merged_weights(self._models.policy)
        return ((name, p.detach()) for name, p in self._models.policy.named_parameters())

    @property
    def keeps_average(self) -> bool:
        """Whether there is a running average of the policy's weights."""
        return self._average is not None

    def averaged(self) -> AbstractContextManager[None]:
        """A block in which the policy holds the average; after it its own weights, bit by bit.

        Raises:
            StepError: This trainer keeps none.
        """
        if self._average is None:
            raise StepError("averaged: this trainer keeps no average. Give it an ema_decay.")
        return self._average.lent()

    def describe(self) -> Mapping[str, object]:
        """What is resident.

        ``version`` counts the calls of :meth:`step` that were taken, ``updates`` the optimizer
        steps of the policy.
        """
        found = resident(self._models, self._reference)
        if self._average is not None:
            found |= {"bytes": cast(int, found["bytes"]) + self._average.bytes()}
            found |= {"ema_decay": self._average.decay}
        updates = self._learners[0].updates
        return {"kind": "local", **found, "updates": updates, "version": self._version}

    def unload(self) -> None:
        """Let go of reference and teacher; they are loaded again when they are needed."""
        self._reference, self._teachers = None, {}

    def state(self) -> dict[str, Any]:
        """A copy of all that steps change: trained parameters, optimizers, schedules, counters.

        The average of the weights is among them where there is one.
        """
        learners = [learner.state() for learner in self._learners]
        average = {} if self._average is None else {"average": self._average.state()}
        return {
            "learners": learners,
            "updates": self._updates,
            "version": self._version,
            **average,
        }

    def load_state(self, state: Mapping[str, Any], *, own_schedule: bool = False) -> None:
        """Become, bit by bit, what :meth:`state` described.

        The average of the weights begins at them where the state has none.

        Args:
            state: What :meth:`state` gave.
            own_schedule: Take the learning rate from this trainer's settings, at the step that the
                state had come to.

        Raises:
            StepError: The state is that of another trainer; nothing is changed.
        """
        _check_same_parameters(state["learners"], self._learners)
        for learner, saved in zip(self._learners, state["learners"], strict=True):
            learner.load_state(saved)
            if own_schedule:
                learner.follow_own_schedule()
        if self._average is not None:
            self._average.load_state(state.get("average", self._learners[0].masters))
        self._updates, self._version = state["updates"], state["version"]

    def digest(self) -> str:
        """SHA-256 over all of :meth:`state`."""
        digest = hashlib.sha256(repr((self._updates, self._version)).encode())
        for learner in self._learners:
            learner.feed(digest)
        if self._average is not None:
            self._average.feed(digest)
        return digest.hexdigest()

    def _models_for(self, loss: Loss) -> Models:
        """The models, with the teacher where the objective has one.

        Raises:
            StepError: The objective trains another kind of model, or no teacher can be loaded.
        """
        check_head(self._models, row_of(loss).head, type(loss).__name__)
        if not isinstance(loss, Distillation):
            return self._models
        if self._load_teacher is None:
            raise StepError("Distillation: this trainer cannot load a teacher. Give it a loader.")
        if loss.teacher not in self._teachers:
            with torch.random.fork_rng(devices=[]):
                teacher = self._load_teacher(loss.teacher)
                self._teachers = {loss.teacher: teacher.to(self._device)}
        return dataclasses.replace(self._models, teacher=self._teachers[loss.teacher])

    def _at_rest(self, batches: Sequence[MicroBatch], loss: Loss) -> list[nn.Parameter]:
        """The policy's parameters where this minibatch is the critic's alone."""
        if not isinstance(loss, PolicyLoss) or self._models.critic is None:
            return []
        learns = any({"values", "returns"} <= batch.columns.keys() for batch in batches)
        warm = self._learners[1].updates >= self._warmup
        return [] if warm or not learns else list(self._learners[0].parameters.values())

    def _shares(
        self,
        models: Models,
        batches: Sequence[MicroBatch],
        loss: Loss,
        advance: Advance,
        total: Totals,
    ) -> list[Share]:
        """Each micro-batch's share; gradients add up."""
        shares = []
        for index, batch in enumerate(batches):
            seeds = np.random.SeedSequence([self._seed, self._updates, index])
            with training(models, dropout_seed=int(seeds.generate_state(1)[0])):
                value, share = compute(models, batch, loss, total)
                value.backward()
            del value
            for learner in self._learners:
                learner.collect()
            shares.append(share)
            advance(len(batch.rows), int(batch.mask.sum()))
        return shares

    def _update(
        self, shares: Sequence[Share], loss: Loss, *, total: Totals, place: str
    ) -> LossTerms:
        """One optimizer step; nothing is written before everything is known to be finite."""
        metrics = merge(shares, total, loss)
        norms = {}
        for owner, learner in zip(("", "critic_"), self._learners, strict=False):
            if gradients := learner.gradients():
                norms[learner] = gradient_norm(gradients)
                metrics[f"{owner}grad_norm"] = Metric(value=norms[learner])
                metrics[f"{owner}lr"] = Metric(value=learner.lr)
        terms = finished(shares, metrics, place=place)
        with held_interrupts(after_returning):
            for learner, norm in norms.items():
                learner.update(norm)
            if self._average is not None and self._learners[0] in norms:
                self._average.follow()
            self._updates += 1
        return terms

    def _old_logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """The policy's log-probs as it is now, ``[n, T]`` a micro-batch, on its device."""
        wanted = "old_logprobs"
        return [annotated(self._models, None, batch, [wanted])[wanted] for batch in batches]


def _check_same_parameters(saved: Sequence[Mapping[str, Any]], learners: Sequence[Learner]) -> None:
    given = [{n: tuple(t.shape) for n, t in s["parameters"].items()} for s in saved]
    here = [{n: tuple(t.shape) for n, t in x.parameters.items()} for x in learners]
    if given != here:
        raise StepError(
            f"load_state: the state has {[len(g) for g in given]} trained tensors (policy, "
            f"critic), this trainer {[len(h) for h in here]}, or names or shapes differ. Load it "
            "into a trainer of the same model, adapter and critic."
        )
