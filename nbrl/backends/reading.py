"""The rows of one source or of several, in the order in which they are learned.

May import ``config``, ``rules``, ``errors`` and its neighbours ``formats`` and ``records``; imports
datasets where sources are mixed by probability.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nbrl.backends.formats import Record
from nbrl.backends.records import read_records
from nbrl.config import check_config
from nbrl.errors import DataError
from nbrl.rules import flag, is_number, shown, text, whole

Place = str | os.PathLike
Source = Place | Sequence[Place] | Sequence[Mapping[str, Any]] | Mapping[str, float]
"""A name, several, rows at hand, or names with the probability that a row comes from each."""


class Row(NamedTuple):
    """A record, the name of the data that it is of, and its number there."""

    name: str
    number: int | str
    record: Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Which rows of a source are read, and how.

    ``split`` is that of hub data and folders, ``seed`` that of a mixture's order. With
    ``streaming`` no more of a data set is fetched than the rows that are taken.
    """

    split: str = "train"
    max_samples: int | None = None
    seed: int = 0
    streaming: bool = False


def rows_of(asked: str, source: Source, reading: Reading, named: Mapping[str, object]) -> list[Row]:
    """The rows of all sources, no more than ``max_samples``.

    Args:
        asked: Who asks, for messages.
        source: What to read.
        reading: Which of its rows.
        named: The loader's own arguments: keys, each a text or None, and flags.

    Raises:
        ConfigError: Settings that cannot work, all listed.
        DataError: A source cannot be read.
    """
    problems = [*_named_problems(named), *_problems(source, reading)]
    check_config(asked, extra=problems)
    if isinstance(source, Place):
        return list(_read(source, reading))
    if isinstance(source, Mapping):
        return _mixed(dict(source), reading)
    names = [name for name in source if isinstance(name, Place)]
    if names:
        many = itertools.chain.from_iterable(_read(name, reading) for name in names)
        return list(itertools.islice(many, reading.max_samples))
    given: list[Any] = list(itertools.islice(source, reading.max_samples))
    name = f"rows-{hashlib.sha256(repr(given).encode()).hexdigest()[:8]}"
    return [
        Row(name, i, row if isinstance(row, dict) else f"not a dict but {type(row).__name__}")
        for i, row in enumerate(given, start=1)
    ]


def plain_source(source: Source) -> Any:
    """The source as its spec echoes it; of rows at hand, how many they were."""
    if isinstance(source, Place):
        return os.fspath(source)
    if isinstance(source, Mapping):
        return dict(source)
    names = [os.fspath(name) for name in source if isinstance(name, Place)]
    return names or f"{len(source)} rows"


def template_problems(template: object, apply_chat_template: object) -> Iterator[str]:
    """What is wrong with the text around a prompt, if one is asked for."""
    if template is None:
        return
    if not isinstance(template, str) or template.count("{}") != 1:
        yield f"input_template needs exactly one '{{}}' for the prompt; got {shown(template)}"
    if apply_chat_template:
        yield "input_template and apply_chat_template both render the prompt; pass one of them"


def _named_problems(named: Mapping[str, object]) -> Iterator[str]:
    for name, value in named.items():
        if name == "apply_chat_template":
            yield from flag(name, value)
        elif name == "input_template":
            yield from template_problems(value, named.get("apply_chat_template", False))
        elif value is not None:
            yield from text(name, value)


def _problems(source: Any, reading: Reading) -> Iterator[str]:
    yield from text("split", reading.split)
    yield from whole("seed", reading.seed, 0)
    yield from flag("streaming", reading.streaming)
    if reading.max_samples is not None:
        yield from whole("max_samples", reading.max_samples, 1)
    elif reading.streaming is True:
        yield (
            "streaming=True needs max_samples: the rows that are taken are held in memory, so "
            "without a number all are fetched as they are without streaming"
        )
    if isinstance(source, Place):
        return
    if isinstance(source, Mapping):
        yield from _share_problems(source)
    elif not isinstance(source, Sequence) or isinstance(source, bytes):
        yield (
            "source must be a name, a list of names or of dicts, or a dict of names and "
            f"probabilities; got {type(source).__name__}"
        )
    else:
        named = sum(isinstance(one, Place) for one in source)
        if named and named < len(source):
            yield "source mixes names and rows; pass either"
        if not named and reading.streaming is True:
            yield "streaming has no effect on rows at hand; drop it"


def _share_problems(source: Mapping[Any, Any]) -> Iterator[str]:
    names, shares = list(source), list(source.values())
    if any(not isinstance(name, str) for name in names):
        yield f"the names of mixed sources must be texts; got {names!r}"
    right = bool(shares) and all(is_number(share) and share > 0 for share in shares)
    if not right or abs(sum(shares) - 1) > 1e-6:
        yield f"probabilities of sources must be > 0 and add up to 1; got {dict(source)!r}"


def _read(source: Place, reading: Reading) -> Iterator[Row]:
    name, rows = read_records(
        os.fspath(source), reading.split, reading.max_samples, streaming=reading.streaming
    )
    return (Row(name, n, record) for n, record in itertools.islice(rows, reading.max_samples))


def _mixed(sources: Mapping[str, float], reading: Reading) -> list[Row]:
    """Rows drawn by probability until every source is used up; repeats are numbered.

    Of ``max_samples`` draws none can lie behind the first so many rows of a source, so that no more
    are read.
    """
    import datasets

    read = [list(_read(name, reading)) for name in sources]
    for name, rows in zip(sources, read, strict=True):
        if not rows:
            raise DataError(f"{name}: it has no rows to mix.")
    places = [
        datasets.Dataset.from_dict({"source": [s] * len(rows), "row": list(range(len(rows)))})
        for s, rows in enumerate(read)
    ]
    order = datasets.interleave_datasets(
        places,
        probabilities=list(sources.values()),
        seed=reading.seed,
        stopping_strategy="all_exhausted",
    )
    found, seen = [], dict[tuple[int, int], int]()
    drawn = zip(order["source"], order["row"], strict=True)
    for at in itertools.islice(drawn, reading.max_samples):
        row = read[at[0]][at[1]]
        times = seen.get(at, 0)
        seen[at] = times + 1
        found.append(row if not times else row._replace(number=f"{row.number}+{times}"))
    return found
