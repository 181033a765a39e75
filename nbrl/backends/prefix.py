"""What several rows of a micro-batch share goes through the model once, gradients included.

May import ``protocols``, numpy, torch and transformers. The rows of a group differ in their answers
only, so keys and values of the prompt, and the logits of the first response token, are computed
once a prompt and handed to its rows; and answers that do not differ, as short ones often do not,
are computed once. Logits and gradients are those of the plain pass up to rounding.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
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
    prompts, of = distinct(marked)
    if (len(of) - len(prompts)) * width <= WORTH_TOKENS:
        return None
    cache: Any = DynamicCache()
    first = call(_prompt_inputs(marked[prompts]) | {"past_key_values": cache})
    length = batch.mask.shape[1] - 1
    if length == 0:
        return first.index_select(0, of)
    answers, which = distinct(torch.cat([of[:, None], _fed(batch)], dim=1))
    behind = of[answers]
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(0, behind)
        layer.values = layer.values.index_select(0, behind)
    inputs = {
        "input_ids": batch.input_ids[answers, width:-1],
        "position_ids": present[answers].sum(1, keepdim=True)
        + torch.arange(length, device=of.device),
        "past_key_values": cache,
        "use_cache": True,
        "logits_to_keep": length,
    }
    if not bool(present.all()):
        inputs["attention_mask"] = batch.attention_mask[answers, :-1].long()
    logits = torch.cat([first.index_select(0, behind), call(inputs)], dim=1)
    return logits if len(answers) == len(of) else logits.index_select(0, which)


def distinct(table: Tensor) -> tuple[Tensor, Tensor]:
    """Where each different row of ``[n, k]`` first stands, in that order; which one each row is.

    ``table[first][of]`` is the table again.

    Example: rows ``a, b, a`` have ``first`` 0, 1 and ``of`` 0, 1, 0.
    """
    rows = np.ascontiguousarray(table.cpu().numpy())
    seen: dict[bytes, int] = {}
    of = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in rows], np.int64)
    first = np.unique(of, return_index=True)[1]
    return torch.from_numpy(first).to(table.device), torch.from_numpy(of).to(table.device)


def _fed(batch: MicroBatch) -> Tensor:
    """The response tokens that another one is predicted from, ``[n, T - 1]``, -1 elsewhere."""
    present = batch.attention_mask[:, batch.prompt_width :]
    return torch.where(present[:, 1:], batch.input_ids[:, batch.prompt_width : -1], -1)


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
