"""L0, the maths: tensors in, tensors out. May import torch and nothing else.

``mask`` is boolean, True on tokens that count. Tables name what can be chosen: ``ESTIMATORS``,
``SURROGATES``, ``CORRECTIONS``, ``AGGREGATIONS``, ``KL_KINDS``, ``DIALECTS``.
"""

from nbrl.functional.dialects import DIALECTS, dialect
from nbrl.functional.estimators import ESTIMATORS, Estimator, estimate
from nbrl.functional.logprobs import KL_KINDS, entropy, kl, kl_unbiased, token_logprobs
from nbrl.functional.losses import SURROGATES, ratio_and_clipped, surrogate, value_loss
from nbrl.functional.off_policy import CORRECTIONS, importance_weights
from nbrl.functional.penalties import groups_inside, overlong_penalty, stop_properly
from nbrl.functional.reductions import (
    AGGREGATIONS,
    Totals,
    aggregate,
    masked_mean,
    masked_sum,
    totals,
    whiten,
)
from nbrl.functional.statistics import bootstrap_interval, paired_difference, pass_at_k

__all__ = [
    "AGGREGATIONS",
    "CORRECTIONS",
    "DIALECTS",
    "ESTIMATORS",
    "KL_KINDS",
    "SURROGATES",
    "Estimator",
    "Totals",
    "aggregate",
    "bootstrap_interval",
    "dialect",
    "entropy",
    "estimate",
    "groups_inside",
    "importance_weights",
    "kl",
    "kl_unbiased",
    "masked_mean",
    "masked_sum",
    "overlong_penalty",
    "paired_difference",
    "pass_at_k",
    "ratio_and_clipped",
    "stop_properly",
    "surrogate",
    "token_logprobs",
    "totals",
    "value_loss",
    "whiten",
]
