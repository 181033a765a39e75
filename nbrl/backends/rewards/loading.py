"""Finds a reward's code, its form by its parameter names, and a fingerprint of its source.

May import ``errors`` and its neighbour ``fingerprints``.
"""

import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from nbrl.backends.rewards.fingerprints import fingerprint_of
from nbrl.errors import ConfigError, RewardError

SAMPLE_PARAMETERS = ("prompt", "response", "label", "messages", "metadata", "rollout")
OPENRLHF_PARAMETERS = ("queries", "prompts", "labels")
FILE_NAMES = ("reward", "reward_func")
"""What a reward file may call its function, in the order looked for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RewardFn:
    """A reward that can be called: its code, the form of its arguments, a hash of its source.

    ``form`` is ``sample`` (called once a sample), ``trl`` (``completions``, ``prompts`` and columns
    of the data, once for all), ``openrlhf`` (``queries, prompts, labels``, once for all) or
    ``rows`` (called with all rows and the progress, returns their outcomes).
    ``parameters`` are the names that are bound, ``required`` those without a default.
    ``takes_more`` says that the function has ``**kwargs``, which get what the form has besides.
    ``fingerprint`` is the hash of a file's whole text, or what ``fingerprints`` describes.

    Example: ``def reward(response, label)`` has the form ``sample`` and the parameters
    ``("response", "label")``.
    """

    name: str
    function: Callable[..., Any]
    form: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    takes_more: bool
    fingerprint: str


def load_code(reward: Any) -> RewardFn:
    """The reward that a callable, or a path ``file.py`` or ``file.py:name``, stands for.

    A file is run anew each time it is loaded, so an edit counts at once; without a name it must
    define ``reward`` or ``reward_func``.

    Raises:
        ConfigError: Neither callable nor path, a file or a name that is not there, or parameters
            that no form has.
        RewardError: The file cannot be run.
    """
    if isinstance(reward, type):
        raise ConfigError(
            f"a reward is a function or an object; got the class {reward!r}. Make one of it."
        )
    if callable(reward):
        return _described(reward, _name_of(reward), fingerprint_of(reward))
    if not isinstance(reward, str | Path):
        raise ConfigError(
            "a reward is a callable, a path to a .py file, an http(s) address, nbrl.RewardServer "
            f"or nbrl.RewardModel; got {type(reward).__name__} {reward!r}."
        )
    path, colon, wanted = str(reward).rpartition(".py:")
    file, wanted = (Path(f"{path}.py"), wanted) if colon else (Path(reward), "")
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"reward {str(reward)!r}: there is no Python file {str(file.absolute())!r}. Pass a "
            "callable, 'file.py' or 'file.py:name'."
        )
    text = file.read_bytes()
    function = _find(_run(file, text), file, wanted)
    digest = hashlib.sha256(text + b"\0" + wanted.encode()).hexdigest()
    return _described(function, wanted or file.stem, digest)


def _run(file: Path, text: bytes) -> ModuleType:
    name = f"nbrl_reward_{file.stem}_{hashlib.sha256(text).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a function's module up by its name.
    sys.modules[name] = module
    try:
        # Compiled here from the bytes just read: an import may take a stale cache file for them.
        exec(compile(text, str(file), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise RewardError(
            f"reward file {file} cannot be run: {type(error).__name__}: {error}. Fix the file."
        ) from error
    return module


def _find(module: ModuleType, file: Path, wanted: str) -> Callable[..., Any]:
    names = (wanted,) if wanted else FILE_NAMES
    for name in names:
        found = module.__dict__.get(name)
        if callable(found):
            return found
    defined = [n for n, v in module.__dict__.items() if callable(v) and not n.startswith("_")]
    raise ConfigError(
        f"reward file {file} defines no function {' or '.join(repr(n) for n in names)}; it defines "
        f"{defined}. Rename one, or pass 'file.py:name'."
    )


def _described(function: Callable[..., Any], name: str, fingerprint: str) -> RewardFn:
    free = _free_parameters(function, name)
    more = any(p.kind is p.VAR_KEYWORD for p in free.values())
    named = {n: p for n, p in free.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    positional = [n for n, p in free.items() if p.kind is p.POSITIONAL_ONLY]
    required = tuple(n for n, p in named.items() if p.default is inspect.Parameter.empty)
    form, parameters, unknown = _form(tuple(named), required)
    if positional or unknown or not (parameters or more):
        wrong = [*positional, *unknown]
        raise ConfigError(
            f"reward {name!r} has the parameters {list(free)}; "
            + (f"{wrong} cannot be bound by name. " if wrong else "none of them can be bound. ")
            + f"Use names among {', '.join(SAMPLE_PARAMETERS)} (one sample a call), 'completions' "
            "with 'prompts' and columns of the data (TRL's form), or queries, prompts, labels "
            "(OpenRLHF's)."
        )
    return RewardFn(
        name=name,
        function=function,
        form=form,
        parameters=parameters,
        required=required,
        takes_more=more,
        fingerprint=fingerprint,
    )


def _free_parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    """The parameters that are still to be given; a partial's fixed ones are not."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:
        raise ConfigError(
            f"reward {name!r} does not tell its parameters; wrap it in a function that names them."
        ) from error
    fixed = function.keywords if isinstance(function, functools.partial) else {}
    return {n: p for n, p in parameters.items() if n not in fixed}


def _form(
    named: tuple[str, ...], required: tuple[str, ...]
) -> tuple[str, tuple[str, ...], list[str]]:
    """The form that the names stand for, the names to bind, and the required ones it lacks."""
    if "completions" in named:
        # Which other columns there are, the data says.
        return "trl", named, []
    if named[:3] == OPENRLHF_PARAMETERS:
        return (
            "openrlhf",
            OPENRLHF_PARAMETERS,
            [n for n in required if n not in OPENRLHF_PARAMETERS],
        )
    known = tuple(n for n in named if n in SAMPLE_PARAMETERS)
    return "sample", known, [n for n in required if n not in SAMPLE_PARAMETERS]


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name_of(function.func)
    name = function.__name__ if inspect.isroutine(function) else type(function).__name__
    return "reward" if name == "<lambda>" else name
