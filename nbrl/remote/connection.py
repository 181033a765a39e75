"""The connection to a cluster, and how many sessions of this process use it.

Imports ray and ``errors``.
"""

import os
import platform
import time
from pathlib import Path
from typing import Any

import ray

from nbrl.errors import ConfigError
from nbrl.protocols import Advance

CONNECT_SECONDS = 60.0
TRY_AGAIN_SECONDS = 2.0
FORWARDED = ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "HF_HOME")
"""Settings of this process's environment that workers get, too."""
OURS: list[str] = []
"""The sessions of this process that use a connection made here; the last one ends it."""


def join(where: str, session: str, tick: Advance) -> None:
    """Connect, where no connection is there; the user's own is taken as it is.

    Args:
        where: ``"ray"`` takes the connection that is there, or starts a cluster on this machine;
            ``"auto"`` joins that of this machine, ``"ray://host:port"`` another.
        session: Who asks, for :func:`leave`.
        tick: Called between tries; it may raise.

    Raises:
        ConfigError: None can be made.
    """
    if ray.is_initialized():
        if OURS:
            OURS.append(session)
        return
    start, last, waited = time.monotonic(), None, 0.0
    while waited < CONNECT_SECONDS:
        try:
            ray.init(
                address="local" if where == "ray" else where,
                log_to_driver=False,
                runtime_env=_runtime_env(),
                include_dashboard=False if where == "ray" else None,
            )
            OURS.append(session)
            return
        except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
            last = error
            if not _may_pass(error):
                break
            _wait(tick)
        finally:
            waited = time.monotonic() - start
    raise ConfigError(_refused(where, waited, last)) from last


def leave(session: str) -> None:
    """The session uses the connection no more; one that was made here ends with its last."""
    if session in OURS:
        OURS.remove(session)
        if not OURS and ray.is_initialized():
            ray.shutdown()


def _may_pass(error: Exception) -> bool:
    """Whether another try may help: a head that is starting answers after some 15 s."""
    text = str(error).lower()
    final = ("version", "could not find any running", "authentication", "token")
    return not isinstance(error, ValueError) and not any(word in text for word in final)


def _wait(tick: Advance) -> None:
    until = time.monotonic() + TRY_AGAIN_SECONDS
    while time.monotonic() < until:
        tick(0, 0)
        time.sleep(0.1)


def _refused(where: str, waited: float, last: Exception | None) -> str:
    token = " A token was sent, from RAY_AUTH_TOKEN." if "RAY_AUTH_TOKEN" in os.environ else ""
    return (
        f"connect({where!r}): no connection after {waited:.0f} s; this side has Ray "
        f"{ray.__version__}, Python {platform.python_version()}.{token} The last error: "
        f"{_first_line(last)}. Check that the head runs (ray status on its machine), that its "
        "client port is reachable, and that Ray and Python have the same versions there; or call "
        "ray.init(...) yourself and connect('ray')."
    )


def _first_line(error: Exception | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _runtime_env() -> dict[str, Any]:
    """This copy of the package and a few settings, for workers that lack or differ from them."""
    forwarded = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    return {"py_modules": [str(Path(__file__).parents[1])], "env_vars": forwarded}
