"""The verbs that weigh samples and train on them.

May import ``types``, ``config`` and the rest of ``driver``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from nbrl.config import KL, Loss, PolicyLoss, Recipe, Shaping
from nbrl.driver import comparing, learning, loops, training
from nbrl.driver.verbs.calling import Opened, call
from nbrl.errors import ConfigError
from nbrl.types import (
    Advantaged,
    Examples,
    History,
    LossComparison,
    Probe,
    Scored,
    StepResult,
)


def compute_advantages(
    session: Opened,
    scored: Scored,
    estimator: Any = "grpo",
    kl: KL | None = None,
    shaping: Shaping | None = None,
) -> Advantaged:
    """Advantages by a named estimator, an ``Estimator`` or a function of the same signature."""
    return call(
        session,
        "compute_advantages",
        training.compute_advantages,
        scored,
        estimator,
        kl=kl,
        shaping=shaping,
    )


def probe(session: Opened, batch: Advantaged, losses: Mapping[str, PolicyLoss]) -> dict[str, Probe]:
    """What each loss would do to the batch; parameters, optimizer and RNG stay as they are."""
    return call(session, "probe", training.probe, batch, losses)


def compare_losses(
    session: Opened, batch: Advantaged, losses: Sequence[PolicyLoss] | Mapping[str, PolicyLoss]
) -> LossComparison:
    """How the losses differ on one frozen batch: gradients, norms, noise, clipped tokens.

    Nothing changes, as in :meth:`probe`; one forward pass over the batch serves all losses.
    """
    return call(session, "compare_losses", comparing.compare_losses, batch, losses)


def train_step(
    session: Opened,
    batch: Advantaged | Examples,
    loss: Loss | None = None,
    *,
    minibatches: int = 1,
    epochs: int = 1,
    expect_version: int | None = None,
    again: bool = False,
) -> StepResult:
    """One update of the policy by the batch.

    Args:
        batch: What to train on: advantages of samples, or examples.
        loss: The policy loss, PPO's by default; of examples the objective, which must be named.
        minibatches: Optimizer steps an epoch; every sample is in one of them.
        epochs: Passes over the batch.
        expect_version: The version that sampled a stale batch, to accept it as such.
        again: Train a second time on a batch that was trained on already.
    """
    if isinstance(batch, Examples):
        return _learn(session, batch, loss, minibatches, epochs, (expect_version, again))
    return call(
        session,
        "train_step",
        training.train_step,
        batch,
        loss=PolicyLoss() if loss is None else cast(PolicyLoss, loss),
        minibatches=minibatches,
        epochs=epochs,
        expect_version=expect_version,
        again=again,
    )


def _learn(
    session: Opened,
    examples: Examples,
    objective: Any,
    minibatches: int,
    epochs: int,
    flags: tuple[int | None, bool],
) -> StepResult:
    expected, again = flags
    if expected is not None:
        raise ConfigError("expect_version has no effect on examples, which nobody sampled.")
    return call(
        session,
        "train_step",
        learning.train_step,
        examples,
        objective,
        minibatches=minibatches,
        epochs=epochs,
        again=again,
    )


def run(session: Opened, steps: int, recipe: Recipe, mode: str = "sync") -> History:
    """``steps`` training steps, equal to the same cells by hand. After Ctrl-C: those taken."""
    return call(session, "run", loops.run, steps, recipe, mode)
