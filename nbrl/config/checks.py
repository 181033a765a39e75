"""The rules of the settings: what cannot work, and what would have no effect, in words.

May import ``settings``, ``functional`` and ``errors``. A verb calls :func:`check_config` before it
starts work, so that all problems of a request come in one message.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from nbrl.config.objective_checks import OBJECTIVE_CHECKS
from nbrl.config.rules import among as _among
from nbrl.config.rules import bounded as _bounded
from nbrl.config.rules import is_number as _is_number
from nbrl.config.rules import whole as _whole
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
from nbrl.errors import all_problems
from nbrl.functional.logprobs import KL_KINDS
from nbrl.functional.losses import SURROGATES
from nbrl.functional.off_policy import CORRECTIONS
from nbrl.functional.reductions import AGGREGATIONS

SCHEDULES = (
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_min_lr",
    "inverse_sqrt",
)
DTYPES = ("float32", "bfloat16")
HEADS = ("lm", "reward")
ENGINES = ("hf",)
TRAINERS = ("local",)

Check = Callable[[Any], Iterator[str]]


def _nested(name: str, value: object, kind: type, *, optional: bool = True) -> Iterator[str]:
    """The problems of settings inside settings, or that they are of another kind."""
    if isinstance(value, kind):
        yield from CHECKS[kind](value)
    elif value is not None or not optional:
        yield from kind_problems({name: (value, kind)})


def _interval(name: str, value: Any) -> Iterator[str]:
    """A problem where something is not a pair (low, high) of numbers with low < high."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    if value is not None and not (pair and all(map(_is_number, value)) and value[0] < value[1]):
        yield f"{name} must be (low, high) with low < high; got {value!r}"


def _sampling(c: Sampling) -> Iterator[str]:
    yield from _bounded("Sampling.temperature", c.temperature, 0.0)
    yield from _bounded("Sampling.top_p", c.top_p, 0.0, 1.0, open_low=True)
    yield from _whole("Sampling.top_k", c.top_k, 0)
    if c.max_new_tokens is not None:
        yield from _whole("Sampling.max_new_tokens", c.max_new_tokens, 1)
    yield from _whole("Sampling.seed", c.seed, 0)
    listed = isinstance(c.stop, tuple | list)
    if not listed or any(not isinstance(s, str) or not s for s in c.stop):
        yield f"Sampling.stop must be a tuple of non-empty strings; got {c.stop!r}"
    if c.temperature == 0 and is_changed(c, "top_p", "top_k"):
        yield "Sampling.top_p and top_k have no effect with temperature=0 (greedy); drop them"


def _kl(c: KL) -> Iterator[str]:
    yield from _bounded("KL.coef", c.coef, 0.0)
    yield from _among("KL.kind", c.kind, KL_KINDS)
    if c.clamp is not None:
        yield from _bounded("KL.clamp", c.clamp, 0.0, open_low=True)


def _shaping(c: Shaping) -> Iterator[str]:
    yield from _interval("Shaping.reward_range", c.reward_range)
    yield from _interval("Shaping.reward_clip", c.reward_clip)
    if c.overlong_buffer is not None:
        yield from _whole("Shaping.overlong_buffer", c.overlong_buffer, 1)
    yield from _bounded("Shaping.overlong_penalty", c.overlong_penalty, 0.0, open_low=True)
    if c.stop_properly is not None:
        yield from _bounded("Shaping.stop_properly", c.stop_properly, high=1.0)
    if c.overlong_buffer is None and is_changed(c, "overlong_penalty"):
        yield "Shaping.overlong_penalty has no effect without overlong_buffer; pass both"


def _policy_loss(c: PolicyLoss) -> Iterator[str]:
    yield from _among("PolicyLoss.surrogate", c.surrogate, SURROGATES)
    yield from _bounded("PolicyLoss.eps_low", c.eps_low, 0.0, open_low=True)
    yield from _bounded("PolicyLoss.eps_high", c.eps_high, 0.0, open_low=True)
    if c.dual_clip is not None:
        yield from _bounded("PolicyLoss.dual_clip", c.dual_clip, 1.0, open_low=True)
    yield from _among("PolicyLoss.aggregation", c.aggregation, AGGREGATIONS)
    if c.norm_length is not None:
        yield from _whole("PolicyLoss.norm_length", c.norm_length, 1)
    yield from _bounded("PolicyLoss.entropy_coef", c.entropy_coef)
    yield from _bounded("PolicyLoss.value_coef", c.value_coef, 0.0)
    yield from _bounded("PolicyLoss.value_clip", c.value_clip, 0.0, open_low=True)
    if c.norm_length is not None and c.aggregation != "seq-mean-token-sum-norm":
        yield f"PolicyLoss.norm_length has no effect with aggregation={c.aggregation!r}; drop it"
    row = SURROGATES.get(c.surrogate)
    if row is not None and c.dual_clip is not None and not row.uses_dual_clip:
        yield f"PolicyLoss.dual_clip has no effect with surrogate={c.surrogate!r}; drop it"
    if row is not None and is_changed(c, "eps_low", "eps_high") and not row.uses_eps:
        yield f"PolicyLoss.eps_low/high have no effect with surrogate={c.surrogate!r}; drop them"
    if c.correction is None:
        if is_changed(c, "correction_low", "correction_high"):
            yield "PolicyLoss.correction_low/high have no effect without correction; name one"
    else:
        yield from _among("PolicyLoss.correction", c.correction, CORRECTIONS)
        yield from _interval(
            "PolicyLoss.(correction_low, correction_high)", (c.correction_low, c.correction_high)
        )
    if c.kl is not None:
        yield from _kl(c.kl)


