"""Text that is not trusted, made fit for HTML: cut, the unseen named, everything escaped.

May import numpy.
"""

import html
import unicodedata

import numpy as np

MOST_CHARACTERS = 240
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
EMPTY_LEVEL = "\u00b7"
SPARK_BINS = 12


def plain(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text cut with its length said, and with a picture or a name for what cannot be seen.

    Control characters appear as their Unicode pictures, other invisible ones (zero-width,
    direction marks) as ``[U+200B]``.
    """
    shown = "".join(_seen(c) for c in text[:most])
    return shown + (f" ... ({len(text):,} characters)" if len(text) > most else "")


def visible(text: str, most: int = MOST_CHARACTERS) -> str:
    """HTML for :func:`plain` text, every markup character escaped."""
    return html.escape(plain(text, most))


def cell(value: object, most: int = MOST_CHARACTERS) -> str:
    """HTML for one value of a table: numbers are formatted, everything else is untrusted text."""
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return visible(str(value), most)


def spark(values: np.ndarray, bins: int = SPARK_BINS) -> str:
    """A histogram as a word of bars, lowest value first; empty without finite values."""
    good = values[np.isfinite(values)]
    if not len(good):
        return ""
    if good.min() == good.max():
        return LEVELS[-1]
    counts = np.histogram(good, bins=bins)[0]
    steps = np.ceil(counts / counts.max() * len(LEVELS)).astype(int)
    return "".join(LEVELS[s - 1] if s else EMPTY_LEVEL for s in steps)


def _seen(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return chr(0x2421)
    return f"[U+{code:04X}]" if unicodedata.category(character) in INVISIBLE else character
