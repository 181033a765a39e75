"""Weights in 4 bits under an adapter (QLoRA), by bitsandbytes, imported where they are asked for.

May import ``config``.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from nbrl.config import Lora, Model


def quantised(model: Model) -> bool:
    """Whether the weights under the adapter are held in few bits."""
    return isinstance(model.lora, Lora) and model.lora.base_bits is not None


def quantisation_problems(model: Model) -> Iterator[str]:
    """What a quantised model cannot be here, in words; nothing is loaded."""
    if importlib.util.find_spec("bitsandbytes") is None:
        yield (
            "Lora(base_bits=4) needs the package bitsandbytes, which is not installed; run: "
            "pip install 'nbrl[qlora]', or leave base_bits out"
        )
    if model.gguf_file is not None:
        yield (
            "Lora(base_bits=4) quantises ordinary weights, and a GGUF file holds quantised ones; "
            "export them as an ordinary checkpoint first, or leave base_bits out"
        )


def quantisation(model: Model, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What ``from_pretrained`` takes to quantise; nothing where that is not asked for.

    Heads and embeddings stay as they are, products are computed in ``dtype``. The device is named,
    since quantising is done on the way there.
    """
    if not quantised(model):
        return {}
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def prepare_layers(module: nn.Module) -> None:
    """Keep bitsandbytes from packing layers in evaluation mode for a CPU's bfloat16 kernel.

    What it packs so, it can neither differentiate nor turn into numbers.
    """
    kind = _bitsandbytes().nn.Linear4bit
    for layer in module.modules():
        if isinstance(layer, kind):
            cast(Any, layer).support_avx512bf16_for_cpu = False


def plain_weight(parameter: nn.Parameter | Tensor) -> Tensor:
    """The weight in numbers: itself, or in float32 what its few bits stand for."""
    state = vars(parameter).get("quant_state")
    if state is None:
        return parameter.detach()
    numbers = _bitsandbytes().functional.dequantize_4bit(parameter.data, state)
    return cast(Tensor, numbers).detach().float()


def without_quantisation(config: Any) -> Any:
    """The config of a model whose weights are numbers again; changed in place."""
    if "quantization_config" in vars(config):
        del config.quantization_config
    return config


def _bitsandbytes() -> Any:
    """The library, for those who use it: its import is slow, and it is no part of most installs."""
    return importlib.import_module("bitsandbytes")
