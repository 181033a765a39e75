"""The rows of a micro-batch as one row without padding, kept apart by mask and positions.

May import ``varlen``, ``protocols``, ``errors``, torch and transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from nbrl.backends.varlen import (
    Ends,
    layer_problem,
    row_by_row_inputs,
    row_ends,
    takes_variable_lengths,
)
from nbrl.errors import ConfigError
from nbrl.protocols import MicroBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packed:
    """Those tokens of a micro-batch that predict another one, row after row.

    ``documents`` says which row each of the ``M`` tokens is of, ``positions`` where in it it
    stands; ``ends`` where rows end. ``places`` ``[n, T]`` is which of the tokens scores a cell of
    the response region, -1 where there is no response token.

    Example: a prompt of 1 token with answers of 1 and 2 tokens has ``positions`` 0, 0, 1, and
    ``places`` [[0, -1], [1, 2]].
    """

    input_ids: Tensor
    documents: Tensor
    positions: Tensor
    ends: Ends
    places: Tensor


def pack(batch: MicroBatch, *, whole: bool = False) -> Packed:
    """The micro-batch's tokens without padding; a row's last scores nothing and is left out.

    With ``whole`` it comes along, for those who read a row at its end.
    """
    present = batch.attention_mask
    fed = present.clone()
    if not whole:
        # Prompts are padded in front and answers behind: a row's tokens are one run.
        fed[:, :-1] &= present[:, 1:]
        fed[:, -1] = False
    order = torch.where(fed, fed.flatten().cumsum(0).view_as(fed) - 1, -1)
    width = batch.prompt_width
    scored = present[:, width:]
    rows = torch.arange(len(fed), device=fed.device)[:, None].expand_as(fed)
    return Packed(
        input_ids=batch.input_ids[fed],
        documents=rows[fed],
        positions=(fed.cumsum(1) - 1)[fed],
        ends=row_ends(fed.sum(1)),
        places=torch.where(scored, order[:, width - 1 : -1], -1),
    )


def packed_logits(module: nn.Module, batch: MicroBatch, call: Callable[..., Any]) -> Tensor:
    """The logits that score the response tokens, by one row of all tokens; ``[n, T, V]``.

    A response token is scored by the token before it in its own row, so the first token of a row
    is never a target of the row before. Where the model's attention takes variable lengths, it is
    told where rows end; another one is given a mask over all pairs of tokens. Logits of prompt
    tokens are never computed; cells without a response token hold 0.

    Args:
        module: The model.
        batch: The micro-batch.
        call: The module's forward.
    """
    packed = pack(batch)
    scored = packed.places >= 0
    logits = call(
        **_inputs(module, packed), use_cache=False, logits_to_keep=packed.places[scored]
    ).logits[0]
    cells = logits.new_zeros(*scored.shape, logits.shape[-1])
    cells[scored] = logits
    return cells


def packed_values(critic: nn.Module, batch: MicroBatch) -> Tensor:
    """A critic's values of the states before the response tokens, ``[n, T]``; as the logits."""
    packed = pack(batch)
    scored = packed.places >= 0
    said = critic(**_inputs(critic, packed))[0]
    cells = said.new_zeros(scored.shape)
    cells[scored] = said[packed.places[scored]]
    return cells


def packed_last_values(critic: nn.Module, batch: MicroBatch) -> Tensor:
    """A critic's value at each row's last token, ``[n]``; no row is without tokens."""
    packed = pack(batch, whole=True)
    return critic(**_inputs(critic, packed))[0][packed.ends.at[1:].long() - 1]


def refuse_leaks(module: nn.Module) -> None:
    """Raise where a mask over pairs of tokens does not leave a model's rows as they are alone.

    Raises:
        ConfigError: Some layers carry a state from row to row, or see a window of tokens, of which
            such a mask knows nothing.
    """
    for model in (part for part in module.modules() if isinstance(part, PreTrainedModel)):
        said = model.config.get_text_config().to_dict()
        kinds = said.get("layer_types") or ()
        problem = layer_problem(model.config)
        if "sliding_attention" in kinds or (not kinds and said.get("sliding_window") is not None):
            problem = problem or "layers see a window of tokens. Use attention='varlen' instead."
        if problem is not None:
            raise ConfigError(f"Trainer(packed=True): {type(model).__name__}: {problem}")


def visible(documents: Tensor) -> Tensor:
    """Which token may look at which, ``[M, M]``: those of its own row up to itself."""
    order = torch.arange(len(documents), device=documents.device)
    return (documents[:, None] == documents[None, :]) & (order[:, None] >= order[None, :])


def _inputs(module: nn.Module, packed: Packed) -> dict[str, Any]:
    ids = {"input_ids": packed.input_ids[None], "position_ids": packed.positions[None]}
    if takes_variable_lengths(module):
        return ids | row_by_row_inputs(packed.ends, packed.input_ids)
    return ids | {"attention_mask": visible(packed.documents)[None, None]}
