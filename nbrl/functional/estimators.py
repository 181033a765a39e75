"""Advantage estimators as rows of a few choices; may import torch, rules and errors.

What happens, in this order, to the scalar reward ``r_i`` of each row and its tokens:

1. a *baseline* over the group is subtracted,
2. the rest is divided by a *scale*,
3. the result is clipped to ``reward_clip`` (after the baseline, as OpenRLHF: with ``grpo`` it
   bounds z-scores, not rewards),
4. it is placed on the row's last token that counts, and ``-kl_coef kl_t`` is added to every token
   (after the baseline: the KL never enters it),
5. *credit* flows from right to left as returns-to-go or GAE,
6. the batch is *whitened*.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbrl.errors import ConfigError, DataError, all_problems, unknown_name
from nbrl.frozen import frozen
from nbrl.functional.baselines import BASELINES, SCALES, WHITENINGS, Divisor
from nbrl.functional.credit import MASKED_TOKENS, Walk, generalized_advantages, returns_to_go
from nbrl.functional.groups import grouped
from nbrl.functional.reductions import at_least_float32
from nbrl.rules import among, bounded, is_whole, make_plain, shown

Advantages = tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]
EstimatorFn = Callable[..., tuple[Tensor, Tensor]]
"""A user's own estimator: called as :func:`estimate` is, without its first argument."""

SINGLETONS = ("refuse", "zero", "raw")
CREDITS = ("return", "gae")


@frozen()
class Estimator:
    """An advantage estimator with every convention said aloud.

    Args:
        baseline: What is subtracted; a name in :data:`~nbrl.functional.baselines.BASELINES`.
        scale: What the rest is divided by; a name in :data:`~nbrl.functional.baselines.SCALES`.
        credit: ``return`` (return-to-go) or ``gae`` (needs values).
        whiten: A name in :data:`~nbrl.functional.baselines.WHITENINGS`; over all tokens of the
            batch that count.
        gamma: Discount a token, in [0, 1].
        lam: GAE's lambda, in [0, 1].
        eps: Added to the scale.
        ddof: 1 for the sample standard deviation (n - 1), 0 for the population's.
        singleton: What a group of one gets from an estimator that needs groups: ``refuse`` raises,
            ``zero`` gives advantage 0, ``raw`` leaves the reward as it is.
        masked_tokens: What a masked token inside a response does; a name in
            :data:`~nbrl.functional.credit.MASKED_TOKENS`.

    Example: ``Estimator(baseline="group-mean", scale="group-std", eps=1e-9)`` is GRPO; rewards
    1, 0, 0, 0 of one group give 1.5, -0.5, -0.5, -0.5.
    """

    baseline: str = "none"
    scale: str = "none"
    credit: str = "return"
    whiten: str = "none"
    gamma: float = 1.0
    lam: float = 1.0
    eps: float = 0.0
    ddof: int = 1
    singleton: str = "refuse"
    masked_tokens: str = "skip"

    def __post_init__(self) -> None:
        make_plain(self)
        problems = [*_name_problems(self), *_number_problems(self)]
        problems = problems or list(_idle_problems(self))
        if problems:
            raise all_problems("Estimator", problems)

    @property
    def needs_group(self) -> bool:
        """Whether a row's advantage depends on the other rows of its group."""
        return BASELINES[self.baseline].over_group or SCALES[self.scale].over_group

    @property
    def needs_values(self) -> bool:
        """Whether a critic's values are wanted."""
        return self.credit == "gae"


def _name_problems(row: Estimator) -> Iterator[str]:
    yield from among("baseline", row.baseline, BASELINES)
    yield from among("scale", row.scale, SCALES)
    yield from among("credit", row.credit, CREDITS)
    yield from among("whiten", row.whiten, WHITENINGS)
    yield from among("singleton", row.singleton, SINGLETONS)
    yield from among("masked_tokens", row.masked_tokens, MASKED_TOKENS)


def _number_problems(row: Estimator) -> Iterator[str]:
    yield from bounded("gamma", row.gamma, 0.0, 1.0)
    yield from bounded("lam", row.lam, 0.0, 1.0)
    yield from bounded("eps", row.eps, 0.0)
    if not is_whole(row.ddof) or row.ddof not in (0, 1):
        yield f"ddof must be 0 or 1; got {shown(row.ddof)}"


def _idle_problems(row: Estimator) -> Iterator[str]:
    """Choices, each right in itself, that have no effect beside the others."""
    if row.lam != 1 and row.credit == "return":
        yield f"lam={row.lam!r} has no effect with credit 'return'; use credit='gae'"
    if row.eps != 0 and row.scale in ("none", "live-share"):
        yield f"eps={row.eps!r} has no effect with scale {row.scale!r}; drop it"
    if row.ddof != 1 and not row.scale.endswith("std"):
        yield f"ddof={row.ddof!r} has no effect with scale {row.scale!r}; drop it"


