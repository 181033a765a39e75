"""Loads policies, references and critics with their tokenizers; imports torch and transformers.

May import ``config``, ``errors``, and ``adapters``, ``checkpoints``, ``machine``, ``quantising``
and ``varlen`` beside it. What is loaded is in evaluation mode and on the device that the model
names; who trains it or samples from it holds the same module.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from nbrl.backends.adapters import with_lora
from nbrl.backends.checkpoints import Source, explained, find_checkpoint
from nbrl.backends.machine import TORCH_DTYPES, device_of, machine_problems
from nbrl.backends.quantising import prepare_layers, quantisation, quantised
from nbrl.backends.varlen import NAME as VARLEN
from nbrl.backends.varlen import Ends, layer_problem
from nbrl.config import Model, check_config
from nbrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedModel:
    """A causal language model, its tokenizer, and the facts about them that samplers need.

    ``eos_ids`` are all ids that end an answer: the generation config's and the tokenizer's.
    ``pad_id`` only fills rectangles; masks are made from lengths, so it may equal an EOS id.
    ``context_length`` counts prompt and answer together. ``name`` is what the user asked for.

    Example: the bundled ``tiny`` has ``name="tiny"``, one EOS id and about 0.3 M parameters.
    """

    module: nn.Module
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    pad_id: int
    context_length: int
    name: str


class ValueModel(nn.Module):
    """A language model's backbone with a scalar head: one value at every position."""

    def __init__(self, backbone: nn.Module, hidden_size: int, *, seed: int = 0) -> None:
        """Draw the head from normal(0, 1 / (hidden_size + 1)) with a seed of its own, no bias."""
        nn.Module.__init__(self)
        self.backbone = backbone
        like = next(backbone.parameters())
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(1, hidden_size, generator=generator) / (hidden_size + 1)
        self.head = nn.Linear(hidden_size, 1, bias=False, device="meta")
        self.head.weight = nn.Parameter(weight.to(like.device, like.dtype))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        row_ends: Ends | None = None,
    ) -> Tensor:
        """Values ``[n, L]``, float32; ``input_ids`` ``[n, L]``, or ``[1, M]`` rows end to end."""
        packed = {} if row_ends is None else {"row_ends": row_ends}
        hidden = self.backbone(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
            **packed,
        ).last_hidden_state
        return nn.functional.linear(hidden.float(), self.head.weight.float()).squeeze(-1)


def load_policy(model: Model, *, head_seed: int = 0, seed: int = 0) -> LoadedModel:
    """The policy that ``model`` names, with its tokenizer, and a LoRA adapter where asked for.

    With ``head="reward"`` the module is a :class:`ValueModel`: the head of the checkpoint where it
    is a sequence classifier with one label, else a fresh one drawn with ``head_seed``. An adapter's
    first weights are drawn with ``seed``.

    Raises:
        ConfigError: Nothing can be found under that name (the message says what was tried), weights
            are missing from the checkpoint, or this machine cannot compute in the dtype asked for.
    """
    source = find_checkpoint(model)
    if model.head == "reward":
        scorer = _load_scorer(model, source, head_seed)
        owner: Any = scorer.backbone
        if model.lora is not None:
            scorer.backbone = with_lora(owner, model.lora, "FEATURE_EXTRACTION", seed)
        module: nn.Module = scorer
    else:
        owner = _load_causal(model, source)
        lora = model.lora
        module = owner if lora is None else with_lora(owner, lora, "CAUSAL_LM", seed)
    return _with_facts(model, source, owner, module)


def load_facts(model: Model) -> LoadedModel:
    """The language model without its weights, which lie elsewhere: the module is on ``meta``.

    Raises:
        ConfigError: As :func:`load_policy`, of what can be seen without the weights.
    """
    source = find_checkpoint(model)
    options = _options(model, source)
    with explained(model, source):
        config = AutoConfig.from_pretrained(source.place, **options)
        with torch.device("meta"):
            bare = AutoModelForCausalLM.from_config(config, dtype=TORCH_DTYPES[model.dtype])
        # A checkpoint without this file has its end tokens in the config.
        with suppress(OSError):
            bare.generation_config = GenerationConfig.from_pretrained(
                source.place, revision=model.revision or "main"
            )
    return _with_facts(model, source, bare, bare)


