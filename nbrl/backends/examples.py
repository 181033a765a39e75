"""Data to examples of each kind: sources mixed, keys picked, rows judged, each with an id.

May import ``types``, ``errors`` and its neighbours ``reading``, ``records`` and ``parsing``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nbrl.backends import parsing
from nbrl.backends.parsing import BadRowError, Keys
from nbrl.backends.reading import Reading, Row, Source, plain_source, rows_of
from nbrl.backends.records import report_bad_rows
from nbrl.errors import DataError
from nbrl.types import KINDS, Examples

Parse = Callable[[Mapping[str, Any], Keys], dict[str, Any]]

PROMPT_KEYS = ("prompt", "input", "question", "instruction")
CONVERSATION_KEYS = ("messages", "conversations", "conversation", *PROMPT_KEYS, "text")
ANSWER_KEYS = ("output", "response", "completion", "answer")


def load_conversations(  # noqa: PLR0913 - one key a column
    source: Source,
    *,
    input_key: str | None = None,
    output_key: str | None = None,
    apply_chat_template: bool = False,
    input_template: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
    streaming: bool = False,
) -> Examples:
    """The conversations of a source, to learn every answer of the assistant from.

    A row is a list of messages that ends with the assistant's (ShareGPT's ``from`` and ``value``
    are understood), a prompt with an answer, each text or messages, or one text to learn whole, as
    in pretraining. Rows that are none of these are left out; ``spec["dropped"]`` lists their
    numbers and reasons, and a warning says how many. The rows given are never changed.

    Args:
        source: As :func:`nbrl.load_prompts` takes it; several such names, whose rows follow each
            other; a dict of names and probabilities, by which rows are drawn until all sources are
            used up, the smaller ones repeating; or a list of dicts.
        input_key: The key of messages, prompt or text; by default the first that is there of
            ``messages, conversations, prompt, input, question, instruction, text``.
        output_key: The key of the answer; by default the first of ``output, response, completion,
            answer`` that is there, and none where the input is a list of messages.
        apply_chat_template: Make a prompt and an answer that are texts two messages.
        input_template: A text with one ``{}`` for a prompt that is text, as in
            :func:`nbrl.load_prompts`; a row without such a prompt is left out.
        split: Of hub data and folders.
        max_samples: At most so many rows.
        seed: Of the mixture, where probabilities are given.
        streaming: Fetch no more of a data set on the hub, or a saved one, than the ``max_samples``
            rows that are taken; files are read row by row as it is.

    Raises:
        ConfigError: Settings of the reading that cannot work, all listed.
        DataError: Nothing can be read, or no row is left.
    """
    reading = Reading(split=split, max_samples=max_samples, seed=seed, streaming=streaming)
    named = {
        "input_key": input_key,
        "output_key": output_key,
        "apply_chat_template": apply_chat_template,
        "input_template": input_template,
    }
    rows = rows_of("load_conversations", source, reading, named)
    found = _present(rows)
    first = input_key or _first(CONVERSATION_KEYS, found, "input_key", source)
    keys = Keys(
        prompt=first,
        first=output_key or next((k for k in ANSWER_KEYS if k in found), None),
        as_chat=apply_chat_template,
        template=input_template,
        guessed=output_key is None,
    )
    return _examples("conversations", rows, keys, parsing.conversation, source)


def load_pairs(  # noqa: PLR0913 - one key a column
    source: Source,
    *,
    prompt_key: str | None = None,
    chosen_key: str = "chosen",
    rejected_key: str = "rejected",
    margin_key: str | None = None,
    apply_chat_template: bool = False,
    input_template: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
    streaming: bool = False,
) -> Examples:
    """The preference pairs of a source.

    ``chosen`` and ``rejected`` are texts that answer a prompt, or lists of messages; without a
    prompt, what both conversations begin with is not learned. Bad rows are treated as in
    :func:`load_conversations`.

    Args:
        source: As in :func:`load_conversations`.
        prompt_key: The key of the prompt, a text or messages; by default the first that is there of
            ``prompt, input, question, instruction``, or none.
        chosen_key: The key of the better answer.
        rejected_key: The key of the other one.
        margin_key: The key of how much better it is; by default ``margin`` where it is there.
        apply_chat_template: Make texts messages.
        input_template: As in :func:`load_conversations`.
        split: Of hub data and folders.
        max_samples: At most so many rows.
        seed: Of the mixture, where probabilities are given.
        streaming: As in :func:`load_conversations`.

    Raises:
        ConfigError: Settings of the reading that cannot work, all listed.
        DataError: Nothing can be read, or no row is left.
    """
    reading = Reading(split=split, max_samples=max_samples, seed=seed, streaming=streaming)
    named = {
        "prompt_key": prompt_key,
        "chosen_key": chosen_key,
        "rejected_key": rejected_key,
        "margin_key": margin_key,
        "apply_chat_template": apply_chat_template,
        "input_template": input_template,
    }
    rows = rows_of("load_pairs", source, reading, named)
    found = _present(rows)
    keys = Keys(
        prompt=prompt_key or next((k for k in PROMPT_KEYS if k in found), None),
        first=chosen_key,
        second=rejected_key,
        label=margin_key or ("margin" if "margin" in found else None),
        as_chat=apply_chat_template,
        template=input_template,
    )
    return _examples("pairs", rows, keys, parsing.pair, source)


def load_labelled(  # noqa: PLR0913 - one key a column
    source: Source,
    *,
    input_key: str | None = None,
    output_key: str | None = None,
    label_key: str = "label",
    apply_chat_template: bool = False,
    input_template: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
    streaming: bool = False,
) -> Examples:
    """Answers that are each wanted or not, for KTO: a prompt, an answer, a label true or false.

    Args:
        source: As in :func:`load_conversations`.
        input_key: The key of the prompt; by default as in :func:`load_pairs`.
        output_key: The key of the answer; by default as in :func:`load_conversations`.
        label_key: The key of the label: true, false, 1 or 0.
        apply_chat_template: Make texts messages.
        input_template: As in :func:`load_conversations`.
        split: Of hub data and folders.
        max_samples: At most so many rows.
        seed: Of the mixture, where probabilities are given.
        streaming: As in :func:`load_conversations`.

    Raises:
        ConfigError: Settings of the reading that cannot work, all listed.
        DataError: Nothing can be read, or no row is left.
    """
    reading = Reading(split=split, max_samples=max_samples, seed=seed, streaming=streaming)
    named = {
        "input_key": input_key,
        "output_key": output_key,
        "label_key": label_key,
        "apply_chat_template": apply_chat_template,
        "input_template": input_template,
    }
    rows = rows_of("load_labelled", source, reading, named)
    found = _present(rows)
    keys = Keys(
        prompt=input_key or _first(PROMPT_KEYS, found, "input_key", source),
        first=output_key or _first(ANSWER_KEYS, found, "output_key", source),
        label=label_key,
        as_chat=apply_chat_template,
        template=input_template,
    )
    return _examples("labelled", rows, keys, parsing.labelled, source)


def load_steps(  # noqa: PLR0913 - one key a column
    source: Source,
    *,
    prompt_key: str | None = None,
    steps_key: str = "steps",
    label_key: str = "labels",
    placeholder: str = "\n",
    input_template: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
    streaming: bool = False,
) -> Examples:
    """Solutions whose steps are each labelled, for a process reward model.

    Args:
        source: As in :func:`load_conversations`.
        prompt_key: The key of the question; by default as in :func:`load_pairs`, or none.
        steps_key: The key of a list of steps, or of a text in which ``placeholder`` follows each.
        label_key: The key of a list of labels, one a step: numbers in [0, 1], booleans, or ``+``
            and ``-``.
        placeholder: What separates the steps of a text.
        input_template: As in :func:`load_conversations`.
        split: Of hub data and folders.
        max_samples: At most so many rows.
        seed: Of the mixture, where probabilities are given.
        streaming: As in :func:`load_conversations`.

    Raises:
        ConfigError: Settings of the reading that cannot work, all listed.
        DataError: Nothing can be read, or no row is left.
    """
    reading = Reading(split=split, max_samples=max_samples, seed=seed, streaming=streaming)
    named = {"prompt_key": prompt_key, "steps_key": steps_key, "label_key": label_key}
    named |= {"input_template": input_template}
    rows = rows_of("load_steps", source, reading, named)
    found = _present(rows)
    keys = Keys(
        prompt=prompt_key or next((k for k in PROMPT_KEYS if k in found), None),
        first=steps_key,
        label=label_key,
        placeholder=placeholder,
        template=input_template,
    )
    return _examples("steps", rows, keys, parsing.steps, source)


def _present(rows: Iterable[Row]) -> dict[str, None]:
    """All keys of the rows, in order."""
    return dict.fromkeys(k for row in rows if isinstance(row.record, dict) for k in row.record)


def _first(known: Sequence[str], found: Mapping[str, None], name: str, source: Source) -> str:
    key = next((key for key in known if key in found), None)
    if key is None and found:
        raise DataError(
            f"{_shown(source)}: no row has one of the keys {', '.join(known)}; keys: "
            f"{', '.join(found)}. Pass {name}."
        )
    return key or known[0]


def _examples(kind: str, rows: Sequence[Row], keys: Keys, parse: Parse, source: Source) -> Examples:
    """The rows that are examples, in order; the others counted and named."""
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for name, number, record in rows:
        try:
            if isinstance(record, str):
                raise BadRowError(record)
            row = parse(record, keys)
            used = {keys.prompt, keys.first, keys.second, keys.label}
            rest = {k: v for k, v in record.items() if k not in used}
            extra = parsing.as_json(rest)
            good.append({"example_id": f"{name}-{number}", **row, "metadata": extra})
        except BadRowError as reason:
            bad.append({"row": number, "reason": str(reason)})
    report_bad_rows(_shown(source), f"one of {kind}", len(good), bad, stacklevel=3)
    spec = {
        "source": plain_source(source),
        "keys": {k: v for k, v in keys._asdict().items() if v is not None},
        "dropped": bad,
    }
    return Examples(
        kind=kind, table=pa.Table.from_pylist(good, schema=KINDS[kind].columns), spec=spec
    )


def _shown(source: Source) -> str:
    return str(plain_source(source))[:200]