ESTIMATORS: dict[str, Estimator] = {
    # Schulman et al. 2016, as PPO uses it: A_t by eq. 16, whitened over the batch.
    "gae": Estimator(credit="gae", whiten="population"),
    # Hu 2025, REINFORCE++: the return, whitened over the batch.
    "reinforce_pp": Estimator(whiten="population"),
    # Ahmadian et al. 2024, eq. 8: r_i minus the mean of the others.
    "rloo": Estimator(baseline="leave-one-out"),
    # Hu 2025, REINFORCE++-baseline: r_i minus the group's mean, whitened over the batch.
    "reinforce_pp_baseline": Estimator(baseline="group-mean", whiten="population"),
    # Shao et al. 2024: (r_i - mean) / (std + 1e-9) with the sample std of the group.
    "grpo": Estimator(baseline="group-mean", scale="group-std", eps=1e-9),
    # Liu et al. 2025: r_i - mean. The paper's loss aggregation is chosen apart from it.
    "dr_grpo": Estimator(baseline="group-mean"),
    # Hao et al. 2025, eq. 9: r_i - sum_j L_j r_j / sum_j L_j with L the response lengths.
    "opo": Estimator(baseline="length-weighted"),
    # Tajwar et al. 2026 (arXiv 2602.02710): (r_i - mean) / mean, and 0 where mean <= 0.
    "maxrl": Estimator(baseline="group-mean", scale="group-mean"),
    # Chu et al. 2025: alpha (r_i - mean), alpha = rows / rows in groups that are not constant.
    "gpg": Estimator(baseline="group-mean", scale="live-share"),
    # (r_i - mean of the group) / (std of the batch + 1e-9).
    "grpo_batch_std": Estimator(baseline="group-mean", scale="batch-std", eps=1e-9),
    # NeMo-RL: mean and std of the others; unscaled where that std is 0. Does not sum to 0.
    "grpo_loo_std": Estimator(baseline="leave-one-out", scale="leave-one-out-std", eps=1e-6),
}


@torch.no_grad()
def estimate(  # noqa: PLR0913 - the published signature
    estimator: "str | Estimator | EstimatorFn",
    rewards: Float[Tensor, " N"],
    group_ids: Int[Tensor, " N"],
    mask: Bool[Tensor, "N T"],
    *,
    kl: Float[Tensor, "N T"] | None = None,
    kl_coef: float = 0.0,
    values: Float[Tensor, "N T"] | None = None,
    reward_clip: tuple[float, float] | None = None,
) -> Advantages:
    """Advantages and returns of every token; masked places are 0.

    See the module's head for the order of steps and :data:`ESTIMATORS` for the formulas. Returns
    are what a critic is trained on: for credit ``return`` the advantages before whitening (the
    same tensor where nothing is whitened), for ``gae`` advantages before whitening plus values. A
    constant group gives exactly 0 from every estimator with a group baseline and no whitening, in
    every dtype. The result is in the rewards' dtype, float32 at least.

    Args:
        estimator: A name in :data:`ESTIMATORS`, an :class:`Estimator`, or a function that takes
            the other arguments of this one (keywords as keywords) and returns the same.
        rewards: One a row, finite.
        group_ids: Rows with equal ids are a group, wherever they stand.
        mask: What counts. A row without such a token gets nothing, but its reward counts in the
            baseline.
        kl: Per-token KL, for the reward.
        kl_coef: >= 0; ``kl`` is subtracted this many times.
        values: The critic's, for credit ``gae``; others do not look at them.
        reward_clip: (low, high) for the reward after baseline and scale.

    Raises:
        ConfigError: Unknown name; a group of one where groups are needed; ``kl`` or ``values``
            missing; a coefficient or an interval out of range.
        DataError: Rewards that are not finite; a function that gives another shape.
    """
    if not isinstance(estimator, str | Estimator):
        given = estimator(
            rewards, group_ids, mask, kl=kl, kl_coef=kl_coef, values=values, reward_clip=reward_clip
        )
        _check_shapes(estimator, mask, *given)
        return given
    name, row = named(estimator)
    _check_inputs(name, row, kl, kl_coef, values)
    lengths = mask.sum(1, dtype=torch.int32) if BASELINES[row.baseline].uses_lengths else None
    shaped = scalar_advantages(
        estimator, rewards, group_ids, lengths=lengths, reward_clip=reward_clip
    )
    token_rewards = None if kl is None or kl_coef == 0 else kl.to(shaped.dtype) * -kl_coef
    walk = Walk(gamma=row.gamma, lam=row.lam, masked_tokens=row.masked_tokens)
    if values is not None and row.needs_values:
        critic = values.to(shaped.dtype)
        advantages = generalized_advantages(shaped, token_rewards, critic, mask, walk)
        returns = torch.where(mask, advantages + critic, 0.0)
    else:
        advantages = returns = returns_to_go(shaped, token_rewards, mask, walk)
    return WHITENINGS[row.whiten](advantages, mask), returns


