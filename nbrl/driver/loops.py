"""When to call the verbs: a loop that is equal to the stepwise cells.

May import what the verbs may.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nbrl.config import Recipe, check_config, to_spec
from nbrl.driver.foresight import recipe_problems, rewards_of
from nbrl.driver.lineage import session_spec
from nbrl.driver.rewards import refuse
from nbrl.driver.rollout import next_prompts, rollout
from nbrl.driver.runtime import Runtime
from nbrl.driver.scoring import score
from nbrl.driver.training import compute_advantages, train_step
from nbrl.rules import among, kind_problems, shown, whole_problems
from nbrl.types import History, StepResult


def one_step(runtime: Runtime, recipe: Recipe) -> StepResult | None:
    """The cells of a notebook, one after the other; None where sampling was interrupted.

    Where the step is not taken, the cursor stands where it stood.
    """
    cursor, version = runtime.cursor, runtime.version
    try:
        prompts = next_prompts(runtime, recipe.prompts)
        rollouts = rollout(runtime, prompts, n=recipe.n, sampling=recipe.sampling)
        if rollouts.spec["interrupted"]:
            return None
        scored = score(runtime, rollouts, recipe.rewards, combine=recipe.combine)
        batch = compute_advantages(
            runtime, scored, recipe.estimator, kl=recipe.kl, shaping=recipe.shaping
        )
        return train_step(
            runtime, batch, loss=recipe.loss, minibatches=recipe.minibatches, epochs=recipe.epochs
        )
    finally:
        if runtime.version == version:
            runtime.cursor = cursor


def run_sync(runtime: Runtime, steps: int, recipe: Recipe) -> History:
    """Sampling and training take turns, so every batch is of the current policy.

    Ctrl-C ends the loop after what was whole: the steps taken are returned.
    """
    first, interrupted = len(runtime.records), False
    try:
        with runtime.progress.phase("run", steps, "steps") as advance:
            for _ in range(steps):
                result = one_step(runtime, recipe)
                if result is None:
                    raise KeyboardInterrupt
                runtime.progress.note(_note(result))
                advance(1, 0)
    except KeyboardInterrupt:
        interrupted = True
    records = tuple(runtime.records[first:])
    spec = {"recipe": to_spec(recipe), **session_spec(runtime)}
    return History(records=records, interrupted=interrupted, spec=spec)


MODES: Mapping[str, Callable[[Runtime, int, Recipe], History]] = {"sync": run_sync}


def run(runtime: Runtime, steps: int, recipe: Recipe, mode: str) -> History:
    """``steps`` training steps of one recipe.

    Raises:
        ConfigError: The settings cannot work together, there is no such mode, or a reward is not
            there; all that is wrong is named, and nothing was done.
    """
    asked = f"run {shown(steps)} steps"
    problems = [*among("mode", mode, MODES), *whole_problems({"steps": (steps, 1)})]
    if not isinstance(recipe, Recipe):
        check_config(asked, extra=[*problems, *kind_problems({"recipe": (recipe, Recipe)})])
    problems += recipe_problems(runtime, recipe, steps)
    refuse(asked, recipe, extra=problems, rewards=rewards_of(runtime, recipe))
    return MODES[mode](runtime, int(steps), recipe)


def _note(result: StepResult) -> str:
    shown: dict[str, Any] = {
        name: result.metrics[name].value
        for name in ("reward", "loss", "grad_norm")
        if name in result.metrics
    }
    return ", ".join(f"{name} {value:.3g}" for name, value in shown.items())
