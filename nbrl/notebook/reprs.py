"""Small static HTML for the values, taught to IPython by type.

Each is counts and a few rows as a plain table: at most 64 kB whatever the size, the same words
without any style, nothing live. Text of models and data is escaped and cut, and characters that
cannot be seen are named. The plain-text form stays the value's own ``repr``.

May import ``types`` and its neighbour ``progress``.
"""

import html
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nbrl.notebook.progress import running_shell
from nbrl.types import (
    SOURCE_POLICY,
    Advantaged,
    Evaluation,
    History,
    Metric,
    Probe,
    Prompts,
    Rollouts,
    Scored,
    StepResult,
)

MOST_SAMPLES = 6
MOST_ROWS = 60
MOST_COLUMNS = 12
MOST_CHARACTERS = 240
CELL = "text-align:left;vertical-align:top;padding:2px 8px"
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
Row = Sequence[object]


def register(shell: Any = None) -> None:
    """Teach an IPython shell the HTML form of every value; doing it again changes nothing.

    Args:
        shell: The shell; by default the one that is running, and without one nothing is done.
    """
    shell = running_shell() if shell is None else shell
    if shell is not None:
        formatter = shell.display_formatter.formatters["text/html"]
        for kind, draw in HTML.items():
            formatter.for_type(kind, draw)


def visible(text: str, most: int = MOST_CHARACTERS) -> str:
    """HTML for text that is not trusted: cut with its length said, the unseen shown, all escaped.

    Control characters appear as their Unicode pictures, other invisible ones (zero-width,
    direction marks) as ``[U+200B]``.
    """
    shown = "".join(_seen(c) for c in text[:most])
    more = f" ... ({len(text):,} characters)" if len(text) > most else ""
    return html.escape(shown + more)


def table(title: str, head: Sequence[str], rows: Iterable[Row], note: str = "") -> str:
    """A titled table; strings in it are treated as untrusted text, numbers are formatted."""
    top = "".join(f'<th scope="col" style="{CELL}">{visible(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{_cell(x)}</td>' for x in row) + "</tr>"
        for row in rows
    )
    under = f"<div>{visible(note)}</div>" if note else ""
    return (
        f"<div><b>{visible(title)}</b><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>{under}</div>"
    )


def prompts_html(value: Prompts) -> str:
    """Some prompts and their labels."""
    return _samples(value, ("prompt_id", "prompt", "label"), {})


def rollouts_html(value: Rollouts) -> str:
    """Some answers beside their prompts."""
    return _samples(value, ROLLOUT, {"tokens": _policy_tokens})


def scored_html(value: Scored) -> str:
    """Some answers with their rewards; one column a reward where there are several."""
    parts = [c.removesuffix(".status") for c in value.table.column_names if c.endswith(".status")]
    named = tuple(parts) if len(parts) > 1 else ()
    columns = (*ROLLOUT, *named, "total", "status")
    return _samples(value, columns, {"tokens": _policy_tokens})


def advantaged_html(value: Advantaged) -> str:
    """Some answers with reward, group mean and mean advantage."""
    added = {
        "tokens": _policy_tokens,
        "advantage": _mean_advantage,
    }
    return _samples(value, (*ROLLOUT, "reward", "group_mean", "advantage", "live"), added)


def step_html(value: StepResult) -> str:
    """Every metric with what it is a mean over, the time of each phase, and the warnings."""
    timed = [(f"{name}, seconds", s, 1, "step") for name, s in value.seconds.items()]
    return table(
        repr(value), METRIC_HEAD, _metric_rows(value.metrics, timed), "; ".join(value.warnings)
    )


def probe_html(value: Probe) -> str:
    """Every metric of the loss that was tried."""
    return table(repr(value), METRIC_HEAD, _metric_rows(value.metrics, []))


def evaluation_html(value: Evaluation) -> str:
    """pass@k and the mean reward with their intervals."""
    frame = value.to_pandas()
    rows = [(name, *numbers) for name, numbers in zip(frame.index, frame.to_numpy(), strict=True)]
    return table(repr(value), ("", "estimate", "low", "high"), rows[:MOST_ROWS])


def history_html(value: History) -> str:
    """The first and the last steps of a run."""
    at = _spread(len(value))
    known = dict.fromkeys(name for i in at for name in value.records[i])
    first = [name for name in LEADING if name in known]
    names = [*first, *(name for name in known if name not in first)][:MOST_COLUMNS]
    rows = [[value.records[i].get(name) for name in names] for i in at]
    return table(repr(value), names, rows, _shown(len(at), len(value), "steps"))


ROLLOUT = ("sample_id", "prompt", "response", "label", "tokens", "finish_reason")
LEADING = (
    "version",
    "reward",
    "loss",
    "grad_norm",
    "entropy",
    "kl",
    "value_loss",
    "response_length",
    "truncated",
    "live_groups",
    "seconds_rollout",
    "seconds_train",
)
"""What is looked at first in a run; the table keeps room for these."""
METRIC_HEAD = ("metric", "value", "count", "mean over")
HTML: Mapping[type, Callable[[Any], str]] = {
    Prompts: prompts_html,
    Rollouts: rollouts_html,
    Scored: scored_html,
    Advantaged: advantaged_html,
    StepResult: step_html,
    Probe: probe_html,
    Evaluation: evaluation_html,
    History: history_html,
}


def _samples(
    value: Any, columns: Sequence[str], added: Mapping[str, Callable[[dict], object]]
) -> str:
    """Rows spread over the whole value, so that different prompts are seen."""
    at = _spread(len(value))
    records = value.take(at).to_arrow().to_pylist()
    rows = []
    for index, record in zip(at, records, strict=True):
        made = {name: make(record) for name, make in added.items()}
        rows.append([int(index), *(made[c] if c in made else record[c] for c in columns)])
    return table(repr(value), ("row", *columns), rows, _shown(len(at), len(value), "rows"))


def _policy_tokens(record: dict) -> int:
    return record["source"].count(SOURCE_POLICY)


def _mean_advantage(record: dict) -> float | None:
    counted = [a for a, m in zip(record["advantages"], record["mask"], strict=True) if m]
    return sum(counted) / len(counted) if counted else None


def _spread(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, MOST_SAMPLES)).astype(np.int64))


def _shown(shown: int, count: int, what: str) -> str:
    return f"{shown:,} of {count:,} {what}; .to_pandas() has all" if shown < count else ""


def _metric_rows(metrics: Mapping[str, Metric], more: Sequence[Row]) -> list[Row]:
    rows: list[Row] = [(name, m.value, m.count, m.of) for name, m in metrics.items()]
    return [*rows, *more][:MOST_ROWS]


def _seen(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return chr(0x2421)
    return f"[U+{code:04X}]" if unicodedata.category(character) in INVISIBLE else character


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return visible(str(value))
