"""Opens a session on the embedded default: loads the parts and wires them together.

May import ``backends`` and what ``session`` may.
"""

import importlib.metadata
import os
import platform
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbrl.backends import chat
from nbrl.backends.arithmetic import arithmetic_source
from nbrl.backends.datasets import load_prompts
from nbrl.backends.encoding import Writer, token_ids_of, tokenize_examples
from nbrl.backends.exporting import export_adapter, export_model
from nbrl.backends.models import LoadedModel, load_critic, load_policy, load_reference
from nbrl.backends.sources import PromptSource, prompts_source
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Engine, Model, Trainer, check_config, kind_problems, to_spec, whole_problems
from nbrl.driver.engines import ENGINES, engine_problems
from nbrl.driver.progress import Progress
from nbrl.driver.runtime import ExampleTools, Runtime
from nbrl.driver.seeds import derive
from nbrl.driver.session import Session
from nbrl.driver.store import open_run_folder
from nbrl.protocols import Sink
from nbrl.types import Examples, Prompts

VERSIONED = ("nbrl", "torch", "transformers", "numpy", "pyarrow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a session is opened with; :func:`nbrl.connect` says what each means."""

    model: Model
    engine: Engine
    trainer: Trainer
    prompts: str | Prompts
    seed: int
    run_dir: str | os.PathLike | None
    name: str | None


def open_session(settings: Settings, make_sink: Callable[[], Sink]) -> Session:
    """A session in this process: engine and trainer, and what goes from one to the other.

    Raises:
        ConfigError: Settings that cannot work, all listed; a model or prompts that are not there.
        StoreError: The run folder cannot be made.
    """
    model, trainer = settings.model, settings.trainer
    kinds = {
        "model": (model, Model),
        "engine": (settings.engine, Engine),
        "trainer": (trainer, Trainer),
        "prompts": (settings.prompts, str | Prompts),
    }
    check_config("connect", extra=kind_problems(kinds))
    whole = whole_problems({"seed": (settings.seed, 0)})
    problems = [*whole, *engine_problems(settings.engine)]
    if model.head == "reward" and trainer.critic is not None:
        problems.append("a reward model (Model.head='reward') has no critic; drop one")
    check_config("connect", model, settings.engine, trainer, extra=problems)
    seed = int(settings.seed)
    source = _open_source(settings.prompts, seed)
    policy = load_policy(model, head_seed=derive(seed, "head"))
    name = settings.name or policy.name
    spec = {
        "name": name,
        "run": uuid.uuid4().hex,
        "seed": seed,
        "model": to_spec(model),
        "engine": to_spec(settings.engine),
        "trainer": to_spec(trainer),
        "prompts": {"name": source.name, "fingerprint": source.fingerprint},
        "versions": _versions(),
    }
    local = _trainer(policy, settings)
    kind = settings.engine.kind if model.head == "lm" else "idle"
    engine = ENGINES[kind](policy, model, settings.engine, local)
    folder = open_run_folder(settings.run_dir, Path(name).name)
    folder.write_config(spec)
    return Session(
        Runtime(
            name=name,
            run_id=spec["run"],
            seed=seed,
            spec=spec,
            engine=engine.engine,
            trainer=local,
            weights_to_send=engine.weights_to_send,
            source=source,
            encode=lambda prompts: chat.encode_prompts(prompts, policy.tokenizer),
            decode=lambda ids: chat.decode(policy.tokenizer, ids),
            has_critic=trainer.critic is not None,
            micro_batch_tokens=trainer.micro_batch_tokens,
            progress=Progress(make_sink),
            folder=folder,
            release=engine.release,
            example_tools=_example_tools(policy, local, model),
        )
    )


def _example_tools(policy: LoadedModel, trainer: LocalTrainer, model: Model) -> ExampleTools:
    """What verbs on training data need of the model and its tokenizer."""
    # a text gets the tokenizer's own end, where the model has several
    own = policy.tokenizer.eos_token_id
    eos_ids = tuple(sorted(policy.eos_ids, key=lambda token: token != own))

    def tokenize(
        examples: Examples, max_length: int | None, turns: str, placeholder: str
    ) -> Examples:
        writer = Writer(
            tokenizer=policy.tokenizer,
            eos_ids=eos_ids,
            max_length=max_length or policy.context_length,
            turns=turns,
            placeholder=placeholder,
        )
        return tokenize_examples(examples, writer)

    def export(path: Path, adapter: bool, scale: Mapping[str, Any] | None) -> None:
        if adapter:
            export_adapter(policy, path)
        else:
            export_model(policy, trainer.weights(), path, scale=scale)

    return ExampleTools(
        tokenize=tokenize,
        token_ids=lambda text: token_ids_of(policy.tokenizer, text),
        export=export,
        head=model.head,
    )


def _trainer(policy: LoadedModel, settings: Settings) -> LocalTrainer:
    """The trainer of the policy, with a critic where one is asked for."""
    model, trainer, seed = settings.model, settings.trainer, settings.seed
    asked, critic = trainer.critic, None
    if asked is not None:
        critic = load_critic(model, asked.path, seed=derive(seed, "critic"))
    return LocalTrainer(
        policy.module,
        optimizer=trainer.optimizer,
        critic=critic,
        critic_optimizer=None if asked is None else asked.optimizer,
        reference=None if model.lora is not None else lambda: load_reference(model),
        teacher=lambda path: load_reference(_named(model, path)),
        gradient_checkpointing=trainer.gradient_checkpointing,
        seed=derive(seed, "trainer"),
    )


def _named(model: Model, path: str) -> Model:
    """The model of another name, in the same dtype and with the same attention."""
    if path == model.path:
        return model
    return replace(model, path=path, revision=None, gguf_file=None)


def _open_source(prompts: str | Prompts, seed: int) -> PromptSource:
    """Prompts by name (``"arithmetic"``), by path or hub name, or as a value."""
    if isinstance(prompts, Prompts):
        return prompts_source(prompts, seed=derive(seed, "prompts"))
    if prompts == "arithmetic":
        return arithmetic_source(seed=derive(seed, "prompts"))
    return prompts_source(load_prompts(prompts), seed=derive(seed, "prompts"), name=prompts)


def _versions() -> dict[str, str]:
    """The versions of what numbers depend on."""
    found = {package: importlib.metadata.version(package) for package in VERSIONED}
    return found | {"python": platform.python_version()}
