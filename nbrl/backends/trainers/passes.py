"""Forward passes of policy, critic and reference, each in the mode it needs.

May import ``forward``, ``models``, ``quantising``, ``protocols``, ``errors``, torch and
transformers.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from nbrl.backends import forward
from nbrl.backends.models import ValueModel
from nbrl.backends.quantising import plain_weight
from nbrl.backends.trainers.devices import random_devices
from nbrl.errors import ConfigError, StepError
from nbrl.protocols import MicroBatch

POLICY_COLUMNS = ("old_logprobs", "entropy")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Models:
    """The modules that are trained, and those inside them that know a training mode.

    ``checkpointed`` are the layers that compute their activations again in the backward pass,
    ``dropouts`` those of a LoRA adapter. ``adapted`` says whether the policy carries one. Where
    ``scores`` is True, the policy is a :class:`~nbrl.backends.models.ValueModel`: a reward model.
    ``teacher`` is there where an objective learns from one. With ``packed`` every pass lays rows
    end to end.
    """

    policy: nn.Module
    critic: nn.Module | None
    adapted: bool
    checkpointed: tuple[nn.Module, ...]
    dropouts: tuple[nn.Module, ...]
    scores: bool = False
    teacher: nn.Module | None = None
    packed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Said:
    """What the models say of a micro-batch, each ``[n, T]``; ``values`` is None without a critic.

    Gradients flow through ``logprobs`` and, where they were asked for, ``entropy`` and ``values``.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None


def gather_models(
    policy: nn.Module,
    critic: nn.Module | None,
    *,
    gradient_checkpointing: bool,
    packed: bool = False,
) -> Models:
    """The modules in evaluation mode, with checkpointing switched on where it is wanted.

    Raises:
        ConfigError: Checkpointing is wanted, and no layer supports it.
    """
    checkpointed: list[nn.Module] = []
    for module in (m for m in (policy, critic) if m is not None):
        module.eval()
        if gradient_checkpointing:
            for submodule in module.modules():
                if isinstance(submodule, GradientCheckpointingLayer):
                    checkpointed.append(submodule)
            owner = cast(Any, module.backbone if isinstance(module, ValueModel) else module)
            owner.gradient_checkpointing_enable({"use_reentrant": False})
    if gradient_checkpointing and not checkpointed:
        raise ConfigError(
            f"gradient_checkpointing=True: {type(policy).__name__} has no layers that support it. "
            "Pass gradient_checkpointing=False."
        )
    named = policy.named_modules()
    return Models(
        policy=policy,
        critic=critic,
        adapted=any("lora_" in name for name, _ in policy.named_parameters()),
        checkpointed=tuple(checkpointed),
        dropouts=tuple(m for name, m in named if "lora_dropout" in name.split(".")),
        scores=isinstance(policy, ValueModel),
        packed=packed,
    )


def check_head(models: Models, head: str, asked: str) -> None:
    """Raise where an objective or a column is for another kind of model.

    Raises:
        StepError: It is; says which one, and how to get it.
    """
    if models.scores != (head == "reward"):
        kinds = {"lm": "a language model", "reward": "a reward model"}
        here = kinds["reward" if models.scores else "lm"]
        raise StepError(
            f"{asked} is for {kinds[head]}; this trainer holds {here}. Connect with "
            f"model=Model(..., head={head!r})."
        )


@contextmanager
def training(models: Models, *, dropout_seed: int | None) -> Iterator[None]:
    """Checkpointing is on for the block; the adapter's dropout too, where a seed is given.

    Only these modules are switched: the checkpoint's own dropout stays off. The global random
    state is as before afterwards.
    """
    switched = models.checkpointed
    with ExitStack() as stack:
        if dropout_seed is not None and models.dropouts:
            drawing = random_devices([models.policy])
            stack.enter_context(torch.random.fork_rng(devices=drawing))
            torch.manual_seed(dropout_seed)
            switched += models.dropouts
        try:
            for module in switched:
                module.training = True
            yield
        finally:
            for module in switched:
                module.training = False


