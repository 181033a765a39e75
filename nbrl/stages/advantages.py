"""From scored samples to a training batch; may import L1, functional, torch and numpy. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbrl.config import ESTIMATOR_ALIASES, KL, Shaping, check_config, to_spec, wants_reference
from nbrl.errors import DataError
from nbrl.functional import groups as g
from nbrl.functional.estimators import ESTIMATORS, Estimator, EstimatorFn, estimate, named
from nbrl.functional.logprobs import kl as kl_estimate
from nbrl.rules import among, call_problems, kind_problems, shown
from nbrl.stages.shaping import (
    group_index,
    largest_group,
    shaped_rewards,
    shaping_problems,
    trained_rows,
)
from nbrl.types import SOURCE_POLICY, Advantaged, Scored, columns


def compute_advantages(
    scored: Scored,
    estimator: str | Estimator | EstimatorFn = "grpo",
    *,
    kl: KL | None = None,
    shaping: Shaping | None = None,
) -> Advantaged:
    """The samples that can be trained on, with an advantage on each of their policy tokens.

    In this order: bad samples are left out, groups are filtered on raw rewards, penalties change
    the reward, and the estimator does the rest (its own order is in
    :mod:`nbrl.functional.estimators`). *Dropped* are samples whose reward or generation failed,
    groups outside ``shaping.reward_range``, and, for estimators that need a group and refuse a
    single one, the last valid sample of a group. They are in no baseline and not in the result;
    ``spec["dropped"]`` counts them by reason. The result may be empty.

    ``live`` is False where all rewards of a group are equal; for an estimator that does not look at
    groups, a group of one is live.

    Args:
        scored: Scored rollouts. Their token columns ``ref_logprobs`` (for ``kl``) and ``values``
            (for ``gae``) must have been annotated.
        estimator: A name (OpenRLHF's spellings too), an :class:`Estimator`, or a function called
            as :func:`nbrl.functional.estimators.estimate` is; it decides itself about groups of
            one.
        kl: A penalty in the reward, on ``old_logprobs`` where annotated, else
            ``rollout_logprobs``.
        shaping: Penalties, filter and clip.

    Raises:
        ConfigError: All problems of the request in one message, before any work.
        DataError: A reward beyond float32, or a result that is not finite.
    """
    _check(scored, estimator, kl, shaping)
    resolved, shape = _resolved(estimator), shaping or Shaping()
    row = resolved.row
    rows, dropped = trained_rows(scored, shape, pairs=resolved.needs_pairs)
    kept = scored if len(rows) == len(scored) else scored.take(rows)
    rewards = shaped_rewards(kept, shape)
    _check_range(kept, rewards)
    group_ids = group_index(kept.rollouts)
    region = _region(kept)
    penalty = _flat_kl(kept, region, kl)
    advantages, returns = estimate(
        resolved.given,
        rewards,
        group_ids,
        region.dense_mask,
        kl=region.dense(penalty),
        kl_coef=0.0 if kl is None else kl.coef,
        values=_values(kept, region, row),
        reward_clip=shape.reward_clip,
    )
    tokens = {
        "mask": columns.ragged_column(region.policy, region.offsets, pa.bool_()),
        "advantages": region.column(advantages),
        "returns": region.column(returns),
        "kl": columns.ragged_column(penalty, region.offsets, pa.float32()),
    }
    _check_finite(kept, tokens)
    alone_is_live = row is None or not row.needs_group
    table = pa.table(_sample_columns(kept, rewards, group_ids, alone_is_live) | tokens)
    spec = {
        "estimator_name": resolved.name,
        "estimator": to_spec(row) if row is not None else resolved.name,
        "kl": to_spec(kl),
        "shaping": to_spec(shaping),
        "dropped": dropped,
        "given": len(scored),
    }
    return Advantaged(table=table, scored=kept, spec=spec)


def columns_needed(
    estimator: str | Estimator | EstimatorFn, kl: KL | None = None
) -> tuple[str, ...]:
    """The token columns that :func:`compute_advantages` would ask for: of ``values, ref_logprobs``.

    Raises:
        UnknownNameError: A name that is in no table.
    """
    row = _resolved(estimator).row
    values = ("values",) if row is not None and row.needs_values else ()
    return values + (("ref_logprobs",) if wants_reference(kl) else ())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Resolved:
    """An estimator as it was asked for: its name, its row (None for a function), what to call."""

    name: str
    row: Estimator | None
    given: str | Estimator | EstimatorFn

    @property
    def needs_pairs(self) -> bool:
        """Whether a group must have two samples at least."""
        return self.row is not None and self.row.needs_group and self.row.singleton == "refuse"


def _resolved(estimator: str | Estimator | EstimatorFn) -> _Resolved:
    if isinstance(estimator, str):
        name, row = named(ESTIMATOR_ALIASES.get(estimator, estimator))
        return _Resolved(name=name, row=row, given=name)
    if isinstance(estimator, Estimator):
        name, row = named(estimator)
        return _Resolved(name=name, row=row, given=row)
    is_function = isinstance(estimator, FunctionType)
    name = estimator.__name__ if is_function else type(estimator).__name__
    return _Resolved(name=name, row=None, given=estimator)


def estimator_name(estimator: str | Estimator | EstimatorFn) -> str:
    """What to call an estimator by in a table or a plot.

    Raises:
        UnknownNameError: A name that is in no table.
    """
    return _resolved(estimator).name


def estimator_problems(estimator: Any, n: int) -> Iterator[str]:
    """What is wrong with this as an estimator of ``n`` answers a prompt, in words."""
    if isinstance(estimator, str):
        yield from among("estimator", ESTIMATOR_ALIASES.get(estimator, estimator), ESTIMATORS)
        if ESTIMATOR_ALIASES.get(estimator, estimator) not in ESTIMATORS:
            return
    elif not isinstance(estimator, Estimator):
        yield from _function_problems(estimator)
        return
    resolved = _resolved(estimator)
    if resolved.needs_pairs and n == 1:
        yield (
            f"estimator {resolved.name!r} needs n >= 2 rollouts a prompt; got n=1. "
            "Pass rollout(..., n=2) or more, or use estimator 'reinforce_pp'"
        )


def _function_problems(estimator: Any) -> Iterator[str]:
    if isinstance(estimator, type) or not callable(estimator):
        yield (
            f"estimator must be a name of {', '.join(ESTIMATORS)}, an nbrl.Estimator, or a "
            f"function; got {type(estimator).__name__} {shown(estimator)}"
        )
        return
    keywords = {"kl": None, "kl_coef": 0.0, "values": None, "reward_clip": None}
    form = "(rewards, group_ids, mask, *, kl, kl_coef, values, reward_clip)"
    yield from call_problems("estimator", estimator, (None, None, None), keywords, form)


def request_problems(
    scored: Scored, estimator: Any, *, kl: KL | None, shaping: Shaping | None
) -> list[str]:
    """What cannot work about the request, but for token columns that can still be annotated."""
    kinds = {
        "scored": (scored, Scored),
        "kl": (kl, KL | None),
        "shaping": (shaping, Shaping | None),
    }
    problems = list(kind_problems(kinds))
    if not isinstance(scored, Scored):
        return problems
    problems += estimator_problems(estimator, largest_group(scored))
    if isinstance(shaping, Shaping):
        problems += shaping_problems(scored, shaping)
    if isinstance(kl, KL) and kl.unbiased_gradient is True:
        problems.append(
            "KL.unbiased_gradient has no effect in the reward; drop it or pass the KL to the loss"
        )
    return problems


def _check(scored: Scored, estimator: Any, kl: KL | None, shaping: Shaping | None) -> None:
    asked = f"compute_advantages({shown(estimator)})"
    problems = request_problems(scored, estimator, kl=kl, shaping=shaping)
    problems += _missing_columns(scored, columns_asked(estimator, kl), estimator, kl)
    settings = [c for c in (kl, shaping) if isinstance(c, KL | Shaping)]
    check_config(asked, *settings, extra=problems)


def columns_asked(estimator: Any, kl: Any) -> tuple[str, ...]:
    """As :func:`columns_needed`, of a request that may be wrong."""
    values = () if list(estimator_problems(estimator, 2)) else columns_needed(estimator)
    return values + (columns_needed("grpo", kl) if isinstance(kl, KL) else ())


def _missing_columns(
    scored: Any, needed: tuple[str, ...], estimator: Any, kl: KL | None
) -> Iterator[str]:
    there = scored.rollouts.table.column_names if isinstance(scored, Scored) else needed
    for column in needed:
        if column not in there:
            why = f"KL(coef={kl.coef:g}) in the reward" if kl and column == "ref_logprobs" else None
            yield (
                f"{why or f'estimator {estimator_name(estimator)!r}'} needs the token column "
                f"{column!r}; call "
                f'session.annotate(rollouts, ["{column}"]) before scoring, or '
                "session.compute_advantages, which fetches it"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Region:
    """Where the answers lie: ragged rows as they rest, and as a rectangle for the maths.

    The rectangle's rows start at their first policy token. ``inside`` marks the flat places that
    are in it, ``grid`` the places of the rectangle that are in a row.
    """

    offsets: Int[np.ndarray, " N1"]
    policy: Bool[np.ndarray, " flat"]
    inside: Bool[np.ndarray, " flat"]
    grid: Bool[np.ndarray, "N T"]

    @property
    def dense_mask(self) -> Bool[Tensor, "N T"]:
        """The policy tokens of the rectangle."""
        dense = np.zeros(self.grid.shape, dtype=bool)
        dense[self.grid] = self.policy[self.inside]
        return torch.from_numpy(dense)

    def dense(self, flat: Float[np.ndarray, " flat"]) -> Float[Tensor, "N T"]:
        """A flat token column as a rectangle, 0 where it has none."""
        dense = np.zeros(self.grid.shape, dtype=flat.dtype)
        dense[self.grid] = flat[self.inside]
        return torch.from_numpy(dense)

    def column(self, dense: Float[Tensor, "N T"]) -> pa.ListArray:
        """A rectangle as a token column as long as the rows, 0 outside of it."""
        flat = np.zeros(len(self.policy), dtype=np.float32)
        flat[self.inside] = dense.numpy()[self.grid]
        return columns.ragged_column(flat, self.offsets, pa.float32())


def _region(scored: Scored) -> _Region:
    source, offsets = columns.ragged(scored.rollouts.table.column("source"))
    policy = source == SOURCE_POLICY
    lengths = np.diff(offsets)
    before = np.concatenate([[0], np.cumsum(policy)])
    seen = before[1:] - np.repeat(before[offsets[:-1]], lengths)
    inside = seen > 0
    widths = columns.row_sums(inside, offsets)
    grid = np.arange(widths.max(initial=0)) < widths[:, None]
    return _Region(offsets=offsets, policy=policy, inside=inside, grid=grid)


def _flat_kl(scored: Scored, region: _Region, kl: KL | None) -> np.ndarray:
    """The KL to the reference of every policy token, flat; 0 elsewhere and where none is asked."""
    if kl is None or kl.coef == 0:
        return np.zeros(len(region.policy), dtype=np.float32)
    table = scored.rollouts.table
    own = "old_logprobs" if "old_logprobs" in table.column_names else "rollout_logprobs"
    pair = [_flat(table, name) for name in (own, "ref_logprobs")]
    penalty = kl_estimate(pair[0], pair[1], kl.kind, clamp=kl.clamp)[0].numpy()
    return np.where(region.policy, penalty, np.float32(0))


def _flat(table: pa.Table, name: str) -> Float[Tensor, "1 flat"]:
    flat, _ = columns.ragged(table.column(name))
    return torch.from_numpy(np.array(flat, dtype=np.float32)).unsqueeze(0)


def _values(scored: Scored, region: _Region, row: Estimator | None) -> Tensor | None:
    """The critic's values where the estimator looks at them, or might."""
    table = scored.rollouts.table
    wanted = row is None or row.needs_values
    if not wanted or "values" not in table.column_names:
        return None
    return region.dense(_flat(table, "values")[0].numpy())


def _sample_columns(
    scored: Scored, rewards: Tensor, group_ids: Tensor, alone_is_live: bool
) -> dict[str, Any]:
    if len(scored):
        members = g.grouped(group_ids)
        mean, std = g.group_mean(rewards, members), g.group_std(rewards, members)
        live = ~g.constant(rewards, members) | ((members.sizes == 1) & alone_is_live)
    else:
        mean = std = rewards
        live = rewards > 0
    return {
        "sample_id": scored.table.column("sample_id"),
        "reward": pa.array(rewards.numpy(), pa.float64()),
        "group_mean": pa.array(mean.numpy(), pa.float64()),
        "group_std": pa.array(std.numpy(), pa.float64()),
        "live": pa.array(live.numpy(), pa.bool_()),
    }


def _check_range(scored: Scored, rewards: Tensor) -> None:
    """Raise where a mean or a spread of the rewards could overflow, or an advantage would."""
    most = torch.finfo(torch.float32).max
    wrong = torch.nonzero(~(rewards.abs() <= most)).flatten()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"compute_advantages: the shaped reward of sample "
            f"{scored.table.column('sample_id')[row].as_py()!r} is {float(rewards[row]):g}, and "
            f"{len(wrong)} of {len(rewards)} rewards lie beyond float32, whose largest number is "
            f"{most:.3g}: advantages are float32. Scale the reward down."
        )


def _check_finite(scored: Scored, tokens: Mapping[str, pa.ListArray]) -> None:
    for name, column in tokens.items():
        flat, offsets = columns.ragged(column)
        bad = np.flatnonzero(~np.isfinite(flat))
        if len(bad):
            row = columns.row_at(offsets, bad[0])
            raise DataError(
                f"{name} of sample {scored.table.column('sample_id')[row].as_py()!r} is not finite "
                f"({flat[bad[0]]}). Look at its reward, log-probs and values."
            )
