"""Steps on training data: examples to micro-batches, one update by an objective, its result.

May import ``stages``, ``backends.encoding``, ``backends.interrupts`` and what ``runtime`` may.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.backends.encoding import TURNS
from nbrl.backends.interrupts import guarded, held_interrupts
from nbrl.config import (
    DPO,
    SFT,
    TRAINS_ON,
    Objective,
    ProcessReward,
    RewardLoss,
    check_config,
    to_spec,
    wants_reference_logprobs,
)
from nbrl.driver.keeping import keep
from nbrl.driver.metrics import merge_terms
from nbrl.driver.runtime import ExampleTools, Runtime, Stopwatch
from nbrl.driver.seeds import derive
from nbrl.errors import ConfigError, StepError
from nbrl.protocols import Advance, LossTerms, MicroBatch
from nbrl.rules import kind_problems, whole_problems
from nbrl.stages.batching import split_minibatches
from nbrl.stages.sequences import (
    REFERENCE,
    Sequences,
    scatter_rows,
    sequence_batches,
    sequences_of,
    side_columns,
)
from nbrl.types import KINDS, Examples, StepResult


def tools_of(runtime: Runtime, asked: str) -> ExampleTools:
    """What the session has for training data.

    Raises:
        ConfigError: It was opened without.
    """
    if runtime.example_tools is None:
        raise ConfigError(
            f"{asked}: this session's trainer takes no training data but rollouts. Connect with "
            "trainer=Trainer('local')."
        )
    return runtime.example_tools


def tokenize(
    runtime: Runtime, examples: Examples, max_length: int | None, turns: str, placeholder: str
) -> Examples:
    """The examples with token columns of the session's model; what does not fit is left out."""
    kinds = {"examples": (examples, Examples), "placeholder": (placeholder, str)}
    problems = list(kind_problems(kinds))
    if max_length is not None:
        problems += whole_problems({"max_length": (max_length, 2)})
    if turns not in TURNS:
        problems.append(f"turns must be one of {', '.join(TURNS)}; got {turns!r}")
    check_config("tokenize", extra=problems)
    tools = tools_of(runtime, "tokenize")
    return tools.tokenize(examples, max_length, turns, placeholder)


def train_step(
    runtime: Runtime,
    examples: Examples,
    objective: Objective | None,
    *,
    minibatches: int = 1,
    epochs: int = 1,
    again: bool = False,
) -> StepResult:
    """One update by an objective: all optimizer steps of the examples, or none.

    Raises:
        ConfigError: The settings cannot work; all problems are listed.
        StepError: The examples were trained on before, or hold nothing to learn.
    """
    counts = {"minibatches": (minibatches, 1), "epochs": (epochs, 1)}
    resolved = resolve(runtime, examples, objective, "train_step", extra=whole_problems(counts))
    digest = _digest(examples, resolved)
    if digest in runtime.trained and not again:
        raise StepError(
            f"train_step: these examples were trained on already, at version "
            f"{runtime.trained[digest]} (the policy is at {runtime.version}). Pass others, or "
            "again=True if it is meant."
        )
    ready = prepared(runtime, examples, resolved)
    parts = [np.arange(len(ready))] * epochs
    if minibatches > 1:
        seeds = [derive(runtime.seed, "minibatches", runtime.version, e) for e in range(epochs)]
        parts = [p for seed in seeds for p in split_minibatches(len(ready), minibatches, seed)]
    spec = {"minibatches": minibatches, "epochs": epochs}
    sets = sequences_of(ready)
    # rows that are only compared with are not learned from
    with runtime.progress.phase("train_step", len(sets[0]) * epochs, "answers") as advance:
        course = Course(objective=resolved, sets=sets, advance=advance, said=spec)
        result = step(runtime, ready, parts, course)
    runtime.trained[digest] = result.version_before
    return result


def resolve(
    runtime: Runtime,
    examples: object,
    objective: object,
    asked: str,
    extra: Iterable[str] = (),
) -> Objective:
    """The objective with what only the session knows, if it and the examples go together.

    Raises:
        ConfigError: They do not; all problems are listed.
    """
    names = ", ".join(f"nbrl.{kind.__name__}" for kind in TRAINS_ON)
    problems = [*kind_problems({"data": (examples, Examples)}), *extra]
    if type(objective) not in TRAINS_ON:
        problems.append(f"objective must be one of {names}; got {objective!r:.80}")
        check_config(asked, extra=problems)
    check_config(asked, objective, extra=problems)
    tools = tools_of(runtime, asked)
    assert isinstance(examples, Examples)
    wanted, name = TRAINS_ON[type(objective)], type(objective).__name__
    if examples.kind != wanted:
        problems.append(f"{name} trains on {KINDS[wanted].many}; got {examples!r}")
    head = "reward" if isinstance(objective, RewardLoss) else "lm"
    if tools.head != head:
        problems.append(f"{name} needs a session of model=Model(..., head={head!r})")
    if isinstance(objective, SFT | DPO) and objective.aux_coef > 0 and not tools.balances:
        problems.append(f"{name}.aux_coef has no effect: the model has no experts; drop it")
    elif isinstance(objective, SFT | DPO) and objective.aux_coef > 0 and runtime.packs_rows:
        problems.append(
            f"{name}.aux_coef: the balance of experts is taken over padded rows, and this session "
            "packs them (Trainer.packed, Model.attention='varlen'); drop one"
        )
    if not len(examples):
        problems.append("there are no examples")
    check_config(asked, extra=problems)
    if not isinstance(objective, ProcessReward):
        return objective  # pyright: ignore[reportReturnType] -- its type is in TRAINS_ON
    ids = [tools.token_ids(token) for token in objective.reward_tokens]
    if any(len(one) != 1 for one in ids) or ids[0] == ids[1]:
        raise ConfigError(
            f"{asked}: ProcessReward.reward_tokens {objective.reward_tokens} are {ids} to the "
            "model's tokenizer; each must be one token, and not the same. Pass other texts."
        )
    return dataclasses.replace(objective, token_ids=(ids[0][0], ids[1][0]))


