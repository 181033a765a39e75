"""Rows of every common shape to examples; bad ones counted and named, the caller's untouched."""

import copy
import json

import pytest

import nbrl
from nbrl.errors import ConfigError, DataError

USER = {"role": "user", "content": "7+5="}
RIGHT = {"role": "assistant", "content": "12"}
WRONG = {"role": "assistant", "content": "13"}


def columns(examples, *names):
    table = examples.table
    return [tuple(row[n] for n in names) for row in table.to_pylist()]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"prompt": "7+5=", "response": "12"}, ("7+5=", "12", None)),
        ({"question": "7+5=", "answer": "12"}, ("7+5=", "12", None)),
        ({"text": "to learn whole"}, (None, "to learn whole", None)),
        ({"messages": [USER, RIGHT]}, ("7+5=", "12", [USER, RIGHT])),
        ({"messages": [USER], "response": "12"}, None),
        (
            {"conversations": [{"from": "human", "value": "7+5="}, {"from": "gpt", "value": "12"}]},
            ("7+5=", "12", [USER, RIGHT]),
        ),
        ({"messages": [{**USER, "tool_calls": None}, RIGHT]}, ("7+5=", "12", [USER, RIGHT])),
    ],
)
def test_conversations_come_in_many_shapes(row, wanted):
    if wanted is None:
        with pytest.raises(DataError, match="ends with a message of 'user'"):
            nbrl.load_conversations([row])
        examples = nbrl.load_conversations([row], output_key="response")
        wanted = ("7+5=", "12", [USER, RIGHT])
    else:
        examples = nbrl.load_conversations([row])
    ((prompt, response, messages),) = columns(examples, "prompt", "response", "messages")
    assert (prompt, response, messages and json.loads(messages)) == wanted


def test_texts_become_messages_where_a_template_is_wanted():
    examples = nbrl.load_conversations(
        [{"prompt": "7+5=", "response": "12"}], apply_chat_template=True
    )
    assert json.loads(examples[0]["messages"]) == [USER, RIGHT]


def test_each_row_has_a_shape_of_its_own():
    rows = [
        {"prompt": "7+5=", "response": "12"},
        {"prompt": [USER, RIGHT], "response": None},
        {"prompt": [USER, RIGHT], "response": "a label"},
        {"prompt": "7+5="},
    ]
    with pytest.warns(UserWarning, match="1 of 4 rows.*row 4: 'response' is missing"):
        examples = nbrl.load_conversations(rows)
    assert columns(examples, "response") == [("12",)] * 3


@pytest.mark.parametrize(
    ("row", "chat"),
    [
        ({"prompt": "7+5=", "chosen": "12", "rejected": "13"}, False),
        ({"prompt": [USER], "chosen": [RIGHT], "rejected": [WRONG]}, True),
        ({"prompt": [USER], "chosen": "12", "rejected": "13"}, True),
        ({"prompt": "7+5=", "chosen": [RIGHT], "rejected": [WRONG]}, True),
        ({"chosen": [USER, RIGHT], "rejected": [USER, WRONG]}, True),
        ({"prompt": "7+5=", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]}, True),
    ],
)
def test_pairs_come_in_many_shapes(row, chat):
    (pair,) = nbrl.load_pairs([{**row, "margin": 2}]).table.to_pylist()
    assert (pair["chosen"], pair["rejected"], pair["margin"]) == ("12", "13", 2.0)
    if chat:
        assert json.loads(pair["chosen_messages"]) == [USER, RIGHT]
        assert json.loads(pair["rejected_messages"]) == [USER, WRONG]
    else:
        assert pair["chosen_messages"] is None
        assert pair["prompt"] == "7+5="


