"""Finds an agent's class or maker, in a value or a Python file.

May import ``errors``. Files written for OpenRLHF import its base classes; where that package is
not installed, names that hold a place stand in for them while the file is run.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.errors import ConfigError

CLASS_NAMES = ("AgentExecutor", "AgentInstance")
"""What an agent file may call its class, in the order looked for."""
METHODS = ("reset", "step")
STAND_INS = ("openrlhf", "openrlhf.utils", "openrlhf.utils.agent")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AgentFactory:
    """What makes an instance for each sample; ``fingerprint`` hashes its source."""

    name: str
    make: Callable[[], Any]
    fingerprint: str


class AgentInstanceBase:
    """Holds the place of OpenRLHF's base class of an environment."""


class MultiTurnAgentExecutor:
    """Holds the place of OpenRLHF's executor, which is told the class of an environment."""

    def __init__(self, agent_instance_cls: Callable[[], Any]) -> None:
        """Note the class."""
        self.agent_instance_cls = agent_instance_cls


def load_agent(source: Any) -> AgentFactory:
    """The factory that a class, a function, or a path ``file.py`` or ``file.py:name`` stands for.

    Raises:
        ConfigError: Nothing of the kind, a file that is not there or cannot be run, or a class
            without ``reset`` and ``step``.
    """
    if isinstance(source, str | os.PathLike):
        return _from_file(os.fspath(source))
    if not callable(source):
        raise ConfigError(
            "an agent is a class with reset and step, a function that makes an instance, or a "
            f"path to a .py file; got {type(source).__name__} {source!r:.80}."
        )
    return AgentFactory(name=_name(source), make=_checked(source), fingerprint=_hash_of(source))


def _from_file(path: str) -> AgentFactory:
    stem, colon, wanted = path.rpartition(".py:")
    file = Path(f"{stem}.py" if colon else path).expanduser()
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"agent {path!r}: there is no Python file {str(file.absolute())!r}. Pass a class, a "
            "function that makes an instance, 'file.py' or 'file.py:name'."
        )
    text = file.read_bytes()
    module = _run(file, text)
    names = (wanted,) if colon else CLASS_NAMES
    found = next((module.__dict__[n] for n in names if callable(module.__dict__.get(n))), None)
    if found is None:
        raise ConfigError(
            f"agent file {file} defines no {' or '.join(names)}; it defines "
            f"{[n for n, v in module.__dict__.items() if inspect.isclass(v)]}. Rename one, or pass "
            "'file.py:name'."
        )
    digest = hashlib.sha256(text + wanted.encode()).hexdigest()
    return AgentFactory(
        name=wanted or file.stem, make=_checked(_unwrapped(found)), fingerprint=digest
    )


def _unwrapped(found: Callable[[], Any]) -> Callable[[], Any]:
    """The environment's class, where an executor was found that only holds it."""
    if inspect.isclass(found) and issubclass(found, MultiTurnAgentExecutor):
        return found().agent_instance_cls  # pyright: ignore[reportCallIssue] -- the file's own class sets it
    return found


def _checked(made_by: Callable[[], Any]) -> Callable[[], Any]:
    lacking = [m for m in METHODS if inspect.isclass(made_by) and not callable(_member(made_by, m))]
    if lacking:
        raise ConfigError(
            f"agent {_name(made_by)!r} lacks {' and '.join(lacking)}. Define async reset(self, "
            "state) and async step(self, state)."
        )
    return made_by


def _member(kind: type, name: str) -> Any:
    return next((c.__dict__[name] for c in kind.__mro__ if name in c.__dict__), None)


def _run(file: Path, text: bytes) -> types.ModuleType:
    name = f"nbrl_agent_{file.stem}_{hashlib.sha256(text).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses and pickling look a class's module up by its name
    sys.modules[name] = module
    try:
        with _stand_ins():
            # from the bytes just read: an import may take a stale cache file for them
            exec(compile(text, str(file), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(
            f"agent file {file} cannot be run: {type(error).__name__}: {error}. Fix the file."
        ) from error
    return module


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """In this block ``openrlhf.utils.agent`` can be imported where the package is missing."""
    if importlib.util.find_spec("openrlhf") is not None:
        yield
        return
    modules = {name: types.ModuleType(name) for name in STAND_INS}
    for kind in (AgentInstanceBase, MultiTurnAgentExecutor):
        modules[STAND_INS[-1]].__dict__[kind.__name__] = kind
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in STAND_INS:
            del sys.modules[name]


def _name(source: Any) -> str:
    return (
        source.__name__
        if inspect.isroutine(source) or inspect.isclass(source)
        else type(source).__name__
    )


def _hash_of(source: Any) -> str:
    """The source text's hash; the name's, where Python holds no source."""
    try:
        text = inspect.getsource(source)
    except (OSError, TypeError):
        text = _name(source)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
