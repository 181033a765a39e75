"""The browser as one piece of HTML that needs no kernel and no network.

A plain table that any viewer can read stands in it; where scripts run, they put the browser with
the same samples in its place. May import its neighbours.
"""

import base64
import gzip
import uuid
from typing import Any

from nbrl.notebook.reprs.markup import table
from nbrl.notebook.reprs.text import visible
from nbrl.notebook.views.bundle import javascript, stylesheet
from nbrl.notebook.views.source import SampleSource, to_json

MOST_ROWS = 300
MOST_PACKED = 600_000
STATIC_ROWS = 15
STATIC_COLUMNS = 10


def saved_html(source: SampleSource, plot: tuple[str, str] | None, picture: str = "") -> str:
    """The whole view, at most about 0.8 MB; it says how many of the samples it holds.

    Args:
        source: What to show.
        plot: The columns that a plot starts with, or None.
        picture: A name by which a live view finds and hides this one.
    """
    packed = _packed(source, plot)
    name = f"nbrl-{uuid.uuid4().hex}"
    root = f'<div id="{name}" data-nbrl-picture="{visible(picture)}">{static_html(source)}</div>'
    script = (
        f"{javascript('saved.js')}\n"
        f'const root = document.getElementById("{name}");\n'
        f'if (root) mountSaved(root, "{packed}");'
    )
    return f'{root}<style>{stylesheet()}</style><script type="module">{script}</script>'


def static_html(source: SampleSource) -> str:
    """The first page as a plain table under the warnings."""
    count = min(len(source.value), STATIC_ROWS)
    texts = source.texts(range(count))
    columns = source.index[:STATIC_COLUMNS]
    rows = [
        [t["id"], t["prompt"], t["response"], *(_cell(d, a[at]) for d, a in columns)]
        for at, t in enumerate(texts)
    ]
    head = ("sample", "prompt", "answer", *(d["name"] for d, _ in columns))
    note = f"the first {count:,} of {len(source.value):,} samples" if rows else "no samples"
    said = "".join(
        f'<div role="note"><b>&#9888; warning:</b> {visible(w)}</div>' for w in source.concerns()
    )
    shown = table("", head, rows, note)
    return f"<div><b>{visible(repr(source.value))}</b></div>{said}{shown}"


def _cell(description: dict[str, Any], value: Any) -> object:
    if description["kind"] == "word":
        words = description["words"]
        return words[value] if value < len(words) else ""
    if description["kind"] == "flag":
        return "yes" if value else "no"
    return None if value != value else value.item()


def _packed(source: SampleSource, plot: tuple[str, str] | None) -> str:
    """As many of the first samples as the room allows, gzip in base64."""
    count = min(len(source.value), MOST_ROWS)
    while True:
        packed = base64.b64encode(gzip.compress(_content(source, plot, count).encode(), mtime=0))
        if len(packed) <= MOST_PACKED or count == 0:
            return packed.decode()
        count = count * 2 // 3


def _content(source: SampleSource, plot: tuple[str, str] | None, count: int) -> str:
    every = len(source.value)
    note = (
        f"This saved view holds the first {count:,} of {every:,} samples." if count < every else ""
    )
    return to_json(
        {
            "header": {**source.header(plot), "count": count},
            "buffers": [base64.b64encode(a[:count].tobytes()).decode() for _, a in source.index],
            "first": source.texts(range(count), 2000),
            "samples": source.samples(range(count)),
            "note": note if count < every else "",
        }
    )
