"""Rows of every kind of source: all of them, or an error that says what was looked for."""

import csv
import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.backends.arithmetic import arithmetic_prompts
from nbrl.backends.datasets import load_prompts
from nbrl.errors import ConfigError, DataError, UnknownNameError
from tests.backends.test_datasets import column, lines, quietly


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('input,label\n"a"b,1\nc,2\n', "cannot be read as CSV after line"),
        ('input,label\n"a,1\nb,2\n', "cannot be read as CSV after line"),
        ("input,label,label\na,1,2\n", r"the header repeats \['label'\]"),
        ("input,,label\na,1,2\n", "has a column without a name"),
    ],
)
def test_a_csv_whose_cells_would_hide_one_another_is_an_error(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load_prompts(tmp_path / "a.csv")


def test_a_column_or_key_that_stands_twice_hides_nothing(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"input": "a", "input": "b"}\n{"input": "c"}\n')
    prompts = quietly(tmp_path / "a.jsonl")
    assert column(prompts, "prompt") == ["c"]
    assert "a key stands twice in ['input', 'input']" in prompts.spec["dropped"][0]["reason"]
    (tmp_path / "a.json").write_text('[{"input": "a", "input": "b"}]')
    with pytest.raises(DataError, match="a key stands twice"):
        load_prompts(tmp_path / "a.json")
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["input", "input"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"the header repeats \['input'\]"):
        load_prompts(tmp_path / "a.parquet")


def test_a_path_may_be_a_path_or_begin_at_home(tmp_path, monkeypatch):
    lines(tmp_path / "lr=0.1.jsonl", {"input": "a"})
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in (tmp_path / "lr=0.1.jsonl", "~/lr=0.1.jsonl"):
        assert column(load_prompts(source), "prompt") == ["a"]
    with pytest.raises(DataError, match=rf"no such file, looked for at {tmp_path}/x\.csv"):
        load_prompts("~/x.csv")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("nobody/has-this", r"switched off \(HF_HUB_OFFLINE\), and the cache .*nobody--has-this"),
        ("no such name", "the name is none of the hub's"),
        ("./nowhere", "not looked for there"),
        ("a/b/c", "not looked for there"),
        (" ", "source must be a non-empty text"),
    ],
)
def test_a_name_that_leads_nowhere_is_told_at_once(source, why, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    start = time.monotonic()
    with pytest.raises((DataError, ConfigError), match=why):
        load_prompts(source)
    assert time.monotonic() - start < 10


def test_arithmetic_takes_the_options_of_other_data():
    plain = load_prompts("arithmetic", max_samples=3, split="held_out")
    assert plain.table.equals(arithmetic_prompts(3, start=0, seed=0, split="held_out").table)
    texts = column(plain, "prompt")
    asked = load_prompts(
        "arithmetic", max_samples=3, split="held_out", input_template="What is {}?"
    )
    assert column(asked, "prompt") == [f"What is {t}?" for t in texts]
    assert column(asked, "label") == column(plain, "label")
    chat = load_prompts("arithmetic", max_samples=1, split="held_out", apply_chat_template=True)
    assert json.loads(column(chat, "messages")[0]) == [{"role": "user", "content": texts[0]}]
    with pytest.raises(DataError, match="no row has the key 'question'; keys: prompt, label"):
        load_prompts("arithmetic", input_key="question")
    with pytest.raises(UnknownNameError, match="split 'test'; known: held_out, train"):
        load_prompts("arithmetic", split="test")


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
    with pytest.raises(UnknownNameError, match="'trian'; known: held_out, test, train, validation"):
        load_prompts("reasoning-gym:basic_arithmetic", split="trian")
