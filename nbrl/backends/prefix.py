"""Prompts that several rows of a micro-batch share go through the model once, gradients included.

May import ``protocols``, torch and transformers. The rows of a group differ in their answers only,
so keys and values of the prompt, and the logits of the first response token, are computed once a
prompt and handed to its rows. Logits and gradients are those of the plain pass up to rounding.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from nbrl.protocols import MicroBatch

WORTH_TOKENS = 512
"""Prompt tokens that sharing must save: one more pass through the layers costs about as much."""
LAYER_TYPES = ("full_attention", "sliding_attention")
"""The layers that cache keys and values, as transformers names them."""


def shared_logits(
    module: nn.Module, batch: MicroBatch, call: Callable[[dict[str, Any]], Tensor]
) -> Tensor | None:
    """Logits ``[n, T, V]`` of the response tokens; ``None`` where sharing would be in vain.

    That is where too few rows share a prompt, under gradient checkpointing, which drops caches,
    or with layers that keep something else than keys and values.

    Args:
        module: The model.
        batch: The micro-batch.
        call: Calls the module with these inputs and gives its logits.
    """
    width = batch.prompt_width
    if len(batch.rows) * width <= WORTH_TOKENS or not _keeps_keys(module):
        return None
    present = batch.attention_mask[:, :width]
    marked = torch.where(present, batch.input_ids[:, :width], -1)
    prompts, of = marked.unique(dim=0, return_inverse=True)
    if (len(of) - len(prompts)) * width <= WORTH_TOKENS:
        return None
    cache: Any = DynamicCache()
    first = call(_prompt_inputs(prompts) | {"past_key_values": cache}).index_select(0, of)
    length = batch.mask.shape[1] - 1
    if length == 0:
        return first
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(0, of)
        layer.values = layer.values.index_select(0, of)
    inputs = {
        "input_ids": batch.input_ids[:, width:-1],
        "position_ids": present.sum(1, keepdim=True) + torch.arange(length, device=of.device),
        "past_key_values": cache,
        "use_cache": True,
        "logits_to_keep": length,
    }
    if not bool(present.all()):
        inputs["attention_mask"] = batch.attention_mask[:, :-1].long()
    return torch.cat([first, call(inputs)], dim=1)


def _prompt_inputs(prompts: Tensor) -> dict[str, Any]:
    """What runs these prompts, ids ``[P, L]`` with -1 in front of the shorter ones."""
    inputs: dict[str, Any] = {
        "input_ids": prompts.clamp(min=0),
        "use_cache": True,
        "logits_to_keep": 1,
    }
    present = prompts >= 0
    if not bool(present.all()):
        inputs["attention_mask"] = present.long()
        inputs["position_ids"] = (present.cumsum(1) - 1).clamp(min=0)
    return inputs


def _keeps_keys(module: Any) -> bool:
    """Whether every layer caches keys and values, and does so now."""
    kinds = module.config.get_text_config().to_dict().get("layer_types") or ()
    return set(kinds) <= set(LAYER_TYPES) and not module.is_gradient_checkpointing
