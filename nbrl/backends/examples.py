"""Data to examples of each kind: sources mixed, keys picked, rows judged, each with an id.

May import ``types``, ``errors`` and its neighbours ``records`` and ``parsing``.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from nbrl.backends import parsing
from nbrl.backends.parsing import BadRowError, Keys
from nbrl.backends.records import Record, read_records, report_bad_rows
from nbrl.errors import ConfigError, DataError
from nbrl.types import KINDS, Examples

Source = str | Sequence[str] | Sequence[Mapping[str, Any]] | Mapping[str, float]
"""A name, several, rows at hand, or names with the probability that a row comes from each."""
Parse = Callable[[Mapping[str, Any], Keys], dict[str, Any]]

PROMPT_KEYS = ("prompt", "input", "question", "instruction")
CONVERSATION_KEYS = ("messages", "conversations", "conversation", *PROMPT_KEYS, "text")
ANSWER_KEYS = ("output", "response", "completion", "answer")


class _Row(NamedTuple):
    name: str
    number: int | str
    record: Record


def load_conversations(
    source: Source,
    *,
    input_key: str | None = None,
    output_key: str | None = None,
    apply_chat_template: bool = False,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
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
        split: Of hub data and folders.
        max_samples: At most so many rows.
        seed: Of the mixture, where probabilities are given.

    Raises:
        ConfigError: Probabilities or ``max_samples`` that cannot work.
        DataError: Nothing can be read, or no row is left.
    """
    rows = _rows(source, split, max_samples, seed)
    found = _present(rows)
    first = input_key or _first(CONVERSATION_KEYS, found, "input_key", source)
    records = (r.record for r in rows if isinstance(r.record, dict))
    is_chat = any(isinstance(record.get(first), list) for record in records)
    guessed = None if is_chat else next((k for k in ANSWER_KEYS if k in found), None)
    answer = output_key or guessed
    keys = Keys(prompt=first, first=answer, as_chat=apply_chat_template)
    return _examples("conversations", rows, keys, parsing.conversation, source)


