"""The exceptions that nbrl raises at its users; imports nothing of the house.

Every class is also a builtin, so that ``except ValueError`` keeps working, and is
picklable because its only argument is its message.
"""

from collections.abc import Iterable


class NbrlError(Exception):
    """The root of all errors that nbrl raises on purpose."""


class ConfigError(NbrlError, ValueError):
    """Settings that cannot work; raised before anything is loaded."""


class UnknownNameError(ConfigError):
    """A name that no table knows; the message lists the known ones."""


class DataError(NbrlError, ValueError):
    """Rows, columns or files that are not what they must be."""


class RolloutError(NbrlError, RuntimeError):
    """Generation could not be done at all (a single bad rollout is data instead)."""


class RewardError(NbrlError, RuntimeError):
    """A reward function failed, or returned something that is not a reward."""


class StepError(NbrlError, RuntimeError):
    """A training step that must not be taken: done already, stale, or without signal."""


class SessionError(NbrlError, RuntimeError):
    """A verb on a session that is closed or busy."""


class StoreError(NbrlError, OSError):
    """A run folder or a saved value that cannot be written or read."""


def unknown_name(kind: str, given: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not in a table, listing what is."""
    return UnknownNameError(
        f"unknown {kind} {given!r}; known: {', '.join(sorted(known))}. Pass one of these names."
    )


class UnknownName(str):
    """A problem that is a name which no table knows; a string like the other problems."""

    __slots__ = ()


def all_problems(asked: str, problems: Iterable[str]) -> ConfigError:
    """One error that names every problem of a request; an UnknownNameError where all are such."""
    listed = list(problems)
    head = f"{asked}: {len(listed)} problem{'s' if len(listed) != 1 else ''}"
    kind = UnknownNameError if all(isinstance(p, UnknownName) for p in listed) else ConfigError
    return kind("\n".join([head, *(f"  - {problem}" for problem in listed)]))
