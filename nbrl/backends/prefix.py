"""Prompts that several rows of a micro-batch share go through the model once, gradients included.

May import ``protocols``, torch and transformers. The rows of a group differ in their answers only,
so the keys and values of all prompt tokens but the last are computed once a prompt and handed to
its rows. Logits and gradients are those of the plain pass up to rounding.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from nbrl.protocols import MicroBatch

WORTH_TOKENS = 512
"""Prompt tokens that sharing must save: one more pass through the layers costs about as much."""
LAYER_TYPES = ("full_attention", "sliding_attention")


def shared_inputs(module: nn.Module, batch: MicroBatch) -> dict[str, Any] | None:
    """What to call the module with, after the shared prompts went through it; ``None`` if in vain.

    The call gives logits ``[n, T, V]`` with ``logits_to_keep=T``: it feeds the last prompt token
    and all response tokens but the last. It is in vain where too few rows share a prompt, and
    not possible under gradient checkpointing, which drops caches, or with layers that keep
    something else than keys and values.
    """
    left, width = batch.prompt_width - 1, batch.mask.shape[1]
    if len(batch.rows) * left <= WORTH_TOKENS or not _keeps_keys(module):
        return None
    present = batch.attention_mask[:, :left]
    marked = torch.where(present, batch.input_ids[:, :left], -1)
    prompts, of = marked.unique(dim=0, return_inverse=True)
    if (len(of) - len(prompts)) * left <= WORTH_TOKENS:
        return None
    cache = _prefilled(module, prompts)
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(0, of)
        layer.values = layer.values.index_select(0, of)
    inputs = {
        "input_ids": batch.input_ids[:, left:-1],
        "past_key_values": cache,
        "use_cache": True,
        "position_ids": present.sum(1, keepdim=True) + torch.arange(width, device=present.device),
    }
    if not bool(present.all()):
        inputs["attention_mask"] = batch.attention_mask[:, :-1].long()
    return inputs


def _prefilled(module: nn.Module, prompts: Tensor) -> Any:
    """The cache of these prompts, ids ``[P, L]`` with -1 in front of the shorter ones."""
    cache = DynamicCache()
    present = prompts >= 0
    inputs: dict[str, Any] = {"input_ids": prompts.clamp(min=0)}
    if not bool(present.all()):
        inputs["attention_mask"] = present.long()
        inputs["position_ids"] = (present.cumsum(1) - 1).clamp(min=0)
    module(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def _keeps_keys(module: Any) -> bool:
    """Whether every layer caches keys and values, and does so now."""
    kinds = module.config.get_text_config().to_dict().get("layer_types") or ()
    return set(kinds) <= set(LAYER_TYPES) and not module.is_gradient_checkpointing
