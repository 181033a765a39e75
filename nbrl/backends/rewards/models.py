"""Reward models: checkpoints that score a text by one number, asked in batches of a token budget.

Imports torch; may import ``errors``, ``backends.models`` and its neighbours.
"""

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from nbrl.backends.machine import TORCH_DTYPES
from nbrl.backends.models import ValueModel
from nbrl.backends.rewards.calling import Advance, Outcome, Row
from nbrl.backends.rewards.places import RewardModel, written
from nbrl.errors import ConfigError

HEADS = ("score", "value_head", "v_head.summary")
"""What the head's weights are called where the checkpoint's config does not say it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedRewardModel:
    """A reward model in memory with what its texts are made with."""

    module: ValueModel
    tokenizer: Any
    bias: float
    mean: float
    std: float
    max_length: int
    tokens_per_batch: int


def load_reward_model(model: RewardModel) -> LoadedRewardModel:
    """The model, loaded; kept for the same settings and files until another one is asked for.

    Raises:
        ConfigError: There is no such checkpoint, it lacks weights or a head of one number, or
            ``normalize`` would have no effect.
    """
    return _loaded(model, written(model))


@functools.lru_cache(maxsize=1)
def _loaded(model: RewardModel, _: str) -> LoadedRewardModel:
    folder = Path(model.path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"RewardModel({model.path!r}): there is no config.json in {str(folder.absolute())!r}. "
            "Pass the folder of a saved checkpoint."
        )
    try:
        config = AutoConfig.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"RewardModel({model.path!r}) cannot be read: {error}") from error
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    mean, std = _moments(model, stored)
    device = model.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    module, bias = _load_module(model, folder, config, stored)
    longest = config.get_text_config().to_dict().get("max_position_embeddings")
    return LoadedRewardModel(
        module=module.to(device).eval().requires_grad_(False),
        tokenizer=tokenizer,
        bias=bias,
        mean=mean,
        std=std,
        max_length=model.max_length or longest or 1 << 30,
        tokens_per_batch=model.tokens_per_batch,
    )


def _moments(model: RewardModel, stored: Mapping[str, Any]) -> tuple[float, float]:
    """What scores are normalised by: 0 and 1 where that is not asked for."""
    if not model.normalize:
        return 0.0, 1.0
    mean, std = stored.get("mean", 0.0), stored.get("std", 1.0)
    if not all(isinstance(m, int | float) and math.isfinite(m) for m in (mean, std)) or std <= 0:
        raise ConfigError(
            f"RewardModel({model.path!r}, normalize=True): config.json holds mean {mean!r} and std "
            f"{std!r}; they must be finite, and std above 0. Pass normalize=False, or mend them."
        )
    if (mean, std) == (0.0, 1.0):
        raise ConfigError(
            f"RewardModel({model.path!r}, normalize=True) has no effect: config.json holds no mean "
            "and std that training left there, or 0 and 1. Pass normalize=False."
        )
    return float(mean), float(std)


def _load_module(
    model: RewardModel, folder: Path, config: Any, stored: Mapping[str, Any]
) -> tuple[ValueModel, float]:
    """Backbone and head in one, and the head's bias."""
    names = _weight_files(model, folder)
    weight_name = _head_name(model, stored, names)
    head = _read_tensor(folder / names[weight_name], weight_name)
    if head.ndim != 2 or head.shape[0] != 1:
        raise ConfigError(
            f"RewardModel({model.path!r}): the head {weight_name!r} has the shape "
            f"{list(head.shape)}; a reward model has one number a text, [1, hidden]."
        )
    with _quiet():
        backbone, info = AutoModel.from_pretrained(
            folder, config=config, dtype=TORCH_DTYPES[model.dtype], output_loading_info=True
        )
    if info["missing_keys"]:
        lacking = sorted(info["missing_keys"])
        raise ConfigError(
            f"RewardModel({model.path!r}): the checkpoint lacks {len(lacking)} weights of "
            f"{type(backbone).__name__}, e.g. {lacking[:3]}; they would be random."
        )
    module = ValueModel(backbone, head.shape[1])
    module.head.weight = nn.Parameter(head.to(TORCH_DTYPES[model.dtype]))
    bias_name = weight_name.removesuffix("weight") + "bias"
    bias = _read_tensor(folder / names[bias_name], bias_name).item() if bias_name in names else 0.0
    return module, bias


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars, and its report that the head is none of the backbone's."""
    before = transformers_logging.get_verbosity()
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if shown:
            transformers_logging.enable_progress_bar()