def load_pairs(  # noqa: PLR0913 - one key a column
    source: Source,
    *,
    prompt_key: str | None = None,
    chosen_key: str = "chosen",
    rejected_key: str = "rejected",
    margin_key: str | None = None,
    apply_chat_template: bool = False,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
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
        split: Of hub data and folders.
        max_samples: At most so many rows.
        seed: Of the mixture, where probabilities are given.

    Raises:
        ConfigError: Probabilities or ``max_samples`` that cannot work.
        DataError: Nothing can be read, or no row is left.
    """
    rows = _rows(source, split, max_samples, seed)
    found = _present(rows)
    keys = Keys(
        prompt=prompt_key or next((k for k in PROMPT_KEYS if k in found), None),
        first=chosen_key,
        second=rejected_key,
        label=margin_key or ("margin" if "margin" in found else None),
        as_chat=apply_chat_template,
    )
    return _examples("pairs", rows, keys, parsing.pair, source)


def load_labelled(
    source: Source,
    *,
    input_key: str | None = None,
    output_key: str | None = None,
    label_key: str = "label",
    apply_chat_template: bool = False,
    split: str = "train",
    max_samples: int | None = None,
) -> Examples:
    """Answers that are each wanted or not, for KTO: a prompt, an answer, a label true or false.

    Args:
        source: As in :func:`load_conversations`.
        input_key: The key of the prompt; by default as in :func:`load_pairs`.
        output_key: The key of the answer; by default as in :func:`load_conversations`.
        label_key: The key of the label: true, false, 1 or 0.
        apply_chat_template: Make texts messages.
        split: Of hub data and folders.
        max_samples: At most so many rows.

    Raises:
        ConfigError: Probabilities or ``max_samples`` that cannot work.
        DataError: Nothing can be read, or no row is left.
    """
    rows = _rows(source, split, max_samples, 0)
    found = _present(rows)
    keys = Keys(
        prompt=input_key or _first(PROMPT_KEYS, found, "input_key", source),
        first=output_key or _first(ANSWER_KEYS, found, "output_key", source),
        label=label_key,
        as_chat=apply_chat_template,
    )
    return _examples("labelled", rows, keys, parsing.labelled, source)


def load_steps(
    source: Source,
    *,
    prompt_key: str | None = None,
    steps_key: str = "steps",
    label_key: str = "labels",
    placeholder: str = "\n",
    split: str = "train",
    max_samples: int | None = None,
) -> Examples:
    """Solutions whose steps are each labelled, for a process reward model.

    Args:
        source: As in :func:`load_conversations`.
        prompt_key: The key of the question; by default as in :func:`load_pairs`, or none.
        steps_key: The key of a list of steps, or of a text in which ``placeholder`` follows each.
        label_key: The key of a list of labels, one a step: numbers in [0, 1], booleans, or ``+``
            and ``-``.
        placeholder: What separates the steps of a text.
        split: Of hub data and folders.
        max_samples: At most so many rows.

    Raises:
        ConfigError: Probabilities or ``max_samples`` that cannot work.
        DataError: Nothing can be read, or no row is left.
    """
    rows = _rows(source, split, max_samples, 0)
    found = _present(rows)
    keys = Keys(
        prompt=prompt_key or next((k for k in PROMPT_KEYS if k in found), None),
        first=steps_key,
        label=label_key,
        placeholder=placeholder,
    )
    return _examples("steps", rows, keys, parsing.steps, source)


def _rows(source: Source, split: str, max_samples: int | None, seed: int) -> list[_Row]:
    """The rows of all sources in the order in which they are learned."""
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"max_samples must be >= 1; got {max_samples}.")
    if isinstance(source, str):
        return list(itertools.islice(_read(source, split, max_samples), max_samples))
    if isinstance(source, Mapping):
        return _mixed(dict(source), split, max_samples, seed)
    named = [name for name in source if isinstance(name, str)]
    if named and len(named) < len(source):
        raise ConfigError("source mixes names and rows; pass either.")
    if named:
        many = itertools.chain.from_iterable(_read(name, split, max_samples) for name in named)
        return list(itertools.islice(many, max_samples))
    given: list[Any] = list(itertools.islice(source, max_samples))
    name = f"rows-{hashlib.sha256(repr(given).encode()).hexdigest()[:8]}"
    return [
        _Row(name, i, row if isinstance(row, dict) else f"not a dict but {type(row).__name__}")
        for i, row in enumerate(given, start=1)
    ]


def _read(source: str, split: str, max_samples: int | None) -> Iterator[_Row]:
    name, rows = read_records(source, split, max_samples)
    return (_Row(name, number, record) for number, record in rows)


def _mixed(
    sources: Mapping[str, float], split: str, max_samples: int | None, seed: int
) -> list[_Row]:
    """Rows drawn by probability until every source is used up; repeats are numbered."""
    shares = list(sources.values())
    if not shares or any(not share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ConfigError(
            f"probabilities of sources must be > 0 and add up to 1; got {dict(sources)!r}."
        )
    import datasets

    read = [list(_read(name, split, None)) for name in sources]
    for name, rows in zip(sources, read, strict=True):
        if not rows:
            raise DataError(f"{name}: it has no rows to mix.")
    places = [
        datasets.Dataset.from_dict({"source": [s] * len(rows), "row": list(range(len(rows)))})
        for s, rows in enumerate(read)
    ]
    order = datasets.interleave_datasets(
        places, probabilities=shares, seed=seed, stopping_strategy="all_exhausted"
    )
    found, seen = [], dict[tuple[int, int], int]()
    drawn = zip(order["source"], order["row"], strict=True)
    for at in itertools.islice(drawn, max_samples):
        row = read[at[0]][at[1]]
        times = seen.get(at, 0)
        seen[at] = times + 1
        found.append(row if not times else row._replace(number=f"{row.number}+{times}"))
    return found


def _present(rows: Iterable[_Row]) -> dict[str, None]:
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


def _examples(
    kind: str, rows: Sequence[_Row], keys: Keys, parse: Parse, source: Source
) -> Examples:
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
        "source": _plain(source),
        "keys": {k: v for k, v in keys._asdict().items() if v is not None},
        "dropped": bad,
    }
    return Examples(
        kind=kind, table=pa.Table.from_pylist(good, schema=KINDS[kind].columns), spec=spec
    )


def _plain(source: Source) -> Any:
    """The source as its spec echoes it; of rows at hand, how many they were."""
    if isinstance(source, str):
        return source
    if isinstance(source, Mapping):
        return dict(source)
    return list(source) if all(isinstance(x, str) for x in source) else f"{len(source)} rows"


def _shown(source: Source) -> str:
    return str(_plain(source))[:200]
