"""Low-rank adapters (PEFT) on a model, each of their targets found first.

May import ``config`` and ``errors``.
"""

import re

import torch
from torch import nn
from transformers import PreTrainedModel

from nbrl.config import Lora
from nbrl.errors import ConfigError


def with_lora(module: PreTrainedModel, lora: Lora, task: str, seed: int) -> nn.Module:
    """The model with an adapter that is trained in place of its weights.

    Args:
        module: Changed in place.
        lora: What to train.
        task: PEFT's name for what the model does.
        seed: Of the adapter's first weights.

    Raises:
        ConfigError: A target that the model does not have, or that can carry no adapter; a rank
            that none of its matrices has.
    """
    _check_targets(module, lora)
    _check_rank(module, lora)
    # Only those who use an adapter pay for the import.
    from peft import LoraConfig, get_peft_model

    targets = lora.target_modules
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] -- peft's annotation is int, floats work
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type=task,
    )
    try:
        # The first weights are drawn from the global generator, which stays where it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return get_peft_model(module, config)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"Lora.target_modules {targets!r} cannot be put on the model: {error}"
        ) from error


def _check_targets(module: PreTrainedModel, lora: Lora) -> None:
    """Raise where a target is no module of the model: PEFT passes over such ones in silence."""
    if lora.target_modules == "all-linear":
        return
    names = [name for name, _ in module.named_modules() if name]
    missing = _missing(lora.target_modules, names)
    if missing:
        linear = {
            n.rpartition(".")[2] for n, m in module.named_modules() if isinstance(m, nn.Linear)
        }
        raise ConfigError(
            f"Lora.target_modules: the model has no module {', '.join(map(repr, missing))}; its "
            f"linear ones are {', '.join(sorted(linear))}. Name some of these, or 'all-linear'."
        )


def _check_rank(module: PreTrainedModel, lora: Lora) -> None:
    """Raise where no matrix of the model has so high a rank: a slip, not a setting."""
    matrices = [p for p in module.parameters() if p.ndim == 2]
    highest = max((min(p.shape) for p in matrices), default=0)
    if lora.rank > highest:
        raise ConfigError(
            f"Lora.rank={lora.rank} exceeds the rank of every matrix of the model, at most "
            f"{highest}. Pass a rank below that; 8 to 64 are usual."
        )


def _missing(targets: str | tuple[str, ...], names: list[str]) -> list[str]:
    """The targets that are no module: of a pattern, that it matches none."""
    if not isinstance(targets, str):
        return [t for t in targets if not any(f".{n}".endswith(f".{t}") for n in names)]
    try:
        pattern = re.compile(targets)
    except re.error as error:
        raise ConfigError(
            f"Lora.target_modules {targets!r} is no regular expression: {error}."
        ) from error
    return [] if any(map(pattern.fullmatch, names)) else [targets]
