"""Data to prompts: picks keys, judges rows, gives each an id of its own.

May import ``types``, ``config``, ``rules``, ``errors`` and its neighbours ``reading``, ``records``
and ``sources``.
"""

import datetime
import decimal
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nbrl.backends.reading import template_problems
from nbrl.backends.records import read_records, report_bad_rows
from nbrl.backends.sources import prompts_table
from nbrl.config import check_config
from nbrl.errors import DataError
from nbrl.rules import flag, text, whole
from nbrl.types import Prompts

INPUT_KEYS = ("input", "prompt", "question", "messages")


class _BadRowError(Exception):
    """Why a row is no prompt; never leaves this module."""


class _Rendering(NamedTuple):
    """How a record becomes a prompt."""

    input_key: str
    label_key: str | None
    must_have_label: bool
    as_chat: bool
    template: str | None


def load_prompts(
    source: str | os.PathLike,
    *,
    input_key: str | None = None,
    label_key: str | None = None,
    apply_chat_template: bool = False,
    input_template: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
) -> Prompts:
    """The prompts of a source, one for each row that holds one.

    Rows without text, with messages that are none, or with a label that is neither text nor number
    are left out; ``spec["dropped"]`` lists their row numbers and reasons, and a warning says how
    many. Two rows with the same text stay two prompts: ids are made of a hash of the data and the
    row number. All other columns go to ``metadata``, the label's too where it has another name.

    Args:
        source: ``arithmetic``, ``reasoning-gym:<task>``, a ``.jsonl``, ``.json``, ``.csv``,
            ``.parquet`` or ``.arrow`` file, a folder, or a data set's name on the hub, where behind
            an ``@`` may stand its configuration or a folder in it, as in ``openai/gsm8k@main``.
        input_key: The key of the prompt, a text or a list of messages; by default the first of
            ``input, prompt, question, messages`` that the data has.
        label_key: The key of the label, which each row must then have; by default ``label`` where
            the data has it, and rows without one have none. ``42``, ``42.0`` and ``"42"`` are the
            same label; an empty text is none.
        apply_chat_template: Make a text the one message of a user. Lists of messages always are
            rendered by the model's template.
        input_template: A text with one ``{}`` for the prompt. Not together with the former, and
            not for lists of messages.
        split: ``train``, ``held_out``, or what the data set has. Of generated tasks each split is
            drawn from its own seed; a task with few different questions may repeat some.
        max_samples: At most so many prompts; by default all there are, and 1000 of ``arithmetic``
            and of generated tasks.

    Raises:
        ConfigError: The settings cannot work.
        DataError: Nothing can be read, no row is a prompt (the first reasons are named), or a key
            is in no row.
    """
    source = os.fspath(source) if isinstance(source, os.PathLike) else source
    optional = {"input_key": input_key, "label_key": label_key}
    problems = [
        *text("source", source),
        *text("split", split),
        *(p for name, key in optional.items() if key is not None for p in text(name, key)),
        *flag("apply_chat_template", apply_chat_template),
        *template_problems(input_template, apply_chat_template),
        *(() if max_samples is None else whole("max_samples", max_samples, 1)),
    ]
    check_config("load_prompts", extra=problems)
    limit = None if max_samples is None else int(max_samples)
    name, rows = read_records(source, split, limit)
    numbered = list(itertools.islice(rows, limit))
    keys = _keys([r for _, r in numbered if isinstance(r, dict)], input_key, label_key, source)
    render = _Rendering(*keys, label_key is not None, apply_chat_template, input_template)
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for number, record in numbered:
        try:
            row = _row(record, render)
            good.append({"prompt_id": f"{name}-{number}", **row})
        except _BadRowError as reason:
            bad.append({"row": number, "reason": str(reason)})
    report_bad_rows(source, "a prompt", len(good), bad, stacklevel=2)
    spec = {
        "source": source,
        "split": split,
        "input_key": keys[0],
        "label_key": keys[1],
        "apply_chat_template": apply_chat_template,
        "input_template": input_template,
        "dropped": bad,
    }
    return Prompts(table=prompts_table(good), spec=spec)


def _keys(
    records: Sequence[Mapping[str, Any]], input_key: str | None, label_key: str | None, source: str
) -> tuple[str, str | None]:
    """The keys of prompt and label; those that were asked for must be in some row."""
    present = dict.fromkeys(key for record in records for key in record)
    for key in (input_key, label_key):
        if key is not None and key not in present and records:
            raise DataError(f"{source}: no row has the key {key!r}; keys: {', '.join(present)}.")
    found = input_key or next((key for key in INPUT_KEYS if key in present), None)
    if found is None and records:
        raise DataError(
            f"{source}: no row has one of the keys {', '.join(INPUT_KEYS)}; keys: "
            f"{', '.join(present)}. Pass input_key."
        )
    return found or INPUT_KEYS[0], label_key or ("label" if "label" in present else None)


def _row(record: dict[str, Any] | str, render: _Rendering) -> dict[str, Any]:
    """The columns of one prompt."""
    if isinstance(record, str):
        raise _BadRowError(record)
    key = render.input_key
    if record.get(key) is None:
        raise _BadRowError(f"{key!r} is {'null' if key in record else 'missing'}")
    value = record[key]
    messages = value if isinstance(value, list) else None
    if messages is None and not (isinstance(value, str) and value.strip()):
        raise _BadRowError(f"{key!r} must be text or a list of messages; got {_shown(value)}")
    if messages is not None:
        _check_messages(messages, key)
        if render.template is not None:
            raise _BadRowError(f"{key!r} is a list of messages, and input_template is for texts")
    elif render.as_chat:
        messages = [{"role": "user", "content": value}]
    text = value if isinstance(value, str) else _text(messages or [])
    told = (key, "label") if render.label_key == "label" else (key,)
    rest = {k: v for k, v in record.items() if k not in told}
    row = {
        "prompt": text if render.template is None else render.template.replace("{}", text),
        "messages": None if messages is None else _as_json(messages),
        "label": _label(record, render),
        "metadata": _as_json(rest),
    }
    _check_unicode(row)
    return row


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    """Dates, decimals and their like as text; bytes and pictures have none."""
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    raise _BadRowError(f"a column holds {type(value).__name__}, which metadata (JSON) cannot hold")


def _check_unicode(row: Mapping[str, str | None]) -> None:
    """Half of a surrogate pair is a character to JSON, and to nothing else."""
    for name, cell in row.items():
        try:
            (cell or "").encode("utf-8")
        except UnicodeEncodeError as error:
            raise _BadRowError(f"{name!r} holds half a character: {error.reason}") from error


def _check_messages(messages: Sequence[Any], key: str) -> None:
    if not messages:
        raise _BadRowError(f"{key!r} is an empty list of messages")
    for message in messages:
        whole = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not whole or not message.get("content"):
            raise _BadRowError(
                f"{key!r} holds a message without role and content: {_shown(message)}"
            )


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The last message's text, to show; the template renders the whole."""
    content = messages[-1]["content"]
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content if isinstance(part, dict))


def _label(record: Mapping[str, Any], render: _Rendering) -> str | None:
    key = render.label_key
    value = None if key is None else record.get(key)
    if value is None or (isinstance(value, str) and not value.strip()):
        if render.must_have_label:
            raise _BadRowError(f"{key!r} is {'empty' if key in record else 'missing'}")
        return None
    if isinstance(value, str):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise _BadRowError(f"{key!r} must be text or a finite number; got {_shown(value)}")
    return str(int(value)) if value == int(value) else str(value)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
