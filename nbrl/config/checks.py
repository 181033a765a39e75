"""The rules of the settings: what cannot work, and what would have no effect, in words.

May import its neighbours, ``functional``, ``rules`` and ``errors``. A verb calls
:func:`check_config` before it starts work, so that all problems of a request come in one message.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nbrl.config.agents import Agent, agent_problems
from nbrl.config.objective_checks import OBJECTIVE_CHECKS
from nbrl.config.overlap import Overlap, overlap_problems
from nbrl.config.placement import Placement, placement_checks
from nbrl.config.settings import (
    KL,
    Critic,
    Engine,
    Lora,
    Model,
    Optimizer,
    PolicyLoss,
    Recipe,
    Sampling,
    Shaping,
    Trainer,
    is_changed,
    wants_reference,
)
from nbrl.config.storing import Store, store_problems
from nbrl.errors import all_problems
from nbrl.functional.logprobs import KL_KINDS
from nbrl.functional.losses import SURROGATES
from nbrl.functional.off_policy import CORRECTIONS
from nbrl.functional.reductions import AGGREGATIONS
from nbrl.rules import (
    among,
    bounded,
    flag,
    interval,
    is_among,
    is_number,
    is_whole,
    kind_problems,
    shown,
    text,
    whole,
)

SCHEDULES = (
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_min_lr",
    "inverse_sqrt",
)
ENDING_SCHEDULES = ("linear", "cosine", "cosine_with_min_lr")
"""Those whose learning rate falls until ``total_steps``."""
OPTIMIZERS = ("adamw", "sgd")
BASE_BITS = (4,)
DTYPES = ("float32", "bfloat16")
DEVICES = re.compile(r"cpu|cuda(:\d+)?")
HEADS = ("lm", "reward")
ENGINES = ("hf", "vllm")
VLLM_ONLY = (
    "tensor_parallel",
    "gpu_memory_utilization",
    "max_model_len",
    "enable_prefix_caching",
    "enforce_eager",
    "dtype",
    "sleep",
)
TRAINERS = ("local", "deepspeed")
ZERO_STAGES = (0, 1, 2, 3)
LOCAL_ONLY = {
    "critic": "trains no critic",
    "ema_decay": "keeps no average",
    "packed": "pads its rows",
}
"""The fields of ``Trainer`` that ranks do not take, and why."""

Check = Callable[[Any], Iterator[str]]


def _nested(name: str, value: object, kind: type, *, optional: bool = True) -> Iterator[str]:
    """The problems of settings inside settings, or that they are of another kind."""
    if isinstance(value, kind):
        yield from CHECKS[kind](value)
    elif value is not None or not optional:
        yield from kind_problems({name: (value, kind)})


def _sampling(c: Sampling) -> Iterator[str]:
    yield from bounded("Sampling.temperature", c.temperature, 0.0)
    yield from bounded("Sampling.top_p", c.top_p, 0.0, 1.0, open_low=True)
    yield from whole("Sampling.top_k", c.top_k, 0)
    if c.max_new_tokens is not None:
        yield from whole("Sampling.max_new_tokens", c.max_new_tokens, 1)
    yield from whole("Sampling.seed", c.seed, 0)
    listed = isinstance(c.stop, tuple | list)
    if not listed or any(not isinstance(s, str) or not s for s in c.stop):
        yield f"Sampling.stop must be a tuple of non-empty strings; got {shown(c.stop)}"
    if is_number(c.temperature) and c.temperature == 0 and is_changed(c, "top_p", "top_k"):
        yield "Sampling.top_p and top_k have no effect with temperature=0 (greedy); drop them"


def _kl(c: KL) -> Iterator[str]:
    yield from bounded("KL.coef", c.coef, 0.0)
    yield from among("KL.kind", c.kind, KL_KINDS)
    if c.clamp is not None:
        yield from bounded("KL.clamp", c.clamp, 0.0, open_low=True)
    yield from flag("KL.unbiased_gradient", c.unbiased_gradient)


def _shaping(c: Shaping) -> Iterator[str]:
    yield from interval("Shaping.reward_range", c.reward_range)
    yield from interval("Shaping.reward_clip", c.reward_clip)
    if c.overlong_buffer is not None:
        yield from whole("Shaping.overlong_buffer", c.overlong_buffer, 1)
    yield from bounded("Shaping.overlong_penalty", c.overlong_penalty, 0.0, open_low=True)
    if c.stop_properly is not None:
        yield from bounded("Shaping.stop_properly", c.stop_properly, high=1.0)
    if c.overlong_buffer is None and is_changed(c, "overlong_penalty"):
        yield "Shaping.overlong_penalty has no effect without overlong_buffer; pass both"


def _policy_loss(c: PolicyLoss) -> Iterator[str]:
    yield from among("PolicyLoss.surrogate", c.surrogate, SURROGATES)
    yield from bounded("PolicyLoss.eps_low", c.eps_low, 0.0, open_low=True)
    yield from bounded("PolicyLoss.eps_high", c.eps_high, 0.0, open_low=True)
    if c.dual_clip is not None:
        yield from bounded("PolicyLoss.dual_clip", c.dual_clip, 1.0, open_low=True)
    yield from among("PolicyLoss.aggregation", c.aggregation, AGGREGATIONS)
    if c.norm_length is not None:
        yield from whole("PolicyLoss.norm_length", c.norm_length, 1)
    yield from bounded("PolicyLoss.entropy_coef", c.entropy_coef)
    yield from bounded("PolicyLoss.value_coef", c.value_coef, 0.0)
    yield from bounded("PolicyLoss.value_clip", c.value_clip, 0.0, open_low=True)
    if c.norm_length is not None and c.aggregation != "seq-mean-token-sum-norm":
        yield f"PolicyLoss.norm_length has no effect with aggregation={c.aggregation!r}; drop it"
    row = SURROGATES[c.surrogate] if is_among(c.surrogate, SURROGATES) else None
    if row is not None and c.dual_clip is not None and not row.uses_dual_clip:
        yield f"PolicyLoss.dual_clip has no effect with surrogate={c.surrogate!r}; drop it"
    if row is not None and is_changed(c, "eps_low", "eps_high") and not row.uses_eps:
        yield f"PolicyLoss.eps_low/high have no effect with surrogate={c.surrogate!r}; drop them"
    yield from _correction(c)
    yield from _nested("PolicyLoss.kl", c.kl, KL)


def _correction(c: PolicyLoss) -> Iterator[str]:
    if c.correction is not None:
        yield from among("PolicyLoss.correction", c.correction, CORRECTIONS)
        bounds = (c.correction_low, c.correction_high)
        yield from interval("PolicyLoss.(correction_low, correction_high)", bounds)
    elif is_changed(c, "correction_low", "correction_high"):
        yield "PolicyLoss.correction_low/high have no effect without correction; name one"


def _optimizer(c: Optimizer) -> Iterator[str]:
    yield from among("Optimizer.kind", c.kind, OPTIMIZERS)
    if is_among(c.kind, ("sgd",)) and is_changed(c, "betas", "eps"):
        yield "Optimizer.betas and eps have no effect with kind='sgd'; drop them"
    yield from bounded("Optimizer.lr", c.lr, 0.0)
    yield from bounded("Optimizer.eps", c.eps, 0.0, open_low=True)
    yield from bounded("Optimizer.weight_decay", c.weight_decay, 0.0)
    if c.max_grad_norm is not None:
        yield from bounded("Optimizer.max_grad_norm", c.max_grad_norm, 0.0, open_low=True)
    if isinstance(c.betas, tuple | list) and len(c.betas) == 2:
        for beta in c.betas:
            # AdamW divides by 1 - beta.
            yield from bounded("Optimizer.betas", beta, 0.0, 1.0, open_high=True)
    else:
        yield f"Optimizer.betas must be two numbers; got {shown(c.betas)}"
    yield from whole("Optimizer.warmup_steps", c.warmup_steps, 0)
    if c.total_steps is not None:
        yield from whole("Optimizer.total_steps", c.total_steps, 1)
    if c.min_lr_ratio is not None:
        yield from bounded("Optimizer.min_lr_ratio", c.min_lr_ratio, 0.0, 1.0, open_high=True)
    yield from among("Optimizer.schedule", c.schedule, SCHEDULES)
    if is_among(c.schedule, SCHEDULES):
        yield from _schedule(c)


def _schedule(c: Optimizer) -> Iterator[str]:
    """What belongs to one schedule and not to another."""
    ends = c.schedule in ENDING_SCHEDULES
    if ends and c.total_steps is None:
        yield f"Optimizer.schedule={c.schedule!r} needs total_steps; pass it"
    if not ends and c.total_steps is not None:
        yield f"Optimizer.total_steps has no effect with schedule={c.schedule!r}; drop it"
    warms, total = is_whole(c.warmup_steps, 1), c.total_steps
    if warms and c.schedule == "constant":
        yield (
            "Optimizer.warmup_steps has no effect with schedule='constant'; "
            "use 'constant_with_warmup'"
        )
    if c.schedule == "constant_with_warmup" and is_whole(c.warmup_steps) and not warms:
        yield "Optimizer.schedule='constant_with_warmup' needs warmup_steps >= 1; or use 'constant'"
    if ends and warms and is_whole(total, 1) and c.warmup_steps > total:
        yield (
            f"Optimizer.warmup_steps={c.warmup_steps} is more than total_steps={total}: the peak "
            "would never be reached; warm up for fewer"
        )
    if (c.min_lr_ratio is not None) != (c.schedule == "cosine_with_min_lr"):
        yield (
            "Optimizer.min_lr_ratio belongs to schedule='cosine_with_min_lr'; pass both or neither"
        )


def _critic(c: Critic) -> Iterator[str]:
    if c.path is not None:
        yield from text("Critic.path", c.path)
    yield from whole("Critic.warmup_steps", c.warmup_steps, 0)
    yield from _nested("Critic.optimizer", c.optimizer, Optimizer, optional=False)


def _trainer(c: Trainer) -> Iterator[str]:
    yield from among("Trainer.kind", c.kind, TRAINERS)
    yield from whole("Trainer.micro_batch_tokens", c.micro_batch_tokens, 1)
    yield from flag("Trainer.gradient_checkpointing", c.gradient_checkpointing)
    yield from flag("Trainer.packed", c.packed)
    listed = isinstance(c.frozen, tuple | list)
    if not listed or any(not isinstance(p, str) or not p.strip() for p in c.frozen):
        yield f"Trainer.frozen must be a tuple of patterns of names; got {shown(c.frozen)}"
    if c.ema_decay is not None:
        decay = c.ema_decay
        yield from bounded("Trainer.ema_decay", decay, 0.0, 1.0, open_low=True, open_high=True)
    yield from _nested("Trainer.optimizer", c.optimizer, Optimizer, optional=False)
    yield from _nested("Trainer.critic", c.critic, Critic)
    yield from whole("Trainer.ranks", c.ranks, 1)
    if not is_whole(c.zero_stage) or c.zero_stage not in ZERO_STAGES:
        yield f"Trainer.zero_stage must be one of {ZERO_STAGES}; got {shown(c.zero_stage)}"
    if is_among(c.kind, ["local"]) and is_changed(c, "ranks", "zero_stage"):
        yield (
            "Trainer.ranks and zero_stage have no effect with kind='local'; drop them, or take "
            "Trainer('deepspeed', ...)"
        )
    for name, said in LOCAL_ONLY.items():
        if is_among(c.kind, ["deepspeed"]) and is_changed(c, name):
            yield f"Trainer.{name}: kind='deepspeed' {said}; drop it, or take kind='local'"


def _engine(c: Engine) -> Iterator[str]:
    yield from among("Engine.kind", c.kind, ENGINES)
    for name in ("max_batch", "count", "tensor_parallel"):
        yield from whole(f"Engine.{name}", getattr(c, name), 1)
    if c.max_model_len is not None:
        yield from whole("Engine.max_model_len", c.max_model_len, 2)
    for name in ("enable_prefix_caching", "enforce_eager", "sleep"):
        yield from flag(f"Engine.{name}", getattr(c, name))
    if c.gpu_memory_utilization is not None:
        share = c.gpu_memory_utilization
        yield from bounded("Engine.gpu_memory_utilization", share, 0.0, 1.0, open_low=True)
    if c.dtype is not None:
        yield from among("Engine.dtype", c.dtype, DTYPES)
    changed = [name for name in VLLM_ONLY if is_changed(c, name)]
    if changed and c.kind == "hf":
        yield (
            f"Engine.{', '.join(changed)}: no effect with kind='hf'; drop them, or take "
            "Engine('vllm', ...)"
        )


def _lora(c: Lora) -> Iterator[str]:
    yield from whole("Lora.rank", c.rank, 1)
    yield from bounded("Lora.alpha", c.alpha, 0.0, open_low=True)
    # Of an adapter that is dropped whole, nothing is left to train.
    yield from bounded("Lora.dropout", c.dropout, 0.0, 1.0, open_high=True)
    if c.base_bits is not None and (not is_whole(c.base_bits) or c.base_bits not in BASE_BITS):
        yield f"Lora.base_bits must be 4 or None; got {shown(c.base_bits)}"
    targets = [c.target_modules] if isinstance(c.target_modules, str) else c.target_modules
    listed = isinstance(targets, tuple | list) and len(targets) > 0
    if not listed or any(not isinstance(t, str) or not t.strip() for t in targets):
        yield (
            "Lora.target_modules must be 'all-linear', a pattern, or a tuple of modules' names; "
            f"got {shown(c.target_modules)}"
        )


def _model(c: Model) -> Iterator[str]:
    yield from among("Model.dtype", c.dtype, DTYPES)
    yield from among("Model.head", c.head, HEADS)
    if not isinstance(c.path, str) or not c.path.strip():
        yield f"Model.path must be 'tiny', a folder, or a name on the hub; got {shown(c.path)}"
    yield from text("Model.attention", c.attention)
    if c.device is not None and not (isinstance(c.device, str) and DEVICES.fullmatch(c.device)):
        yield f"Model.device must be 'cpu', 'cuda', 'cuda:<number>' or None; got {shown(c.device)}"
    for name, value in (("revision", c.revision), ("gguf_file", c.gguf_file)):
        if value is not None:
            yield from text(f"Model.{name}", value)
    yield from _nested("Model.lora", c.lora, Lora)


def _recipe(c: Recipe) -> Iterator[str]:
    counts = {"prompts": c.prompts, "n": c.n, "minibatches": c.minibatches, "epochs": c.epochs}
    for name, value in counts.items():
        yield from whole(f"Recipe.{name}", value, 1)
    yield from _nested("Recipe.sampling", c.sampling, Sampling, optional=False)
    yield from _nested("Recipe.loss", c.loss, PolicyLoss, optional=False)
    yield from _nested("Recipe.kl", c.kl, KL)
    yield from _nested("Recipe.shaping", c.shaping, Shaping)
    if isinstance(c.loss, PolicyLoss):
        yield from kl_problems(c.kl, c.loss)


def kl_problems(in_reward: KL | None, loss: PolicyLoss) -> Iterator[str]:
    """What cannot work about a KL penalty in the reward, beside that of a loss."""
    if not isinstance(in_reward, KL):
        return
    if in_reward.unbiased_gradient is True:
        yield "KL.unbiased_gradient has no effect in the reward; drop it or pass the KL to the loss"
    if isinstance(loss.kl, KL) and wants_reference(in_reward) and wants_reference(loss.kl):
        yield "KL is in the reward (kl=) and in the loss (PolicyLoss.kl); choose one"


CHECKS: Mapping[type, Check] = {
    Sampling: _sampling,
    KL: _kl,
    Shaping: _shaping,
    PolicyLoss: _policy_loss,
    Optimizer: _optimizer,
    Critic: _critic,
    Trainer: _trainer,
    Engine: _engine,
    Lora: _lora,
    Placement: placement_checks,
    Model: _model,
    Recipe: _recipe,
    Overlap: overlap_problems,
    Store: store_problems,
    Agent: agent_problems,
    **OBJECTIVE_CHECKS,
}


def check_config(asked: str, *components: object, extra: Iterable[str] = ()) -> None:
    """Raise one :class:`~nbrl.errors.ConfigError` that lists every problem of a request.

    Args:
        asked: The request in words, for the head of the message.
        components: Settings from this module; ``None`` is passed over.
        extra: Problems that only the caller can see, e.g. rules across components.
    """
    problems = []
    for component in components:
        if type(component) in CHECKS:
            problems.extend(CHECKS[type(component)](component))
        elif component is not None:
            known = ", ".join(f"nbrl.{kind.__name__}" for kind in CHECKS)
            problems.append(f"{shown(component)} is not one of the settings {known}")
    problems.extend(extra)
    if problems:
        raise all_problems(asked, problems)
