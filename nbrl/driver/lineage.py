"""What a result was made with, and from: every setting behind it, and its parents.

May import what ``runtime`` may.
"""

import copy
from typing import Any

from nbrl.driver.freshness import batch_digest
from nbrl.driver.runtime import Runtime
from nbrl.types import Advantaged


def session_spec(runtime: Runtime) -> dict[str, Any]:
    """The settings of the session: model, engine, trainer with its optimizer, prompts, versions."""
    # a copy: what a caller writes to it must not change what later results say
    return {"session": copy.deepcopy(runtime.spec)}


def batch_spec(runtime: Runtime, batch: Advantaged) -> dict[str, Any]:
    """The settings of the session and of each link of a batch, and ``parents``.

    Of those, ``batch`` is the digest that knows the batch again wherever it was saved, ``run`` and
    ``version`` say which policy looked at it.
    """
    scored = batch.scored
    links = {
        "prompts": scored.rollouts.prompts,
        "rollouts": scored.rollouts,
        "scored": scored,
        "advantages": batch,
    }
    parents = {
        "run": runtime.run_id,
        "version": runtime.version,
        "batch": batch_digest(batch),
        "samples": len(batch),
    }
    return {
        **session_spec(runtime),
        **{name: dict(link.spec) for name, link in links.items()},
        "parents": parents,
    }
