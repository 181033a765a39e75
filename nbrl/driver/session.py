"""The session: what the kernel holds, one method a verb, each handing over to its module.

May import ``types``, ``config`` and the rest of ``driver``.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, cast

import pandas as pd

from nbrl.config import (
    KL,
    Engine,
    HeldOut,
    Loss,
    Objective,
    PolicyLoss,
    Recipe,
    Sampling,
    Shaping,
    Store,
    Trainer,
)
from nbrl.driver import (
    checkpointing,
    comparing,
    evaluate,
    exporting,
    fitting,
    learning,
    loops,
    rollout,
    scoring,
    training,
)
from nbrl.driver.lineage import session_spec
from nbrl.driver.runtime import Result, Runtime, close, resident, verb
from nbrl.errors import ConfigError
from nbrl.types import (
    Advantaged,
    Evaluation,
    Examples,
    History,
    LossComparison,
    Probe,
    Prompts,
    Rollouts,
    Scored,
    StepResult,
)

Given = ParamSpec("Given")


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

    def _run(
        self,
        name: str,
        work: Callable[Concatenate[Runtime, Given], Result],
        *args: Given.args,
        **keywords: Given.kwargs,
    ) -> Result:
        """What a verb's module makes of the runtime, under the guard that all verbs pass."""
        return verb(self._runtime, name, lambda: work(self._runtime, *args, **keywords))

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
        """The resolved settings that the session was opened with, a copy."""
        return copy.deepcopy(self._runtime.spec)

    @property
    def history(self) -> History:
        """Every training step so far."""
        records = tuple(map(dict, self._runtime.records))
        return History(records=records, spec=session_spec(self._runtime))

    def next_prompts(self, k: int) -> Prompts:
        """The next ``k`` prompts of the session's source; moves its cursor."""
        return self._run("next_prompts", rollout.next_prompts, k)

    def rollout(
        self, prompts: Prompts, n: int = 1, sampling: Sampling | None = None, agent: Any = None
    ) -> Rollouts:
        """``n`` sampled answers to each prompt. After Ctrl-C: those that were finished.

        Args:
            prompts: What is answered.
            n: How many answers, or episodes, to each.
            sampling: How they are drawn.
            agent: An environment that answers the policy, turn by turn: an
                :class:`~nbrl.Agent`, or what its ``source`` may be.
        """
        return self._run(
            "rollout",
            rollout.rollout,
            prompts,
            n=n,
            sampling=Sampling() if sampling is None else sampling,
            agent=agent,
        )

    def annotate(self, rollouts: Rollouts, columns: Sequence[str]) -> Rollouts:
        """Token columns added: ``old_logprobs``, ``ref_logprobs``, ``values``, ``entropy``."""
        return self._run("annotate", training.annotate, rollouts, columns)

    def score(
        self,
        rollouts: Rollouts,
        rewards: Any,
        combine: Any = None,
        on_error: str = "raise",
        *,
        workers: int = 0,
        timeout: float = 30.0,
    ) -> Scored:
        """Rewards for each sample.

        Args:
            rollouts: What to score; it can be scored again with other rewards at any time.
            rewards: A callable, a path to a Python file (``file.py:name``), or a dict of them.
            combine: How several add up: ``"sum"``, ``"product"``, a dict of weights, or a function
                of ``{name: value}``; the sum by default.
            on_error: ``"raise"`` stops at the first failure, or with ``workers`` after all are
                scored; ``"exclude"`` keeps it as data and leaves the sample out of training.
            workers: Processes to call reward code in, so that a hang, an exit or a crash costs
                one sample; 0 calls it in this process. Servers and models are asked from here.
            timeout: Seconds that a sample may take in such a process; of a batch, each sample's.
        """
        return self._run(
            "score",
            scoring.score,
            rollouts,
            rewards,
            combine=combine,
            on_error=on_error,
            workers=workers,
            timeout=timeout,
        )

    def compute_advantages(
        self,
        scored: Scored,
        estimator: Any = "grpo",
        kl: KL | None = None,
        shaping: Shaping | None = None,
    ) -> Advantaged:
        """Advantages by a named estimator, an ``Estimator`` or a function of the same signature."""
        return self._run(
            "compute_advantages",
            training.compute_advantages,
            scored,
            estimator,
            kl=kl,
            shaping=shaping,
        )

    def probe(self, batch: Advantaged, losses: Mapping[str, PolicyLoss]) -> dict[str, Probe]:
        """What each loss would do to the batch; parameters, optimizer and RNG stay as they are."""
        return self._run("probe", training.probe, batch, losses)

    def compare_losses(
        self, batch: Advantaged, losses: Sequence[PolicyLoss] | Mapping[str, PolicyLoss]
    ) -> LossComparison:
        """How the losses differ on one frozen batch: gradients, norms, noise, clipped tokens.

        Nothing changes, as in :meth:`probe`; one forward pass over the batch serves all losses.
        """
        return self._run("compare_losses", comparing.compare_losses, batch, losses)

    def tokenize(
        self,
        examples: Examples,
        max_length: int | None = None,
        *,
        turns: str = "all",
        placeholder: str = "\n",
    ) -> Examples:
        """The examples with token columns: which tokens are there, and which of them are learned.

        Args:
            examples: What to learn from. Rows that do not fit are left out, counted and named.
            max_length: The longest row in tokens; the model's context by default.
            turns: Learn ``"all"`` answers of a conversation, or the ``"last"`` one.
            placeholder: What follows each step of a solution; one token.
        """
        return self._run("tokenize", learning.tokenize, examples, max_length, turns, placeholder)

    def fit(
        self,
        data: Examples,
        objective: Objective,
        epochs: int = 1,
        *,
        batch_size: int = 32,
        held_out: HeldOut | Examples | None = None,
    ) -> History:
        """Steps over all examples, epoch after epoch. After Ctrl-C: those taken.

        Args:
            data: What to learn from; tokenized by default settings where it is not yet.
            objective: ``nbrl.SFT()``, ``DPO()``, ``KTO()``, ``RewardLoss()``, ...
            epochs: Passes over the data, each in its own order.
            batch_size: Examples a step; the last batch of an epoch is as short as it is.
            held_out: Examples to measure the objective on, or ``nbrl.HeldOut`` with when to look
                and which weights to keep.
        """
        return self._run(
            "fit",
            fitting.fit,
            data,
            objective,
            epochs=epochs,
            batch_size=batch_size,
            held_out=held_out,
        )

    def export(
        self, path: str | os.PathLike, *, adapter: bool = False, scale_on: Examples | None = None
    ) -> Path:
        """The folder with the trained model, as transformers and vLLM load it.

        A reward model becomes a sequence classifier with one label; its config holds the mean and
        std of its scores, and of what.

        Args:
            path: A folder that does not exist, or is empty.
            adapter: Write the LoRA adapter alone instead of merging it, in float32.
            scale_on: Pairs to take a reward model's scale from; the training data by default.
        """
        return self._run("export", exporting.export, path, adapter=adapter, scale_on=scale_on)

    def train_step(
        self,
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
            return self._learn(batch, loss, minibatches, epochs, (expect_version, again))
        return self._run(
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
        self,
        examples: Examples,
        objective: Any,
        minibatches: int,
        epochs: int,
        flags: tuple[int | None, bool],
    ) -> StepResult:
        expected, again = flags
        if expected is not None:
            raise ConfigError("expect_version has no effect on examples, which nobody sampled.")
        return self._run(
            "train_step",
            learning.train_step,
            examples,
            objective,
            minibatches=minibatches,
            epochs=epochs,
            again=again,
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
        return self._run(
            "evaluate",
            evaluate.evaluate,
            prompts,
            rewards,
            n=n,
            sampling=Sampling() if sampling is None else sampling,
            threshold=threshold,
        )

    def run(self, steps: int, recipe: Recipe, mode: str = "sync") -> History:
        """``steps`` training steps, equal to the same cells by hand. After Ctrl-C: those taken."""
        return self._run("run", loops.run, steps, recipe, mode)

    def describe(self) -> pd.DataFrame:
        """What is resident: one row a part, with its kind, device, size and version."""
        return self._run("describe", resident)

    def close(self) -> None:
        """Free the models; closing twice is harmless."""
        close(self._runtime)

    def save(self, tag: str | None = None) -> Path:
        """The folder of a checkpoint of all that decides what the session will do next.

        Args:
            tag: What to call it; ``step-<version>`` by default. One of the same tag is replaced.
        """
        return self._run("save", lambda runtime: checkpointing.save(runtime, tag).path)

    def load(self, tag: str | int | None = None) -> None:
        """Become what the session was under a tag, or at a version; at the latest by default."""
        self._run("load", checkpointing.load, tag)

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

        It begins at a tag or a version, or here, which is saved first. Other prompts start at
        their beginning; the learning rate follows another trainer's settings; another seed draws
        other answers to the same prompts.
        """
        from nbrl.driver.resuming import Overrides, fork

        parts = {"seed": seed, "trainer": trainer, "engine": engine, "prompts": prompts}
        overrides = Overrides(**parts, name=name, run_dir=run_dir, store=store)
        return self._run("fork", fork, tag, overrides)

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
