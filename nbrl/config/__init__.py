"""L1, the settings: one small frozen dataclass a component, and the one place that judges them.

May import ``functional``, ``rules`` and ``errors``.
"""

from nbrl.config.agents import Agent
from nbrl.config.checks import check_config, kl_problems
from nbrl.config.fitting import HeldOut
from nbrl.config.objectives import (
    DPO,
    KTO,
    SFT,
    TRAINS_ON,
    Distillation,
    Loss,
    Objective,
    ProcessReward,
    RewardLoss,
    wants_reference_logprobs,
)
from nbrl.config.overlap import Overlap
from nbrl.config.placement import Placement, placement_problems
from nbrl.config.settings import (
    ESTIMATOR_ALIASES,
    KL,
    Critic,
    Engine,
    Lora,
    Model,
    Optimizer,
    PolicyLoss,
    Recipe,
    Sampling,
    Shaping,
    Trainer,
    is_changed,
    to_spec,
    wants_reference,
)
from nbrl.config.storing import Store

__all__ = [
    "DPO",
    "ESTIMATOR_ALIASES",
    "KL",
    "KTO",
    "SFT",
    "TRAINS_ON",
    "Agent",
    "Critic",
    "Distillation",
    "Engine",
    "HeldOut",
    "Lora",
    "Loss",
    "Model",
    "Objective",
    "Optimizer",
    "Overlap",
    "Placement",
    "PolicyLoss",
    "ProcessReward",
    "Recipe",
    "RewardLoss",
    "Sampling",
    "Shaping",
    "Store",
    "Trainer",
    "check_config",
    "is_changed",
    "kl_problems",
    "placement_problems",
    "to_spec",
    "wants_reference",
    "wants_reference_logprobs",
]
