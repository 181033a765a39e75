"""What this machine offers a model, its devices, arithmetic and packages; nothing is loaded.

May import ``config``, and ``quantising`` and ``varlen`` beside it; imports torch.
"""

import importlib.util
from collections.abc import Iterator

import torch

from nbrl.backends.quantising import quantisation_problems, quantised
from nbrl.backends.varlen import NAME as VARLEN
from nbrl.config import Lora, Model
from nbrl.config.checks import CHECKS

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device_of(model: Model) -> torch.device:
    """Where the model belongs: the device that it names, or the GPU where there is one."""
    if model.device is not None:
        return torch.device(model.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine_problems(model: Model) -> Iterator[str]:
    """What this machine lacks for a model whose settings hold, in words; nothing is loaded."""
    if list(CHECKS[Model](model)):
        return
    if isinstance(model.lora, Lora) and importlib.util.find_spec("peft") is None:
        yield (
            "Model(lora=...) needs the package peft, which is not installed; run: "
            "pip install 'nbrl[lora]'"
        )
    if quantised(model):
        yield from quantisation_problems(model)
    if model.device is not None and model.device != "cpu":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (torch.device(model.device).index or 0) >= count:
            yield (
                f"Model({model.path!r}, device={model.device!r}): torch sees {count} GPUs here. "
                "Use device='cpu', or leave it out"
            )
            return
    if device_of(model).type == "cuda":
        yield from _gpu_problems(model)
        return
    # oneDNN's own answer: torch emulates bfloat16 on any CPU, many times slower than float32.
    if model.dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        yield (
            f"Model({model.path!r}, dtype='bfloat16'): this CPU has no bfloat16 arithmetic "
            f"(capability {torch.backends.cpu.get_cpu_capability()}). Use dtype='float32'"
        )


def _gpu_problems(model: Model) -> Iterator[str]:
    asked = f"Model({model.path!r}, dtype={model.dtype!r})"
    if model.dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        yield f"{asked}: this GPU has no bfloat16 arithmetic. Use dtype='float32'"
    if model.dtype != "bfloat16" and model.attention == VARLEN:
        yield (
            f"{asked} with attention='varlen': the GPU's kernel for variable lengths takes "
            "bfloat16 only. Use dtype='bfloat16', or attention='sdpa'"
        )
