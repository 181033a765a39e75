"""Progress as one HTML output, updated in place and whole in the saved notebook.

May import ``driver.progress`` and, inside functions, IPython. Plain HTML through a display id:
no widget and no comm, so that the last state is what a reopened, untrusted or exported notebook
shows.
"""

import html
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from nbrl.driver.progress import PlainLines
from nbrl.protocols import Bar

# Each state is white on a dark ground of its own: readable in light and dark themes, and a word
# where colour is stripped.
STATE_COLOURS = {
    "running": "#0b5cad",
    "done": "#1b6e3c",
    "interrupted": "#8a5200",
    "failed": "#b3261e",
}
HEADINGS = ("phase", "progress", "done", "time", "rate", "tokens", "to go", "state")
KERNEL_SHELL = "ZMQInteractiveShell"


class HtmlSink:
    """One output of the running cell that shows all bars, outermost first."""

    def __init__(self) -> None:
        self._display_id = f"nbrl-{uuid.uuid4().hex}"
        self._is_shown = False

    def show(self, bars: Sequence[Bar], final: bool) -> None:
        """Draw the bars in this sink's output, which the first call makes."""
        from IPython.display import display

        bundle = {"text/html": to_html(bars), "text/plain": to_text(bars)}
        display(bundle, raw=True, display_id=self._display_id, update=self._is_shown)
        self._is_shown = True


def to_html(bars: Sequence[Bar]) -> str:
    """A table with one row a bar, inner bars indented; it reads the same without any style."""
    cell = "text-align:left;padding:2px 8px"
    head = "".join(f'<th scope="col" style="{cell}">{name}</th>' for name in HEADINGS)
    rows = "".join(_row(bar, at > 0, cell) for at, bar in enumerate(bars))
    notes = "".join(f"<div>{html.escape(bar.note)}</div>" for bar in bars if bar.note)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"


def to_text(bars: Sequence[Bar]) -> str:
    """One line a bar, inner bars indented."""
    return "\n".join("  " * (at > 0) + bar.line() for at, bar in enumerate(bars))


def make_sink() -> HtmlSink | PlainLines:
    """HTML inside a Jupyter kernel (papermill and nbclient run one too), plain lines elsewhere."""
    return HtmlSink() if type(running_shell()).__name__ == KERNEL_SHELL else PlainLines()


def running_shell() -> Any:
    """The IPython shell that this code runs in, or None; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def seconds_text(seconds: float) -> str:
    """A duration in the unit that reads best: ``0.4 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _row(bar: Bar, is_inner: bool, cell: str) -> str:
    name, unit = html.escape(bar.name), html.escape(bar.unit)
    per_second = f"{bar.token_rate:,.0f} tokens/s" if bar.token_rate else ""
    share = 1.0 if bar.total <= 0 else min(bar.done / bar.total, 1.0)
    colour = STATE_COLOURS[bar.outcome]
    gauge = (
        f'<progress value="{share:.4f}" max="1" title="{share:.0%}" '
        f'style="width:12em;accent-color:{colour}"></progress>'
    )
    texts = (
        "&nbsp;" * (4 * is_inner) + name,
        gauge,
        f"{bar.done:,}/{bar.total:,} {unit}",
        seconds_text(bar.seconds),
        f"{bar.rate:,.1f} {unit}/s",
        per_second,
        "" if bar.eta is None else seconds_text(bar.eta),
        f'<span style="background-color:{colour};color:#ffffff;padding:0 6px">{bar.outcome}</span>',
    )
    return "<tr>" + "".join(f'<td style="{cell}">{text}</td>' for text in texts) + "</tr>"
