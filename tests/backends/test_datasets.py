"""Prompts from files, folders and generators; arithmetic; the cursor over epochs."""

import csv
import hashlib
import itertools
import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.backends.arithmetic import arithmetic_prompts, arithmetic_source, pairs
from nbrl.backends.datasets import load_prompts
from nbrl.backends.sources import prompts_source, prompts_table, seeded_order
from nbrl.errors import ConfigError, DataError, UnknownNameError
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
    with pytest.raises(ConfigError, match="max_samples must be >= 1; got 0"):
        load_prompts(text, max_samples=0)
    with pytest.raises(ConfigError, match="a file has no splits"):
        load_prompts(text, split="held_out")
    with pytest.raises(DataError, match="input_template is for texts"):
        load_prompts(chat, input_template="{}!")


def test_all_file_types_hold_the_same_rows(tmp_path):
    rows = [{"input": "2+2=", "label": "4"}, {"input": 'a,\n"b"', "label": "5"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["input", "label"])
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    lines(tmp_path / "a.jsonl", *rows)
    for ending in ("json", "csv", "parquet", "jsonl"):
        prompts = load_prompts(str(tmp_path / f"a.{ending}"))
        assert column(prompts, "prompt") == [r["input"] for r in rows], ending
        assert column(prompts, "label") == ["4", "5"], ending


def test_a_csv_row_of_another_width_is_bad(tmp_path):
    (tmp_path / "a.csv").write_text("input,label\na,1\nb\nc,3,4\nd,4\n")
    prompts = quietly(str(tmp_path / "a.csv"))
    assert column(prompts, "prompt") == ["a", "d"]
    assert [d["row"] for d in prompts.spec["dropped"]] == [3, 4]


def test_what_cannot_be_read_says_what_was_tried(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "a.json").write_text('{"input": "a"}')
    (tmp_path / "a.parquet").write_text("no")
    (tmp_path / "a.csv").write_bytes(b"input\n\xff\xfe\n")
    for name, message in [
        ("a.txt", r"cannot read .txt; known: .jsonl"),
        ("a.json", "must hold a list of objects; it holds dict"),
        ("a.parquet", "not a Parquet file"),
        ("a.csv", "cannot be read as CSV"),
        ("nowhere/at-all", "neither a file nor a folder"),
    ]:
        with pytest.raises(DataError, match=message):
            load_prompts(str(tmp_path / name))


def test_a_folder_gives_the_files_of_the_split(tmp_path):
    lines(tmp_path / "train-00000.jsonl", {"input": "a"}, {"input": ""})
    lines(tmp_path / "train-00001.jsonl", {"input": "b"})
    lines(tmp_path / "held_out.jsonl", {"input": "c"})
    train = quietly(str(tmp_path))
    assert column(train, "prompt") == ["a", "b"]
    assert [d["row"] for d in train.spec["dropped"]] == ["train-00000.jsonl:2"]
    assert column(load_prompts(str(tmp_path), split="held_out"), "prompt") == ["c"]
    with pytest.raises(DataError, match=r"no file of the split 'test'.*held_out.jsonl"):
        load_prompts(str(tmp_path), split="test")


def test_a_folder_saved_by_datasets_is_read(tmp_path):
    import datasets

    both = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_list([{"prompt": name, "label": 1}])
            for name in ("train", "test")
        }
    )
    both.save_to_disk(str(tmp_path / "saved"))
    prompts = load_prompts(str(tmp_path / "saved"), split="test")
    assert (column(prompts, "prompt"), column(prompts, "label")) == (["test"], ["1"])


@pytest.mark.slow
def test_reasoning_gym_tasks_come_by_name():
    one = load_prompts("reasoning-gym:basic_arithmetic", max_samples=5)
    again = load_prompts("reasoning-gym:basic_arithmetic", max_samples=5)
    other = load_prompts("reasoning-gym:basic_arithmetic", max_samples=5, split="held_out")
    assert one.table.equals(again.table)
    assert len(one) == 5
    assert column(one, "prompt") != column(other, "prompt")
    assert all(column(one, "label"))
    assert json.loads(column(one, "metadata")[0])["entry"]["source_dataset"] == "basic_arithmetic"
    with pytest.raises(UnknownNameError, match=r"reasoning-gym task 'sums'; known: .*leg_counting"):
        load_prompts("reasoning-gym:sums")


