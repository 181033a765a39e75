"""L1, the values on the path: frozen, columnar, joined by id, each containing the one before it."""

import os
from typing import Any

from nbrl.errors import DataError, NbrlError
from nbrl.types import results, storage
from nbrl.types.comparisons import LossComparison, RewardCheck, ScoreDiff
from nbrl.types.examples import KINDS, Examples
from nbrl.types.results import Evaluation, History, Metric, Probe, StepResult
from nbrl.types.samples import Advantaged, Prompts, Rollouts, Scored
from nbrl.types.schemas import SOURCE_ENVIRONMENT, SOURCE_POLICY, SOURCE_PROMPT

Value = (
    Prompts | Rollouts | Scored | Advantaged | Examples | StepResult | Probe | Evaluation | History
)

__all__ = [
    "KINDS",
    "SOURCE_ENVIRONMENT",
    "SOURCE_POLICY",
    "SOURCE_PROMPT",
    "Advantaged",
    "Evaluation",
    "Examples",
    "History",
    "LossComparison",
    "Metric",
    "Probe",
    "Prompts",
    "RewardCheck",
    "Rollouts",
    "ScoreDiff",
    "Scored",
    "StepResult",
    "Value",
    "load",
]


def load(path: str | os.PathLike) -> Value:
    """The value that was saved at ``path``, with its parents and specs.

    Raises:
        DataError: The folder holds no saved value, a damaged one, or one of a newer schema.
    """
    value: Any = None
    for link, table, spec in storage.read_links(path):
        try:
            value = _BUILD[link](table, value, spec)
        except NbrlError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: its {link} cannot be put together with what comes before: {error!r}. The "
                "saved value is damaged; save it again."
            ) from error
    assert value is not None
    return value


_BUILD = {
    "prompts": lambda table, _, spec: Prompts(table=table, spec=spec),
    "rollouts": lambda table, parent, spec: Rollouts(
        table=table, prompts=parent, spec=spec, stored=True
    ),
    "scored": lambda table, parent, spec: Scored(table=table, rollouts=parent, spec=spec),
    "advantaged": lambda table, parent, spec: Advantaged(table=table, scored=parent, spec=spec),
    "step": results.step_of,
    "sketch": results.sketch_of,
    "probe": results.probe_of,
    "evaluation": results.evaluation_of,
    "history": results.history_of,
} | {
    kind: lambda table, _, spec, kind=kind: Examples(kind=kind, table=table, spec=spec)
    for kind in KINDS
}