def _with_facts(
    model: Model, source: Source, owner: PreTrainedModel, module: nn.Module
) -> LoadedModel:
    """The module with its tokenizer, and what the model that it is made around says of itself."""
    with explained(model, source):
        tokenizer = AutoTokenizer.from_pretrained(source.place, **_options(model, source))
    size = vocabulary_size(owner)
    _check_tokenizer(model, tokenizer)
    eos_ids = _eos_ids(model, owner, tokenizer)
    pad_id = tokenizer.pad_token_id
    return LoadedModel(
        module=module.eval(),
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        # A tokenizer may name a pad token that the model has no embedding for.
        pad_id=pad_id if pad_id is not None and 0 <= pad_id < size else eos_ids[0],
        context_length=_context_length(model, owner),
        name=model.path,
    )


def checkpoint_place(model: Model, loaded: LoadedModel, scratch: Path) -> str:
    """A folder or hub name from which other libraries can load the model as it is at first.

    Args:
        model: Where the policy comes from.
        loaded: That policy, before it was trained.
        scratch: A folder to write to where the checkpoint is one that only transformers reads.
    """
    source = find_checkpoint(model)
    if source.gguf_file is None:
        return source.place
    plain = loaded.module if model.lora is None else load_reference(model)
    cast(PreTrainedModel, plain).save_pretrained(scratch)
    loaded.tokenizer.save_pretrained(scratch)
    return str(scratch)


def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """The tokenizer that ``model`` names, from this machine only; nothing is fetched.

    Raises:
        ConfigError: None lies here under that name.
    """
    source = find_checkpoint(model)
    with explained(model, source):
        return AutoTokenizer.from_pretrained(
            source.place, local_files_only=True, **_options(model, source)
        )


def load_reference(model: Model) -> nn.Module:
    """The model as it was before training, frozen, without an adapter."""
    module = _load_causal(replace(model, lora=None), find_checkpoint(model))
    return module.eval().requires_grad_(False)


def load_critic(model: Model, path: str | None = None, *, seed: int = 0) -> ValueModel:
    """A value model on the backbone of ``model``, or of another checkpoint of the same tokenizer.

    A sequence classifier with one label, i.e. a reward model, brings its head.

    Args:
        model: The policy; dtype and attention are taken from it.
        path: A bundled name, folder or hub name; ``None`` starts from the policy's weights.
        seed: Of the head's initial weights.
    """
    chosen = replace(model, lora=None)
    if path is not None and path != model.path:
        chosen = replace(chosen, path=path, revision=None, gguf_file=None)
    return _load_scorer(chosen, find_checkpoint(chosen), seed).eval()


def _options(model: Model, source: Source) -> dict[str, Any]:
    named = {"revision": model.revision, "gguf_file": source.gguf_file}
    return {name: value for name, value in named.items() if value is not None}


def _load_scorer(model: Model, source: Source, seed: int) -> ValueModel:
    """A backbone with a scalar head: the checkpoint's where it has one, else a fresh one."""
    with explained(model, source):
        config = AutoConfig.from_pretrained(source.place, **_options(model, source))
    kinds = config.architectures or []
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        causal = _load_causal(model, source)
        hidden_size = causal.config.get_text_config().hidden_size
        return ValueModel(causal.base_model, hidden_size, seed=seed)
    if config.num_labels != 1:
        raise ConfigError(
            f"Model({model.path!r}): the classifier at {source.place} has {config.num_labels} "
            "labels; a reward model has one. Pass another checkpoint."
        )
    classifier = _from_pretrained(AutoModelForSequenceClassification, model, source)
    head = head_of(classifier)
    if head.bias is not None:
        raise ConfigError(
            f"Model({model.path!r}): the head of the classifier at {source.place} has a bias, "
            "which no reward model of a decoder has. Pass another checkpoint."
        )
    hidden_size = classifier.config.get_text_config().hidden_size
    scorer = ValueModel(classifier.base_model, hidden_size)
    scorer.head.weight = nn.Parameter(head.weight.detach().clone())
    return scorer


