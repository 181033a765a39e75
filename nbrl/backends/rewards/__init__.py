"""Rewards: what scores a sample, be it code, a server or a model. May import ``errors``."""

from nbrl.backends.rewards.calling import Outcome, Reward, score_samples
from nbrl.backends.rewards.loading import RewardFn
from nbrl.backends.rewards.places import RewardModel, RewardServer
from nbrl.backends.rewards.pool import RewardPool
from nbrl.backends.rewards.sources import load_reward

__all__ = [
    "Outcome",
    "Reward",
    "RewardFn",
    "RewardModel",
    "RewardPool",
    "RewardServer",
    "load_reward",
    "score_samples",
]
