"""Attention over rows of any length laid end to end; transformers knows it as ``varlen``.

May import ``errors``; imports torch and transformers. Where a pass says where its rows begin and
end, each row attends to itself alone: by torch's own kernel for variable lengths on a GPU, row by
row elsewhere. A pass that does not say so is one over padded rows, and is sdpa's.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from nbrl.errors import ConfigError

NAME = "varlen"
LAYER_TYPES = ("full_attention", "sliding_attention")
"""The layers in which a token sees others through attention alone."""
SHIFTS_SCORES = ("softcap", "s_aux", "position_bias")
"""Options of a model's attention that this one does not know."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ends:
    """Where rows laid end to end begin and end: row ``i`` is ``[at[i], at[i + 1])``.

    ``at`` is int32 on the tokens' device, ``lengths`` the same knowledge on the host.

    Example: rows of 2 and 3 tokens have ``at`` 0, 2, 5 and ``lengths`` 2, 3.
    """

    at: Tensor
    lengths: tuple[int, ...]


def row_ends(lengths: Tensor) -> Ends:
    """The ends of rows of these lengths, ``[n]``; rows without tokens are left out."""
    there = lengths[lengths > 0]
    at = nn.functional.pad(there.cumsum(0), (1, 0)).to(torch.int32)
    return Ends(at=at, lengths=tuple(there.tolist()))


def row_by_row_inputs(ends: Ends, like: Tensor) -> dict[str, Any]:
    """What a model must be called with beside ids and positions.

    The mask is a mark that transformers hands on as it is: no mask over all pairs is made, and a
    model that hands on the mask but not the ends is found out.
    """
    return {"attention_mask": like.new_zeros(1, 1, 1, 1, dtype=torch.bool), "row_ends": ends}


def takes_variable_lengths(module: nn.Module) -> bool:
    """Whether the attention of transformers' model, which the module is or holds, is this one."""
    models = (part for part in module.modules() if isinstance(part, PreTrainedModel))
    model = next(models, None)
    return model is not None and model.config._attn_implementation == NAME


def layer_problem(config: Any) -> str | None:
    """Why a model's layers cannot keep packed rows apart, if they cannot."""
    kinds = config.get_text_config().to_dict().get("layer_types") or ()
    unknown = sorted(set(kinds) - set(LAYER_TYPES))
    if not unknown:
        return None
    return f"layers {unknown} carry a state from row to row. Use attention='sdpa' and no packing."


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention output ``[1, M, heads, head size]`` of ``M`` tokens in rows, each causal.

    The signature is that of transformers' attention interface, ``options`` included.

    Raises:
        ConfigError: The model does not hand on where rows end, or shifts its attention scores.
    """
    ends = options.pop("row_ends", None)
    if ends is None:
        if attention_mask is not None and attention_mask.shape == (1, 1, 1, 1):
            raise ConfigError(_refusal(module, "does not hand on where packed rows end"))
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if unknown := [name for name in SHIFTS_SCORES if options.get(name) is not None]:
        raise ConfigError(_refusal(module, f"shifts its scores by {', '.join(unknown)}"))
    window, scale = options.get("sliding_window"), options.get("scaling")
    attend = _by_kernel if query.device.type == "cuda" else _by_rows
    out = attend(query[0], key[0], value[0], ends, scale, window)
    return out[None], None


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, ends: Ends, scale: float | None, window: int | None
) -> Tensor:
    """Torch's flash attention over all rows at once; ``[M, heads, head size]``."""
    from torch.nn.attention.varlen import varlen_attn

    longest = max(ends.lengths)
    out = varlen_attn(
        *(x.transpose(0, 1).contiguous() for x in (query, key, value)),
        cu_seq_q=ends.at,
        cu_seq_k=ends.at,
        max_q=longest,
        max_k=longest,
        scale=scale,
        # a token sees itself and window - 1 before it; -1 is no bound
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[0] != key.shape[0],
    )
    assert isinstance(out, Tensor)
    return out


def _by_rows(
    query: Tensor, key: Tensor, value: Tensor, ends: Ends, scale: float | None, window: int | None
) -> Tensor:
    """Sdpa over one row after another; ``[M, heads, head size]``."""
    rows = zip(*(x.split(ends.lengths, dim=1) for x in (query, key, value)), strict=True)
    outs = []
    for q, k, v in rows:
        near = _near(q.shape[1], window, q.device)
        outs.append(
            scaled_dot_product_attention(
                q[None],
                k[None],
                v[None],
                attn_mask=near,
                is_causal=near is None,
                scale=scale,
                enable_gqa=q.shape[0] != k.shape[0],
            )[0]
        )
    return torch.cat(outs, dim=1).transpose(0, 1)


def _near(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Who is in whose window, ``[length, length]``; None where everybody before is."""
    if window is None or length <= window:
        return None
    at = torch.arange(length, device=device)
    behind = at[:, None] - at[None, :]
    return (behind >= 0) & (behind < window)


def _refusal(module: nn.Module, why: str) -> str:
    return f"Model(attention='varlen'): {type(module).__name__} {why}. Use attention='sdpa'."


AttentionInterface.register(NAME, varlen_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
