"""Opens a session, here or on a cluster: judges the request, loads the parts, wires them together.

May import ``backends`` and what ``session`` may.
"""

import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from nbrl.backends import chat
from nbrl.backends.agents.turns import Codec
from nbrl.backends.arithmetic import arithmetic_source
from nbrl.backends.datasets import load_prompts
from nbrl.backends.encoding import Writer, token_ids_of, tokenize_examples
from nbrl.backends.sources import PromptSource, prompts_source
from nbrl.config import Placement, to_spec
from nbrl.driver import running
from nbrl.driver.admission import refuse_request
from nbrl.driver.checkpointing import restore
from nbrl.driver.parts import Parts, Settings, is_cluster, open_parts
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
    """A session: engine and trainer, here or on a cluster, and what goes from one to the other.

    Args:
        settings: Judged first, all of them; nothing is loaded or made where one is wrong.
        make_sink: Where progress is shown.
        start: The checkpoint to begin with.
        extra: Problems that the caller found, to be named with the others.

    Raises:
        ConfigError: Settings that cannot work, all listed; a model or prompts that are not there.
        StoreError: The run folder cannot be made or written; a checkpoint cannot be loaded.
    """
    again = None if extra or start else running.find(settings)
    if again is not None:
        return again
    asked = {f.name: getattr(settings, f.name) for f in fields(settings)}
    if start is not None:
        # Its folder was found with the checkpoint, or is made beside it.
        del asked["run_dir"]
    refuse_request(asked, extra)
    settings = replace(settings, seed=int(settings.seed))
    order = settings.seed if settings.prompts_seed is None else settings.prompts_seed
    source = _open_source(settings.prompts, order)
    progress = Progress(make_sink)
    parts = open_parts(settings, progress)
    spec = _spec(settings, source, order, start)
    try:
        runtime = _wired(settings, parts, spec, source=source, progress=progress, start=start)
    except BaseException:
        parts.release()
        raise
    if start is not None:
        _begin_at(runtime, start)
    runtime.recorder.describe_environment()
    session = Session(runtime)
    running.remember(settings, runtime, session)
    return session


def _spec(
    settings: Settings, source: PromptSource, order: int, start: Start | None
) -> dict[str, Any]:
    """What the run folder and every result say of the session."""
    model = settings.model
    cluster = {"where": settings.where, "placement": to_spec(settings.placement or Placement())}
    return {
        "name": model.path if settings.name is None else settings.name,
        "run": start.checkpoint.manifest["run"] if start and start.in_place else uuid.uuid4().hex,
        "seed": settings.seed,
        "model": to_spec(model),
        "engine": to_spec(settings.engine),
        "trainer": to_spec(settings.trainer),
        **(cluster if is_cluster(settings.where) else {}),
        "prompts": _prompts_spec(settings.prompts, source, order),
        "store": to_spec(settings.store),
        "versions": versions(),
        "parent": None if start is None else _parent(start),
    }


def _wired(
    settings: Settings,
    parts: Parts,
    spec: dict[str, Any],
    *,
    source: PromptSource,
    progress: Progress,
    start: Start | None,
) -> Runtime:
    """The runtime around the parts, with its run folder made."""
    tokenizer, trainer = parts.policy.tokenizer, settings.trainer
    recorder = _recorder(settings, Path(spec["name"]).name, spec, start)
    return Runtime(
        name=spec["name"],
        run_id=spec["run"],
        seed=settings.seed,
        spec=spec,
        engine=parts.engine,
        trainer=parts.trainer,
        weights_to_send=parts.weights_to_send,
        prompts=settings.prompts,
        source=source,
        encode=lambda prompts: chat.encode_prompts(prompts, tokenizer),
        decode=lambda ids: chat.decode(tokenizer, ids),
        codec=Codec(
            beginning=partial(chat.beginning_ids, tokenizer),
            inside=partial(chat.inside_ids, tokenizer),
            text=partial(chat.whole_text, tokenizer),
        ),
        has_critic=trainer.critic is not None,
        micro_batch_tokens=trainer.micro_batch_tokens,
        packs_rows=trainer.packed or settings.model.attention == "varlen",
        progress=progress,
        folder=recorder.folder,
        recorder=recorder,
        release=parts.release,
        rows=parts.rows,
        example_tools=_example_tools(parts, settings.model.head),
    )


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


def _example_tools(parts: Parts, head: str) -> ExampleTools:
    """What verbs on training data need of the model and its tokenizer."""
    policy = parts.policy
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

    return ExampleTools(
        tokenize=tokenize,
        token_ids=lambda text: token_ids_of(policy.tokenizer, text),
        export=parts.export,
        head=head,
        balances=parts.balances,
    )


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
    """What is drawn from; its ``source`` is None where prompts were given as a value."""
    named = given if isinstance(given, str) else None
    return {
        "name": source.name,
        "fingerprint": source.fingerprint,
        "source": named,
        "seed": seed,
    }


def _open_source(prompts: str | Prompts, seed: int) -> PromptSource:
    """Prompts by name (``"arithmetic"``), by path or hub name, or as a value."""
    if isinstance(prompts, Prompts):
        return prompts_source(prompts, seed=derive(seed, "prompts"))
    if prompts == "arithmetic":
        return arithmetic_source(seed=derive(seed, "prompts"))
    return prompts_source(load_prompts(prompts), seed=derive(seed, "prompts"), name=prompts)
