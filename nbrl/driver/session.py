"""The session: what the kernel holds, one method a verb, each handing over to its module.

May import ``types``, ``config`` and the rest of ``driver``.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd

from nbrl.config import KL, Engine, PolicyLoss, Recipe, Sampling, Shaping, Store, Trainer
from nbrl.driver import checkpointing, comparing, evaluate, loops, rollout, scoring, training
from nbrl.driver.lineage import session_spec
from nbrl.driver.runtime import Runtime, close, verb
from nbrl.types import (
    Advantaged,
    Evaluation,
    History,
    LossComparison,
    Probe,
    Prompts,
    Rollouts,
    Scored,
    StepResult,
)


class Session:
    """A policy that is being trained, and the verbs of the loop.

    Get one from :func:`nbrl.connect`; use it in a ``with`` block or call :meth:`close`. A verb
    blocks and shows its progress. Ctrl-C leaves the state unchanged or fully stepped.

    Example::

        session = nbrl.connect(model="tiny")
        rollouts = session.rollout(session.next_prompts(32), n=8)
        scored = session.score(rollouts, "reward_fns/arithmetic.py")
        result = session.train_step(session.compute_advantages(scored, "grpo"))
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def version(self) -> int:
        """How many training steps the policy has taken in this session."""
        return self._runtime.version

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return self._runtime.folder.path

    @property
    def spec(self) -> Mapping[str, Any]:
        """The resolved settings that the session was opened with."""
        return self._runtime.spec

    @property
    def history(self) -> History:
        """Every training step so far."""
        records = tuple(map(dict, self._runtime.records))
        return History(records=records, spec=session_spec(self._runtime))

    def next_prompts(self, k: int) -> Prompts:
        """The next ``k`` prompts of the session's source; moves its cursor."""
        return verb(self._runtime, "next_prompts", lambda: rollout.next_prompts(self._runtime, k))

    def rollout(self, prompts: Prompts, n: int = 1, sampling: Sampling | None = None) -> Rollouts:
        """``n`` sampled answers to each prompt. After Ctrl-C: those that were finished."""
        return verb(
            self._runtime,
            "rollout",
            lambda: rollout.rollout(
                self._runtime, prompts, n=n, sampling=Sampling() if sampling is None else sampling
            ),
        )

    def annotate(self, rollouts: Rollouts, columns: Sequence[str]) -> Rollouts:
        """Token columns added: ``old_logprobs``, ``ref_logprobs``, ``values``, ``entropy``."""
        return verb(
            self._runtime, "annotate", lambda: training.annotate(self._runtime, rollouts, columns)
        )

    def score(
        self, rollouts: Rollouts, rewards: Any, combine: Any = None, on_error: str = "raise"
    ) -> Scored:
        """Rewards for each sample.

        Args:
            rollouts: What to score; it can be scored again with other rewards at any time.
            rewards: A callable, a path to a Python file (``file.py:name``), or a dict of them.
            combine: How several add up: ``"sum"``, ``"product"``, a dict of weights, or a function
                of ``{name: value}``; the sum by default.
            on_error: ``"raise"`` stops at the first sample whose reward fails; ``"exclude"`` keeps
                the error as data and leaves the sample out of training.
        """
        return verb(
            self._runtime,
            "score",
            lambda: scoring.score(
                self._runtime, rollouts, rewards, combine=combine, on_error=on_error
            ),
        )

    def compute_advantages(
        self,
        scored: Scored,
        estimator: Any = "grpo",
        kl: KL | None = None,
        shaping: Shaping | None = None,
    ) -> Advantaged:
        """Advantages by a named estimator, an ``Estimator`` or a function of the same signature."""
        return verb(
            self._runtime,
            "compute_advantages",
            lambda: training.compute_advantages(
                self._runtime, scored, estimator, kl=kl, shaping=shaping
            ),
        )

    def probe(self, batch: Advantaged, losses: Mapping[str, PolicyLoss]) -> dict[str, Probe]:
        """What each loss would do to the batch; parameters, optimizer and RNG stay as they are."""
        return verb(self._runtime, "probe", lambda: training.probe(self._runtime, batch, losses))

    def compare_losses(
        self, batch: Advantaged, losses: Sequence[PolicyLoss] | Mapping[str, PolicyLoss]
    ) -> LossComparison:
        """How the losses differ on one frozen batch: gradients, norms, noise, clipped tokens.

        Nothing changes, as in :meth:`probe`; one forward pass over the batch serves all losses.
        """
        return verb(
            self._runtime,
            "compare_losses",
            lambda: comparing.compare_losses(self._runtime, batch, losses),
        )

    def train_step(
        self,
        batch: Advantaged,
        loss: PolicyLoss | None = None,
        *,
        minibatches: int = 1,
        epochs: int = 1,
        expect_version: int | None = None,
        again: bool = False,
    ) -> StepResult:
        """One update of the policy by the batch.

        Args:
            batch: What to train on.
            loss: The policy loss; PPO's by default.
            minibatches: Optimizer steps an epoch; every sample is in one of them.
            epochs: Passes over the batch.
            expect_version: The version that sampled a stale batch, to accept it as such.
            again: Train a second time on a batch that was trained on already.
        """
        return verb(
            self._runtime,
            "train_step",
            lambda: training.train_step(
                self._runtime,
                batch,
                loss=PolicyLoss() if loss is None else loss,
                minibatches=minibatches,
                epochs=epochs,
                expect_version=expect_version,
                again=again,
            ),
        )

    def evaluate(
        self,
        prompts: Prompts,
        rewards: Any,
        n: int = 4,
        *,
        sampling: Sampling | None = None,
        threshold: float = 1.0,
    ) -> Evaluation:
        """pass@k with intervals over prompts; a sample passes from a reward of ``threshold`` on."""
        return verb(
            self._runtime,
            "evaluate",
            lambda: evaluate.evaluate(
                self._runtime,
                prompts,
                rewards,
                n=n,
                sampling=Sampling() if sampling is None else sampling,
                threshold=threshold,
            ),
        )

    def run(self, steps: int, recipe: Recipe, mode: str = "sync") -> History:
        """``steps`` training steps, equal to the same cells by hand. After Ctrl-C: those taken."""
        return verb(self._runtime, "run", lambda: loops.run(self._runtime, steps, recipe, mode))

    def describe(self) -> pd.DataFrame:
        """What is resident: one row a part, with its kind, device, size and version."""
        return verb(self._runtime, "describe", lambda: _resident(self._runtime))

    def close(self) -> None:
        """Free the models; closing twice is harmless."""
        close(self._runtime)

    def save(self, tag: str | None = None) -> Path:
        """The folder of a checkpoint of all that decides what the session will do next.

        Args:
            tag: What to call it; ``step-<version>`` by default. One of the same tag is replaced.
        """
        return verb(self._runtime, "save", lambda: checkpointing.save(self._runtime, tag).path)

    def load(self, tag: str | int | None = None) -> None:
        """Become what the session was under a tag, or at a version; at the latest by default."""
        verb(self._runtime, "load", lambda: checkpointing.load(self._runtime, tag))

    def fork(  # noqa: PLR0913 -- as wide as connect
        self,
        tag: str | int | None = None,
        *,
        seed: int | None = None,
        trainer: Trainer | None = None,
        engine: Engine | None = None,
        prompts: str | Prompts | None = None,
        name: str | None = None,
        run_dir: str | os.PathLike | None = None,
        store: Store | None = None,
    ) -> "Session":
        """Another session that begins at a checkpoint of this one, with its own run folder.

        Args:
            tag: Where to begin: a tag or a version; by default here, which is saved first.
            seed: Another root of the seed tree, so that other answers are drawn.
            trainer: Other settings of what learns; the learning rate follows them from here on.
            engine: Other settings of what generates.
            prompts: Other data, from its beginning.
            name: What to call it.
            run_dir: Its folder; a new one beside this session's by default.
            store: What it leaves in its folder.
        """
        from nbrl.driver.resuming import Overrides, fork

        overrides = Overrides(
            seed=seed,
            trainer=trainer,
            engine=engine,
            prompts=prompts,
            name=name,
            run_dir=run_dir,
            store=store,
        )
        return verb(self._runtime, "fork", lambda: fork(self._runtime, tag, overrides))

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._runtime.closed else f"version {self.version}"
        held = len(self._runtime.unwritten)
        lost = f", {held} of them not on the disk" if held else ""
        return f"Session({self._runtime.name!r}, {state}, {len(self._runtime.records)} steps{lost})"


def _resident(runtime: Runtime) -> pd.DataFrame:
    """One row a part, one column a property; empty where it does not apply."""
    parts = {"engine": runtime.engine, "trainer": runtime.trainer}
    rows = {name: part.describe() for name, part in parts.items()}
    return pd.DataFrame.from_dict(rows, orient="index", dtype=object).fillna("")
