"""L0, the maths: tensors in, tensors out. May import torch and nothing else.

``mask`` is boolean, True on tokens that count. Tables name what can be chosen: ``ESTIMATORS``,
``SURROGATES``, ``CORRECTIONS``, ``AGGREGATIONS``, ``KL_KINDS``, ``DIALECTS``.
"""

from nbrl.functional.agreement import cohens_kappa, kendall, spearman
from nbrl.functional.dialects import DIALECTS, dialect
from nbrl.functional.estimators import ESTIMATORS, Estimator, estimate
from nbrl.functional.logprobs import KL_KINDS, entropy, kl, kl_unbiased, token_logprobs
from nbrl.functional.losses import SURROGATES, ratio_and_clipped, surrogate, value_loss
from nbrl.functional.off_policy import CORRECTIONS, importance_weights
from nbrl.functional.penalties import groups_inside, overlong_penalty, stop_properly
from nbrl.functional.preference import (
    distillation_loss,
    dpo_loss,
    ipo_loss,
    kto_baseline,
    kto_loss,
    process_reward_loss,
    reward_model_loss,
    sft_nll,
)
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
    "cohens_kappa",
    "dialect",
    "distillation_loss",
    "dpo_loss",
    "entropy",
    "estimate",
    "groups_inside",
    "importance_weights",
    "ipo_loss",
    "kendall",
    "kl",
    "kl_unbiased",
    "kto_baseline",
    "kto_loss",
    "masked_mean",
    "masked_sum",
    "overlong_penalty",
    "paired_difference",
    "pass_at_k",
    "process_reward_loss",
    "ratio_and_clipped",
    "reward_model_loss",
    "sft_nll",
    "spearman",
    "stop_properly",
    "surrogate",
    "token_logprobs",
    "totals",
    "value_loss",
    "whiten",
]
