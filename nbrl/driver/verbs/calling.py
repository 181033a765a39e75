"""How a verb is called on a session.

May import ``runtime``.
"""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, runtime_checkable

from nbrl.driver.runtime import Result, Runtime, verb

Given = ParamSpec("Given")


@runtime_checkable
class Opened(Protocol):
    """What a verb needs of the session that it is a method of."""

    @property
    def _runtime(self) -> Runtime: ...


def call(
    session: Opened,
    name: str,
    work: Callable[Concatenate[Runtime, Given], Result],
    *args: Given.args,
    **keywords: Given.kwargs,
) -> Result:
    """What a verb's module makes of the runtime, under the guard that all verbs pass."""
    runtime = session._runtime
    return verb(runtime, name, lambda: work(runtime, *args, **keywords))
