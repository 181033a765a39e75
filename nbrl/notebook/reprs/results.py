"""HTML of steps, probes, evaluations, histories and the session.

May import ``driver``, ``types`` and its neighbours.
"""

import datetime
from collections.abc import Mapping, Sequence

import numpy as np

from nbrl.driver.session import Session
from nbrl.errors import SessionError
from nbrl.notebook.reprs.markup import Row, card, table
from nbrl.notebook.reprs.samples import shown, spread
from nbrl.types import Evaluation, History, LossComparison, Metric, Probe, StepResult

MOST_ROWS = 60
MOST_COLUMNS = 12
MOST_WARNINGS = 20
NOISY = 1.2
METRIC_HEAD = ("metric", "value", "count", "mean over")
LEADING = (
    "version",
    "reward",
    "loss",
    "held_out_loss",
    "accuracy",
    "held_out_accuracy",
    "token_accuracy",
    "held_out_token_accuracy",
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


def step_html(value: StepResult) -> str:
    """Every metric with what it is a mean over, the time of each phase, and the warnings."""
    timed = [(f"{name}, seconds", s, 1, "step") for name, s in value.seconds.items()]
    rows = _metric_rows(value.metrics, timed)
    parts = [table("metrics", METRIC_HEAD, rows)]
    return card(repr(value), parts, warnings=value.warnings[:MOST_WARNINGS], spec=value.spec)


def probe_html(value: Probe) -> str:
    """Every metric of the loss that was tried."""
    rows = _metric_rows(value.metrics, [])
    return card(repr(value), [table("metrics", METRIC_HEAD, rows)], spec=value.spec)


def evaluation_html(value: Evaluation) -> str:
    """pass@k and the mean reward with their intervals."""
    frame = value.to_pandas()
    rows = [(name, *numbers) for name, numbers in zip(frame.index, frame.to_numpy(), strict=True)]
    part = table("95 % intervals", ("", "estimate", "low", "high"), rows[:MOST_ROWS])
    return card(repr(value), [part], spec=value.spec)


def history_html(value: History) -> str:
    """The first and the last steps of a run."""
    at = spread(len(value))
    known = dict.fromkeys(name for i in at for name in value.records[i])
    first = [name for name in LEADING if name in known]
    names = [*first, *(name for name in known if name not in first)][:MOST_COLUMNS]
    rows = [[value.records[i].get(name) for name in names] for i in at]
    said = ["the run was interrupted"] if value.interrupted else []
    part = table("steps", names, rows, shown(len(at), len(value), "steps"))
    return card(repr(value), [part], warnings=said, spec=value.spec)


def losses_html(value: LossComparison) -> str:
    """One row a loss, and how far the gradients agree in direction."""
    frame = value.to_pandas()
    listed = frame.iloc[:MOST_ROWS]
    rows = [(n, *row) for n, row in zip(listed.index, listed.to_numpy(), strict=True)]
    cosines = value.cosines.iloc[:MOST_COLUMNS, :MOST_COLUMNS]
    square = [(n, *row) for n, row in zip(cosines.index, cosines.to_numpy(), strict=True)]
    parts = [
        table("losses", ("loss", *map(str, frame.columns)), rows),
        table("cosines of the gradients", ("", *map(str, cosines.columns)), square),
    ]
    return card(repr(value), parts, warnings=loss_concerns(value), spec=value.spec)


def loss_concerns(value: LossComparison) -> list[str]:
    """Losses whose gradient is zero or mostly noise, and pairs that pull apart."""
    said = []
    norms = value.table["grad_norm"]
    for name in norms.index[(norms == 0).to_numpy()]:
        said.append(f"{name}: the gradient is zero on this batch")
    noisy = value.table.index[(value.table["signal_to_noise"] < NOISY).to_numpy()]
    if len(noisy):
        said.append(f"mostly noise on this batch (signal to noise below {NOISY}): {list(noisy)}")
    cosines = value.cosines.to_numpy()
    for i, j in zip(*np.nonzero(np.triu(cosines < 0, 1)), strict=True):
        one, other = value.cosines.index[i], value.cosines.index[j]
        said.append(f"{one} and {other} pull apart: cosine {cosines[i, j]:.2f}")
    return said[:MOST_WARNINGS]


def session_html(value: Session) -> str:
    """What is resident where, at what time; the last step; the settings."""
    facts = [("policy version", value.version), ("run folder", str(value.run_dir))]
    said: list[str] = []
    parts = []
    try:
        frame = value.describe()
        rows = [(name, *row) for name, row in zip(frame.index, frame.to_numpy(), strict=True)]
        clock = datetime.datetime.now().strftime("%H:%M:%S")
        parts.append(table(f"resident as of {clock}", ("part", *map(str, frame.columns)), rows))
    except SessionError as error:
        said.append(str(error))
    if len(value.history):
        last = value.history.records[-1]
        facts += [(f"last {n}", last[n]) for n in LEADING[1:4] if n in last]
    return card(
        repr(value),
        [table("session", ("fact", "value"), facts), *parts],
        warnings=said,
        spec=value.spec,
    )


def _metric_rows(metrics: Mapping[str, Metric], more: Sequence[Row]) -> list[Row]:
    rows: list[Row] = [(name, m.value, m.count, m.of) for name, m in metrics.items()]
    return [*rows, *more][:MOST_ROWS]