def _weight_files(model: RewardModel, folder: Path) -> dict[str, str]:
    """The file of each weight of the checkpoint."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    whole = folder / "model.safetensors"
    if not whole.is_file():
        raise ConfigError(
            f"RewardModel({model.path!r}): {str(folder.absolute())!r} holds no model.safetensors. "
            "Save the checkpoint with transformers' save_pretrained."
        )
    with safe_open(whole, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), whole.name)


def _head_name(model: RewardModel, stored: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The name of the head's weight: as asked for, as the config says, or a usual one."""
    said = model.head or stored.get("value_head_prefix")
    tried = (said,) if said else HEADS
    for name in tried:
        if f"{name}.weight" in names:
            return f"{name}.weight"
    likely = sorted(n for n in names if n.endswith("weight") and n.count(".") <= 2)
    raise ConfigError(
        f"RewardModel({model.path!r}): no head is called {' or '.join(map(repr, tried))} in the "
        f"checkpoint. Pass head=<name> of one of its weights, e.g. among {likely[:8]}; a plain "
        "language model is no reward model."
    )


def _read_tensor(file: Path, name: str) -> Tensor:
    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


def score_by_model(model: RewardModel, rows: Sequence[Row], advance: Advance) -> list[Outcome]:
    """One outcome a row, in order; the extras hold the raw score where it was normalised."""
    if not rows:
        return []
    loaded = load_reward_model(model)
    outcomes: list[Outcome | None] = [None] * len(rows)
    ids: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        tokens, error = _encoded(loaded, row)
        if error:
            outcomes[at] = Outcome(value=None, status="error", error=error)
            advance(1, 0)
        else:
            ids[at] = tokens
    for batch in batches_of({at: len(t) for at, t in ids.items()}, loaded.tokens_per_batch):
        scores = _scores(loaded, [ids[at] for at in batch])
        for at, score in zip(batch, scores, strict=True):
            outcomes[at] = _outcome(loaded, score)
        advance(len(batch), sum(len(ids[at]) for at in batch))
    return [outcome for outcome in outcomes if outcome is not None]


def _encoded(loaded: LoadedRewardModel, row: Row) -> tuple[list[int], str | None]:
    """The tokens of a row's prompt and answer, or why they cannot be scored."""
    tokenizer = loaded.tokenizer
    try:
        if row["messages"] is not None and tokenizer.chat_template:
            said = {"role": "assistant", "content": row["response"]}
            text = tokenizer.apply_chat_template([*row["messages"], said], tokenize=False)
        else:
            text = row["prompt"] + row["response"]
            eos = tokenizer.eos_token or ""
            text = text if text.endswith(eos) else text + eos
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    except (ValueError, TypeError, UnicodeError) as error:
        return [], f"the reward model's tokenizer: {type(error).__name__}: {error}"[:500]
    if not tokens:
        return [], "prompt and answer have no token"
    if len(tokens) > loaded.max_length:
        return [], f"{len(tokens)} tokens are more than the reward model's {loaded.max_length}"
    return tokens, None


def batches_of(lengths: Mapping[int, int], budget: int) -> Iterator[list[int]]:
    """Keys in groups whose padded size stays within the budget, longest first.

    A single one that exceeds it goes alone.
    """
    group: list[int] = []
    for key in sorted(lengths, key=lambda k: (-lengths[k], k)):
        # the first of a group is its longest
        if group and (len(group) + 1) * lengths[group[0]] > budget:
            yield group
            group = []
        group.append(key)
    if group:
        yield group


@torch.inference_mode()
def _scores(loaded: LoadedRewardModel, ids: Sequence[Sequence[int]]) -> list[float]:
    """The number at each text's last token; padding is on the right and never looked at."""
    device = loaded.module.head.weight.device
    lengths = torch.tensor([len(tokens) for tokens in ids])
    width = int(lengths.max())
    padded = torch.zeros(len(ids), width, dtype=torch.long)
    for row, tokens in enumerate(ids):
        padded[row, : len(tokens)] = torch.tensor(tokens)
    mask = torch.arange(width) < lengths[:, None]
    values = loaded.module(padded.to(device), mask.long().to(device)).cpu()
    return (values.gather(1, (lengths - 1)[:, None]).squeeze(1) + loaded.bias).tolist()


def _outcome(loaded: LoadedRewardModel, score: float) -> Outcome:
    if not math.isfinite(score):
        return Outcome(value=None, status="error", error=f"the reward model's score is {score}")
    if (loaded.mean, loaded.std) == (0.0, 1.0):
        return Outcome(value=score)
    return Outcome(value=(score - loaded.mean) / loaded.std, extras={"raw_score": score})
