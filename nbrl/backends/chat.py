"""Prompts to token ids and token ids to text; the one place that renders conversations.

May import ``types`` and ``errors``; tokenizers are handed in.
"""

import json
from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from nbrl.errors import ConfigError, DataError
from nbrl.types import Prompts

SHOWN = 5
"""How many bad prompts a message names."""


def encode_prompts(prompts: Prompts, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
    """The token ids of each prompt, in order.

    A row's ``token_ids`` are taken as they are where the column is there. Else a row with
    ``messages`` is rendered by the chat template, up to where the assistant speaks, and encoded
    without adding special tokens (the template writes its own, so no BOS comes twice). Else the
    text is encoded with the special tokens that the tokenizer adds to a beginning, less an EOS at
    the end, which would close the answer before it began, and less a BOS where the text has it.

    Raises:
        ConfigError: A row has messages and the tokenizer no chat template.
        DataError: Rows that cannot be rendered or encoded, or have no text or no tokens; their ids
            are named.
    """
    table = prompts.table
    ids, texts, messages = (
        table.column(name).to_pylist() for name in ("prompt_id", "prompt", "messages")
    )
    if "token_ids" in table.column_names:
        given = [tuple(row or ()) for row in table.column("token_ids").to_pylist()]
        _check_tokens(ids, given)
        return given
    empty = [i for i, t, m in zip(ids, texts, messages, strict=True) if t is None and m is None]
    if empty:
        raise DataError(
            f"{len(empty)} prompts have neither text nor messages: {_some(empty)}. Give them some, "
            "or leave them out."
        )
    if any(m is not None for m in messages) and tokenizer.chat_template is None:
        raise ConfigError(
            "the prompts are messages and the model's tokenizer has no chat template. Load them "
            "with apply_chat_template=False, or use a model that was tuned for chat."
        )
    encoded = _encode_all(tokenizer, ids, texts, messages)
    _check_tokens(ids, encoded)
    return encoded


def _check_tokens(ids: Sequence[str], rows: Sequence[tuple[int | None, ...]]) -> None:
    """Raise where a prompt has no tokens, or a null among them."""
    empty = [i for i, row in zip(ids, rows, strict=True) if not row or None in row]
    if empty:
        raise DataError(
            f"{len(empty)} prompts have no tokens, or a null among them: {_some(empty)}. Give them "
            "some text, or leave them out."
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def beginning_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """The ids of a text that goes on, encoded as :func:`encode_prompts` encodes a prompt's."""
    (whole,) = _ids(tokenizer, [text], add_special_tokens=True)
    (bare,) = _ids(tokenizer, [text], add_special_tokens=False)
    return _beginning(tokenizer, whole, bare)


def inside_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """The ids of a text that stands between others: nothing is added to it."""
    (ids,) = _ids(tokenizer, [text], add_special_tokens=False)
    return ids


def whole_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of ids with special tokens shown, as a program reads a conversation."""
    return cast(str, tokenizer.decode(list(ids), skip_special_tokens=False))


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row of ids, special tokens left out: a view, never the record."""
    return [cast(str, tokenizer.decode(list(row), skip_special_tokens=True)) for row in ids]


def _encode_all(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[str],
    texts: Sequence[str],
    messages: Sequence[str | None],
) -> list[tuple[int, ...]]:
    """All rows at once; one by one only to find the row that cannot be encoded."""
    try:
        return _encode(tokenizer, texts, messages)
    except Exception as error:  # the library raises bare ones, and templates are programs
        for prompt_id, text, message in zip(ids, texts, messages, strict=True):
            _encode_one(tokenizer, prompt_id, text, message)
        raise DataError(f"the prompts cannot be encoded together: {error}") from error


def _encode_one(
    tokenizer: PreTrainedTokenizerBase, prompt_id: str, text: str, messages: str | None
) -> None:
    try:
        _encode(tokenizer, [text], [messages])
    except Exception as error:
        raise DataError(
            f"prompt {prompt_id!r} cannot be encoded: {type(error).__name__}: {error}. Given: "
            f"{(messages or text or '')[:80]!r}. Use text that the model's tokenizer and template "
            "know."
        ) from error


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], messages: Sequence[str | None]
) -> list[tuple[int, ...]]:
    chats = [i for i, m in enumerate(messages) if m is not None]
    plain = [i for i, m in enumerate(messages) if m is None]
    rendered = [_render(tokenizer, messages[i] or "") for i in chats]
    found = dict(zip(chats, _ids(tokenizer, rendered, add_special_tokens=False), strict=True))
    text = [texts[i] for i in plain]
    whole = _ids(tokenizer, text, add_special_tokens=True)
    adds = tokenizer.num_special_tokens_to_add() > 0
    bare = _ids(tokenizer, text, add_special_tokens=False) if adds else whole
    beginnings = [_beginning(tokenizer, w, b) for w, b in zip(whole, bare, strict=True)]
    found |= dict(zip(plain, beginnings, strict=True))
    return [found[i] for i in range(len(texts))]


def _render(tokenizer: PreTrainedTokenizerBase, messages: str) -> str:
    return cast(
        str,
        tokenizer.apply_chat_template(
            json.loads(messages), tokenize=False, add_generation_prompt=True
        ),
    )


def _ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, add_special_tokens: bool
) -> list[tuple[int, ...]]:
    if not texts:
        return []
    rows = tokenizer(list(texts), add_special_tokens=add_special_tokens)["input_ids"]
    return [tuple(row) for row in cast(list[list[int]], rows)]


def _beginning(
    tokenizer: PreTrainedTokenizerBase, whole: tuple[int, ...], bare: tuple[int, ...]
) -> tuple[int, ...]:
    """The ids of a text that goes on: no EOS that was added, no BOS beside the text's own."""
    if len(whole) > len(bare) and whole[-1] == tokenizer.eos_token_id:
        whole = whole[:-1]
    twice = tokenizer.bos_token_id is not None and whole[:2] == (tokenizer.bos_token_id,) * 2
    return whole[1:] if twice else whole