@contextmanager
def standing_still(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """These parameters ask for no gradient in the block; all of them ask for one elsewhere."""
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def say(
    models: Models, batch: MicroBatch, *, entropy_gradient: bool, critic_gradient: bool
) -> Said:
    """Log-probs with gradient, entropy, and values where both critic and batch have them."""
    log_softmax = forward.response_log_softmax(models.policy, batch, packed=models.packed)
    with torch.set_grad_enabled(entropy_gradient):
        entropy = forward.entropy(log_softmax)
    values = None
    if models.critic is not None and {"values", "returns"} <= batch.columns.keys():
        with torch.set_grad_enabled(critic_gradient):
            values = forward.response_values(models.critic, batch, packed=models.packed)
    return Said(logprobs=forward.pick(log_softmax, batch), entropy=entropy, values=values)


def annotated(
    models: Models, reference: nn.Module | None, batch: MicroBatch, wanted: Sequence[str]
) -> dict[str, Tensor]:
    """The token columns asked for; one pass a model, and no model is asked in vain.

    Args:
        models: Policy and critic.
        reference: The reference policy; None is the policy without its adapter.
        batch: The micro-batch.
        wanted: Of ``old_logprobs, entropy, ref_logprobs, values``.
    """
    found: dict[str, Tensor] = {}
    # Not inference mode: ZeRO keeps what a pass has gathered for the next backward pass.
    with torch.no_grad():
        if any(name in POLICY_COLUMNS for name in wanted):
            log_softmax = forward.response_log_softmax(models.policy, batch, packed=models.packed)
            found["old_logprobs"] = forward.pick(log_softmax, batch)
            if "entropy" in wanted:
                found["entropy"] = forward.entropy(log_softmax)
        if "ref_logprobs" in wanted:
            found["ref_logprobs"] = _reference_logprobs(models, reference, batch)
        if "values" in wanted:
            assert models.critic is not None
            found["values"] = forward.response_values(models.critic, batch, packed=models.packed)
    return {name: found[name] for name in wanted}


def merged_weights(adapted: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of PEFT's model with the adapter added, by their names in the checkpoint.

    Sums are in float32 whatever the dtype of the model: an update that bfloat16 cannot hold beside
    a weight would be lost. Weights held in 4 bits come as the numbers that they stand for. Of a
    reward model the adapter is the backbone's.
    """
    if isinstance(adapted, ValueModel):
        backbone = merged_weights(adapted.backbone)
        yield from ((f"backbone.{name}", weight) for name, weight in backbone)
        yield "head.weight", adapted.head.weight.detach()
        return
    # Only those who use an adapter pay for the import.
    from peft.tuners.lora import LoraLayer

    base = cast(Any, adapted).get_base_model()
    layers = {name: m for name, m in base.named_modules() if isinstance(m, LoraLayer)}
    for name, parameter in base.named_parameters():
        if "lora_" in name:
            continue
        layer, _, leaf = name.partition(".base_layer.")
        weight = plain_weight(parameter)
        if leaf == "weight":
            with torch.no_grad():
                weight = weight.float() + cast(Any, layers[layer]).get_delta_weight("default")
        yield name.replace(".base_layer.", "."), weight


def resident(models: Models, reference: nn.Module | None) -> dict[str, object]:
    """Device, dtype, parameters of the policy, and the bytes of all models."""
    parameters = list(models.policy.parameters())
    held = [m for m in (models.policy, models.critic, reference) if m is not None]
    return {
        "device": str(parameters[0].device),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "critic": models.critic is not None,
        "reference": reference is not None,
        "bytes": sum(p.numel() * p.element_size() for m in held for p in m.parameters()),
    }


def _reference_logprobs(models: Models, reference: nn.Module | None, batch: MicroBatch) -> Tensor:
    if reference is not None:
        return forward.response_logprobs(reference, batch, packed=models.packed)
    with cast(Any, models.policy).disable_adapter():
        return forward.response_logprobs(models.policy, batch, packed=models.packed)