def test_arithmetic_depends_on_index_and_seed_only():
    whole = arithmetic_prompts(20, start=0, seed=3)
    part = arithmetic_prompts(8, start=12, seed=3)
    assert whole[12:].table.equals(part.table)
    assert column(whole, "prompt") != column(arithmetic_prompts(20, start=0, seed=4), "prompt")
    assert column(part, "prompt_id")[0] == "arithmetic-train-12"
    for text, label in zip(column(whole, "prompt"), column(whole, "label"), strict=True):
        a, b = text.rstrip("=").split("+")
        assert int(a) + int(b) == int(label)


def test_each_round_of_arithmetic_has_each_pair_once_and_no_held_out_one():
    train, held_out = (set(map(tuple, pairs(s).tolist())) for s in ("train", "held_out"))
    assert not train & held_out
    assert train | held_out == set(itertools.product(range(100), repeat=2))
    assert len(held_out) == 1250
    size = len(train)
    texts = column(arithmetic_prompts(2 * size, start=0, seed=0), "prompt")
    assert set(texts[:size]) == set(texts[size:]) == {f"{a}+{b}=" for a, b in train}
    assert texts[:size] != texts[size:]


def test_unknown_splits_and_counts_are_refused():
    with pytest.raises(UnknownNameError, match="split 'test'; known: held_out, train"):
        arithmetic_source(seed=0, split="test")
    with pytest.raises(ConfigError, match="k must be >= 1"):
        arithmetic_prompts(0, start=0, seed=0)
    with pytest.raises(ConfigError, match="cursor >= 0"):
        arithmetic_source(seed=0).take(4, -1)


def test_the_seeded_order_is_the_same_everywhere():
    # The order that sorts the first eight numbers of SplitMix64, by integers of Python.
    start, mixed = int.from_bytes(hashlib.sha256(b"nbrl").digest()[:8], "little"), []
    for i in range(1, 9):
        z = (start + i * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed.append(z ^ (z >> 31))
    wanted = sorted(range(8), key=mixed.__getitem__)
    assert seeded_order(8, "nbrl").tolist() == wanted == [7, 0, 4, 1, 5, 3, 6, 2]
    assert sorted(seeded_order(1000, "x").tolist()) == list(range(1000))
    firsts = np.array([seeded_order(10, f"{i}")[0] for i in range(2000)])
    counts = np.bincount(firsts, minlength=10)
    # 200 each are expected, with a standard deviation of 13.
    assert counts.min() > 140
    assert counts.max() < 260


def numbered(count: int) -> Prompts:
    rows = [{"prompt_id": f"row-{i}", "prompt": f"{i}", "metadata": "{}"} for i in range(count)]
    return Prompts(table=prompts_table(rows))


def test_a_source_walks_each_epoch_once_and_loses_no_leftover():
    source = prompts_source(numbered(10), seed=1)
    walked = [source.take(4, cursor) for cursor in range(0, 40, 4)]
    texts = [t for p in walked for t in column(p, "prompt")]
    epochs = [texts[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(e, key=int) == [str(i) for i in range(10)] for e in epochs)
    assert len({tuple(e) for e in epochs}) == 4
    assert column(source.take(3, 7), "prompt") == texts[7:10]


def test_a_prompt_that_comes_twice_in_one_draw_is_two_groups():
    source = prompts_source(numbered(5), seed=0)
    drawn = source.take(5, 3)
    ids = column(drawn, "prompt_id")
    assert len(set(ids)) == 5
    for prompt_id, text in zip(ids, column(drawn, "prompt"), strict=True):
        assert prompt_id in (f"row-{text}", f"row-{text}+1")
    assert any(
        i.endswith("+1") for c in range(1, 5) for i in column(source.take(5, c), "prompt_id")
    )


def test_more_than_there_is_cannot_be_drawn_at_once():
    source = prompts_source(numbered(3), seed=0, name="mine")
    with pytest.raises(ConfigError, match="4 prompts were asked for at once, 'mine' has 3"):
        source.take(4, 0)
    with pytest.raises(ConfigError, match="no prompts to draw from"):
        prompts_source(numbered(0), seed=0)


def test_fingerprints_tell_data_apart():
    one, same = prompts_source(numbered(3), seed=0), prompts_source(numbered(3), seed=1)
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != prompts_source(numbered(4), seed=0).fingerprint
    assert one.fingerprint != prompts_source(numbered(3)[::-1], seed=0).fingerprint
