"""The reward that an agent's environment gave, as a reward function. Imports the errors only."""

import json
from collections.abc import Mapping
from typing import Any

from nbrl.errors import DataError
from nbrl.frozen import frozen


@frozen()
class EnvironmentReward:
    """A reward function for ``score``: what the environment said in an episode, added up.

    The return is ``sum_t discount^t reward_t`` over turns ``t = 0, 1, ...``; with the default it
    is the sum. It reads the stored sample, so it may be replayed.

    Example: rewards 0, 0, 1 over three turns give 1.0, and 0.25 with ``discount=0.5``.
    """

    discount: float = 1.0

    def __call__(self, rollout: Mapping[str, Any]) -> float:
        """The return of one episode.

        Raises:
            DataError: The sample was not played by an agent, or its environment did not answer.
        """
        if rollout.get("turns") is None:
            raise DataError(
                f"sample {rollout.get('sample_id')!r} has no turns: it was not played by an agent. "
                "Pass rollout(..., agent=...), or another reward."
            )
        rewards = [turn["reward"] for turn in json.loads(rollout["turns"])]
        if not rewards or None in rewards:
            raise DataError(
                f"sample {rollout.get('sample_id')!r}: the environment gave no reward in one of "
                f"{len(rewards)} turns."
            )
        return float(sum(self.discount**t * reward for t, reward in enumerate(rewards)))