@pytest.mark.parametrize(
    ("load", "row", "wanted"),
    [
        (nbrl.load_conversations, {"prompt": "7+5", "response": "12"}, "User: 7+5\n"),
        (nbrl.load_pairs, {"prompt": "7+5", "chosen": "12", "rejected": "1"}, "User: 7+5\n"),
        (nbrl.load_labelled, {"prompt": "7+5", "response": "12", "label": 1}, "User: 7+5\n"),
        (nbrl.load_steps, {"prompt": "7+5", "steps": ["a"], "labels": [1]}, "User: 7+5\n"),
    ],
)
def test_a_template_stands_around_prompts_as_in_load_prompts(load, row, wanted, tmp_path):
    template = "User: {}\n"
    chat = {**row, "prompt": [USER]}
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        examples = load([row, chat], input_template=template)
    assert columns(examples, "prompt") == [(wanted,)]
    path = write(tmp_path / "a.jsonl", [row])
    assert columns(nbrl.load_prompts(path, input_template=template), "prompt") == [(wanted,)]
    with pytest.raises(ConfigError, match=r"exactly one '{}'"):
        load([row], input_template="User:")
    lonely = {k: v for k, v in row.items() if k != "prompt"} | {"text": "learn me", "input": None}
    with pytest.raises(DataError, match="no row is one of"):
        load([lonely], input_template=template)


def test_a_template_and_messages_do_not_go_together():
    row = {"prompt": "7+5", "response": "12"}
    with pytest.raises(ConfigError, match="both render the prompt"):
        nbrl.load_conversations([row], input_template="{}", apply_chat_template=True)
    with pytest.raises(DataError, match="is for a prompt that is text"):
        nbrl.load_conversations([{"messages": [USER, RIGHT]}], input_template="a{}")
    with pytest.raises(DataError, match="is for a prompt that is text"):
        nbrl.load_conversations([{"text": "to learn whole"}], input_template="a{}")
    with pytest.raises(DataError, match="is for a prompt that is text"):
        nbrl.load_pairs([{"chosen": "a", "rejected": "b"}], input_template="a{}")


def test_a_picture_without_the_picture_is_not_learned_from():
    parts = [{"type": "image"}, {"type": "text", "text": "how many?"}]
    shown = {"messages": [{"role": "user", "content": parts}, RIGHT]}
    told = {"messages": [{"role": "user", "content": parts[1:]}, RIGHT]}
    with pytest.warns(UserWarning, match=r"row 1: 'messages' holds 'image' in a message"):
        examples = nbrl.load_conversations([shown, told])
    assert columns(examples, "prompt") == [("how many?",)]


def test_labels_are_true_or_false():
    rows = [{"prompt": "7+5=", "response": "12", "label": x} for x in (True, 0, 1.0, "yes", 2)]
    with pytest.warns(UserWarning, match=r"2 of 5 rows.*row 4: 'label' must be true, false"):
        examples = nbrl.load_labelled(rows)
    assert columns(examples, "desirable") == [(True,), (False,), (True,)]
    assert [d["row"] for d in examples.spec["dropped"]] == [4, 5]


def test_steps_are_a_list_or_a_text_with_placeholders():
    rows = [
        {"prompt": "q", "steps": ["a", "b"], "labels": [1, 0.5]},
        {"prompt": "q", "steps": "a\nb\n", "labels": ["+", "-"]},
        {"prompt": "q", "steps": "a\nb", "labels": [True, False]},
    ]
    examples = nbrl.load_steps(rows)
    assert columns(examples, "steps", "labels") == [
        (["a", "b"], [1.0, 0.5]),
        (["a", "b"], [1.0, 0.0]),
        (["a", "b"], [1.0, 0.0]),
    ]
    with pytest.raises(DataError, match="2 steps and 1 labels"):
        nbrl.load_steps([{"steps": ["a", "b"], "labels": [1]}])


