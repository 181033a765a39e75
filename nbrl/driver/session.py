"""The session: what the kernel holds, and the verbs of the loop as its methods.

May import ``types``, ``config`` and the rest of ``driver``.
"""

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd

from nbrl.config import Engine, Store, Trainer
from nbrl.driver.lineage import session_spec
from nbrl.driver.runtime import Runtime, close, resident
from nbrl.driver.verbs import examples, keeping, policy, sampling
from nbrl.driver.verbs.calling import call
from nbrl.types import History, Prompts


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
        """The resolved settings that the session was opened with, a copy."""
        return copy.deepcopy(self._runtime.spec)

    @property
    def history(self) -> History:
        """Every training step so far."""
        records = tuple(map(dict, self._runtime.records))
        return History(records=records, spec=session_spec(self._runtime))

    next_prompts = sampling.next_prompts
    rollout = sampling.rollout
    annotate = sampling.annotate
    score = sampling.score
    evaluate = sampling.evaluate

    compute_advantages = policy.compute_advantages
    probe = policy.probe
    compare_losses = policy.compare_losses
    train_step = policy.train_step
    run = policy.run

    tokenize = examples.tokenize
    fit = examples.fit
    export = examples.export

    save = keeping.save
    load = keeping.load

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
        return call(self, "fork", fork, tag, overrides)

    def describe(self) -> pd.DataFrame:
        """What is resident: one row a part, with its kind, device, size and version."""
        return call(self, "describe", resident)

    def close(self) -> None:
        """Free the models; closing twice is harmless."""
        close(self._runtime)

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
