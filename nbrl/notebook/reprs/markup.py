"""The few pieces of HTML that all static views are made of; each reads the same without style.

Colours come from the page, so that light and dark themes both hold; what must stand out does so by
words. May import ``text`` beside it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbrl.notebook.reprs.text import cell, visible

CELL = "text-align:left;vertical-align:top;padding:2px 8px"
NUMBER = "text-align:right;vertical-align:top;padding:2px 8px;white-space:nowrap"
SCROLL = "overflow-x:auto;max-width:100%"
MOST_SPEC = 6000
Row = Sequence[object]


def table(caption: str, head: Sequence[str], rows: Iterable[Row], note: str = "") -> str:
    """A table under a caption; strings are untrusted text, columns of numbers are set right."""
    listed = [list(row) for row in rows]
    right = [all(_is_number(row[at]) for row in listed) for at in range(len(head))]
    styles = [NUMBER if listed and r else CELL for r in right]
    top = "".join(
        f'<th scope="col" style="{style}">{visible(name)}</th>'
        for style, name in zip(styles, head, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{s}">{cell(x)}</td>' for s, x in zip(styles, row, strict=True))
        + "</tr>"
        for row in listed
    )
    over = f'<caption style="text-align:left">{visible(caption)}</caption>' if caption else ""
    under = f"<div>{visible(note)}</div>" if note else ""
    return (
        f'<div style="{SCROLL}" tabindex="0" role="region" aria-label="{visible(caption)}">'
        f"<table>{over}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{under}"
    )


def card(
    title: str,
    parts: Iterable[str],
    *,
    warnings: Iterable[str] = (),
    spec: Mapping[str, Any] | None = None,
) -> str:
    """A value's whole picture: its line, what a reader must know, its tables, its spec folded."""
    said = "".join(
        f'<div role="note"><b>&#9888; warning:</b> {visible(warning, 600)}</div>'
        for warning in warnings
    )
    folded = folding("spec", spec_text(spec)) if spec else ""
    return f"<div><div><b>{visible(title)}</b></div>{said}{''.join(parts)}{folded}</div>"


def folding(summary: str, text: str) -> str:
    """Text behind a summary that mouse and keyboard open."""
    shown = visible_lines(text)
    return f"<details><summary>{visible(summary)}</summary><pre>{shown}</pre></details>"


def visible_lines(text: str, most: int = MOST_SPEC) -> str:
    """HTML of untrusted text whose line breaks stay."""
    lines = text[:most].split("\n")
    more = f" ... ({len(text):,} characters)" if len(text) > most else ""
    return "\n".join(visible(line, most) for line in lines) + more


def spec_text(spec: Mapping[str, Any]) -> str:
    """The settings as indented JSON; what JSON cannot hold by its ``repr``."""
    return json.dumps(dict(spec), indent=1, default=repr, ensure_ascii=False)


def _is_number(value: object) -> bool:
    return value is None or (not isinstance(value, str) and not isinstance(value, bool))
