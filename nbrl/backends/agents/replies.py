"""What an environment may say to an action, and what cannot be understood of it.

May import ``config`` and this room.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbrl.backends.agents.calls import Reply
from nbrl.config import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A ``step`` that was understood; ``sampling`` is that of the next action."""

    feedback: str
    done: bool
    reward: float
    score: float | None
    sampling: Sampling
    extras: Mapping[str, Any]
    seconds: float


def understood(reply: Reply, sampling: Sampling) -> Answer | str:
    """The answer that ``step`` gave, or what is wrong with it, in words.

    ``rewards`` (a number, or a tensor of one), ``environment_feedback`` (text) and ``done`` must be
    there. ``scores``, ``sampling_params`` and ``extra_logs`` may be.
    """
    said = reply.value
    problem = reply.error or "; ".join(_problems(said, sampling))
    if problem:
        return problem
    reward = _number(said["rewards"])
    assert reward is not None
    return Answer(
        feedback=said["environment_feedback"],
        done=bool(said["done"]),
        reward=reward,
        score=_number(said.get("scores")),
        sampling=said.get("sampling_params") or sampling,
        extras={str(k): _plain(v) for k, v in (said.get("extra_logs") or {}).items()},
        seconds=reply.seconds,
    )


def _problems(said: Any, sampling: Sampling) -> Iterator[str]:
    if not isinstance(said, Mapping):
        yield f"step must return a dict; got {said!r:.200}"
        return
    lacking = [k for k in ("rewards", "environment_feedback", "done") if k not in said]
    if lacking:
        yield f"step's dict lacks {', '.join(lacking)}; it has {list(said)}"
        return
    for key in ("rewards", "scores"):
        number = _number(said.get(key))
        needed = key == "rewards" or said.get(key) is not None
        if needed and (number is None or not np.isfinite(number)):
            yield f"{key!r} must be a finite number or a tensor of one; got {said.get(key)!r:.200}"
    if not isinstance(said["environment_feedback"], str):
        yield f"'environment_feedback' must be a text; got {said['environment_feedback']!r:.200}"
    wanted = said.get("sampling_params")
    if wanted is not None and not isinstance(wanted, Sampling):
        yield f"'sampling_params' must be nbrl.Sampling; got {type(wanted).__name__}"
    elif wanted is not None and wanted.temperature != sampling.temperature:
        # a sample has one temperature, by which its log-probs are computed again in training
        yield (
            f"the temperature of an episode is {sampling.temperature}; 'sampling_params' ask for "
            f"{wanted.temperature}"
        )
    if not isinstance(said.get("extra_logs") or {}, Mapping):
        yield f"'extra_logs' must be a dict; got {said['extra_logs']!r:.200}"


def _number(said: Any) -> float | None:
    """A number, or the one of an array or tensor that holds one; None where it is neither."""
    try:
        return None if said is None else float(np.asarray(_plain(said)).item())
    except (TypeError, ValueError):
        return None


def _plain(said: Any) -> Any:
    """Data that JSON can hold, of what an environment logs."""
    if isinstance(said, bool | int | float | str) or said is None:
        return said
    if f"{type(said).__module__}.{type(said).__name__}" == "torch.Tensor":
        said = said.detach().cpu().tolist()
    if isinstance(said, np.ndarray | np.generic):
        said = said.tolist()
    if isinstance(said, Mapping):
        return {str(k): _plain(v) for k, v in said.items()}
    if isinstance(said, list | tuple):
        return [_plain(v) for v in said]
    return said if isinstance(said, bool | int | float | str) else repr(said)[:200]
