"""Small static HTML for the values and the session, taught to IPython by type.

Each is what a reader asks first: its line, warnings in words, distributions, a few rows, the spec
folded. At most 64 kB whatever the size, the same words without any style, nothing live. The
plain-text form stays the value's own ``repr``. May import ``driver``, ``types`` and the neighbour
``progress``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nbrl.driver.session import Session
from nbrl.notebook.progress import running_shell
from nbrl.notebook.reprs import results, samples, scores
from nbrl.types import (
    Advantaged,
    Evaluation,
    Examples,
    History,
    LossComparison,
    Probe,
    Prompts,
    RewardCheck,
    Rollouts,
    Scored,
    ScoreDiff,
    StepResult,
)

HTML: Mapping[type, Callable[[Any], str]] = {
    Prompts: samples.prompts_html,
    Examples: samples.examples_html,
    Rollouts: samples.rollouts_html,
    Scored: samples.scored_html,
    Advantaged: samples.advantaged_html,
    StepResult: results.step_html,
    Probe: results.probe_html,
    Evaluation: results.evaluation_html,
    History: results.history_html,
    LossComparison: results.losses_html,
    RewardCheck: scores.check_html,
    ScoreDiff: scores.diff_html,
    Session: results.session_html,
}


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
