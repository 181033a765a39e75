"""Records of any common shape to the columns of an example; says of each bad one why it is none.

Imports nothing of the house but ``errors``. Records are read, never written to.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SPEAKERS = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}
"""Roles as ShareGPT's data names them, and what chat templates call them."""
VERDICTS = {"+": 1.0, "-": 0.0, "true": 1.0, "false": 0.0}


class BadRowError(Exception):
    """Why a record is no example."""


class Keys(NamedTuple):
    """Where a record keeps what an example needs; None where there is no such key.

    ``guessed`` says that nobody named the key of the answer: a list of messages then ends with it.
    """

    prompt: str | None = None
    first: str | None = None
    second: str | None = None
    label: str | None = None
    as_chat: bool = False
    placeholder: str = "\n"
    template: str | None = None
    guessed: bool = False


def conversation(record: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The columns of a conversation: messages, prompt and answer, or one text."""
    value = _present(record, keys.prompt)
    ends = keys.first is None or (keys.guessed and isinstance(value, list))
    answer = None if ends else _present(record, keys.first)
    if answer is None and isinstance(value, str) and keys.template is None:
        return {"prompt": None, "response": _text(value, keys.prompt), "messages": None}
    return _answered(value, answer, keys)


def labelled(record: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The columns of an answer that is wanted or not."""
    row = _answered(_present(record, keys.prompt), _present(record, keys.first), keys)
    return {**row, "desirable": _flag(_present(record, keys.label), keys.label)}


def pair(record: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The columns of a preference pair."""
    prompt = None if keys.prompt is None else _present(record, keys.prompt)
    sides = {
        name: _present(record, key)
        for name, key in (("chosen", keys.first), ("rejected", keys.second))
    }
    row: dict[str, Any] = {"prompt": None, "margin": _margin(record, keys.label)}
    chat = keys.as_chat or any(isinstance(x, list) for x in (prompt, *sides.values()))
    for name, value in sides.items():
        if not chat:
            row[name], row[f"{name}_messages"] = _text(value, name), None
            continue
        messages = _after(prompt, value, name)
        row[name], row[f"{name}_messages"] = said(messages[-1]), as_json(messages)
    if isinstance(prompt, list):
        row["prompt"] = said(_messages(prompt, keys.prompt)[-1])
    elif prompt is not None:
        row["prompt"] = _text(prompt, keys.prompt)
    if keys.template is not None:
        row["prompt"] = _templated(None if chat else row["prompt"], keys.template)
    return row


def steps(record: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The columns of a solution in steps: a text with placeholders or a list, and its labels."""
    value, given = _present(record, keys.first), _present(record, keys.label)
    prompt = None if keys.prompt is None else _text(_present(record, keys.prompt), keys.prompt)
    if keys.template is not None:
        prompt = _templated(prompt, keys.template)
    if isinstance(value, str):
        *parts, rest = value.split(keys.placeholder)
        parts += [rest] if rest.strip() else []
    else:
        parts = [_text(part, keys.first) for part in _listed(value, keys.first)]
    labels = [_share(label, keys.label) for label in _listed(given, keys.label)]
    if len(labels) != len(parts) or not parts:
        raise BadRowError(f"{len(parts)} steps and {len(labels)} labels; each step needs its own")
    return {"prompt": prompt, "steps": parts, "labels": labels}


def said(message: Mapping[str, Any]) -> str:
    """A message's text, to show."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or "" for part in content if isinstance(part, dict))


def as_json(value: Any) -> str:
    """The value as JSON; what JSON has no form for is a bad row."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise BadRowError(f"it holds what JSON cannot: {error}") from error


def _answered(value: Any, answer: Any, keys: Keys) -> dict[str, Any]:
    """Prompt and answer as text, or a whole conversation that ends with the answer."""
    if isinstance(value, str) and isinstance(answer, str) and not keys.as_chat:
        prompt, response = _text(value, keys.prompt, empty=True), _text(answer, keys.first)
        if keys.template is not None:
            prompt = _templated(prompt, keys.template)
        return {"prompt": prompt, "response": response, "messages": None}
    if keys.template is not None:
        _templated(None, keys.template)
    messages = (
        _messages(value, keys.prompt) if answer is None else _after(value, answer, keys.first)
    )
    if messages[-1]["role"] != "assistant":
        raise BadRowError(
            f"{keys.prompt!r} ends with a message of {messages[-1]['role']!r}, not of the assistant"
        )
    asked = said(messages[-2]) if len(messages) > 1 else None
    return {"prompt": asked, "response": said(messages[-1]), "messages": as_json(messages)}


def _after(prompt: Any, answer: Any, key: str | None) -> list[dict[str, Any]]:
    """A prompt and its answer, each a text or messages, as one conversation."""
    before = [] if prompt is None else prompt
    if isinstance(before, str):
        before = [{"role": "user", "content": before}]
    first = [] if not before else _messages(before, "prompt")
    if isinstance(answer, str):
        last = [{"role": "assistant", "content": _text(answer, key)}]
    else:
        last = _messages(answer, key)
    whole = (
        last if first and last[: len(first)] == first and len(last) > len(first) else first + last
    )
    if whole[-1]["role"] != "assistant":
        raise BadRowError(
            f"{key!r} ends with a message of {whole[-1]['role']!r}, not of the assistant"
        )
    return whole


def _templated(prompt: str | None, template: str) -> str:
    if prompt is None:
        raise BadRowError("input_template is for a prompt that is text, and this row has none")
    return template.replace("{}", prompt)


def _messages(value: Any, key: str | None) -> list[dict[str, Any]]:
    """Messages with role and content, copied; keys without a value are left out."""
    found = []
    for message in _listed(value, key):
        if not isinstance(message, Mapping):
            raise BadRowError(f"{key!r} holds {_shown(message)}, which is no message")
        whole = {k: v for k, v in message.items() if v is not None}
        if "from" in whole and "value" in whole:
            who = whole["from"]
            whole = {"role": SPEAKERS.get(who, who), "content": whole["value"]}
        if not isinstance(whole.get("role"), str) or not whole.get("content"):
            raise BadRowError(
                f"{key!r} holds a message without role and content: {_shown(message)}"
            )
        _check_parts(whole["content"], key)
        found.append(whole)
    return found


def _check_parts(content: Any, key: str | None) -> None:
    """Raise where a message holds more than text: the place of a picture alone would mislead."""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise BadRowError(f"{key!r} holds {kind!r} in a message; examples are texts")


def _present(record: Mapping[str, Any], key: str | None) -> Any:
    if key is None or record.get(key) is None:
        raise BadRowError(f"{key!r} is {'null' if key in record else 'missing'}")
    return record[key]


def _text(value: Any, key: str | None, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise BadRowError(f"{key!r} must be text; got {_shown(value)}")
    if not empty and not value.strip():
        raise BadRowError(f"{key!r} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRowError(f"{key!r} holds half a character: {error.reason}") from error
    return value


def _listed(value: Any, key: str | None) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise BadRowError(f"{key!r} must be a list; got {_shown(value)}")
    if not value:
        raise BadRowError(f"{key!r} is an empty list")
    return value


def _flag(value: Any, key: str | None) -> bool:
    if isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1)):
        return bool(value)
    raise BadRowError(f"{key!r} must be true, false, 1 or 0; got {_shown(value)}")


def _share(value: Any, key: str | None) -> float:
    """A step's label as a probability: a number in [0, 1], a boolean, or a word for one."""
    if isinstance(value, str) and value.strip().lower() in VERDICTS:
        return VERDICTS[value.strip().lower()]
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise BadRowError(f"{key!r} must hold numbers in [0, 1], or + and -; got {_shown(value)}")


def _margin(record: Mapping[str, Any], key: str | None) -> float:
    value = 0.0 if key is None else _present(record, key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRowError(f"{key!r} must be a finite number; got {_shown(value)}")
    return float(value)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
