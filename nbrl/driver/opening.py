"""Opens a session on the embedded default: loads the parts and wires them together.

May import ``backends`` and what ``session`` may.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from nbrl.backends import chat
from nbrl.backends.agents.turns import Codec
from nbrl.backends.arithmetic import arithmetic_source
from nbrl.backends.datasets import load_prompts
from nbrl.backends.encoding import Writer, token_ids_of, tokenize_examples
from nbrl.backends.exporting import export_adapter, export_model
from nbrl.backends.forward import balances_experts
from nbrl.backends.freezing import freeze
from nbrl.backends.models import LoadedModel, load_critic, load_policy, load_reference
from nbrl.backends.packing import refuse_leaks
from nbrl.backends.sources import PromptSource, prompts_source
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Engine, Model, Store, Trainer, to_spec
from nbrl.driver.admission import refuse_request
from nbrl.driver.checkpointing import restore
from nbrl.driver.engines import ENGINES
from nbrl.driver.progress import Progress
from nbrl.driver.runtime import ExampleTools, Runtime
from nbrl.driver.seeds import derive
from nbrl.driver.session import Session
from nbrl.driver.store import RunFolder, open_run_folder
from nbrl.driver.store.checkpoints import Checkpoint
from nbrl.driver.store.environment import versions
from nbrl.driver.store.recording import Recorder
from nbrl.protocols import Sink
from nbrl.types import Examples, Prompts


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
    store: Store = field(default_factory=Store)
    prompts_seed: int | None = None
    """Of the order of the prompts, where it is not that of ``seed``: a fork keeps its parent's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The checkpoint that a session begins with, and how it goes on from there.

    ``in_place`` goes on in the parent's own folder, made ready by ``prepare``; another run is its
    fork. ``new_data`` and ``new_pace`` are what :func:`~nbrl.driver.checkpointing.restore` takes.
    """

    checkpoint: Checkpoint
    parent: RunFolder
    in_place: bool
    new_data: bool
    new_pace: bool
    prepare: Callable[[], object]


def open_session(
    settings: Settings,
    make_sink: Callable[[], Sink],
    start: Start | None = None,
    *,
    extra: Sequence[str] = (),
) -> Session:
    """A session in this process: engine and trainer, and what goes from one to the other.

    Args:
        settings: Judged first, all of them; nothing is loaded or made where one is wrong.
        make_sink: Where progress is shown.
        start: The checkpoint to begin with.
        extra: Problems that the caller found, to be named with the others.

    Raises:
        ConfigError: Settings that cannot work, all listed; a model or prompts that are not there.
        StoreError: The run folder cannot be made or written; a checkpoint cannot be loaded.
    """
    asked = {f.name: getattr(settings, f.name) for f in fields(settings)}
    if start is not None:
        # Its folder was found with the checkpoint, or is made beside it.
        del asked["run_dir"]
    refuse_request(asked, extra)
    model, trainer, seed = settings.model, settings.trainer, int(settings.seed)
    order = seed if settings.prompts_seed is None else settings.prompts_seed
    source = _open_source(settings.prompts, order)
    policy = load_policy(model, head_seed=derive(seed, "head"), seed=derive(seed, "adapter"))
    name = policy.name if settings.name is None else settings.name
    spec = {
        "name": name,
        "run": start.checkpoint.manifest["run"] if start and start.in_place else uuid.uuid4().hex,
        "seed": seed,
        "model": to_spec(model),
        "engine": to_spec(settings.engine),
        "trainer": to_spec(trainer),
        "prompts": _prompts_spec(settings.prompts, source, order),
        "store": to_spec(settings.store),
        "versions": versions(),
        "parent": None if start is None else _parent(start),
    }
    if trainer.packed:
        refuse_leaks(policy.module)
    freeze(policy.module, trainer.frozen)
    local = _trainer(policy, settings)
    kind = settings.engine.kind if model.head == "lm" else "idle"
    engine = ENGINES[kind](policy, model, settings.engine, local)
    recorder = _recorder(settings, Path(name).name, spec, start)
    runtime = Runtime(
        name=name,
        run_id=spec["run"],
        seed=seed,
        spec=spec,
        engine=engine.engine,
        trainer=local,
        weights_to_send=engine.weights_to_send,
        prompts=settings.prompts,
        source=source,
        encode=lambda prompts: chat.encode_prompts(prompts, policy.tokenizer),
        decode=lambda ids: chat.decode(policy.tokenizer, ids),
        codec=Codec(
            beginning=partial(chat.beginning_ids, policy.tokenizer),
            inside=partial(chat.inside_ids, policy.tokenizer),
            text=partial(chat.whole_text, policy.tokenizer),
        ),
        has_critic=trainer.critic is not None,
        micro_batch_tokens=trainer.micro_batch_tokens,
        packs_rows=trainer.packed or model.attention == "varlen",
        progress=Progress(make_sink),
        folder=recorder.folder,
        recorder=recorder,
        release=engine.release,
        example_tools=_example_tools(policy, local, model),
    )
    if start is not None:
        _begin_at(runtime, start)
    recorder.describe_environment()
    return Session(runtime)


def _recorder(
    settings: Settings, name: str, spec: Mapping[str, Any], start: Start | None
) -> Recorder:
    """The writer of the run folder: a fresh one, or the run's own where it is gone on with."""
    if start is not None and start.in_place:
        recorder = Recorder(start.parent, settings.store, spec)
        recorder.event("resumed", {"tag": start.checkpoint.tag, "versions": spec["versions"]})
        return recorder
    beside = None if start is None else start.parent.path
    folder = open_run_folder(settings.run_dir, name, beside=beside)
    recorder = Recorder(folder, settings.store, spec)
    folder.write_config(spec)
    return recorder


def _begin_at(runtime: Runtime, start: Start) -> None:
    """Take over the checkpoint; where that fails, the folder is free again for another try."""
    try:
        restore(runtime, start.checkpoint, new_data=start.new_data, new_pace=start.new_pace)
        if start.in_place:
            start.prepare()
            runtime.recorder.forget(start.checkpoint.version)
            runtime.promised = dict(runtime.rewards)
    except BaseException:
        runtime.recorder.close()
        runtime.release()
        if not start.in_place:
            shutil.rmtree(runtime.folder.path, ignore_errors=True)
        raise


def _parent(start: Start) -> dict[str, Any]:
    """What a fork remembers of where it comes from."""
    manifest = start.checkpoint.manifest
    return {
        "run": manifest["run"],
        "folder": str(start.parent.path),
        "tag": start.checkpoint.tag,
        "version": start.checkpoint.version,
    }


def _prompts_spec(given: str | Prompts, source: PromptSource, seed: int) -> dict[str, Any]:
    """What was drawn from; ``source`` is None where prompts were given as a value."""
    named = given if isinstance(given, str) else None
    return {
        "name": source.name,
        "fingerprint": source.fingerprint,
        "source": named,
        "seed": seed,
    }


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
        balances=model.head == "lm" and balances_experts(policy.module),
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
        critic_warmup=0 if asked is None else asked.warmup_steps,
        ema_decay=trainer.ema_decay,
        gradient_checkpointing=trainer.gradient_checkpointing,
        packed=trainer.packed,
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
