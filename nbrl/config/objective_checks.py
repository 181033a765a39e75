"""The rules of the objectives' settings.

May import its neighbours, ``functional`` and ``rules``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nbrl.config.fitting import HeldOut
from nbrl.config.objectives import (
    DPO,
    DPO_KINDS,
    DPO_LENGTHS,
    KTO,
    SFT,
    Distillation,
    ProcessReward,
    RewardLoss,
)
from nbrl.functional.reductions import AGGREGATIONS
from nbrl.rules import (
    among,
    bounded,
    flag,
    is_among,
    is_number,
    is_whole,
    shown,
    text,
    whole,
)

_WITHOUT_CONSTANT = tuple(name for name in AGGREGATIONS if not name.endswith("-norm"))


def _sft(c: SFT) -> Iterator[str]:
    yield from among("SFT.aggregation", c.aggregation, _WITHOUT_CONSTANT)
    yield from bounded("SFT.aux_coef", c.aux_coef, 0.0)


def _reward_loss(c: RewardLoss) -> Iterator[str]:
    yield from flag("RewardLoss.margin", c.margin)


def _dpo(c: DPO) -> Iterator[str]:
    yield from bounded("DPO.beta", c.beta, 0.0, open_low=True)
    yield from among("DPO.kind", c.kind, DPO_KINDS)
    yield from among("DPO.length", c.length, DPO_LENGTHS)
    yield from bounded("DPO.nll_coef", c.nll_coef, 0.0)
    yield from bounded("DPO.aux_coef", c.aux_coef, 0.0)
    yield from bounded("DPO.label_smoothing", c.label_smoothing, 0.0, 0.5)
    smoothing = c.label_smoothing if is_number(c.label_smoothing) else 0.0
    if smoothing == 0.5:
        yield "DPO.label_smoothing=0.5 says that labels mean nothing; pass less"
    if smoothing and is_among(c.kind, ["ipo"]):
        yield "DPO.label_smoothing has no effect with kind='ipo'; drop it"
    if is_among(c.kind, ["sigmoid"]) and is_among(c.length, ["mean"]):
        yield "DPO.length has no effect with kind='sigmoid', which takes sums; drop it"


def _kto(c: KTO) -> Iterator[str]:
    yield from bounded("KTO.beta", c.beta, 0.0, open_low=True)
    yield from bounded("KTO.desirable_weight", c.desirable_weight, 0.0)
    yield from bounded("KTO.undesirable_weight", c.undesirable_weight, 0.0)
    if all(is_number(w) and w == 0 for w in (c.desirable_weight, c.undesirable_weight)):
        yield "KTO: both weights are 0, so nothing is learned; pass one that is not"


def _distillation(c: Distillation) -> Iterator[str]:
    yield from text("Distillation.teacher", c.teacher)
    yield from bounded("Distillation.coef", c.coef, 0.0, 1.0, open_low=True)


def _process_reward(c: ProcessReward) -> Iterator[str]:
    tokens = c.reward_tokens
    pair = isinstance(tokens, tuple | list) and len(tokens) == 2
    if not pair or any(not isinstance(t, str) or not t for t in tokens) or len(set(tokens)) < 2:
        yield f"ProcessReward.reward_tokens must be two texts, (good, bad); got {shown(tokens)}"
    ids = c.token_ids
    if ids is not None and not (
        isinstance(ids, tuple) and len(ids) == 2 and all(map(is_whole, ids))
    ):
        yield f"ProcessReward.token_ids must be two ids, (good, bad); got {shown(ids)}"


def _held_out(c: HeldOut) -> Iterator[str]:
    yield from among("HeldOut.keep", c.keep, ("last", "best"))
    if c.every is not None:
        yield from whole("HeldOut.every", c.every, 1)


OBJECTIVE_CHECKS: Mapping[type, Callable[[Any], Iterator[str]]] = {
    SFT: _sft,
    RewardLoss: _reward_loss,
    DPO: _dpo,
    KTO: _kto,
    Distillation: _distillation,
    ProcessReward: _process_reward,
    HeldOut: _held_out,
}
