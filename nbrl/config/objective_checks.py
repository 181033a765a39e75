"""The rules of the objectives' settings. May import ``objectives``, ``rules``, ``functional``."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
from nbrl.config.rules import among, bounded
from nbrl.functional.reductions import AGGREGATIONS

_WITHOUT_CONSTANT = tuple(name for name in AGGREGATIONS if not name.endswith("-norm"))


def _sft(c: SFT) -> Iterator[str]:
    yield from among("SFT.aggregation", c.aggregation, _WITHOUT_CONSTANT)
    yield from bounded("SFT.aux_coef", c.aux_coef, 0.0)


def _reward_loss(c: RewardLoss) -> Iterator[str]:
    if not isinstance(c.margin, bool):
        yield f"RewardLoss.margin must be True or False; got {c.margin!r}"


def _dpo(c: DPO) -> Iterator[str]:
    yield from bounded("DPO.beta", c.beta, 0.0, open_low=True)
    yield from among("DPO.kind", c.kind, DPO_KINDS)
    yield from among("DPO.length", c.length, DPO_LENGTHS)
    yield from bounded("DPO.nll_coef", c.nll_coef, 0.0)
    yield from bounded("DPO.aux_coef", c.aux_coef, 0.0)
    yield from bounded("DPO.label_smoothing", c.label_smoothing, 0.0, 0.5)
    if c.label_smoothing == 0.5:
        yield "DPO.label_smoothing=0.5 says that labels mean nothing; pass less"
    if c.kind == "ipo" and c.label_smoothing:
        yield "DPO.label_smoothing has no effect with kind='ipo'; drop it"
    if c.kind == "sigmoid" and c.length != "sum":
        yield "DPO.length has no effect with kind='sigmoid', which takes sums; drop it"


def _kto(c: KTO) -> Iterator[str]:
    yield from bounded("KTO.beta", c.beta, 0.0, open_low=True)
    yield from bounded("KTO.desirable_weight", c.desirable_weight, 0.0)
    yield from bounded("KTO.undesirable_weight", c.undesirable_weight, 0.0)
    if c.desirable_weight == c.undesirable_weight == 0:
        yield "KTO: both weights are 0, so nothing is learned; pass one that is not"


def _distillation(c: Distillation) -> Iterator[str]:
    if not isinstance(c.teacher, str) or not c.teacher:
        yield f"Distillation.teacher must name a model; got {c.teacher!r}"
    yield from bounded("Distillation.coef", c.coef, 0.0, 1.0, open_low=True)


def _process_reward(c: ProcessReward) -> Iterator[str]:
    tokens = c.reward_tokens
    pair = isinstance(tokens, tuple | list) and len(tokens) == 2
    if not pair or any(not isinstance(t, str) or not t for t in tokens) or len(set(tokens)) < 2:
        yield f"ProcessReward.reward_tokens must be two texts, (good, bad); got {tokens!r}"


OBJECTIVE_CHECKS: Mapping[type, Callable[[Any], Iterator[str]]] = {
    SFT: _sft,
    RewardLoss: _reward_loss,
    DPO: _dpo,
    KTO: _kto,
    Distillation: _distillation,
    ProcessReward: _process_reward,
}