@torch.no_grad()
def scalar_advantages(
    estimator: "str | Estimator",
    rewards: Float[Tensor, " N"],
    group_ids: Int[Tensor, " N"],
    *,
    lengths: Int[Tensor, " N"] | None = None,
    reward_clip: tuple[float, float] | None = None,
) -> Float[Tensor, " N"]:
    """One number a row: reward minus baseline, over the scale, clipped; steps 1 to 3 of the head.

    Args:
        estimator: A name in :data:`ESTIMATORS` or an :class:`Estimator`.
        rewards: One a row, finite.
        group_ids: Rows with equal ids are a group.
        lengths: Tokens that count, for the length-weighted baseline; others do not look at them.
        reward_clip: (low, high).

    Raises:
        ConfigError: A group of one where the estimator refuses it; an empty interval.
        DataError: Rewards that are not finite.
    """
    name, row = named(estimator)
    if reward_clip is not None and not reward_clip[0] < reward_clip[1]:
        raise ConfigError(f"reward_clip must be (low, high) with low < high; got {reward_clip!r}.")
    if not bool(torch.isfinite(rewards).all()):
        bad = torch.nonzero(~torch.isfinite(rewards)).flatten()[:5].tolist()
        raise DataError(
            f"rewards must be finite; rows {bad} are not. Exclude samples without a reward first."
        )
    if BASELINES[row.baseline].uses_lengths and lengths is None:
        raise ConfigError(f"estimator {name!r} needs lengths, the tokens that count in each row.")
    x = at_least_float32(rewards)
    if len(x) == 0:
        return x
    members = grouped(group_ids)
    alone = members.sizes == 1
    if row.needs_group and row.singleton == "refuse" and bool(alone.any()):
        raise _group_of_one(name, int(alone.sum()), members.count)
    shaped = BASELINES[row.baseline].of(
        x, members, lengths if lengths is not None else members.sizes
    )
    shaped = SCALES[row.scale].of(shaped, x, members, Divisor(eps=row.eps, ddof=row.ddof))
    if row.needs_group:
        shaped = torch.where(alone, x.double() if row.singleton == "raw" else 0.0, shaped)
    return (shaped if reward_clip is None else shaped.clamp(*reward_clip)).to(x.dtype)


def _check_shapes(estimator: EstimatorFn, mask: Tensor, *given: Tensor) -> None:
    for tensor in given:
        if tensor.shape != mask.shape:
            raise DataError(
                f"estimator {estimator!r} must give advantages and returns of shape "
                f"{list(mask.shape)}, one for every token of every sample; got "
                f"{list(tensor.shape)}."
            )


def named(estimator: "str | Estimator") -> tuple[str, Estimator]:
    """A name to speak of an estimator by, and the estimator.

    Raises:
        UnknownNameError: A name that is not in :data:`ESTIMATORS`.
    """
    if isinstance(estimator, Estimator):
        known = [name for name, row in ESTIMATORS.items() if row == estimator]
        return (known[0] if known else "custom"), estimator
    if estimator not in ESTIMATORS:
        raise unknown_name("estimator", estimator, ESTIMATORS)
    return estimator, ESTIMATORS[estimator]


def _check_inputs(
    name: str, row: Estimator, kl: Tensor | None, kl_coef: float, values: Tensor | None
) -> None:
    if not kl_coef >= 0:
        raise ConfigError(f"kl_coef must be >= 0; got {kl_coef!r}.")
    if kl_coef > 0 and kl is None:
        raise ConfigError(f"kl_coef={kl_coef!r} needs kl, the per-token KL to the reference.")
    if row.needs_values and values is None:
        raise ConfigError(
            f"estimator {name!r} needs the critic's values; pass values[N, T], or an estimator "
            "without a critic such as 'reinforce_pp'."
        )


def _group_of_one(name: str, alone: int, count: int) -> ConfigError:
    return ConfigError(
        f"estimator {name!r} needs n >= 2 rollouts a prompt; got n=1 in {alone} of {count} groups. "
        "Pass rollout(..., n=2) or more, use 'reinforce_pp', or choose "
        "Estimator(singleton='zero' or 'raw')."
    )
