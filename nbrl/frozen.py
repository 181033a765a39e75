"""The decorator of values that do not change: a frozen, slotted dataclass that says so.

Imports nothing of the house.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,)
)
def frozen(*, kw_only: bool = True, eq: bool = True) -> Callable[[type[Value]], type[Value]]:
    """A decorator: a dataclass with slots whose instances refuse every change, whatever its name.

    ``dataclass(frozen=True, slots=True)`` alone raises a bare ``TypeError: super(type, obj)`` for
    a name that is no field, since it asks the class that was there before the slots.
    """

    def decorate(cls: type[Value]) -> type[Value]:
        made: Any = dataclasses.dataclass(frozen=True, slots=True, kw_only=kw_only, eq=eq)(cls)
        made.__setattr__ = _refuse_set
        made.__delattr__ = _refuse_delete
        return made

    return decorate


def _refuse_set(self: Any, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(_refusal(self, f"set {name!r}"))


def _refuse_delete(self: Any, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(_refusal(self, f"delete {name!r}"))


def _refusal(value: Any, asked: str) -> str:
    names = ", ".join(field.name for field in dataclasses.fields(value))
    return (
        f"cannot {asked}: a {type(value).__name__} does not change. Its fields are {names}; "
        "dataclasses.replace(value, field=...) gives a changed copy."
    )
