"""Examples to token ids, and which of them are learned: token spans, never a search in text.

A row is cut into pieces of text, some of them learned; each piece is encoded by itself and the ids
are put one behind the other, as they are when a policy goes on from a prompt. So the border of an
answer is a border of tokens, whatever the tokenizer merges, also where a prompt ends in white
space. May import ``chat``, ``records``, ``types`` and ``errors``; tokenizers are handed in.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from nbrl.backends.chat import beginning_ids
from nbrl.backends.records import report_bad_rows
from nbrl.errors import ConfigError, DataError
from nbrl.types import Examples
from nbrl.types.columns import list_column

TURNS = ("all", "last")
"""Which answers of a conversation are learned."""


class _UnusableError(Exception):
    """Why a row cannot be learned from; never leaves this module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """What turns text into ids: a tokenizer and the rules of this session.

    ``eos_ids`` are all ids that end an answer, the first one is written where a text has none.
    """

    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    max_length: int
    turns: str = "all"
    placeholder: str = "\n"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The ids of a row, and which are learned."""

    ids: list[int]
    mask: list[bool]
    labels: list[float] | None = None


def tokenize_examples(examples: Examples, writer: Writer) -> Examples:
    """The examples with token columns; rows that cannot be learned from are left out and counted.

    Plain text is encoded as prompts are, the answer without special tokens and with an EOS at its
    end. Messages are rendered by the chat template, whose own special tokens count (no BOS comes
    twice): of every assistant message, or of the last one with ``turns="last"``, the text that the
    template writes after its generation prompt is learned, up to the EOS that ends the turn. A text
    without a prompt is learned from its second token on, and cut into windows where it is long.

    Left out, with the reason in ``spec["dropped"]`` and a warning: rows longer than ``max_length``
    (a pair where either side is), rows without a token to learn, and messages that the template
    writes differently alone than as the beginning of the conversation.

    Raises:
        ConfigError: There are messages and no chat template, or the placeholder is not one token.
        DataError: No row is left; the first reasons are named.
    """
    _check(examples, writer)
    rows = examples.table.to_pylist()
    kept: list[int] = []
    found: list[dict[str, _Tokens]] = []
    dropped: list[dict[str, Any]] = []
    others = _other_prompts(rows) if examples.kind == "labelled" else range(len(rows))
    for at, row in enumerate(rows):
        try:
            made = _SIDES[examples.kind](row, rows[others[at]], writer)
        except _UnusableError as reason:
            dropped.append({"row": row["example_id"], "reason": str(reason)})
            continue
        kept.extend([at] * len(made))
        found.extend(made)
    report_bad_rows(repr(examples), "one to learn from", len(set(kept)), dropped, stacklevel=3)
    table = examples.table.take(pa.array(kept, pa.int64()))
    if len(set(kept)) < len(kept):
        table = table.set_column(0, "example_id", pa.array(_numbered(table), pa.string()))
    spec = {
        **examples.spec,
        "dropped": [*examples.spec.get("dropped", ()), *dropped],
        "tokens": {"max_length": writer.max_length, "turns": writer.turns},
    }
    plain = Examples(kind=examples.kind, table=table, spec=spec)
    return plain.with_columns(_columns(found))


def token_ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text that goes on from another, without special tokens."""
    return cast(list[int], tokenizer(text, add_special_tokens=False)["input_ids"])


def _check(examples: Examples, writer: Writer) -> None:
    names = [n for n in examples.table.column_names if n.endswith("messages")]
    chats = any(examples.table.column(n).null_count < len(examples) for n in names)
    if chats and writer.tokenizer.chat_template is None:
        raise ConfigError(
            f"{examples!r} holds messages and the model's tokenizer has no chat template. Load "
            "texts, or use a model that was tuned for chat."
        )
    if examples.kind == "steps":
        ids = token_ids_of(writer.tokenizer, writer.placeholder)
        if len(ids) != 1:
            raise ConfigError(
                f"placeholder {writer.placeholder!r} is {len(ids)} tokens of this tokenizer, and "
                "must be one. Pass another placeholder."
            )
    if examples.kind == "labelled" and len(examples) < 2:
        raise DataError(
            f"KTO pairs each prompt with another row's answer; {examples!r} has no other row. Pass "
            "two or more."
        )


