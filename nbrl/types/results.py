"""What a verb that does not go on along the path answers: a step, a probe, an evaluation.

May import ``errors`` and ``samples`` beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from nbrl.errors import DataError
from nbrl.types.samples import Scored


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A number and what it is a mean over.

    Example: ``Metric(value=0.12, count=1280, of="tokens")`` is a mean over 1280 policy tokens.
    ``of="step"`` with ``count=1`` marks a number that is not a mean.
    """

    value: float
    count: int = 1
    of: str = "step"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepResult:
    """One update of the policy.

    ``tokens`` has one row a trained sample: ``sample_id`` and the token columns ``ratio``,
    ``clipped`` and ``loss``, as long as the sample's ``token_ids``. ``seconds`` is the time of
    each phase. ``warnings`` say in words what a reader should know.

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

    def __repr__(self) -> str:
        shown = ("loss", "grad_norm", "reward")
        parts = [f"{n} {self.metrics[n].value:.4g}" for n in shown if n in self.metrics]
        more = f", {len(self.warnings)} warnings" if self.warnings else ""
        head = f"version {self.version_before} -> {self.version_after}"
        return f"StepResult({head}, {', '.join(parts)}{more})"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
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

    def __repr__(self) -> str:
        loss, grad = self.metrics["loss"].value, self.metrics["grad_norm"].value
        return (
            f"Probe({self.name!r}, version {self.version}, loss {loss:.4g}, grad_norm {grad:.4g})"
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
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

    def __repr__(self) -> str:
        parts = [f"pass@{k} {v[0]:.3f} [{v[1]:.3f}, {v[2]:.3f}]" for k, v in self.pass_at.items()]
        return f"Evaluation(version {self.version}, {', '.join(parts)})"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
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

    def __repr__(self) -> str:
        rewards = [r["reward"] for r in self.records if "reward" in r]
        curve = f", reward {rewards[0]:.3f} -> {rewards[-1]:.3f}" if rewards else ""
        return f"History({len(self)} steps{curve}{', interrupted' if self.interrupted else ''})"
