"""What single values must be, in words: a number in its interval, a known name, a kind.

May import ``errors``. A function that yields problems yields none where the value is right.
"""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, TypeGuard, get_args

import numpy as np

from nbrl.errors import UnknownName

SHOWN = 80
"""How much of a wrong value a message shows."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether something is an integer or a float, NumPy's too; a bool is neither."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_whole(value: object, low: int = 0) -> TypeGuard[int]:
    """Whether something is an integer from ``low`` up, NumPy's too; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return bool(value >= low)


def bounded(
    name: str,
    value: Any,
    low: float = -inf,
    high: float = inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> Iterator[str]:
    """A problem where something is not a finite number inside its interval."""
    if (
        is_number(value)
        and abs(value) != inf
        and low <= value <= high
        and not (open_low and value == low)
        and not (open_high and value == high)
    ):
        return
    left = "(" if open_low or low == -inf else "["
    right = ")" if open_high or high == inf else "]"
    yield f"{name} must be a number in {left}{low:g}, {high:g}{right}; got {shown(value)}"


def is_among(value: object, known: Iterable[str]) -> TypeGuard[str]:
    """Whether something is a name in a table; what cannot be a key is none."""
    return isinstance(value, str) and value in list(known)


def among(name: str, value: object, known: Iterable[str]) -> Iterator[str]:
    """A problem where a name is not in a table."""
    if not is_among(value, known):
        yield UnknownName(f"{name} {shown(value)} is unknown; known: {', '.join(known)}")


def whole(name: str, value: object, low: int) -> Iterator[str]:
    """A problem where something is not an integer from ``low`` up."""
    if not is_whole(value, low):
        yield f"{name} must be a whole number >= {low}; got {shown(value)}"


def flag(name: str, value: object) -> Iterator[str]:
    """A problem where something is neither True nor False."""
    if not isinstance(value, bool):
        yield f"{name} must be True or False; got {shown(value)}"


def text(name: str, value: object) -> Iterator[str]:
    """A problem where something is not a text with at least one visible character."""
    if not isinstance(value, str) or not value.strip():
        yield f"{name} must be a non-empty text; got {shown(value)}"


def interval(name: str, value: Any) -> Iterator[str]:
    """A problem where something is not a pair (low, high) of numbers with low < high."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    if value is not None and not (pair and all(map(is_number, value)) and value[0] < value[1]):
        yield f"{name} must be (low, high) with low < high; got {shown(value)}"


def kind_problems(given: Mapping[str, tuple[object, Any]]) -> Iterator[str]:
    """A problem for each argument that is not of the kind that its name takes.

    Args:
        given: By the argument's name, what was given and what it must be.
    """
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            yield f"{name} must be {_article(kind)}; got {type(value).__name__} {shown(value)}"


def whole_problems(given: Mapping[str, tuple[object, int]]) -> Iterator[str]:
    """A problem for each argument that is not a whole number from its lower bound up."""
    for name, (value, low) in given.items():
        yield from whole(name, value, low)


def call_problems(
    what: str, function: Callable[..., Any], args: tuple, keywords: Mapping[str, Any], form: str
) -> Iterator[str]:
    """A problem where a function cannot be called like this.

    Args:
        what: What the function is, for the message.
        function: It is not called; builtins that do not tell their parameters pass.
        args: By position.
        keywords: By name.
        form: The call in words.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        yield f"{what} must be callable as {form}; {shown(function)} takes {signature} ({error})"


def make_plain(component: Any) -> None:
    """Put Python's own values in the place of NumPy's scalars and of paths, in settings being made.

    Lists become tuples, so that settings cannot change after they were judged.
    """
    for field in dataclasses.fields(component):
        value = getattr(component, field.name)
        plain = tuple(map(_plain, value)) if isinstance(value, tuple | list) else _plain(value)
        if plain is not value:
            object.__setattr__(component, field.name, plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def shown(value: object) -> str:
    """A wrong value for a message, cut where it is long."""
    whole_repr = repr(value)
    return whole_repr if len(whole_repr) <= SHOWN else f"{whole_repr[: SHOWN - 3]}..."


def _article(kind: Any) -> str:
    """What a type, or a union of some, is called in a message."""
    kinds = [k for k in get_args(kind) or (kind,) if k is not type(None)]
    return " or ".join(
        f"nbrl.{k.__name__}" if k.__module__.startswith("nbrl.") else f"a {k.__name__}"
        for k in kinds
    )
