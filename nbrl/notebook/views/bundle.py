"""The browser's ES modules joined into one text, as a widget or a page takes it."""

import functools
import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"
SHARED = ("text.js", "columns.js", "colours.js", "sample.js", "scatter.js", "table.js", "app.js")
HOSTS = ("live.js", "saved.js")
# Joined, the modules are one scope: what they take from each other is there already.
IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(async )?(function|const) )", re.MULTILINE)


@functools.cache
def javascript(host: str) -> str:
    """The shared modules and one host, ``live.js`` or ``saved.js``, as one module."""
    assert host in HOSTS
    text = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in (*SHARED, host))
    return EXPORT.sub("", IMPORT.sub("", text))


@functools.cache
def stylesheet() -> str:
    """The browser's styles, all below the class ``nbrl-view``."""
    return (STATIC / "style.css").read_text(encoding="utf-8")
