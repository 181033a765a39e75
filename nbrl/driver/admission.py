"""What is known to be wrong with a request for a session, before anything is loaded or made.

May import ``backends`` and what ``runtime`` may.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbrl.backends.checkpoints import checkpoint_problems
from nbrl.backends.quantising import quantised
from nbrl.backends.records import source_problems
from nbrl.config import Critic, Engine, Model, Placement, Store, Trainer, check_config
from nbrl.driver.parts import PLACES, is_place, place_problems
from nbrl.driver.store import RunFolder
from nbrl.driver.store.mirrors import mirror_problems
from nbrl.errors import UnknownName
from nbrl.rules import among, kind_problems, shown, text, whole_problems
from nbrl.types import Prompts


def refuse_request(asked: Mapping[str, Any], extra: Sequence[str] = ()) -> None:
    """Raise one error that lists everything about a request that can be seen from outside.

    Args:
        asked: What was asked for by the names that ``connect`` has for it; names that are not
            there are not looked at.
        extra: Problems that the caller found.

    Raises:
        ConfigError: Something cannot work.
    """
    problems = [*extra]
    for name, judge in JUDGES.items():
        if name in asked:
            problems += judge(asked[name])
    problems += place_problems(asked)
    problems += _critic_problems(asked.get("model"), asked.get("trainer"))
    problems += _quantised_problems(asked.get("model"), asked.get("engine"))
    problems += _packing_problems(asked.get("model"), asked.get("trainer"))
    parts = (asked.get(name) for name in ("model", "engine", "trainer", "placement", "store"))
    kinds = Model | Engine | Trainer | Placement | Store
    settings = [c for c in parts if isinstance(c, kinds)]
    check_config("connect", *settings, extra=problems)


def folder_problems(run_dir: Any) -> Iterator[str]:
    """Why a run cannot be written to this folder; nothing is made."""
    wrong = list(path_problems("run_dir", run_dir)) if run_dir is not None else []
    yield from wrong
    if wrong:
        return
    path = Path("runs" if run_dir is None else run_dir).expanduser()
    there = next(p for p in [path, *path.absolute().parents] if p.exists())
    if not there.is_dir():
        yield f"run_dir {str(path)!r}: {there} is a file; pass another folder"
    elif not os.access(there, os.W_OK):
        yield f"run_dir {str(path)!r}: this user cannot write to {there}; pass another folder"
    elif RunFolder(path).config_path.exists():
        yield f"run_dir: {path} holds a run already; pass another run_dir, or remove it"


def path_problems(name: str, path: Any) -> Iterator[str]:
    """A problem where something is not a path."""
    if not isinstance(path, str | os.PathLike) or not str(path).strip():
        yield f"{name} must be a folder's path; got {shown(path)}"


def _model_problems(model: Any) -> Iterator[str]:
    if not isinstance(model, Model):
        yield (
            f"model must be a name, a path or nbrl.Model; got {type(model).__name__} {shown(model)}"
        )
    elif not list(text("path", model.path)):
        yield from checkpoint_problems(model)


def _where_problems(where: Any) -> Iterator[str]:
    if not is_place(where):
        for problem in among("place", where, PLACES):
            yield UnknownName(f"{problem}. A model is named by model={shown(where)}")


def _store_problems(store: Any) -> Iterator[str]:
    yield from kind_problems({"store": (store, Store)})
    if isinstance(store, Store) and isinstance(store.mirrors, tuple):
        yield from mirror_problems(store)


def _critic_problems(model: Any, trainer: Any) -> Iterator[str]:
    critic = trainer.critic if isinstance(trainer, Trainer) else None
    if critic is not None and isinstance(model, Model) and model.head == "reward":
        yield "a reward model (Model.head='reward') has no critic; drop one"
    path = critic.path if isinstance(critic, Critic) else None
    shared = isinstance(model, Model) and path == model.path
    if path is not None and not shared and not list(text("path", path)):
        yield from (f"Critic.path: {p}" for p in checkpoint_problems(Model(path)))


def _quantised_problems(model: Any, engine: Any) -> Iterator[str]:
    own = isinstance(model, Model) and quantised(model)
    if own and isinstance(engine, Engine) and engine.kind == "vllm":
        yield (
            "Lora(base_bits=4) needs Engine('hf'): vLLM would sample from the weights before they "
            "were quantised, which is another policy"
        )


def _packing_problems(model: Any, trainer: Any) -> Iterator[str]:
    if not (isinstance(model, Model) and isinstance(trainer, Trainer) and trainer.packed is True):
        return
    if model.attention == "varlen":
        yield "Trainer.packed has no effect with attention='varlen', which always packs; drop it"
    elif model.attention != "sdpa":
        yield (
            f"Trainer.packed keeps rows apart with attention='sdpa' only; got {model.attention!r}"
        )


def _prompts_problems(prompts: Any) -> Iterator[str]:
    if isinstance(prompts, Prompts):
        if not len(prompts):
            yield "prompts: there are none to draw from; load some rows first"
    elif isinstance(prompts, str):
        yield from (f"prompts: {p}" for p in source_problems(prompts))
    else:
        yield (
            "prompts must be 'arithmetic', 'reasoning-gym:<task>', a file, a folder, a hub name, "
            f"or nbrl.Prompts (nbrl.load_prompts makes them); got {type(prompts).__name__} "
            f"{shown(prompts)}"
        )


def _name_problems(name: Any) -> Iterator[str]:
    word = isinstance(name, str) and name.isprintable() and bool(name.strip())
    if name is not None and not (word and Path(name).name not in ("", "..")):
        yield f"name must be a text that can name a folder; got {shown(name)}"


JUDGES: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "model": _model_problems,
    "where": _where_problems,
    "engine": lambda engine: kind_problems({"engine": (engine, Engine)}),
    "placement": lambda placed: kind_problems({"placement": (placed, Placement | None)}),
    "trainer": lambda trainer: kind_problems({"trainer": (trainer, Trainer)}),
    "store": _store_problems,
    "prompts": _prompts_problems,
    "seed": lambda seed: whole_problems({"seed": (seed, 0)}),
    "name": _name_problems,
    "run_dir": folder_problems,
    "resume": lambda run: path_problems("resume", run),
}
"""What judges each argument of ``connect``."""
