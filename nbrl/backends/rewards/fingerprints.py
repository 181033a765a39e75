"""A hash of what a reward function is: its source and values; imports the standard library only.

Two functions with the same fingerprint score alike as far as their own code goes. Covered are the
source (bytecode and constants where there is none to be found), defaults, closed-over values,
attributes of a callable object, arguments fixed by ``functools.partial``, and the helpers and
constants of the same module that the function names. Not covered are installed packages, and
objects whose content has no stable text: those count by their type.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

PLAIN = (str, bytes, int, float, complex, bool, type(None))


def fingerprint_of(function: Callable[..., Any]) -> str:
    """The sha256 of a callable, in hex; the same in another process."""
    digest = hashlib.sha256()
    for part in _parts(function, set()):
        digest.update(part.encode("utf-8", "replace") + b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """What a value is, as text, each object once."""
    if isinstance(value, PLAIN):
        yield repr(value)
        return
    if id(value) in seen:
        yield "again"
        return
    seen.add(id(value))
    for kind, parts_of in _KINDS.items():
        if isinstance(value, kind):
            yield from parts_of(value, seen)
            return
    yield from _object(value, seen)


def _function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield _source(function)
    yield from _parts(function.__defaults__, seen)
    yield from _parts(function.__kwdefaults__, seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name
        yield from _parts(_content(cell), seen)
    for name in sorted(set(_names(function.__code__))):
        if name in function.__globals__ and _of_same_module(function, function.__globals__[name]):
            yield name
            yield from _parts(function.__globals__[name], seen)


def _source(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return "".join(_bytecode(function.__code__))


def _bytecode(code: CodeType) -> Iterator[str]:
    """Instructions, names and constants; nested code by its own, for its repr holds an address."""
    yield code.co_code.hex() + repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _bytecode(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)


def _names(code: CodeType) -> Iterator[str]:
    """The names that code, or code inside it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _of_same_module(function: FunctionType, value: Any) -> bool:
    """Whether a global is the user's own: a helper from the same module, or a constant."""
    if isinstance(value, FunctionType | type):
        return value.__module__ == function.__module__
    return isinstance(value, (*PLAIN, tuple, list, dict, set, frozenset))


def _object(value: Any, seen: set[int]) -> Iterator[str]:
    """The type's name, its code where Python holds it, and the object's own attributes."""
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    kinds = [kind for kind in type(value).__mro__ if kind is not object]
    if any(isinstance(kind.__dict__.get("__call__"), FunctionType) for kind in kinds):
        for kind in kinds:
            yield from _class(kind, seen)
        yield from _mapping(_attributes(value), seen)


def _attributes(value: Any) -> dict[str, Any]:
    """An object's own attributes, those in slots too."""
    found = dict(value.__dict__) if "__dict__" in dir(value) else {}
    for kind in type(value).__mro__:
        for name, member in kind.__dict__.items():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):
                    found[name] = member.__get__(value)
    return found


def _class(kind: type, seen: set[int]) -> Iterator[str]:
    yield kind.__qualname__
    for name, member in sorted(kind.__dict__.items()):
        if isinstance(member, FunctionType) or (
            isinstance(member, PLAIN) and not name.startswith("__")
        ):
            yield name
            yield from _parts(member, seen)


def _mapping(value: Mapping[Any, Any], seen: set[int]) -> Iterator[str]:
    for key, item in sorted(value.items(), key=lambda pair: repr(pair[0])):
        yield from _parts(key, seen)
        yield from _parts(item, seen)


def _sequence(value: Any, seen: set[int]) -> Iterator[str]:
    yield f"{len(value)}"
    for item in value:
        yield from _parts(item, seen)


def _set(value: Any, seen: set[int]) -> Iterator[str]:
    yield from sorted("".join(_parts(item, seen)) for item in value)


def _partial(value: functools.partial, seen: set[int]) -> Iterator[str]:
    for part in (value.func, value.args, value.keywords):
        yield from _parts(part, seen)


def _method(value: MethodType, seen: set[int]) -> Iterator[str]:
    yield from _parts(value.__func__, seen)
    yield from _parts(value.__self__, seen)


_KINDS: Mapping[Any, Callable[[Any, set[int]], Iterator[str]]] = {
    FunctionType: _function,
    MethodType: _method,
    functools.partial: _partial,
    type: _class,
    dict: _mapping,
    set | frozenset: _set,
    tuple | list: _sequence,
}