def test_b67_bad_rows_are_counted_and_named_and_the_good_one_stays():
    rows = [
        {"messages": [USER, RIGHT]},
        {"other": 1},
        {"messages": []},
        {"messages": [USER, {"role": "assistant", "content": None}]},
    ]
    with pytest.warns(UserWarning, match="3 of 4 rows were left out"):
        examples = nbrl.load_conversations(rows)
    assert len(examples) == 1
    assert examples.spec["dropped"] == [
        {"row": 2, "reason": "'messages' is missing"},
        {"row": 3, "reason": "'messages' is an empty list"},
        {
            "row": 4,
            "reason": "'messages' holds a message without role and content: "
            "dict {'role': 'assistant', 'content': None}",
        },
    ]
    with pytest.raises(DataError, match=r"no row is one of conversations.*row 1: 'messages' is an"):
        nbrl.load_conversations(rows[2:])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": None}, "'rejected' is null"),
        ({"prompt": "q", "chosen": "a", "rejected": " "}, "'rejected' is empty"),
        ({"prompt": "q", "chosen": ["a"], "rejected": "b"}, "which is no message"),
        ({"prompt": "q", "chosen": [USER], "rejected": [WRONG]}, "ends with a message of 'user'"),
        (
            {"prompt": "q", "chosen": "a", "rejected": "b", "margin": "x"},
            "'margin' must be a finite",
        ),
        ({"prompt": "q", "chosen": "a", "rejected": "\ud800"}, "half a character"),
        ({"prompt": 3, "chosen": "a", "rejected": "b"}, "'prompt' must be text; got int 3"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "seen": {1}}, "what JSON cannot"),
    ],
)
def test_each_bad_pair_says_why(row, reason):
    with pytest.raises(DataError, match=reason):
        nbrl.load_pairs([row])


def test_the_callers_rows_are_as_they_were():
    rows = [{"messages": [dict(USER), dict(RIGHT)], "source": "x"}, {"messages": []}]
    before = copy.deepcopy(rows)
    with pytest.warns(UserWarning, match="1 of 2"):
        examples = nbrl.load_conversations(rows, apply_chat_template=True)
    assert rows == before
    assert json.loads(examples[0]["metadata"]) == {"source": "x"}


def test_files_follow_each_other_and_ids_stay_apart(tmp_path):
    one = write(tmp_path / "one.jsonl", [{"prompt": "a", "response": "b"}] * 2)
    two = write(tmp_path / "two.jsonl", [{"prompt": "c", "response": "d"}])
    both = nbrl.load_conversations([one, two])
    assert [p for (p,) in columns(both, "prompt")] == ["a", "a", "c"]
    assert len(set(both.table.column("example_id").to_pylist())) == 3
    assert len(nbrl.load_conversations([one, two], max_samples=2)) == 2


def test_sources_are_mixed_by_probability_until_all_are_used_up(tmp_path):
    many = write(tmp_path / "many.jsonl", [{"prompt": f"m{i}", "response": "x"} for i in range(60)])
    few = write(tmp_path / "few.jsonl", [{"prompt": f"f{i}", "response": "x"} for i in range(5)])
    mixed = nbrl.load_conversations({many: 0.5, few: 0.5}, seed=1)
    prompts = [p for (p,) in columns(mixed, "prompt")]
    assert {p for p in prompts if p[0] == "m"} == {f"m{i}" for i in range(60)}
    share = sum(p[0] == "f" for p in prompts) / len(prompts)
    assert 0.35 < share < 0.65
    assert len(set(mixed.table.column("example_id").to_pylist())) == len(mixed)
    again = nbrl.load_conversations({many: 0.5, few: 0.5}, seed=1)
    assert again.table.equals(mixed.table)
    other = nbrl.load_conversations({many: 0.5, few: 0.5}, seed=2)
    assert [p for (p,) in columns(other, "prompt")] != prompts


def test_what_cannot_be_mixed_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": "x"}])
    with pytest.raises(ConfigError, match="add up to 1"):
        nbrl.load_conversations({path: 0.5})
    with pytest.raises(ConfigError, match="max_samples"):
        nbrl.load_conversations(path, max_samples=0)
    with pytest.raises(DataError, match="no row has one of the keys"):
        nbrl.load_conversations([{"q": "x"}])


def test_a_saved_data_set_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": "7+5=", "chosen": "12", "rejected": "13"}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    (pair,) = nbrl.load_pairs(str(tmp_path / "saved")).table.to_pylist()
    assert pair["chosen"] == "12"
