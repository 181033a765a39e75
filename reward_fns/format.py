"""How well an answer keeps the form that was asked for: tags, length and language, each 0 to 1.

The three are components of one reward and each counts a third; ``format.py:tags`` takes one alone.
None of them looks at whether the answer is right, so on its own this reward is easily gamed.
"""

import unicodedata
from typing import Any

TAGS = ("think", "answer")
"""The parts that an answer must have, once each, in this order, with nothing around them."""
FEWEST_WORDS, MOST_WORDS = 5, 800
LANGUAGE = "en"
SCRIPTS = {
    "ar": ("ARABIC",),
    "de": ("LATIN",),
    "el": ("GREEK",),
    "en": ("LATIN",),
    "es": ("LATIN",),
    "fr": ("LATIN",),
    "he": ("HEBREW",),
    "hi": ("DEVANAGARI",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"),
    "ko": ("HANGUL",),
    "ru": ("CYRILLIC",),
    "zh": ("CJK",),
}
"""What letters of a language are called; languages of one script are not told apart."""
SHARE = 0.9
"""From this share of letters in the language's script on, the answer is in it."""
LOOKED_AT = 5_000


def tags(response: str) -> float:
    """1.0 for ``<think>...</think> <answer>...</answer>``: each once, not empty, nothing else."""
    rest = response
    for tag in TAGS:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if response.count(opening) != 1 or response.count(closing) != 1:
            return 0.0
        before, _, rest = rest.partition(opening)
        inside, closed, rest = rest.partition(closing)
        if before.strip() or not closed or not inside.strip():
            return 0.0
    return float(not rest.strip())


def length(response: str) -> float:
    """1.0 within the bounds; outside of them the share by which the bound is missed."""
    words = len(response.split())
    if words < FEWEST_WORDS:
        return words / FEWEST_WORDS
    return min(1.0, MOST_WORDS / words)


def language(response: str, metadata: dict[str, Any]) -> float:
    """1.0 where nearly all letters are of the language's script.

    The language is ``metadata["language"]``, English by default. Of long answers some thousand
    letters are looked at, spread over the whole.
    """
    wanted = metadata.get("language", LANGUAGE)
    if wanted not in SCRIPTS:
        raise ValueError(f"no script is known for language {wanted!r}; known: {sorted(SCRIPTS)}")
    letters = [c for c in response[:: 1 + len(response) // LOOKED_AT] if c.isalpha()]
    if not letters:
        return 0.0
    ours = sum(unicodedata.name(c, "").startswith(SCRIPTS[wanted]) for c in letters)
    return min(1.0, ours / len(letters) / SHARE)


def reward(response: str, metadata: dict[str, Any]) -> dict[str, float]:
    """The three components; together 1.0 for an answer that keeps the form."""
    return {
        "tags": tags(response) / 3,
        "length": length(response) / 3,
        "language": language(response, metadata) / 3,
    }
