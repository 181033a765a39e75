"""Progress of a verb as data: nested bars, throttled, shown by a sink that is handed in.

May import ``protocols``; it draws nothing itself but plain lines.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from nbrl.protocols import Advance

MIN_SECONDS_BETWEEN_UPDATES = 0.25
SECONDS_BETWEEN_PLAIN_LINES = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """The state of one phase at one moment.

    Example: ``Bar(name="rollout", unit="samples", total=256, done=64, tokens=310, seconds=0.2)``
    runs at 320 samples a second and has 0.6 s to go.
    """

    name: str
    unit: str
    total: int
    done: int = 0
    tokens: int = 0
    seconds: float = 0.0
    note: str = ""
    outcome: str = "running"
    """``running``, ``done``, ``interrupted`` or ``failed``."""

    @property
    def rate(self) -> float:
        """Units a second so far; 0 before the first one."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def token_rate(self) -> float:
        """Tokens a second so far; 0 where none are counted."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds to go at the rate so far; None while unknown or when over."""
        if self.outcome != "running" or self.rate == 0:
            return None
        return max(self.total - self.done, 0) / self.rate

    def line(self) -> str:
        """One line of text: state, counts, rates, time."""
        tokens = f", {self.token_rate:,.0f} tokens/s" if self.token_rate else ""
        rest = f", {self.eta:.0f} s to go" if self.eta is not None else ""
        note = f" ({self.note})" if self.note else ""
        state = "" if self.outcome in ("running", "done") else f" {self.outcome}"
        return (
            f"{self.name}{state}: {self.done}/{self.total} {self.unit} in {self.seconds:.1f} s, "
            f"{self.rate:,.1f} {self.unit}/s{tokens}{rest}{note}"
        )


@runtime_checkable
class Sink(Protocol):
    """Where bars are shown: one output that is updated in place."""

    def show(self, bars: Sequence[Bar], final: bool) -> None:
        """Show the bars, outermost first.

        ``final`` is the last call, whatever happened; after the outermost bar it holds, by
        name, what the inner phases did together.
        """
        ...


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


class Progress:
    """The bars that are open. The outermost phase opens one sink, inner ones appear in it."""

    def __init__(self, make_sink: Callable[[], Sink]) -> None:
        self._make_sink = make_sink
        self._sink: Sink | None = None
        self._bars: list[Bar] = []
        self._started: list[float] = []
        self._totals: dict[str, Bar] = {}
        self._shown = 0.0

    @contextmanager
    def phase(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        """A bar for the time of the block; yields ``advance(units, tokens)``."""
        if not self._bars:
            self._sink, self._shown, self._totals = self._make_sink(), 0.0, {}
        self._bars.append(Bar(name=name, unit=unit, total=total))
        self._started.append(time.monotonic())
        level = len(self._bars) - 1
        try:
            yield lambda units, tokens: self._advance(level, units, tokens)
        except KeyboardInterrupt:
            self._close(level, "interrupted")
            raise
        except BaseException:
            self._close(level, "failed")
            raise
        self._close(level, "done")

    def note(self, text: str) -> None:
        """A remark on the outermost bar, e.g. the metrics of the last step."""
        if self._bars:
            self._bars[0] = replace(self._bars[0], note=text)
            self._show(final=False)

    def _advance(self, level: int, units: int, tokens: int) -> None:
        bar = self._bars[level]
        self._bars[level] = replace(bar, done=bar.done + units, tokens=bar.tokens + tokens)
        self._show(final=False)

    def _close(self, level: int, outcome: str) -> None:
        self._tick()
        self._bars[level] = replace(self._bars[level], outcome=outcome)
        if level == 0:
            self._show(final=True)
        else:
            self._add_to_total(self._bars[level])
        del self._bars[level:], self._started[level:]

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

    def _tick(self) -> None:
        now = time.monotonic()
        self._bars = [
            replace(bar, seconds=now - started)
            for bar, started in zip(self._bars, self._started, strict=True)
        ]

    def _show(self, final: bool) -> None:
        now = time.monotonic()
        if final or now - self._shown >= MIN_SECONDS_BETWEEN_UPDATES:
            self._shown = now
            self._tick()
            if self._sink is not None:
                totals = self._totals.values() if final else ()
                self._sink.show((*self._bars, *totals), final)
