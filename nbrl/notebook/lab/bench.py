"""The reward bench: edit an answer or the reward, and see what changes.

May import ``driver.scoring``, ``stages``, ``types`` and its neighbours.
"""

import threading
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.driver.progress import Progress, Quiet
from nbrl.driver.scoring import score_showing
from nbrl.errors import NbrlError
from nbrl.notebook.lab.perturbations import PERTURBATIONS
from nbrl.notebook.reprs.markup import card, table
from nbrl.notebook.reprs.summaries import DISTRIBUTION, distribution, floats, reward_names
from nbrl.notebook.views.browse import display_mode
from nbrl.stages.agreement import diff_scores
from nbrl.types import Rollouts, Scored

MOST_ROWS = 12


class RewardBench:
    """Answers and a reward on a bench. ``base`` is how the reward scored them at first.

    :meth:`try_answer` scores an edited answer, :meth:`try_reward` all answers by another reward
    or by the same file after an edit; failures are data here, not exceptions. Shown in a cell it
    is a form where a front end is there, else the tables of what was tried.

    Example: ``bench.try_answer(0, "12")["total"]`` is 1.0.
    """

    def __init__(
        self, rollouts: Rollouts, reward: Any, combine: Any = None, *, replay: bool = False
    ) -> None:
        self.rollouts = rollouts
        self.reward = reward
        self._combine = combine
        self._replay = replay
        self._lock = threading.RLock()
        self.base = self._score(rollouts, reward)
        self.tried: list[dict[str, Any]] = []
        """What was tried on single answers, in order."""
        self.latest = self.base

    def try_answer(self, row: int, answer: str) -> dict[str, Any]:
        """The edited answer's ``total, status, error``, its components, and ``was``, the total."""
        with self._lock:
            one = self.rollouts.take(np.array([row]))
            edited = one.with_columns({"response": pa.array([answer], pa.string())})
            scored = self._score(edited, self.reward)
            record = scored.table.to_pylist()[0]
            found = {
                "row": row,
                "answer": answer,
                "was": self.base.table.column("total")[row].as_py(),
                **{name: record[name] for name in ("total", "status", "error")},
                **{name: record[name] for name in reward_names(scored)},
            }
            self.tried.append(found)
            return found

    def perturb(self, row: int) -> list[dict[str, Any]]:
        """The answer under small edits that should mostly not matter, each scored.

        An edit of form alone that raises the reward is a way to game it.
        """
        answer = self.rollouts.table.column("response")[row].as_py() or ""
        return [{"edit": n, **self.try_answer(row, f(answer))} for n, f in PERTURBATIONS.items()]

    def try_reward(self, reward: Any = None) -> Scored:
        """All answers by ``reward``; by default the same one, read again from its file."""
        with self._lock:
            self.reward = self.reward if reward is None else reward
            self.latest = self._score(self.rollouts, self.reward)
            return self.latest

    @property
    def flipped(self) -> Any:
        """The samples that the latest scoring and the first one differ on, largest first."""
        return diff_scores(self.base, self.latest).table

    def _score(self, rollouts: Rollouts, reward: Any) -> Scored:
        return score_showing(
            Progress(Quiet),
            rollouts,
            reward,
            combine=self._combine,
            on_error="exclude",
            replay=self._replay,
        )

    def _repr_html_(self) -> str:
        rows = [
            distribution(name, floats(scored.table.column("total")))
            for name, scored in (("at first", self.base), ("latest", self.latest))
        ]
        moved = self.flipped
        shown = moved.iloc[:MOST_ROWS]
        parts = [
            table("rewards", DISTRIBUTION, rows),
            table(
                "samples that changed",
                tuple(map(str, moved.columns)),
                [tuple(r) for r in shown.itertuples(index=False)],
                f"{len(shown):,} of {len(moved):,}",
            ),
        ]
        if self.tried:
            parts.append(tried_table(self.tried[-MOST_ROWS:]))
        return card(repr(self), parts)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)
        if display_mode() == "live":
            from nbrl.notebook.lab.bench_form import bench_form

            display(bench_form(self))

    def __repr__(self) -> str:
        good = floats(self.latest.table.column("total"))
        good = good[np.isfinite(good)]
        mean = f"mean reward {good.mean():.3f}" if len(good) else "no reward"
        return f"RewardBench({len(self.rollouts)} answers, {mean}, {len(self.tried)} tried)"


def tried_table(tried: list[dict[str, Any]]) -> str:
    """Edited answers with their rewards, the latest last."""
    names = list(dict.fromkeys(name for found in tried for name in found))
    return table("answers that were tried", names, [[f.get(n) for n in names] for f in tried])


def reward_bench(
    rollouts: Rollouts, reward: Any, *, combine: Any = None, replay: bool = False
) -> RewardBench:
    """A bench on which answers and the reward can be edited, with the score at once.

    Args:
        rollouts: The answers; a few dozen are quick.
        reward: What ``session.score`` takes: a callable, a file, or a dict of them.
        combine: As there.
        replay: As there.

    Raises:
        ConfigError: No such reward.
    """
    return RewardBench(rollouts, reward, combine, replay=replay)


def explain(error: NbrlError) -> str:
    """One line for the form: what went wrong."""
    return f"{type(error).__name__}: {error}"
