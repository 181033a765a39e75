"""Parameters that a run leaves as they are, by patterns of their names. May import ``errors``."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from nbrl.errors import all_problems

SHOWN = 6


def freeze(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The names of the parameters that were trainable and are not any more.

    A tied parameter is frozen by any of its names.

    Args:
        module: The policy.
        patterns: As of file names: ``*`` stands for any text, ``?`` for one character.

    Raises:
        ConfigError: A pattern that freezes nothing, or nothing left to train; nothing is changed.
    """
    names = dict(module.named_parameters(remove_duplicate=False))
    hits = {p: [n for n in names if fnmatchcase(n, p)] for p in patterns}
    problems = [_without_hits(p, list(names)) for p, found in hits.items() if not found]
    problems += [
        f"{pattern!r} matches only parameters that are not trained anyway, e.g. {found[0]!r}; "
        "drop it"
        for pattern, found in hits.items()
        if found and not any(names[n].requires_grad for n in found)
    ]
    frozen = {n: names[n] for found in hits.values() for n in found if names[n].requires_grad}
    ids = {id(p) for p in frozen.values()}
    if not any(p.requires_grad and id(p) not in ids for p in names.values()):
        problems.append("nothing is left to train; freeze less")
    if problems:
        raise all_problems("Trainer.frozen", problems)
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    return list(frozen)


def _without_hits(pattern: str, names: Sequence[str]) -> str:
    shown = ", ".join(_ends(names))
    return f"{pattern!r} matches none of the {len(names)} parameters ({shown})"


def _ends(names: Sequence[str]) -> list[str]:
    """The first and the last names, with what lies between left out."""
    if len(names) <= SHOWN:
        return list(names)
    return [*names[: SHOWN // 2], "...", *names[-SHOWN // 2 :]]
