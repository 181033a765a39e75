"""Progress of a verb: nested bars, throttled, shown by a sink that is handed in.

May import ``protocols``; it draws nothing itself but plain lines.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nbrl.protocols import Advance, Bar, Sink

MIN_SECONDS_BETWEEN_UPDATES = 0.25
SECONDS_BETWEEN_PLAIN_LINES = 30.0


class PlainLines:
    """Lines of text where there is no front end: one at the end, one every 30 s before it."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, bars: Sequence[Bar], final: bool) -> None:
        """Write the outermost bar's line to stderr when it is due."""
        now = time.monotonic()
        if final or now - self._last >= SECONDS_BETWEEN_PLAIN_LINES:
            self._last = now
            sys.stderr.write(bars[0].line() + "\n")
            sys.stderr.flush()


class Quiet:
    """Shows nothing."""

    def show(self, bars: Sequence[Bar], final: bool) -> None:
        """Do nothing."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Open:
    """A bar that changes, and when it began."""

    bar: Bar
    started: float

    def tick(self, now: float) -> None:
        self.bar = replace(self.bar, seconds=now - self.started)


class Progress:
    """The bars that are open. The outermost phase opens one sink, inner ones appear in it."""

    def __init__(self, make_sink: Callable[[], Sink]) -> None:
        self.make_sink = make_sink
        self._sink: Sink | None = None
        self._open: list[_Open] = []
        self._last: list[_Open] = []
        self._totals: dict[str, Bar] = {}
        self._shown = 0.0

    @contextmanager
    def phase(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        """A bar for the time of the block; yields ``advance(units, tokens)``."""
        opened = _Open(bar=Bar(name=name, unit=unit, total=total), started=time.monotonic())
        outcome = "failed"
        try:
            if not self._open:
                self._sink, self._shown, self._totals = self.make_sink(), 0.0, {}
            self._open.append(opened)
            yield lambda units, tokens: self._advance(opened, units, tokens)
            outcome = "done"
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise
        finally:
            self._close(opened, outcome)

    def end(self) -> None:
        """Close what is open still: an interrupt may strike between a phase and its block."""
        if self._open:
            self._close(self._open[0], "interrupted")
        self._show_last()

    def note(self, text: str) -> None:
        """A remark on the outermost bar, e.g. the metrics of the last step."""
        if self._open:
            self._open[0].bar = replace(self._open[0].bar, note=text)
            self._show(self._open, final=False)

    def _advance(self, opened: _Open, units: int, tokens: int) -> None:
        bar = opened.bar
        opened.bar = replace(bar, done=bar.done + units, tokens=bar.tokens + tokens)
        self._show(self._open, final=False)

    def _close(self, opened: _Open, outcome: str) -> None:
        """Take a bar and those inside it away; of the outermost one, show the last state."""
        if opened not in self._open:
            return
        level = self._open.index(opened)
        ended = self._open[level:]
        for each in ended:
            each.tick(time.monotonic())
            each.bar = replace(each.bar, outcome=outcome)
        if level == 0:
            self._last = ended[:1]
        del self._open[level:]
        for each in ended if level else ended[1:]:
            self._add_to_total(each.bar)
        self._show_last()

    def _show_last(self) -> None:
        """Draw the last state of the outermost bar, if that is still to be done."""
        if self._last:
            self._show(self._last, final=True)
            self._last = []

    def _add_to_total(self, bar: Bar) -> None:
        """Keep what the inner phases of one name did together, for the last state."""
        before = self._totals.get(bar.name, replace(bar, total=0, done=0, tokens=0, seconds=0.0))
        self._totals[bar.name] = replace(
            bar,
            total=before.total + bar.total,
            done=before.done + bar.done,
            tokens=before.tokens + bar.tokens,
            seconds=before.seconds + bar.seconds,
        )

    def _show(self, opened: Sequence[_Open], final: bool) -> None:
        now = time.monotonic()
        if self._sink is None or not (final or now - self._shown >= MIN_SECONDS_BETWEEN_UPDATES):
            return
        self._shown = now
        for each in opened:
            each.tick(now)
        totals = self._totals.values() if final else ()
        self._sink.show((*(each.bar for each in opened), *totals), final)
