"""Every form of a reward, brought to one: functions, files, servers, models.

May import ``errors`` and its neighbours; ``http`` and ``models`` only where such a reward is given.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any

from nbrl.backends.rewards.loading import RewardFn, load_code
from nbrl.backends.rewards.places import RewardModel, RewardServer, need, written


def load_reward(reward: Any) -> RewardFn:
    """The reward that a callable, a path, an address, a server or a model stands for.

    A string that begins with ``http://`` or ``https://`` is an address. A model is loaded now, so
    that what is wrong with it is known before anything is scored.

    Raises:
        ConfigError: None of these, or one that cannot work.
        RewardError: A file that cannot be run.
    """
    if isinstance(reward, str) and reward.startswith(("http://", "https://")):
        reward = RewardServer(reward)
    if isinstance(reward, RewardServer):
        need("a reward server", ("httpx", "tenacity"), "serve")
        from nbrl.backends.rewards.http import score_remote

        # what a server runs cannot be known from here; where it was asked, can
        return _of_rows("server", functools.partial(score_remote, reward), repr(reward.addresses))
    if isinstance(reward, RewardModel):
        from nbrl.backends.rewards.models import load_reward_model, score_by_model

        load_reward_model(reward)
        name = Path(reward.path).name
        return _of_rows(name, functools.partial(score_by_model, reward), written(reward))
    return load_code(reward)


def _of_rows(name: str, function: Any, source: str) -> RewardFn:
    return RewardFn(
        name=name,
        function=function,
        form="rows",
        parameters=(),
        required=(),
        takes_more=False,
        fingerprint=hashlib.sha256(source.encode()).hexdigest(),
    )
