"""What a single setting may be, each problem in words; imports nothing of the house."""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Whether something is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def bounded(
    name: str,
    value: Any,
    low: float = -inf,
    high: float = inf,
    *,
    open_low: bool = False,
) -> Iterator[str]:
    """A problem where something is not a number inside its interval."""
    if (
        is_number(value)
        and abs(value) != inf
        and low <= value <= high
        and not (open_low and value == low)
    ):
        return
    left = "(" if open_low or low == -inf else "["
    right = ")" if high == inf else "]"
    yield f"{name} must be a number in {left}{low:g}, {high:g}{right}; got {value!r}"


def among(name: str, value: object, known: Iterable[str]) -> Iterator[str]:
    """A problem where a name is not in a table."""
    listed = list(known)
    if value not in listed:
        yield f"{name} {value!r} is unknown; known: {', '.join(listed)}"


def whole(name: str, value: object, low: int) -> Iterator[str]:
    """A problem where something is not an integer from ``low`` up."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        yield f"{name} must be a whole number >= {low}; got {value!r}"
