"""The one forward pass: what a model says of the response tokens of a micro-batch.

May import ``packing``, ``prefix``, ``varlen``, ``protocols``, ``functional``, ``errors`` and
torch. Nothing here switches gradients on or off; the caller does.
Every column ``[n, T]`` is aligned with ``MicroBatch.mask``: entry ``t`` belongs to the token at
``prompt_width + t`` and is read from the position before it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from nbrl.backends.packing import packed_last_values, packed_logits, packed_values
from nbrl.backends.prefix import shared_logits
from nbrl.backends.varlen import takes_variable_lengths
from nbrl.errors import StepError
from nbrl.functional.logprobs import token_logprobs
from nbrl.protocols import MicroBatch


def response_logits(module: nn.Module, batch: MicroBatch, *, packed: bool = False) -> Tensor:
    """Logits that score the response tokens, float32, ``[n, T, V]``; not divided by a temperature.

    Logits of prompt positions are never computed, and the last token is not fed, since nothing is
    scored by it. Rows are packed where the attention takes variable lengths, or where that is asked
    for; in padded rows, prompts that rows share go through the layers once. The head works in
    float32 whatever the dtype of the module: bfloat16 logits lose the second digit of a log-prob.
    """
    with float32_head(module) as call:
        if packed or takes_variable_lengths(module):
            return packed_logits(module, batch, call)
        logits = shared_logits(module, batch, lambda inputs: call(**inputs).logits)
        if logits is None:
            logits = call(**_response_inputs(batch)).logits
    return logits


def response_logits_and_balance(
    module: nn.Module, batch: MicroBatch, *, wanted: bool, packed: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The logits of :func:`response_logits`, and where it is wanted the balance of experts.

    The latter is the load-balancing loss of a mixture-of-experts model over all real tokens of the
    micro-batch, as transformers computes it, a scalar with gradient; rows are padded for it.

    Raises:
        StepError: It is wanted of a model that computes none.
    """
    if not wanted:
        return response_logits(module, batch, packed=packed), None
    if not balances_experts(module):
        raise StepError(
            "aux_coef weighs the balance of experts, and this model computes none. Use 0, or a "
            "mixture-of-experts model of transformers that takes output_router_logits."
        )
    present = batch.attention_mask.long()
    with float32_head(module) as call:
        said = call(
            # all tokens, the last one too, and the mask always: padding is routed, but counts not
            input_ids=batch.input_ids,
            attention_mask=present,
            position_ids=(present.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            logits_to_keep=batch.mask.shape[1] + 1,
            output_router_logits=True,
        )
    return said.logits[:, :-1], said.aux_loss


def balances_experts(module: nn.Module) -> bool:
    """Whether a model of transformers, or an adapted one, says how evenly its experts are used."""
    return "output_router_logits" in cast(Any, module).config.to_dict()


def response_logprobs_and_balance(
    module: nn.Module, batch: MicroBatch, *, wanted: bool, packed: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the response tokens, and where it is wanted the balance of experts."""
    logits, balance = response_logits_and_balance(module, batch, wanted=wanted, packed=packed)
    return token_logprobs(logits, batch.input_ids[:, batch.prompt_width :]), balance


def response_log_softmax(module: nn.Module, batch: MicroBatch, *, packed: bool = False) -> Tensor:
    """Log-probs of every token of the vocabulary at every response position, ``[n, T, V]``.

    Logits are divided by each row's temperature, that of its sampling: with another one the
    ratio between trainer and sampler is not 1 under equal weights.
    """
    logits = response_logits(module, batch, packed=packed)
    if bool((batch.temperature != 1).any()):
        logits = logits / batch.temperature[:, None, None]
    return logits.log_softmax(-1)


def response_logprobs(module: nn.Module, batch: MicroBatch, *, packed: bool = False) -> Tensor:
    """Log-probs of the response tokens at their sampling temperature, float32, ``[n, T]``."""
    return pick(response_log_softmax(module, batch, packed=packed), batch)


def pick(log_softmax: Tensor, batch: MicroBatch) -> Tensor:
    """The response tokens' own entries of ``[n, T, V]``, as ``[n, T]``."""
    tokens = batch.input_ids[:, batch.prompt_width :]
    return log_softmax.gather(-1, tokens[..., None]).squeeze(-1)


def entropy(log_softmax: Tensor) -> Tensor:
    """Entropy in nats of each distribution of ``[n, T, V]``, as ``[n, T]``."""
    # A token that cannot come has log-prob -inf and adds nothing: 0 * -inf would be NaN.
    floor = torch.finfo(log_softmax.dtype).min
    return -torch.linalg.vecdot(log_softmax.exp(), log_softmax.clamp(min=floor))


def response_values(critic: nn.Module, batch: MicroBatch, *, packed: bool = False) -> Tensor:
    """The critic's value of the state before each response token, float32, ``[n, T]``."""
    if packed or takes_variable_lengths(critic):
        return packed_values(critic, batch).float()
    return critic(**_inputs(batch))[:, batch.prompt_width - 1 :].float()


def last_values(critic: nn.Module, batch: MicroBatch, *, packed: bool = False) -> Tensor:
    """The value at each row's last token, that of the whole text, float32, ``[n]``."""
    if packed or takes_variable_lengths(critic):
        return packed_last_values(critic, batch).float()
    present = batch.attention_mask
    inputs = {"input_ids": batch.input_ids}
    if not bool(present[:, : batch.prompt_width].all()):
        inputs["attention_mask"] = present.long()
        inputs["position_ids"] = (present.long().cumsum(1) - 1).clamp(min=0)
    places = torch.arange(present.shape[1], device=present.device)
    last = torch.where(present, places, 0).amax(1, keepdim=True)
    return critic(**inputs).gather(1, last).squeeze(1).float()


def _response_inputs(batch: MicroBatch) -> dict[str, Any]:
    width = batch.mask.shape[1]
    return {**_inputs(batch), "use_cache": False, "logits_to_keep": width}


def _inputs(batch: MicroBatch) -> dict[str, Tensor]:
    ids = batch.input_ids[:, :-1]
    if bool(batch.attention_mask[:, : batch.prompt_width].all()):
        # Attention is causal: what is padded on the right is never seen by a token that counts,
        # and without a mask the kernel is the fast one.
        return {"input_ids": ids}
    present = batch.attention_mask[:, :-1].long()
    positions = (present.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": present, "position_ids": positions}


@contextmanager
def float32_head(module: Any) -> Iterator[Callable[..., Any]]:
    """Yields the module's forward, whose head computes logits in float32, whatever its dtype."""
    head = module.get_output_embeddings()
    weights = dict(head.named_parameters())
    if all(weight.dtype == torch.float32 for weight in weights.values()):
        yield module
        return
    place = next(name for name, part in module.named_modules() if part is head)
    wide = {f"{place}.{name}": weight.float() for name, weight in weights.items()}

    def call(**inputs: Any) -> Any:
        return torch.func.functional_call(module, wide, kwargs=inputs, tie_weights=False)

    # To the dtype of the weights as they are at the call: a hook that an interrupt left behind
    # does nothing.
    handle = head.register_forward_pre_hook(
        lambda part, arguments: (arguments[0].to(next(part.parameters()).dtype),)
    )
    try:
        yield call
    finally:
        handle.remove()
