"""What a verb that does not go on along the path answers: a step, a probe, an evaluation.

May import ``errors``, and ``samples`` and ``storage`` beside it. Each is saved as a value is: its
own fields stand beside its spec in the manifest, its tables in Parquet.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from nbrl.errors import DataError
from nbrl.frozen import frozen
from nbrl.types import storage
from nbrl.types.samples import Scored


@frozen()
class Metric:
    """A number and what it is a mean over.

    Example: ``Metric(value=0.12, count=1280, of="tokens")`` is a mean over 1280 policy tokens.
    ``of="step"`` with ``count=1`` marks a number that is not a mean.
    """

    value: float
    count: int = 1
    of: str = "step"


@frozen(eq=False)
class StepResult:
    """One update of the policy.

    ``tokens`` has one row a trained sample: ``sample_id`` and the token columns ``ratio``,
    ``clipped`` and ``loss``, as long as the sample's ``token_ids``. ``seconds`` is the time of
    each phase. ``warnings`` say in words what a reader should know. ``spec`` holds every setting
    that the step depends on, and under ``parents`` what it was taken from.

    Example: ``result.metrics["loss"]`` is ``Metric(value=-0.01, count=1280, of="tokens")``,
    ``result.version_before, result.version_after`` is ``(0, 1)``.
    """

    version_before: int
    version_after: int
    metrics: Mapping[str, Metric]
    tokens: pa.Table
    seconds: Mapping[str, float]
    spec: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def to_pandas(self) -> pd.DataFrame:
        """One row a metric: value, count, of."""
        rows = {name: (m.value, m.count, m.of) for name, m in self.metrics.items()}
        return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "count", "of"])

    def links(self) -> storage.Links:
        """Token terms, and all else as plain data."""
        own = {
            "version_before": self.version_before,
            "version_after": self.version_after,
            "metrics": _plain_metrics(self.metrics),
            "seconds": {name: float(s) for name, s in self.seconds.items()},
            "warnings": list(self.warnings),
        }
        return {"step": (self.tokens, {"own": own, "spec": self.spec})}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        shown = ("loss", "grad_norm", "reward")
        parts = [f"{n} {self.metrics[n].value:.4g}" for n in shown if n in self.metrics]
        more = f", {len(self.warnings)} warnings" if self.warnings else ""
        head = f"version {self.version_before} -> {self.version_after}"
        return f"StepResult({head}, {', '.join(parts)}{more})"


@frozen(eq=False)
class Probe:
    """What one loss would do to a batch, without doing it.

    ``tokens`` is as in :class:`StepResult`. ``sketch`` is a seeded random projection of the
    gradient, float32 ``[D]``: cosines between sketches estimate cosines between gradients with a
    standard error of about ``1 / sqrt(D)``.

    Example: ``session.probe(adv, {"ppo": PolicyLoss()})["ppo"].metrics["grad_norm"].value``.
    """

    name: str
    version: int
    metrics: Mapping[str, Metric]
    tokens: pa.Table
    sketch: np.ndarray
    spec: Mapping[str, Any] = field(default_factory=dict)

    def cosine(self, other: "Probe") -> float:
        """The estimated cosine with another gradient of the same policy; 0 where one is zero."""
        if self.version != other.version or self.sketch.shape != other.sketch.shape:
            raise DataError(
                f"cosine compares gradients of one policy: {self!r} has a sketch of shape "
                f"{self.sketch.shape}, {other!r} of {other.sketch.shape}. Probe both in one call."
            )
        norm = float(np.linalg.norm(self.sketch) * np.linalg.norm(other.sketch))
        return float(self.sketch @ other.sketch) / norm if norm > 0 else 0.0

    def links(self) -> storage.Links:
        """Sketch and token terms, and all else as plain data."""
        own = {
            "name": self.name,
            "version": self.version,
            "metrics": _plain_metrics(self.metrics),
        }
        return {
            "sketch": (pa.table({"sketch": self.sketch}), {}),
            "probe": (self.tokens, {"own": own, "spec": self.spec}),
        }

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        loss, grad = self.metrics["loss"].value, self.metrics["grad_norm"].value
        return (
            f"Probe({self.name!r}, version {self.version}, loss {loss:.4g}, grad_norm {grad:.4g})"
        )


@frozen(eq=False)
class Evaluation:
    """Held-out quality: pass@k with bootstrap intervals over prompts.

    ``pass_at`` maps k to ``(estimate, low, high)``; ``reward`` is the mean total reward with its
    interval; ``scored`` holds every sample.

    Example: ``evaluation.pass_at[1]`` is ``(0.52, 0.44, 0.60)``.
    """

    version: int
    pass_at: Mapping[int, tuple[float, float, float]]
    reward: tuple[float, float, float]
    scored: Scored
    spec: Mapping[str, Any] = field(default_factory=dict)

    def to_pandas(self) -> pd.DataFrame:
        """One row a k: estimate, low, high."""
        return pd.DataFrame.from_dict(
            {f"pass@{k}": v for k, v in self.pass_at.items()} | {"reward": self.reward},
            orient="index",
            columns=["estimate", "low", "high"],
        )

    def links(self) -> storage.Links:
        """The scored samples and their parents, then one row a k, and the reward's as the last."""
        intervals = [*self.pass_at.values(), self.reward]
        columns: dict[str, Any] = {"k": pa.array([*self.pass_at, None], pa.int64())}
        for at, name in enumerate(("estimate", "low", "high")):
            columns[name] = pa.array([float(row[at]) for row in intervals], pa.float64())
        spec = {"own": {"version": self.version}, "spec": self.spec}
        return {**self.scored.links(), "evaluation": (pa.table(columns), spec)}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        parts = [f"pass@{k} {v[0]:.3f} [{v[1]:.3f}, {v[2]:.3f}]" for k, v in self.pass_at.items()]
        return f"Evaluation(version {self.version}, {', '.join(parts)})"


