"""Attention for one new token a row that reads each cached key once; imports torch, transformers.

May import ``backends.forward``. Grouped-query models share a key-value head among several query
heads. The library's sdpa path copies the whole cache to every query head at each token when there
is a mask; here the query heads of a group stand as rows of one attention problem, and nothing is
copied.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from nbrl.backends.forward import float32_head

NAME = "nbrl_grouped"


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention output ``[B, 1, heads, head size]``; anything but one query a row goes to sdpa.

    The signature is that of transformers' attention interface, ``options`` included.
    """
    batch, heads, length, size = query.shape
    if length != 1 or options.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    kv_heads = key.shape[1]
    rows = query.reshape(batch, kv_heads, heads // kv_heads, size)
    out = nn.functional.scaled_dot_product_attention(
        rows, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return out.reshape(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(NAME, grouped_attention)


@contextmanager
def decoding(module: Any) -> Iterator[Callable[..., Any]]:
    """Yields the module's forward, ready to decode.

    That is: evaluation mode, no autograd, grouped attention in the place of sdpa and of
    ``varlen``, whose decoding pads too (another one stays what it is), and the output head in
    float32. On leaving, also by an exception, every part of the module has its own mode back, and
    the module its attention.
    """
    config = module.config
    modes = [(part, part.training) for part in module.modules()]
    attention = config._attn_implementation
    try:
        module.eval()
        if attention in ("sdpa", "varlen"):
            config._attn_implementation = NAME
        with torch.inference_mode(), float32_head(module) as forward:
            yield forward
    finally:
        config._attn_implementation = attention
        for part, training in modes:
            part.training = training
