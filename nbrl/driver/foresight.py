"""What a loop is known to fail at before the first prompt is drawn.

May import ``stages`` and what ``runtime`` may. Each verb refuses what it cannot do; a loop that
found out at its third verb would have sampled for nothing.
"""

from collections.abc import Iterator

from nbrl.config import PolicyLoss, Recipe, Sampling, Shaping, is_changed
from nbrl.driver.rewards import AskedRewards, asked_rewards
from nbrl.driver.runtime import Runtime
from nbrl.rules import is_whole
from nbrl.stages.advantages import columns_needed, estimator_problems
from nbrl.stages.shaping import shaping_needs
from nbrl.types import Prompts


def recipe_problems(runtime: Runtime, recipe: Recipe, steps: int) -> list[str]:
    """What cannot work about a recipe in this session, beyond what its settings say alone."""
    wrong = list(estimator_problems(recipe.estimator, recipe.n))
    needs_values = not wrong and "values" in columns_needed(recipe.estimator)
    if needs_values and not runtime.has_critic:
        wrong.append(
            f"estimator {recipe.estimator!r} needs a critic; connect with "
            "trainer=Trainer(critic=Critic())"
        )
    length = recipe.sampling.max_new_tokens if isinstance(recipe.sampling, Sampling) else None
    if isinstance(recipe.shaping, Shaping):
        wrong += shaping_needs(recipe.shaping, max_new_tokens=length, n=recipe.n)
    if isinstance(recipe.loss, PolicyLoss):
        trains = needs_values and runtime.has_critic
        wrong += loss_needs(recipe.loss, trains_critic=trains, max_new_tokens=length)
    return [*wrong, *_count_problems(runtime, recipe, steps)]


def loss_needs(
    loss: PolicyLoss, *, trains_critic: bool, max_new_tokens: int | None
) -> Iterator[str]:
    """What a loss asks for and does not get."""
    if is_changed(loss, "value_coef", "value_clip") and not trains_critic:
        yield "value_coef and value_clip have no effect on a batch that trains no critic; drop them"
    if loss.aggregation != "seq-mean-token-sum-norm" or loss.norm_length is not None:
        return
    if max_new_tokens is None:
        yield (
            "aggregation 'seq-mean-token-sum-norm' needs norm_length, or rollouts with "
            "max_new_tokens"
        )


def rewards_of(runtime: Runtime, recipe: Recipe) -> AskedRewards:
    """The recipe's rewards, judged on the prompts that the next step would draw."""
    return asked_rewards(recipe.rewards, recipe.combine, _next_prompts(runtime, recipe.prompts))


def _next_prompts(runtime: Runtime, k: int) -> Prompts | None:
    """A look at the source that leaves the cursor where it is; None where so many are not there."""
    size = runtime.source.size
    if not is_whole(k, 1) or (size is not None and k > size):
        return None
    return runtime.source.take(int(k), runtime.cursor)


def _count_problems(runtime: Runtime, recipe: Recipe, steps: int) -> Iterator[str]:
    size = runtime.source.size
    if is_whole(recipe.prompts, 1) and size is not None and recipe.prompts > size:
        yield f"prompts={recipe.prompts} is more than the {size} that {runtime.source.name!r} has"
    counts = (recipe.prompts, recipe.n, recipe.minibatches)
    if all(is_whole(count, 1) for count in counts):
        samples = recipe.prompts * recipe.n
        if recipe.minibatches > samples:
            yield f"minibatches={recipe.minibatches} is more than {samples} samples"
    total = runtime.spec["trainer"]["optimizer"]["total_steps"]
    if total is None or not all(is_whole(c, 1) for c in (steps, recipe.minibatches, recipe.epochs)):
        return
    updates = steps * recipe.minibatches * recipe.epochs
    if updates > total:
        yield (
            f"{steps} steps of {recipe.minibatches} minibatches and {recipe.epochs} epochs are "
            f"{updates} optimizer steps, more than Optimizer.total_steps={total}; take fewer"
        )
