"""The optimizer and the learning-rate schedule of one module; imports torch and transformers.

May import ``config`` and ``errors``. Parameters narrower than float32 are updated through float32
masters: a step of 1e-6 would vanish in a bfloat16 weight.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import get_scheduler

from nbrl.backends.trainers.requests import check_room
from nbrl.config import Optimizer


class Learner:
    """What changes the trainable parameters of a module, and all that it must remember."""

    def __init__(self, module: nn.Module, settings: Optimizer) -> None:
        """Take the parameters that require gradients; moments are allocated when first needed."""
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.masters = {
            n: p if p.dtype == torch.float32 else p.detach().float()
            for n, p in self.parameters.items()
        }
        self._narrow = [n for n, p in self.parameters.items() if p.dtype != torch.float32]
        self._max_norm, self._total_steps = settings.max_grad_norm, settings.total_steps
        self._peak = settings.lr
        self._optimizer = make_optimizer(list(self.masters.values()), settings)
        self._has_moments = settings.kind == "adamw"
        self._schedule = schedule(self._optimizer, settings)

    def _set_lr(self, lr: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self._optimizer.param_groups[0]["lr"]

    @property
    def updates(self) -> int:
        """How many were taken."""
        return self._schedule.last_epoch

    def check_room(self, updates: int) -> None:
        """Raise where so many more updates lie beyond the schedule's end.

        Raises:
            StepError: They do.
        """
        check_room(updates, taken=self.updates, total=self._total_steps)

    def collect(self) -> None:
        """Add the gradients of narrow parameters to those of their masters, in float32."""
        for name in self._narrow:
            parameter, master = self.parameters[name], self.masters[name]
            if parameter.grad is not None:
                wide = parameter.grad.float()
                master.grad = wide if master.grad is None else master.grad.add_(wide)
                parameter.grad = None

    def drop_gradients(self) -> None:
        """Forget all gradients."""
        for tensor in (*self.parameters.values(), *self.masters.values()):
            tensor.grad = None

    def gradients(self) -> list[Tensor]:
        """The gradients there are."""
        return [m.grad for m in self.masters.values() if m.grad is not None]

    def update(self, norm: float) -> None:
        """Clip gradients of this norm, step, go on along the schedule, and drop the gradients."""
        if self._max_norm is not None and norm > self._max_norm:
            total = torch.tensor(norm)
            torch.nn.utils.clip_grads_with_norm_(self.masters.values(), self._max_norm, total)
        self._optimizer.step()
        for name in self._narrow:
            self.parameters[name].detach().copy_(self.masters[name])
        self._schedule.step()
        self.drop_gradients()

    def allocate(self) -> None:
        """Make the moments, zero before the first update, so that an update allocates nothing."""
        for master in self.masters.values():
            if self._has_moments and master not in self._optimizer.state:
                self._optimizer.state[master] = {
                    # beside its parameter, as the fused kernel wants it
                    "step": torch.zeros((), dtype=torch.float32, device=master.device),
                    "exp_avg": torch.zeros_like(master, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(master, memory_format=torch.preserve_format),
                }

    def state(self) -> dict[str, Any]:
        """A copy of parameters, masters, moments and schedule."""
        self.allocate()
        return {
            "parameters": {n: p.detach().clone() for n, p in self.parameters.items()},
            "masters": {n: self.masters[n].clone() for n in self._narrow},
            "moments": {
                n: {key: t.clone() for key, t in self._optimizer.state[m].items()}
                for n, m in self.masters.items()
            },
            "lr": self.lr,
            "schedule": dict(self._schedule.state_dict()),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state` described; gradients are dropped.

        Raises:
            KeyError: The state is that of other parameters.
        """
        self.allocate()
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state["parameters"][name])
                for key, tensor in self._optimizer.state[self.masters[name]].items():
                    tensor.copy_(state["moments"][name][key])
            for name in self._narrow:
                self.masters[name].copy_(state["masters"][name])
        self._set_lr(state["lr"])
        self._schedule.load_state_dict(dict(state["schedule"]))
        self.drop_gradients()

    def follow_own_schedule(self) -> None:
        """Take the learning rate from the settings, at the step that was come to."""
        factor, *_ = self._schedule.lr_lambdas
        self._schedule.base_lrs = [self._peak for _ in self._optimizer.param_groups]
        self._set_lr(self._peak * factor(self._schedule.last_epoch))

    def feed(self, digest: "hashlib._Hash") -> None:
        """Add all of :meth:`state` to a digest, without copying it."""
        self.allocate()
        for name, master in self.masters.items():
            digest.update(name.encode())
            for tensor in (self.parameters[name], master, *self._optimizer.state[master].values()):
                flat = tensor.detach().cpu().contiguous().flatten()
                digest.update(flat.view(torch.uint8).numpy().data)
        digest.update(repr((self.lr, self._schedule.last_epoch)).encode())


def _groups(masters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay, and what has one axis (biases, norms) without it.

    Decay pulls towards 0, where the scale of a norm would switch its layer off.
    """
    listed = list(masters)
    if weight_decay == 0:
        return [{"params": listed, "weight_decay": 0.0}]
    parts = ([x for x in listed if x.ndim > 1], [x for x in listed if x.ndim <= 1])
    decays = (weight_decay, 0.0)
    both = zip(parts, decays, strict=True)
    return [{"params": part, "weight_decay": decay} for part, decay in both if part]


def make_optimizer(parameters: Sequence[Tensor], settings: Optimizer) -> torch.optim.Optimizer:
    """AdamW or plain SGD on these parameters."""
    groups = _groups(parameters, settings.weight_decay)
    if settings.kind == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr)
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def schedule(
    optimizer: torch.optim.Optimizer, settings: Optimizer
) -> torch.optim.lr_scheduler.LambdaLR:
    """The schedule by transformers' name; one step of it is one optimizer step.

    Warm-up is linear from 0: of ``warmup_steps=4`` the first five updates have 0, 1/4, 1/2, 3/4
    and all of the peak. ``min_lr_ratio`` is the last learning rate over the peak.
    """
    ratio = settings.min_lr_ratio
    made = get_scheduler(
        settings.schedule,
        optimizer,
        num_warmup_steps=settings.warmup_steps,
        num_training_steps=settings.total_steps,
        scheduler_specific_kwargs={} if ratio is None else {"min_lr_rate": ratio},
    )
    assert isinstance(made, torch.optim.lr_scheduler.LambdaLR)
    return made
