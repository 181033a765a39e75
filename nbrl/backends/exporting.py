"""Trained weights to a folder that transformers, vLLM and others load; imports transformers.

May import ``models``, ``quantising``, ``errors`` and torch. The folder appears whole or not at all.
"""

import copy
import logging
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from nbrl.backends.models import (
    LoadedModel,
    ValueModel,
    head_of,
    vocabulary_size,
    without_progress_bars,
)
from nbrl.backends.quantising import without_quantisation
from nbrl.errors import ConfigError, StoreError

Weights = Iterable[tuple[str, Tensor]]


def export_model(
    loaded: LoadedModel, weights: Weights, path: Path, *, scale: Mapping[str, Any] | None
) -> None:
    """Write a whole checkpoint with its tokenizer.

    A policy becomes a causal language model, a reward model a sequence classifier with one label,
    whose config names the head (``value_head_prefix``) and holds ``mean``, ``std`` and where they
    come from (``score_scale``), as OpenRLHF's reward models do. Weights keep the dtype that they
    come in; those of a merged adapter come in float32. Where the model pads with what ends its
    texts, the classifier's folder names another token.

    Args:
        loaded: The model that was trained, for its config and tokenizer.
        weights: Its parameters, an adapter merged into them.
        path: A folder that does not exist, or is empty.
        scale: ``mean``, ``std`` and ``origin`` of a reward model's scores; None where unknown.

    Raises:
        StoreError: Something is at ``path``, or writing failed; nothing is left there.
    """
    state = {name: weight.detach().cpu() for name, weight in weights}
    is_scorer = isinstance(loaded.module, ValueModel)
    fresh = _scorer(loaded, state, scale) if is_scorer else _causal(loaded, state)

    tokenizer = copy.deepcopy(loaded.tokenizer)
    if is_scorer and fresh.config.pad_token_id is not None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(fresh.config.pad_token_id)

    def write(folder: Path) -> None:
        with without_progress_bars(), _without_notes():
            fresh.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    _whole(path, write)


def export_adapter(loaded: LoadedModel, path: Path) -> None:
    """Write the LoRA adapter alone, as PEFT does, with the tokenizer.

    Raises:
        ConfigError: The model carries no adapter, or is a reward model, whose head is no part of
            an adapter.
        StoreError: As :func:`export_model`.
    """
    module = loaded.module
    if isinstance(module, ValueModel) or not any(
        "lora_" in n for n, _ in module.named_parameters()
    ):
        raise ConfigError(
            f"export of {loaded.name!r} with adapter=True: only a language model with a LoRA "
            "adapter has one to write. Export the whole model."
        )

    def write(folder: Path) -> None:
        with _without_notes():
            cast(Any, module).save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)

    _whole(path, write)


@contextmanager
def _without_notes() -> Iterator[None]:
    """DeepSpeed, which transformers looks for when it saves, says nothing of devices it misses."""
    told = logging.getLogger("DeepSpeed")
    told.addFilter(_is_grave)
    try:
        yield
    finally:
        told.removeFilter(_is_grave)


def _is_grave(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING


def _causal(loaded: LoadedModel, state: Mapping[str, Tensor]) -> PreTrainedModel:
    source = _unwrapped(loaded.module)
    config = without_quantisation(copy.deepcopy(source.config))
    fresh = _filled(AutoModelForCausalLM, config, state)
    fresh.generation_config = copy.deepcopy(source.generation_config)
    return fresh


def _scorer(
    loaded: LoadedModel, state: Mapping[str, Tensor], scale: Mapping[str, Any] | None
) -> PreTrainedModel:
    """A sequence classifier of one label with these weights."""
    source = _unwrapped(cast(ValueModel, loaded.module).backbone)
    config = without_quantisation(copy.deepcopy(source.config))
    config.num_labels = 1
    config.pad_token_id = _padding(loaded)
    with torch.device("meta"):
        shape = AutoModelForSequenceClassification.from_config(config)
    head = next(name for name, module in shape.named_children() if module is head_of(shape))
    names = {"head.weight": f"{head}.weight"}
    prefix = shape.base_model_prefix
    renamed = {
        names.get(n) or f"{prefix}.{n.removeprefix('backbone.')}": x for n, x in state.items()
    }
    config.value_head_prefix = head
    if scale is not None:
        config.mean, config.std = scale["mean"], scale["std"]
        config.score_scale = dict(scale)
    return _filled(AutoModelForSequenceClassification, config, renamed)


def _padding(loaded: LoadedModel) -> int | None:
    """A token that stands at the end of no text, where the tokenizer has one.

    A classifier takes the last token that is not this one for the end of a padded row. Were it the
    EOS, as of many models, the score would be read before the EOS that it was trained at. None
    makes transformers refuse rows side by side.
    """
    tokenizer = loaded.tokenizer
    named = [loaded.pad_id, tokenizer.bos_token_id, tokenizer.unk_token_id]
    size = vocabulary_size(_unwrapped(cast(ValueModel, loaded.module).backbone))
    known = [i for i in [*named, *tokenizer.all_special_ids] if i is not None and i < size]
    return next((i for i in known if i not in loaded.eos_ids), None)


def _filled(kind: Any, config: Any, state: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model of this config that holds exactly these weights."""
    config.dtype = next(iter(state.values())).dtype
    with torch.device("meta"):
        fresh = kind.from_config(config)
    fresh.load_state_dict(dict(state), strict=False, assign=True)
    fresh.tie_weights()
    empty = [name for name, p in fresh.named_parameters() if p.is_meta]
    assert not empty, f"weights without a value: {empty[:3]}"
    return fresh


def _unwrapped(module: Any) -> PreTrainedModel:
    """The model of transformers inside an adapter, or itself."""
    return module if isinstance(module, PreTrainedModel) else module.get_base_model()


def _whole(path: Path, write: Callable[[Path], None]) -> None:
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise StoreError(f"export: {path} is there already. Pass another path, or remove it.")
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        partial.mkdir(parents=True)
        write(partial)
        if path.is_dir():
            path.rmdir()
        partial.rename(path)
    except OSError as error:
        raise StoreError(f"export to {path} failed: {error}. Nothing is left there.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
