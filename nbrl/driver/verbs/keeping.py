"""The verbs that keep a session's state and go back to it.

May import ``types``, ``config`` and the rest of ``driver``.
"""

from pathlib import Path

from nbrl.driver import checkpointing
from nbrl.driver.verbs.calling import Opened, call


def save(session: Opened, tag: str | None = None) -> Path:
    """The folder of a checkpoint of all that decides what the session will do next.

    Args:
        tag: What to call it; ``step-<version>`` by default. One of the same tag is replaced.
    """
    return call(session, "save", lambda runtime: checkpointing.save(runtime, tag).path)


def load(session: Opened, tag: str | int | None = None) -> None:
    """Become what the session was under a tag, or at a version; at the latest by default."""
    call(session, "load", checkpointing.load, tag)
