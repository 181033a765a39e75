"""The sessions of this process that run on a cluster, so that a cell can be run again.

May import ``parts``, ``runtime``, ``session``, ``backends.sources`` and ``config``.
"""

from typing import Any

from nbrl.backends.sources import fingerprint
from nbrl.config import Placement, to_spec
from nbrl.driver.parts import Settings, is_cluster
from nbrl.driver.runtime import Runtime
from nbrl.driver.session import Session
from nbrl.errors import ConfigError
from nbrl.rules import shown
from nbrl.types import Prompts

_RUNNING: dict[str, tuple[dict[str, Any], Runtime, Session]] = {}


def find(settings: Settings) -> Session | None:
    """The running session of this name on a cluster; None where there is none.

    Raises:
        ConfigError: It runs with other settings; names each that differs.
    """
    if not is_cluster(settings.where) or _name(settings) not in _RUNNING:
        return None
    own, runtime, session = _RUNNING[_name(settings)]
    if runtime.closed:
        del _RUNNING[_name(settings)]
        return None
    asked = _compared(settings)
    different = [
        f"  - {name}: it runs with {shown(own[name])}, asked for is {shown(asked[name])}"
        for name in asked
        if own[name] != asked[name]
    ]
    if different:
        listed = "\n".join(different)
        raise ConfigError(
            f"connect({settings.where!r}): session {_name(settings)!r} runs already, with other "
            f"settings:\n{listed}\nClose it first (session.close()), or pass another name=."
        )
    return session


def remember(settings: Settings, runtime: Runtime, session: Session) -> None:
    """Keep the session for :func:`find`, if it runs on a cluster."""
    if is_cluster(settings.where):
        _RUNNING[_name(settings)] = _compared(settings), runtime, session


def _name(settings: Settings) -> str:
    return str(settings.model.path if settings.name is None else settings.name)


def _compared(settings: Settings) -> dict[str, Any]:
    """What makes two requests equal, one entry a setting; those inside others by their path."""
    prompts = settings.prompts
    found: dict[str, Any] = {
        "where": settings.where,
        "seed": settings.seed,
        "run_dir": None if settings.run_dir is None else str(settings.run_dir),
        "prompts": fingerprint(prompts) if isinstance(prompts, Prompts) else prompts,
    }
    nested = {
        "model": settings.model,
        "engine": settings.engine,
        "trainer": settings.trainer,
        "placement": settings.placement or Placement(),
        "store": settings.store,
    }
    for part, component in nested.items():
        spec = to_spec(component)
        plain = spec if isinstance(spec, dict) else {"": spec}
        found |= {f"{part}.{name}".rstrip("."): value for name, value in plain.items()}
    return found
