"""Token ids as spans of text: bytes that form one character together are one span.

May import ``backends.models`` inside a function, and ``errors``.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from nbrl.errors import ConfigError

Decode = Callable[[list[list[int]]], list[str]]
"""Lists of token ids to their texts, special tokens shown."""
BROKEN = "\ufffd"
MOST_BYTES = 8
"""No character, nor a joined emoji's part, is spread over more tokens than this."""


def spans_of(ids: Sequence[int], decode: Decode | None) -> list[tuple[str, int]]:
    """Texts with the number of tokens that form each; without ``decode`` the ids in brackets."""
    if decode is None:
        return [(f"[{token}]", 1) for token in ids]
    pieces = decode([[token] for token in ids])
    spans = []
    at = 0
    while at < len(ids):
        text, count = pieces[at], 1
        if BROKEN in text:
            text, count = _whole(list(ids[at : at + MOST_BYTES]), decode, text)
        spans.append((text, count))
        at += count
    return spans


def _whole(ids: list[int], decode: Decode, alone: str) -> tuple[str, int]:
    """The shortest run of tokens from here on that decodes without a broken character."""
    runs = [ids[:count] for count in range(2, len(ids) + 1)]
    for run, text in zip(runs, decode(runs) if runs else [], strict=True):
        if BROKEN not in text:
            return text, len(run)
    return alone, 1


def decoder_of(tokenizer: Any) -> Decode:
    """A :data:`Decode` for a tokenizer of transformers; leading blanks of words are kept."""

    def decode(rows: list[list[int]]) -> list[str]:
        texts = tokenizer.batch_decode(
            rows, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        firsts = tokenizer.convert_ids_to_tokens([row[0] for row in rows])
        return [
            " " + text if (first or "").startswith("\u2581") and not text.startswith(" ") else text
            for first, text in zip(firsts, texts, strict=True)
        ]

    return decode


@functools.lru_cache(maxsize=4)
def bundled_decoder(path: str) -> Decode | None:
    """The decoder of a model that lies on this machine; None where there is none by that name."""
    from nbrl.backends.models import load_tokenizer
    from nbrl.config import Model

    try:
        return decoder_of(load_tokenizer(Model(path)))
    except ConfigError:
        return None