def head_of(classifier: PreTrainedModel) -> nn.Linear:
    """The linear layer of a sequence classifier that is not its backbone's."""
    heads = [m for m in classifier.children() if isinstance(m, nn.Linear)]
    if len(heads) != 1:
        names = [name for name, _ in classifier.named_children()]
        raise ConfigError(
            f"{type(classifier).__name__} has {len(heads)} linear heads beside its backbone "
            f"({names}); a reward model has one."
        )
    return heads[0]


def _load_causal(model: Model, source: Source) -> PreTrainedModel:
    return _from_pretrained(AutoModelForCausalLM, model, source)


def _from_pretrained(kind: Any, model: Model, source: Source) -> PreTrainedModel:
    check_config("loading a model", model, extra=machine_problems(model))
    with explained(model, source), without_progress_bars():
        module, info = kind.from_pretrained(
            source.place,
            dtype=TORCH_DTYPES[model.dtype],
            attn_implementation=model.attention,
            output_loading_info=True,
            **_options(model, source),
            **quantisation(model, TORCH_DTYPES[model.dtype], device_of(model)),
        )
    lacking = sorted(info["missing_keys"]) + sorted(str(k) for k in info["mismatched_keys"])
    if lacking:
        raise ConfigError(
            f"Model({model.path!r}): the checkpoint at {source.place} lacks {len(lacking)} weights "
            f"of {type(module).__name__}, e.g. {lacking[:3]}; they would be random. Pass a whole "
            "checkpoint of a causal language model, or of a reward model where one is meant."
        )
    if model.attention == VARLEN and (problem := layer_problem(module.config)):
        raise ConfigError(f"Model({model.path!r}, attention='varlen'): {problem}")
    if quantised(model):
        prepare_layers(module)
    if source.gguf_file is not None:
        # The weights are plain floats after loading; with the marks left on, the model can neither
        # be trained by others nor saved as an ordinary checkpoint.
        module.hf_quantizer.remove_quantization_config(module)
    return module.to(device_of(model))


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Transformers draws no bars of its own in the block."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def vocabulary_size(module: nn.Module) -> int:
    """How many token ids the model has an embedding for."""
    return cast(nn.Embedding, cast(PreTrainedModel, module).get_input_embeddings()).num_embeddings


def _check_tokenizer(model: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    # Where its files are missing, transformers makes one up that knows no text.
    if tokenizer.vocab_size <= len(tokenizer.all_special_ids):
        raise ConfigError(
            f"Model({model.path!r}): the checkpoint has no tokenizer that knows any text, only "
            f"{tokenizer.all_special_tokens}. Save the tokenizer beside the weights "
            "(tokenizer.save_pretrained(folder): tokenizer.json and tokenizer_config.json)."
        )


def _eos_ids(
    model: Model, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """The ids of both places, the generation config's first, each once; only those of the model."""
    said = module.generation_config if module.can_generate() else module.config
    configured = None if said is None else said.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    named = dict.fromkeys(i for i in [*listed, tokenizer.eos_token_id] if i is not None)
    size = vocabulary_size(module)
    known = tuple(i for i in named if 0 <= i < size)
    if not known:
        raise ConfigError(
            f"Model({model.path!r}) has no token that ends an answer: neither its "
            "generation_config.json nor its tokenizer_config.json names one of its "
            f"{size} token ids (they name {list(named)}). Set eos_token_id and eos_token there."
        )
    return known


def _context_length(model: Model, module: PreTrainedModel) -> int:
    try:
        return int(module.config.get_text_config().max_position_embeddings)
    except AttributeError as error:
        raise ConfigError(
            f"Model({model.path!r}): {type(module.config).__name__} names no "
            "max_position_embeddings, so its context length is unknown. Add it to "
            "the checkpoint's config.json."
        ) from error
