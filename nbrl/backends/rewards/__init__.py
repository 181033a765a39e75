"""Rewards: what scores a sample, from a callable or a file. May import ``errors`` and this room."""

from nbrl.backends.rewards.calling import Outcome, Reward, score_samples
from nbrl.backends.rewards.loading import RewardFn, load_reward

__all__ = ["Outcome", "Reward", "RewardFn", "load_reward", "score_samples"]