def tokenized(runtime: Runtime, examples: Examples) -> Examples:
    """The examples with token columns, every turn learned where nobody has said otherwise."""
    return examples if examples.is_tokenized else tokenize(runtime, examples, None, "all", "\n")


def prepared(runtime: Runtime, examples: Examples, objective: Objective) -> Examples:
    """The examples with token columns, and reference log-probs where the objective asks for them.

    What is there is taken as it is, so that each is computed once.
    """
    examples = tokenized(runtime, examples)
    has_reference = f"{examples.sides[0]}{REFERENCE}" in examples.table.column_names
    if not wants_reference_logprobs(objective) or has_reference:
        return examples
    return with_reference(runtime, examples)


def with_reference(runtime: Runtime, examples: Examples) -> Examples:
    """The tokenized examples with the reference policy's log-probs of every learned token."""
    sets = sequences_of(examples)
    sides = list(examples.sides)
    found: dict[str, pa.Array] = {}
    total = sum(len(sequences) for sequences in sets)
    with (
        held_interrupts() as held,
        runtime.progress.phase("reference", total, "answers") as advance,
    ):
        for sequences in sets:
            mine, sides = sides[: sequences.unit], sides[sequences.unit :]
            units = np.arange(len(examples))
            batches = batches_of(runtime, [sequences], units)
            said = runtime.trainer.annotate(batches, [REFERENCE], guarded(advance, held.check))
            flat = scatter_rows(sequences, batches, said[REFERENCE])
            found |= side_columns(sequences, flat, mine, REFERENCE)
    return examples.with_columns(found)


def batches_of(runtime: Runtime, sets: Sequence[Sequences], units: np.ndarray) -> list[MicroBatch]:
    """The micro-batches of some examples, of all the token rows they have."""
    return [
        batch
        for sequences in sets
        for batch in sequence_batches(
            sequences,
            units,
            max_tokens=runtime.micro_batch_tokens,
            packed=runtime.packs_rows,
        )
    ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Course:
    """What a step goes by beside its examples, the same for every step of a fit.

    ``look`` gives further numbers for the record, once the step is taken. ``sets`` are the token
    rows of the examples, ``said`` stands in the result's spec.
    """

    objective: Objective
    sets: Sequence[Sequences]
    advance: Advance
    said: Mapping[str, Any] = field(default_factory=dict)
    look: Callable[[StepResult], Mapping[str, float]] = lambda result: {}


def step(
    runtime: Runtime, examples: Examples, parts: Sequence[np.ndarray], course: Course
) -> StepResult:
    """One update: an optimizer step for each part of the prepared examples, recorded.

    Args:
        runtime: The session.
        examples: Tokenized, with what the objective needs.
        parts: Indices of examples, one array an optimizer step.
        course: The objective and the rest.
    """
    watch = Stopwatch()
    plan = [batches_of(runtime, course.sets, part) for part in parts]
    with held_interrupts() as held:
        held.check()
        terms = runtime.trainer.step(plan, course.objective, guarded(course.advance, held.check))
        before, runtime.version = runtime.version, runtime.version + 1
        # what was noted was of other weights
        runtime.score_scale = None
        runtime.engine.load_weights(runtime.weights_to_send(), runtime.version)
        spec = {"loss": to_spec(course.objective), "objective": type(course.objective).__name__}
        result = StepResult(
            version_before=before,
            version_after=runtime.version,
            metrics=merge_terms(terms),
            tokens=_token_table(examples, course.sets[0], plan, terms),
            seconds={"train": watch.read()},
            spec={**spec, "data": dict(examples.spec), **course.said},
        )
        more: Mapping[str, float] = {}
        interrupted = False
        try:
            more = course.look(result)
        except KeyboardInterrupt:
            # the step was taken, so it is recorded
            interrupted = True
        result = keep(runtime, result, None, more)
    if interrupted:
        raise KeyboardInterrupt
    return result


def _digest(examples: Examples, objective: Objective) -> str:
    """What identifies a step: its examples by their ids, and the objective."""
    digest = hashlib.blake2b(repr((examples.kind, to_spec(objective))).encode(), digest_size=16)
    for example_id in examples.table.column("example_id").to_pylist():
        digest.update(example_id.encode() + b"\0")
    return digest.hexdigest()


def _token_table(
    examples: Examples,
    sequences: Sequences,
    plan: Sequence[Sequence[MicroBatch]],
    terms: Sequence[LossTerms],
) -> pa.Table:
    """The token terms of each answer that is learned; of several epochs, the last one's."""
    ids = examples.table.column("example_id").to_pylist()
    sides = examples.sides[: sequences.unit]
    names = [f"{i}:{s.rstrip('_')}" if s else i for i in ids for s in sides]
    learned = [b for batches in plan for b in batches if "mismatched" not in b.per_row]
    said = [columns for t in terms for columns in t.tokens]
    last = {int(row): at for at, batch in enumerate(learned) for row in batch.rows}
    kept = sorted(set(last.values()))
    rows = sorted(last)
    columns: dict[str, Any] = {"sample_id": pa.array([names[row] for row in rows], pa.string())}
    for name in said[0] if said else ():
        flat = scatter_rows(sequences, [learned[b] for b in kept], [said[b][name] for b in kept])
        column = side_columns(sequences, flat, ("",), name)[name]
        columns[name] = column.take(pa.array(rows, pa.int64()))
    return pa.table(columns)