def _optimizer(c: Optimizer) -> Iterator[str]:
    yield from _bounded("Optimizer.lr", c.lr, 0.0)
    yield from _bounded("Optimizer.eps", c.eps, 0.0, open_low=True)
    yield from _bounded("Optimizer.weight_decay", c.weight_decay, 0.0)
    if c.max_grad_norm is not None:
        yield from _bounded("Optimizer.max_grad_norm", c.max_grad_norm, 0.0, open_low=True)
    yield from _among("Optimizer.schedule", c.schedule, SCHEDULES)
    yield from _whole("Optimizer.warmup_steps", c.warmup_steps, 0)
    if c.total_steps is not None:
        yield from _whole("Optimizer.total_steps", c.total_steps, 1)
    if not (isinstance(c.betas, tuple | list) and len(c.betas) == 2):
        yield f"Optimizer.betas must be two numbers; got {c.betas!r}"
        return
    for beta in c.betas:
        yield from _bounded("Optimizer.betas", beta, 0.0, 1.0)
    ends = c.schedule in ("linear", "cosine", "cosine_with_min_lr")
    if ends and c.total_steps is None:
        yield f"Optimizer.schedule={c.schedule!r} needs total_steps; pass it"
    if not ends and c.total_steps is not None:
        yield f"Optimizer.total_steps has no effect with schedule={c.schedule!r}; drop it"
    if c.warmup_steps and c.schedule == "constant":
        yield (
            "Optimizer.warmup_steps has no effect with schedule='constant'; "
            "use 'constant_with_warmup'"
        )
    if (c.min_lr_ratio is not None) != (c.schedule == "cosine_with_min_lr"):
        yield (
            "Optimizer.min_lr_ratio belongs to schedule='cosine_with_min_lr'; pass both or neither"
        )


def _critic(c: Critic) -> Iterator[str]:
    yield from _nested("Critic.optimizer", c.optimizer, Optimizer, optional=False)


def _trainer(c: Trainer) -> Iterator[str]:
    yield from _among("Trainer.kind", c.kind, TRAINERS)
    yield from _whole("Trainer.micro_batch_tokens", c.micro_batch_tokens, 1)
    yield from _nested("Trainer.optimizer", c.optimizer, Optimizer, optional=False)
    yield from _nested("Trainer.critic", c.critic, Critic)


def _engine(c: Engine) -> Iterator[str]:
    yield from _among("Engine.kind", c.kind, ENGINES)
    yield from _whole("Engine.max_batch", c.max_batch, 1)


def _lora(c: Lora) -> Iterator[str]:
    yield from _whole("Lora.rank", c.rank, 1)
    yield from _bounded("Lora.alpha", c.alpha, 0.0, open_low=True)
    yield from _bounded("Lora.dropout", c.dropout, 0.0, 1.0)


def _model(c: Model) -> Iterator[str]:
    yield from _among("Model.dtype", c.dtype, DTYPES)
    yield from _among("Model.head", c.head, HEADS)
    if not c.path:
        yield "Model.path is empty; pass 'tiny', a folder, or a name on the hub"
    yield from _nested("Model.lora", c.lora, Lora)


def _recipe(c: Recipe) -> Iterator[str]:
    for name in ("prompts", "n", "minibatches", "epochs"):
        yield from _whole(f"Recipe.{name}", getattr(c, name), 1)
    yield from _nested("Recipe.sampling", c.sampling, Sampling, optional=False)
    yield from _nested("Recipe.loss", c.loss, PolicyLoss, optional=False)
    yield from _nested("Recipe.kl", c.kl, KL)
    yield from _nested("Recipe.shaping", c.shaping, Shaping)
    if isinstance(c.loss, PolicyLoss) and isinstance(c.kl, KL):
        yield from kl_problems(c.kl, c.loss)


def kl_problems(in_reward: KL | None, loss: PolicyLoss) -> Iterator[str]:
    """A problem where the KL penalty is asked for twice."""
    if wants_reference(in_reward) and wants_reference(loss.kl):
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
    Model: _model,
    Recipe: _recipe,
    **OBJECTIVE_CHECKS,
}


def kind_problems(given: Mapping[str, tuple[object, Any]]) -> Iterator[str]:
    """A problem for each argument that is not of the kind that its name takes.

    Args:
        given: By the argument's name, what was given and what it must be.
    """
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            yield f"{name} must be {_article(kind)}; got {type(value).__name__} {value!r:.80}"


def whole_problems(given: Mapping[str, tuple[object, int]]) -> Iterator[str]:
    """A problem for each argument that is not a whole number from its lower bound up."""
    for name, (value, low) in given.items():
        yield from _whole(name, value, low)


def _article(kind: Any) -> str:
    """What a type, or a union of some, is called in a message."""
    kinds = get_args(kind) or (kind,)
    return " or ".join(
        f"nbrl.{k.__name__}" if k.__module__.startswith("nbrl.") else f"a {k.__name__}"
        for k in kinds
    )


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
            problems.append(f"{component!r:.80} is not one of the settings {known}")
    problems.extend(extra)
    if problems:
        raise all_problems(asked, problems)
