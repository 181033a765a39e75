"""The settings: one small frozen dataclass a component. May import ``rules``.

NumPy's numbers become Python's when settings are made, and a ``Path`` its text: a value that
came out of an array or a sweep works as the same value written by hand.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from nbrl.frozen import frozen
from nbrl.rules import is_number, make_plain

ESTIMATOR_ALIASES: Mapping[str, str] = {
    "reinforce": "reinforce_pp",
    "reinforce_baseline": "reinforce_pp_baseline",
    "group_norm": "grpo",
}
"""OpenRLHF's spellings of estimators, and the published names that they stand for."""


@frozen()
class Sampling:
    """How answers are drawn.

    ``temperature=0`` is greedy. Rollout log-probs are those of the full softmax at this
    temperature (at 1 when greedy), whatever ``top_p`` and ``top_k`` cut away.
    ``max_new_tokens=None`` means: up to the model's context length.
    ``seed`` salts the seed tree: another value draws other answers to the same prompts.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        make_plain(self)

    @property
    def logprob_temperature(self) -> float:
        """The temperature that divides the logits when log-probs are computed."""
        return self.temperature if self.temperature > 0 else 1.0


@frozen()
class KL:
    """A penalty on the distance to the reference policy.

    Passed to ``compute_advantages`` it is subtracted from the per-token reward; passed to
    ``PolicyLoss`` it is a term of the loss. One of the two, never both.
    ``unbiased_gradient`` keeps the value of ``kind`` but gives every kind the gradient of the
    reverse KL; it means something in the loss only.
    """

    coef: float = 0.01
    kind: str = "k1"
    clamp: float | None = 10.0
    unbiased_gradient: bool = False

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class Shaping:
    """What happens to raw rewards before and after the group baseline.

    In this order: groups whose mean raw reward is not strictly inside ``reward_range`` are
    dropped (DAPO's dynamic filtering); the overlong penalty and the stop-properly penalty
    change the reward; the group baseline is taken; the result is clipped to ``reward_clip``.
    """

    reward_range: tuple[float, float] | None = None
    overlong_buffer: int | None = None
    overlong_penalty: float = 1.0
    stop_properly: float | None = None
    reward_clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class PolicyLoss:
    """A policy loss as four independent choices: surrogate, correction, KL term, aggregation.

    ``norm_length`` is the constant divisor of ``"seq-mean-token-sum-norm"``; ``None`` takes the
    rollouts' ``max_new_tokens``. ``correction_low`` and ``correction_high`` bound the
    importance weight from sampler to trainer. ``gspo``'s paper averages over sequences: take
    ``aggregation="seq-mean-token-mean"`` with it.
    """

    surrogate: str = "ppo"
    eps_low: float = 0.2
    eps_high: float = 0.2
    dual_clip: float | None = None
    aggregation: str = "token-mean"
    norm_length: int | None = None
    correction: str | None = None
    correction_low: float = 0.5
    correction_high: float = 5.0
    kl: KL | None = None
    entropy_coef: float = 0.0
    value_coef: float = 1.0
    value_clip: float = 0.5

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class Lora:
    """A low-rank adapter (PEFT) that is trained in place of the weights.

    ``base_bits=4`` holds the linear layers under it in 4 bits (NF4 with double quantization, by
    bitsandbytes): QLoRA. The reference is then the quantised model, and ``export`` merges into its
    values.
    """

    rank: int = 16
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: str | tuple[str, ...] = "all-linear"
    base_bits: int | None = None

    def __post_init__(self) -> None:
        make_plain(self)


@frozen(kw_only=False)
class Model:
    """Where the policy comes from: ``"tiny"``, a folder, or a name on the hub.

    ``head="reward"`` puts a scalar head in the place of the language model's: a reward model, read
    from the checkpoint where it is one, else fresh. ``gguf_file`` names the file inside the folder
    for quantised checkpoints, which are loaded dequantised.

    ``device`` is ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; None is the GPU where torch sees one. The
    critic and the reference follow the policy. ``attention`` is a name of transformers, or
    ``"varlen"``: training then lays the rows of a micro-batch end to end without padding, on a GPU
    by torch's flash kernel for variable lengths (bfloat16 only), on a CPU row by row.
    """

    path: str = "tiny"
    _: KW_ONLY
    dtype: str = "float32"
    revision: str | None = None
    gguf_file: str | None = None
    device: str | None = None
    attention: str = "sdpa"
    lora: Lora | None = None
    head: str = "lm"

    def __post_init__(self) -> None:
        make_plain(self)


@frozen(kw_only=False)
class Engine:
    """What generates.

    ``"hf"`` is transformers in this process, sharing the trainer's weights; of the fields below it
    takes ``max_batch``. ``"vllm"`` holds a copy that is renewed after every step.

    ``max_batch`` is the number of samples decoded side by side. ``count`` engines of
    ``tensor_parallel`` devices each need a cluster where there is more than one.
    ``gpu_memory_utilization`` is the share of the device's memory that weights and key-value cache
    may take; None is vLLM's default on a GPU, and a cache of 1 GiB on a CPU. ``max_model_len``
    bounds prompt and answer together; None is the model's context. ``dtype=None`` is the model's.
    With ``sleep`` the engine gives its memory up while the trainer works, if it is told to.
    """

    kind: str = "hf"
    _: KW_ONLY
    max_batch: int = 512
    count: int = 1
    tensor_parallel: int = 1
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    enforce_eager: bool = True
    dtype: str | None = None
    sleep: bool = False

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class Optimizer:
    """AdamW, or plain SGD (``kind="sgd"``), and its learning-rate schedule.

    ``lr`` is the peak. ``schedule`` is one of transformers' names; those that end need
    ``total_steps``. ``warmup_steps`` rises linearly from 0. ``max_grad_norm=None`` does not clip.
    ``weight_decay`` is that of matrices; biases and norms are not pulled to 0.
    """

    lr: float = 1e-6
    kind: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    min_lr_ratio: float | None = None

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class Critic:
    """A value model: the policy's architecture with a scalar head, and its own optimizer.

    ``path=None`` starts from the policy's weights. The policy stands still for the critic's first
    ``warmup_steps`` optimizer steps.
    """

    path: str | None = None
    optimizer: Optimizer = dataclasses.field(default_factory=lambda: Optimizer(lr=9e-6))
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        make_plain(self)


@frozen(kw_only=False)
class Trainer:
    """What learns. ``"local"`` is plain torch in this process, ``"deepspeed"`` ranks of a cluster.

    ``ranks`` and ``zero_stage`` are DeepSpeed's: how many processes, and what is split over them:
    nothing (0), the optimizer's state (1), gradients too (2), parameters too (3).

    ``micro_batch_tokens`` bounds rows x width of one forward pass, or the tokens alone of packed
    rows; smaller ones accumulate gradients and give the same step. With ``packed`` the rows of a
    micro-batch go through the model as one, without padding, under a mask over pairs of tokens:
    positions begin anew in each row, and none sees another. The step is the same; what is faster
    depends on the device. ``Model(attention="varlen")`` packs without such a mask.

    ``frozen`` are patterns of names of the policy's parameters that are not trained, as
    ``"*visual*"``. With ``ema_decay`` the trainer keeps an average of the policy's weights,
    ``ema_decay * average + (1 - ema_decay) * weights`` after each optimizer step, which
    ``evaluate`` and ``export`` take with ``averaged=True``.
    """

    kind: str = "local"
    _: KW_ONLY
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    critic: Critic | None = None
    micro_batch_tokens: int = 16384
    gradient_checkpointing: bool = False
    packed: bool = False
    frozen: tuple[str, ...] = ()
    ema_decay: float | None = None
    ranks: int = 1
    zero_stage: int = 2

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class Recipe:
    """One training step of a loop, said once: what ``run`` passes to the verbs.

    ``prompts`` x ``n`` samples a step. ``rewards`` and ``combine`` are what ``score`` takes,
    ``estimator`` is a name, an ``Estimator`` or a function.
    """

    rewards: Any
    prompts: int = 32
    n: int = 8
    estimator: Any = "grpo"
    sampling: Sampling = Sampling()
    combine: Any = None
    kl: KL | None = None
    shaping: Shaping | None = None
    loss: PolicyLoss = PolicyLoss()
    minibatches: int = 1
    epochs: int = 1

    def __post_init__(self) -> None:
        make_plain(self)


def wants_reference(kl: KL | None) -> bool:
    """Whether a penalty is asked for; one with the coefficient 0 is none."""
    return kl is not None and is_number(kl.coef) and kl.coef > 0


def is_changed(component: Any, *names: str) -> bool:
    """Whether one of these fields of some settings has another value than its default."""
    plain = {f.name: f.default for f in dataclasses.fields(component)}
    return not all(_equal(getattr(component, name), plain[name]) for name in names)


def _equal(value: Any, default: Any) -> bool:
    # Of arrays, == is no answer.
    return value is default or (isinstance(value, str | int | float) and value == default)


def to_spec(component: Any) -> Any:
    """The settings as plain data that JSON can hold, for the echo that every result carries.

    Functions and classes are echoed by their name, other objects by the name of their type: their
    ``repr`` holds an address, which is another one in the next run.
    """
    if dataclasses.is_dataclass(component) and not isinstance(component, type):
        named = {f.name: getattr(component, f.name) for f in dataclasses.fields(component)}
        return {k: to_spec(v) for k, v in named.items() if k != "_"}
    if isinstance(component, Mapping):
        return {str(k): to_spec(v) for k, v in component.items()}
    if isinstance(component, list | tuple):
        return [to_spec(v) for v in component]
    if component is None or isinstance(component, bool | int | float | str):
        return component
    if isinstance(component, np.generic):
        return component.item()
    if isinstance(component, os.PathLike):
        return os.fspath(component)
    named = isinstance(component, type | FunctionType | BuiltinFunctionType)
    return component.__qualname__ if named else type(component).__qualname__
