"""Finds a reward's code, its form by its parameter names, and a fingerprint of its source."""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from nbrl.errors import ConfigError, RewardError

SAMPLE_PARAMETERS = ("prompt", "response", "label", "messages", "metadata", "rollout")
OPENRLHF_PARAMETERS = ("queries", "prompts", "labels")
FILE_NAMES = ("reward", "reward_func")
"""What a reward file may call its function, in the order looked for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RewardFn:
    """A reward that can be called: its code, the form of its arguments, a hash of its source.

    ``form`` is ``sample`` (called once a sample), ``trl`` (``completions``, ``prompts`` and columns
    of the data, once for all) or ``openrlhf`` (``queries, prompts, labels``, once for all).
    ``fingerprint`` changes where the source, or a value that the function closes over, does.

    Example: ``def reward(response, label)`` has the form ``sample`` and the parameters
    ``("response", "label")``.
    """

    name: str
    function: Callable[..., Any]
    form: str
    parameters: tuple[str, ...]
    fingerprint: str


def load_reward(reward: Any) -> RewardFn:
    """The reward that a callable, or a path ``file.py`` or ``file.py:name``, stands for.

    A file is run anew each time it is loaded, so an edit counts at once; without a name it must
    define ``reward`` or ``reward_func``.

    Raises:
        ConfigError: Neither callable nor path, a file or a name that is not there, or parameters
            that no form has.
        RewardError: The file cannot be run.
    """
    if callable(reward):
        return _described(reward, _name_of(reward), _source(reward))
    if not isinstance(reward, str | Path):
        raise ConfigError(
            f"a reward is a callable or a path to a .py file; got {type(reward).__name__} {reward!r}."
        )
    path, _, wanted = str(reward).partition(":")
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"reward {str(reward)!r}: there is no Python file {str(file.absolute())!r}. Pass a callable, "
            "'file.py' or 'file.py:name'."
        )
    module = _run(file)
    function = _find(module, file, wanted)
    name = wanted if wanted else file.stem
    return _described(function, name, file.read_text(encoding="utf-8") + "\0" + wanted)


def _run(file: Path) -> ModuleType:
    text = file.read_bytes()
    name = f"nbrl_reward_{file.stem}_{hashlib.sha256(text).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a function's module up by its name.
    sys.modules[name] = module
    try:
        # Compiled here from the bytes just read: an import may take a stale cache file for them.
        exec(compile(text, str(file), "exec"), module.__dict__)  # noqa: S102
    except Exception as error:  # noqa: BLE001 -- a user's file may raise anything
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


def _described(function: Callable[..., Any], name: str, source: str) -> RewardFn:
    form, parameters = _form(function, name)
    digest = hashlib.sha256(source.encode("utf-8", "replace"))
    for value in _closed_over(function):
        digest.update(value.encode("utf-8", "replace"))
    return RewardFn(
        name=name,
        function=function,
        form=form,
        parameters=parameters,
        fingerprint=digest.hexdigest(),
    )


def _form(function: Callable[..., Any], name: str) -> tuple[str, tuple[str, ...]]:
    """The form of a function by the names of its parameters."""
    signature = inspect.signature(function)
    kinds = {p.name: p for p in signature.parameters.values()}
    named = tuple(
        n for n, p in kinds.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )
    takes_more = any(p.kind is p.VAR_KEYWORD for p in kinds.values())
    if "completions" in named:
        return "trl", named + (("**",) if takes_more else ())
    if named[:3] == OPENRLHF_PARAMETERS:
        return "openrlhf", OPENRLHF_PARAMETERS
    required = [n for n in named if kinds[n].default is inspect.Parameter.empty]
    unknown = [n for n in required if n not in SAMPLE_PARAMETERS]
    known = tuple(n for n in named if n in SAMPLE_PARAMETERS)
    if unknown or not known:
        raise ConfigError(
            f"reward {name!r} has the parameters {list(kinds)}; "
            + (f"{unknown} cannot be bound. " if unknown else "none of them can be bound. ")
            + f"Use names among {', '.join(SAMPLE_PARAMETERS)} (one sample a call), 'completions' with "
            "'prompts' and columns of the data (TRL's form), or queries, prompts, labels (OpenRLHF's)."
        )
    return "sample", known


def _name_of(function: Callable[..., Any]) -> str:
    named: Mapping[str, Any] = {"__name__": type(function).__name__} | (
        {"__name__": function.__name__} if inspect.isroutine(function) else {}
    )
    return "reward" if named["__name__"] == "<lambda>" else named["__name__"]


def _source(function: Callable[..., Any]) -> str:
    """The source, or the bytecode with its constants where the source is nowhere to be found."""
    target = function if inspect.isroutine(function) else type(function)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        code = inspect.unwrap(function).__code__ if inspect.isfunction(function) else None
        return repr(function) if code is None else f"{code.co_code.hex()}{code.co_consts!r}"


def _closed_over(function: Callable[..., Any]) -> list[str]:
    """What the function's defaults and closure hold, as text; objects without a stable text by type."""
    if not inspect.isfunction(function):
        return []
    cells = inspect.getclosurevars(function).nonlocals
    return [f"{n}={_stable(v)}" for n, v in sorted(cells.items())] + [
        _stable(function.__defaults__),
        _stable(function.__kwdefaults__),
    ]


def _stable(value: Any) -> str:
    plain = isinstance(value, str | bytes | int | float | bool | tuple | list | dict | set | None)
    return repr(value) if plain else type(value).__qualname__
