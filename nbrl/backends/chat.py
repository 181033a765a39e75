"""Prompts to token ids and token ids to text; the one place that renders conversations.

May import ``types`` and ``errors``; tokenizers are handed in.
"""

import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from nbrl.errors import ConfigError, DataError
from nbrl.types import Prompts


def encode_prompts(prompts: Prompts, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
    """The token ids of each prompt, in order.

    A row's ``token_ids`` are taken as they are where the column is there. Else a row with
    ``messages`` is rendered by the chat template, up to where the assistant speaks, and encoded
    without adding special tokens (the template writes its own, so no BOS comes twice). Else the
    text is encoded with the special tokens that the tokenizer adds to a beginning, less an EOS at
    the end, which would close the answer before it began.

    Raises:
        ConfigError: A row has messages and the tokenizer no chat template.
        DataError: A row cannot be rendered or encoded, or has no tokens; its id is named.
    """
    table = prompts.table
    if "token_ids" in table.column_names:
        return [tuple(ids) for ids in table.column("token_ids").to_pylist()]
    rows = zip(*(table.column(n).to_pylist() for n in ("prompt_id", "prompt", "messages")), strict=True)
    return [_encode(tokenizer, *row) for row in rows]


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row of ids, special tokens left out: a view, never the record."""
    return [tokenizer.decode(list(row), skip_special_tokens=True) for row in ids]


def _encode(
    tokenizer: PreTrainedTokenizerBase, prompt_id: str, prompt: str, messages: str | None
) -> tuple[int, ...]:
    try:
        ids = _text_ids(tokenizer, prompt) if messages is None else _chat_ids(tokenizer, messages)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 -- templates are programs and may raise anything
        raise DataError(
            f"prompt {prompt_id!r} cannot be encoded: {type(error).__name__}: {error}. Text given: "
            f"{(messages or prompt)[:80]!r}. Use text that the model's tokenizer and template know."
        ) from error
    if not ids:
        raise DataError(f"prompt {prompt_id!r} has no tokens; give it some text.")
    return ids


def _text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    ids = tokenizer(text)["input_ids"]
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) > len(plain) and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]
    return tuple(ids)


def _chat_ids(tokenizer: PreTrainedTokenizerBase, messages: str) -> tuple[int, ...]:
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the prompts are messages and the model's tokenizer has no chat template. Load them with "
            "apply_chat_template=False, or use a model that was tuned for chat."
        )
    conversation: list[dict[str, Any]] = json.loads(messages)
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
