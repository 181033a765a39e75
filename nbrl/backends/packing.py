"""The rows of a micro-batch as one row without padding, kept apart by mask and positions.

May import ``forward``, ``protocols`` and torch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nbrl.backends.forward import float32_head
from nbrl.protocols import MicroBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packed:
    """The real tokens of a micro-batch, row after row.

    ``documents`` says which row each of the ``M`` tokens is of, ``positions`` where in it it
    stands, ``visible`` ``[M, M]`` which tokens each may look at: those of its own row up to
    itself. ``places`` ``[n, L]`` is where a cell of the micro-batch lies among them, -1 for
    padding.

    Example: rows of 2 and 3 tokens have ``positions`` 0, 1, 0, 1, 2.
    """

    input_ids: Tensor
    documents: Tensor
    positions: Tensor
    visible: Tensor
    places: Tensor


def pack(batch: MicroBatch) -> Packed:
    """The micro-batch's tokens without padding, and who may see whom."""
    present = batch.attention_mask
    places = torch.where(present, present.flatten().cumsum(0).view_as(present) - 1, -1)
    rows = torch.arange(len(present), device=present.device)[:, None].expand_as(present)
    documents = rows[present]
    positions = (present.cumsum(1) - 1)[present]
    order = torch.arange(len(documents), device=present.device)
    visible = (documents[:, None] == documents[None, :]) & (order[:, None] >= order[None, :])
    return Packed(
        input_ids=batch.input_ids[present],
        documents=documents,
        positions=positions,
        visible=visible,
        places=places,
    )


def packed_logits(module: nn.Module, batch: MicroBatch) -> Tensor:
    """The logits of ``forward.response_logits``, by one row of all tokens; float32, ``[n, T, V]``.

    A response token is scored by the token before it in its own row, so the first token of a row
    is never a target of the row before. Places without a token hold what some other one says.
    """
    packed = pack(batch)
    with float32_head(module) as call:
        logits = call(
            input_ids=packed.input_ids[None],
            position_ids=packed.positions[None],
            attention_mask=packed.visible[None, None],
            use_cache=False,
        ).logits[0]
    before = packed.places[:, batch.prompt_width - 1 : -1]
    return logits[before.clamp(min=0)]
