"""Prompts from files, folders and generators; arithmetic; the cursor over epochs."""

import json
import warnings
from pathlib import Path

import pytest

from nbrl.backends.datasets import load_prompts
from nbrl.errors import ConfigError, DataError
from nbrl.types import Prompts

USER = [{"role": "user", "content": "What is 7+5?"}]


def lines(path: Path, *rows: object) -> str:
    """A JSONL file; text goes in as it is."""
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return str(path)


def column(prompts: Prompts, name: str) -> list:
    return prompts.table.column(name).to_pylist()


def quietly(*args: object, **kwargs: object) -> Prompts:
    """Loaded where warnings are looked at elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_prompts(*args, **kwargs)


def test_bad_rows_are_left_out_and_named(tmp_path):
    source = lines(
        tmp_path / "rows.jsonl",
        {"input": "7+5=", "answer": "12"},
        {"answer": "12"},
        {"input": [], "answer": "12"},
        {"input": "1+1=", "answer": None},
    )
    with pytest.warns(UserWarning, match=r"3 of 4 rows were left out: row 2: 'input' is missing"):
        prompts = load_prompts(source, input_key="input", label_key="answer")
    assert column(prompts, "prompt") == ["7+5="]
    assert [d["row"] for d in prompts.spec["dropped"]] == [2, 3, 4]
    reasons = [d["reason"] for d in prompts.spec["dropped"]]
    assert reasons == [
        "'input' is missing",
        "'input' is an empty list of messages",
        "'answer' is empty",
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input": None}, "'input' is null"),
        ({"input": ""}, "must be text or a list of messages; got str ''"),
        ({"input": "  \n"}, "must be text"),
        ({"input": 7}, "got int 7"),
        ({"input": {"role": "user"}}, "got dict"),
        ({"input": ["hello"]}, "message without role and content"),
        ({"input": [{"role": "user"}]}, "message without role and content"),
        ({"input": [{"role": "user", "content": None}]}, "message without role and content"),
        ({"input": "\ud83d"}, "half a character"),
        ({"input": "a", "label": [42]}, "'label' must be text or a finite number; got list"),
        ({"input": "a", "label": {"x": 1}}, "got dict"),
        ({"input": "a", "label": True}, "got bool True"),
        ('{"input": "a", "label": NaN}', "finite number; got float nan"),
        ('{"input": "a"', "not JSON"),
        ("[1, 2]", "not an object but list"),
    ],
)
def test_each_kind_of_bad_row_has_its_reason(tmp_path, row, reason):
    source = lines(tmp_path / "rows.jsonl", {"input": "good", "label": "1"}, row)
    prompts = quietly(source)
    assert column(prompts, "prompt") == ["good"]
    (dropped,) = prompts.spec["dropped"]
    assert dropped["row"] == 2
    assert reason in dropped["reason"]


def test_all_bad_is_an_error_that_names_the_first_reasons(tmp_path):
    source = lines(tmp_path / "rows.jsonl", {"input": ""}, *[{"input": None}] * 6)
    with pytest.raises(DataError, match=r"row 1: .*got str ''; row 2: 'input' is null.*and 2 more"):
        load_prompts(source)
    with pytest.raises(DataError, match="it has no rows"):
        load_prompts(lines(tmp_path / "none.jsonl"))


def test_labels_that_mean_the_same_are_the_same(tmp_path):
    rows = [{"input": str(i), "label": v} for i, v in enumerate([42, "42", 42.0, 0.5, None, ""])]
    prompts = load_prompts(lines(tmp_path / "rows.jsonl", *rows))
    assert column(prompts, "label") == ["42", "42", "42", "0.5", None, None]


def test_a_label_key_that_no_row_has_is_an_error_and_one_that_some_lack_drops_them(tmp_path):
    source = lines(tmp_path / "rows.jsonl", {"input": "a", "y": 1}, {"input": "b"})
    assert [d["reason"] for d in quietly(source, label_key="y").spec["dropped"]] == [
        "'y' is missing"
    ]
    with pytest.raises(DataError, match=r"no row has the key 'answer'; keys: input, y"):
        load_prompts(source, label_key="answer")
    with pytest.raises(DataError, match="no row has the key 'text'"):
        load_prompts(source, input_key="text")


def test_rows_with_the_same_text_stay_two_prompts_with_stable_ids(tmp_path):
    rows = [{"input": "Q?", "label": 4}, {"input": "Q?", "label": 5}]
    one = load_prompts(lines(tmp_path / "a.jsonl", *rows))
    again = load_prompts(lines(tmp_path / "a.jsonl", *rows), input_template="{} Think.")
    other = load_prompts(lines(tmp_path / "a.jsonl", *rows[::-1]))
    assert len(set(column(one, "prompt_id"))) == 2
    assert column(one, "prompt_id") == column(again, "prompt_id")
    assert not set(column(one, "prompt_id")) & set(column(other, "prompt_id"))


def test_other_columns_become_metadata(tmp_path):
    source = lines(tmp_path / "a.jsonl", {"input": "a", "y": 3, "level": 2, "tags": ["x"]})
    (metadata,) = column(load_prompts(source, label_key="y"), "metadata")
    assert json.loads(metadata) == {"y": 3, "level": 2, "tags": ["x"]}


def test_a_column_called_label_that_is_not_the_label_stays(tmp_path):
    source = lines(tmp_path / "a.jsonl", {"input": "a", "answer": "1", "label": "algebra"})
    prompts = load_prompts(source, label_key="answer")
    assert column(prompts, "label") == ["1"]
    assert json.loads(column(prompts, "metadata")[0]) == {"answer": "1", "label": "algebra"}
    assert json.loads(column(load_prompts(source), "metadata")[0]) == {"answer": "1"}


def test_texts_and_messages_are_rendered_as_asked(tmp_path):
    text = lines(tmp_path / "text.jsonl", {"input": "7+5={}"})
    chat = lines(tmp_path / "chat.jsonl", {"messages": USER})
    assert column(load_prompts(text), "messages") == [None]
    (made,) = column(load_prompts(text, apply_chat_template=True), "messages")
    assert json.loads(made) == [{"role": "user", "content": "7+5={}"}]
    assert column(load_prompts(text, input_template="Q: {}\nA:"), "prompt") == ["Q: 7+5={}\nA:"]
    (given,) = column(load_prompts(chat), "messages")
    assert json.loads(given) == USER
    assert column(load_prompts(chat), "prompt") == ["What is 7+5?"]


def test_settings_that_cannot_work_are_refused(tmp_path):
    text = lines(tmp_path / "text.jsonl", {"input": "a"})
    chat = lines(tmp_path / "chat.jsonl", {"messages": USER})
    with pytest.raises(ConfigError, match=r"exactly one '{}'"):
        load_prompts(text, input_template="no place")
    with pytest.raises(ConfigError, match="pass one of them"):
        load_prompts(text, input_template="{}", apply_chat_template=True)
    with pytest.raises(ConfigError, match="max_samples must be a whole number >= 1; got 0"):
        load_prompts(text, max_samples=0)
    with pytest.raises(ConfigError, match="a file has no splits"):
        load_prompts(text, split="held_out")
    with pytest.raises(DataError, match="input_template is for texts"):
        load_prompts(chat, input_template="{}!")
