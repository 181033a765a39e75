"""A live picture of a run: one figure, redrawn in place, whose last state the notebook keeps.

Draws on a Figure of its own, never through pyplot, so that any thread may draw. May import
``notebook.plots``, ``types``, matplotlib and, inside functions, IPython.
"""

import io
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nbrl.driver.session import Session
from nbrl.errors import ConfigError
from nbrl.notebook.plots import plot_metric
from nbrl.types import History

METRICS = ("reward", "response_length", "entropy", "grad_norm")
EVERY = 0.5
"""Seconds between two pictures at least."""
Show = Callable[[bytes, str], None]
"""Takes a PNG and the words for it."""


@contextmanager
def monitor(
    session: Session,
    metrics: Sequence[str] = METRICS,
    *,
    every: float = EVERY,
    show: Show | None = None,
) -> Iterator[None]:
    """While the block runs, one picture of the session's metrics that is redrawn in place.

    Use it as ``with monitor(session): session.run(100, recipe)``. The picture shows the steps
    taken since the block began; it is drawn again only where a step came. The last state stays.

    Args:
        session: Whose history is watched.
        metrics: What to draw, one panel each; those that a step does not have are left out.
        every: Seconds between two pictures, at least 0.5.
        show: Where pictures go; by default the cell's output.

    Raises:
        ConfigError: No metric, or ``every`` below 0.5.
    """
    if not metrics or every < EVERY:
        raise ConfigError(
            f"monitor needs metrics and every >= {EVERY} seconds; got {list(metrics)}, {every}."
        )
    put = CellPicture() if show is None else show
    begin = len(session.history)
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(session, begin, metrics, every, put, ended), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        _draw_since(session, begin, metrics, put)


def _watch(
    session: Session,
    begin: int,
    metrics: Sequence[str],
    every: float,
    put: Show,
    ended: threading.Event,
) -> None:
    seen = begin
    while not ended.wait(every):
        count = len(session.history)
        if count > seen:
            seen = count
            _draw_since(session, begin, metrics, put)


def _draw_since(session: Session, begin: int, metrics: Sequence[str], put: Show) -> None:
    records = session.history.records[begin:]
    if records:
        history = History(records=records)
        put(draw(history, metrics), repr(history))


def draw(history: History, metrics: Sequence[str] = METRICS) -> bytes:
    """A PNG with one panel for each of the metrics that the history has."""
    known = set().union(*(record.keys() for record in history.records))
    shown = [name for name in metrics if name in known]
    columns = max(1, min(2, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(5.5 * columns, 2.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for at, name in enumerate(shown, start=1):
        plot_metric(history, name, ax=figure.add_subplot(rows, columns, at))
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    return picture.getvalue()


class CellPicture:
    """The picture in the output of the running cell, made by the first call."""

    def __init__(self) -> None:
        self._display_id = f"nbrl-{uuid.uuid4().hex}"
        self._is_shown = False

    def __call__(self, picture: bytes, words: str) -> None:
        """Show the picture in the place of the one before."""
        from IPython.display import display

        bundle: dict[str, Any] = {"image/png": picture, "text/plain": words}
        display(bundle, raw=True, display_id=self._display_id, update=self._is_shown)
        self._is_shown = True