@frozen(eq=False)
class History:
    """What a loop did: one record a training step, in order.

    A record holds the policy version after the step, every metric's value by its name, and the
    time of each phase as ``seconds_<phase>``. ``interrupted`` is True where Ctrl-C ended the loop.

    Example: ``history.to_pandas()["reward"]`` is the learning curve.
    """

    records: Sequence[Mapping[str, float | int]]
    interrupted: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    def to_pandas(self) -> pd.DataFrame:
        """One row a step, indexed by the policy version after it."""
        if not self.records:
            return pd.DataFrame(index=pd.Index([], name="version"))
        return pd.DataFrame(list(self.records)).set_index("version")

    def links(self) -> storage.Links:
        """One row a record; a number that a record does not have is null."""
        names = dict.fromkeys(name for record in self.records for name in record)
        columns = {}
        for name in names or {"version": None}:
            found = [record.get(name) for record in self.records]
            whole = all(isinstance(x, int | np.integer) for x in found if x is not None)
            columns[name] = pa.array(found, pa.int64() if whole else pa.float64())
        spec = {"own": {"interrupted": self.interrupted}, "spec": self.spec}
        return {"history": (pa.table(columns), spec)}

    def save(self, path: str | os.PathLike) -> None:
        """Write to the folder ``path`` so that :func:`nbrl.load` gives the same value back."""
        storage.save(self.links(), path)

    def __repr__(self) -> str:
        rewards = [r["reward"] for r in self.records if "reward" in r]
        curve = f", reward {rewards[0]:.3f} -> {rewards[-1]:.3f}" if rewards else ""
        return f"History({len(self)} steps{curve}{', interrupted' if self.interrupted else ''})"


def _plain_metrics(metrics: Mapping[str, Metric]) -> dict[str, list[Any]]:
    return {name: [float(m.value), int(m.count), m.of] for name, m in metrics.items()}


def _metrics(plain: Mapping[str, list[Any]]) -> dict[str, Metric]:
    return {n: Metric(value=value, count=count, of=of) for n, (value, count, of) in plain.items()}


def step_of(tokens: pa.Table, _: None, saved: Mapping[str, Any]) -> StepResult:
    """The step that :meth:`StepResult.links` took apart."""
    own = saved["own"]
    return StepResult(
        **{**own, "metrics": _metrics(own["metrics"])}, tokens=tokens, spec=saved["spec"]
    )


def probe_of(tokens: pa.Table, sketch: np.ndarray, saved: Mapping[str, Any]) -> Probe:
    """The probe that :meth:`Probe.links` took apart."""
    own = saved["own"]
    return Probe(
        **{**own, "metrics": _metrics(own["metrics"])},
        tokens=tokens,
        sketch=sketch,
        spec=saved["spec"],
    )


def sketch_of(table: pa.Table, _: None, saved: Mapping[str, Any]) -> np.ndarray:
    """The sketch of a probe."""
    return table.column("sketch").to_numpy()


def evaluation_of(table: pa.Table, scored: Scored, saved: Mapping[str, Any]) -> Evaluation:
    """The evaluation that :meth:`Evaluation.links` took apart."""
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return Evaluation(
        version=saved["own"]["version"],
        pass_at={row[0]: row[1:] for row in rows[:-1]},
        reward=rows[-1][1:],
        scored=scored,
        spec=saved["spec"],
    )


def history_of(table: pa.Table, _: None, saved: Mapping[str, Any]) -> History:
    """The history that :meth:`History.links` took apart."""
    records = [{n: x for n, x in row.items() if x is not None} for row in table.to_pylist()]
    return History(records=records, **saved["own"], spec=saved["spec"])