def _conversation(row: Mapping[str, Any], _: Any, writer: Writer) -> list[dict[str, _Tokens]]:
    if row["messages"] is None and row["prompt"] is None:
        return [{"": window} for window in _windows(row["response"], writer)]
    pieces = _pieces(row["prompt"], row["response"], row["messages"], writer, writer.turns)
    return [{"": _fitting(_joined(pieces, writer), writer)}]


def _pair(row: Mapping[str, Any], _: Any, writer: Writer) -> list[dict[str, _Tokens]]:
    shared = _common(row["chosen_messages"], row["rejected_messages"])
    sides = {}
    for name in ("chosen", "rejected"):
        messages = row[f"{name}_messages"]
        pieces = _pieces(row["prompt"], row[name], messages, writer, "all", known=shared)
        try:
            sides[f"{name}_"] = _fitting(_joined(pieces, writer), writer)
        except _UnusableError as reason:
            raise _UnusableError(f"{name}: {reason}") from None
    return [sides]


def _labelled(
    row: Mapping[str, Any], other: Mapping[str, Any], writer: Writer
) -> list[dict[str, _Tokens]]:
    own = _pieces(row["prompt"], row["response"], row["messages"], writer, "last")
    messages = row["messages"]
    if messages is not None and other["messages"] is not None:
        answer = json.loads(other["messages"])[-1]
        messages = json.dumps([*json.loads(messages)[:-1], answer])
    strange = _pieces(row["prompt"], other["response"], messages, writer, "last")
    fitting = _fitting(_joined(own, writer), writer)
    mixed = _joined(strange, writer)
    cut = _Tokens(mixed.ids[: writer.max_length], mixed.mask[: writer.max_length])
    return [{"": fitting, "mismatched_": cut}]


def _steps(row: Mapping[str, Any], _: Any, writer: Writer) -> list[dict[str, _Tokens]]:
    (placeholder,) = token_ids_of(writer.tokenizer, writer.placeholder)
    ids = list(beginning_ids(writer.tokenizer, row["prompt"] or ""))
    mask, labels = [False] * len(ids), [0.0] * len(ids)
    for step, label in zip(row["steps"], row["labels"], strict=True):
        text = token_ids_of(writer.tokenizer, step)
        ids += [*text, placeholder]
        mask += [False] * len(text) + [True]
        labels += [0.0] * len(text) + [label]
    tokens = _Tokens(ids, mask, labels)
    if len(ids) + 1 > writer.max_length:
        raise _UnusableError(f"{len(ids)} tokens and one more, over max_length={writer.max_length}")
    return [{"": tokens}]


_SIDES: Mapping[str, Callable[[Any, Any, Writer], list[dict[str, _Tokens]]]] = {
    "conversations": _conversation,
    "pairs": _pair,
    "labelled": _labelled,
    "steps": _steps,
}


def _pieces(
    prompt: str | None,
    response: str,
    messages: str | None,
    writer: Writer,
    turns: str,
    *,
    known: int = 0,
) -> list[tuple[list[int], bool]]:
    """The ids of each piece of a row, and whether it is learned."""
    if messages is None:
        start = list(beginning_ids(writer.tokenizer, prompt or ""))
        return [(start, False), (token_ids_of(writer.tokenizer, response), True)]
    spans = _spans(json.loads(messages), writer, turns, known)
    return [(token_ids_of(writer.tokenizer, text), learned) for text, learned in spans if text]


def _spans(
    messages: Sequence[Mapping[str, Any]], writer: Writer, turns: str, known: int
) -> list[tuple[str, bool]]:
    """The rendered conversation in pieces: what comes before an answer, the answer, and so on."""
    spoken = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i >= known]
    if not spoken:
        raise _UnusableError("no message of the assistant is left to learn")
    whole = _rendered(writer, messages, generation=False)
    pieces, done = [], 0
    for i in spoken[-1:] if turns == "last" else spoken:
        before = _rendered(writer, messages[:i], generation=True)
        after = _rendered(writer, messages[: i + 1], generation=False)
        for text, what in ((before, "the messages before it"), (after, "the messages up to it")):
            if not whole.startswith(text):
                raise _UnusableError(
                    f"the chat template is not prefix-stable at message {i}: {what} alone are "
                    "not written as in the whole conversation (some templates rewrite thoughts); "
                    "turns='last' learns the last answer only"
                )
        if len(before) < done or len(after) < len(before):
            raise _UnusableError(f"the chat template writes nothing for message {i}")
        pieces += [(whole[done : len(before)], False), (whole[len(before) : len(after)], True)]
        done = len(after)
    return pieces


def _rendered(writer: Writer, messages: Sequence[Mapping[str, Any]], *, generation: bool) -> str:
    try:
        return cast(
            str,
            writer.tokenizer.apply_chat_template(
                cast(Any, list(messages)), tokenize=False, add_generation_prompt=generation
            ),
        )
    except Exception as error:
        raise _UnusableError(f"the chat template fails: {type(error).__name__}: {error}") from error


def _joined(pieces: Sequence[tuple[list[int], bool]], writer: Writer) -> _Tokens:
    """The pieces as one row: learned up to the EOS that ends each, with one at the end."""
    ids: list[int] = []
    mask: list[bool] = []
    for at, (piece, learned) in enumerate(pieces):
        ends = [i for i, token in enumerate(piece) if token in writer.eos_ids]
        length = ends[-1] + 1 if ends and learned else len(piece)
        last = at == len(pieces) - 1
        ids += piece[:length] if last else piece
        mask += [learned] * length + ([] if last else [False] * (len(piece) - length))
    if writer.eos_ids and (not ids or ids[-1] not in writer.eos_ids or not mask[-1]):
        ids.append(writer.eos_ids[0])
        mask.append(True)
    if ids:
        mask[0] = False
    return _Tokens(ids, mask)


def _fitting(tokens: _Tokens, writer: Writer) -> _Tokens:
    if len(tokens.ids) > writer.max_length:
        raise _UnusableError(f"{len(tokens.ids)} tokens, over max_length={writer.max_length}")
    if not any(tokens.mask):
        raise _UnusableError("no token is left to learn")
    return tokens


def _windows(text: str, writer: Writer) -> list[_Tokens]:
    """A text to learn whole, in windows of at most ``max_length`` tokens."""
    ids = [*beginning_ids(writer.tokenizer, text), *writer.eos_ids[:1]]
    size = writer.max_length
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    found = [_Tokens(part, [False] + [True] * (len(part) - 1)) for part in parts if len(part) > 1]
    if not found:
        raise _UnusableError("no token is left to learn")
    return found


def _common(chosen: str | None, rejected: str | None) -> int:
    """How many messages both conversations begin with, less than either has."""
    if chosen is None or rejected is None:
        return 0
    one, two = json.loads(chosen), json.loads(rejected)
    most = min(len(one), len(two)) - 1
    return next((i for i in range(most) if one[i] != two[i]), most)


def _other_prompts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """For each row the next one with another prompt, round the end; the next one where all agree.

    Fixed here, so that reference log-probs of mismatched rows are the same in every epoch.
    """
    count = len(rows)
    asked = [
        row["prompt"] if row["messages"] is None else json.loads(row["messages"])[:-1]
        for row in rows
    ]
    found = [0] * count
    # twice round from the end: a run of equal prompts shares the row behind it
    behind = 1 % count
    for at in reversed(range(2 * count)):
        if asked[(at + 1) % count] != asked[at % count]:
            behind = (at + 1) % count
        found[at % count] = behind if asked[behind] != asked[at % count] else (at + 1) % count
    return found


def _numbered(table: pa.Table) -> list[str]:
    """Example ids with the number of the window where a row became several."""
    ids = table.column("example_id").to_pylist()
    counts, seen = Counter(ids), Counter()
    out = []
    for name in ids:
        out.append(f"{name}#{seen[name]}" if counts[name] > 1 else name)
        seen[name] += 1
    return out


def _columns(found: Sequence[Mapping[str, _Tokens]]) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for side in found[0]:
        rows = [sides[side] for sides in found]
        columns[f"{side}token_ids"] = list_column([r.ids for r in rows], pa.int32())
        columns[f"{side}mask"] = list_column([r.mask for r in rows], pa.bool_())
        labels = [r.labels for r in rows if r.labels is not None]
        if labels:
            columns["step_labels"] = list_column(labels, pa.float32())
    return columns
