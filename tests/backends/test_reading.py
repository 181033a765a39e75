"""Rows of data sets, whole, as a stream, cut and mixed; and what cannot be read that way."""

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nbrl
from nbrl.errors import ConfigError, DataError


def rows(count, name="q"):
    return [{"prompt": f"{name}{i}", "response": "a"} for i in range(count)]


@pytest.fixture
def repository(tmp_path):
    """Laid out as on the hub: two shards, of which the second is broken."""
    folder = tmp_path / "repository"
    (folder / "data").mkdir(parents=True)
    shards = [folder / "data" / f"train-0000{i}-of-00002.parquet" for i in range(2)]
    pq.write_table(pa.Table.from_pylist(rows(4)), shards[0])
    shards[1].write_bytes(b"PAR1 and no more")
    return folder


def prompts_of(examples):
    return examples.table.column("prompt").to_pylist()


def test_a_stream_fetches_no_more_than_what_is_taken(repository):
    taken = nbrl.load_conversations(repository, max_samples=3, streaming=True)
    assert prompts_of(taken) == ["q0", "q1", "q2"]
    again = nbrl.load_conversations(str(repository), max_samples=2, streaming=True)
    assert again.table.equals(taken.table.slice(0, 2))
    with pytest.raises(DataError, match="datasets cannot load it"):
        nbrl.load_conversations(repository, max_samples=3)
    with pytest.raises(DataError, match="behind row 4"):
        nbrl.load_conversations(repository, max_samples=5, streaming=True)


def test_a_saved_set_gives_the_same_rows_and_ids_as_a_stream(tmp_path):
    saved = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(rows(5)), "test": datasets.Dataset.from_list(rows(2))}
    )
    saved.save_to_disk(tmp_path / "saved")
    whole = nbrl.load_conversations(tmp_path / "saved", max_samples=4)
    stream = nbrl.load_conversations(tmp_path / "saved", max_samples=4, streaming=True)
    assert stream.table.equals(whole.table)
    assert len(nbrl.load_conversations(tmp_path / "saved", split="test")) == 2
    with pytest.raises(DataError, match="with split 'dev'"):
        nbrl.load_conversations(tmp_path / "saved", split="dev")
    saved["train"].save_to_disk(tmp_path / "one")
    with pytest.raises(ConfigError, match="has no splits"):
        nbrl.load_conversations(tmp_path / "one", split="test")


def test_a_mixture_that_is_cut_begins_as_the_whole_one(tmp_path):
    for name, count in (("many", 40), ("few", 3)):
        datasets.Dataset.from_list(rows(count, name[0])).save_to_disk(tmp_path / name)
    shares = {str(tmp_path / "many"): 0.7, str(tmp_path / "few"): 0.3}
    whole = nbrl.load_conversations(shares, seed=5)
    for streaming in (False, True):
        cut = nbrl.load_conversations(shares, seed=5, max_samples=12, streaming=streaming)
        assert prompts_of(cut) == prompts_of(whole)[:12]
    # the small one comes again, with ids of its own
    assert prompts_of(whole).count("f0") > 1
    assert len(set(whole.table.column("example_id").to_pylist())) == len(whole)


@pytest.mark.parametrize(
    ("load", "row"),
    [
        (nbrl.load_pairs, {"chosen": "a", "rejected": "b"}),
        (nbrl.load_labelled, {"response": "a", "label": 1}),
        (nbrl.load_steps, {"steps": ["a"], "labels": [1]}),
    ],
)
def test_every_kind_is_streamed_and_mixed(load, row, tmp_path):
    shares = {}
    for name in "ab":
        made = [{"prompt": f"{name}{i}", **row} for i in range(6)]
        datasets.Dataset.from_list(made).save_to_disk(tmp_path / name)
        shares[str(tmp_path / name)] = 0.5
    mixed = load(shares, max_samples=8, seed=3, streaming=True)
    assert {p[0] for p in prompts_of(mixed)} == {"a", "b"}
    assert prompts_of(load(shares, max_samples=8, seed=4)) != prompts_of(mixed)


def test_part_of_a_repository_is_named_behind_an_at(tmp_path):
    folder = tmp_path / "repository"
    for part in ("main", "socratic", "extra"):
        (folder / part).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows(2, part[0])), folder / part / "train.parquet")
    card = "---\nconfigs:\n- config_name: main\n  data_files: main/*\n- config_name: socratic\n"
    (folder / "README.md").write_text(f"{card}  data_files: socratic/*\n---\n")
    with pytest.raises(DataError, match=r"(?i)config name is missing"):
        nbrl.load_conversations(folder)
    assert prompts_of(nbrl.load_conversations(f"{folder}@main")) == ["m0", "m1"]
    stream = nbrl.load_conversations(f"{folder}@socratic", max_samples=1, streaming=True)
    assert prompts_of(stream) == ["s0"]
    # two configurations, and a mixture of them
    shares = {f"{folder}@main": 0.5, f"{folder}@socratic": 0.5}
    assert {p[0] for p in prompts_of(nbrl.load_conversations(shares))} == {"m", "s"}


def test_a_folder_of_a_repository_is_named_behind_an_at(tmp_path):
    for part in ("main", "extra"):
        (tmp_path / "all" / part).mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(rows(2, part[0])), tmp_path / "all" / part / "a.parquet"
        )
    assert prompts_of(nbrl.load_conversations(f"{tmp_path}/all@extra")) == ["e0", "e1"]
    with pytest.raises(DataError, match="datasets cannot load it"):
        nbrl.load_conversations(f"{tmp_path}/all@neither")
    datasets.Dataset.from_list(rows(1)).save_to_disk(tmp_path / "saved")
    with pytest.raises(ConfigError, match="no parts but its splits"):
        nbrl.load_conversations(f"{tmp_path}/saved@main")
    with pytest.raises(DataError, match="nowhere"):
        nbrl.load_conversations(f"{tmp_path}/nowhere@main")


def test_arrow_files_are_read_in_both_forms(tmp_path):
    saved = datasets.Dataset.from_list(rows(5))
    saved.save_to_disk(tmp_path / "saved")
    (stream,) = (tmp_path / "saved").glob("*.arrow")
    table = pa.Table.from_pylist(rows(5))
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=2)
    for path in (stream, tmp_path / "a.arrow"):
        assert prompts_of(nbrl.load_conversations(path)) == [f"q{i}" for i in range(5)]
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1 and no more")
    with pytest.raises(DataError, match="is not an Arrow file"):
        nbrl.load_conversations(tmp_path / "broken.arrow")


def test_all_that_is_wrong_about_a_reading_is_named_at_once(repository):
    with pytest.raises(ConfigError) as error:
        nbrl.load_pairs({"a": 0.5, "b": 0.2}, max_samples=0, seed=-1, split=" ")
    said = str(error.value)
    assert said.startswith("load_pairs: 4 problems")
    for part in ("max_samples", "seed", "split", "add up to 1"):
        assert part in said
    with pytest.raises(ConfigError, match="streaming=True needs max_samples"):
        nbrl.load_conversations(repository, streaming=True)
    with pytest.raises(ConfigError, match="no effect on rows at hand"):
        nbrl.load_conversations(rows(2), max_samples=1, streaming=True)
    with pytest.raises(ConfigError, match="mixes names and rows"):
        nbrl.load_conversations(["a.jsonl", {"text": "x"}])


def test_a_parquet_file_is_read_as_far_as_it_is_needed(tmp_path):
    table = pa.Table.from_pylist(rows(9))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    assert prompts_of(nbrl.load_conversations(tmp_path / "a.parquet")) == [
        f"q{i}" for i in range(9)
    ]
    assert len(nbrl.load_conversations(tmp_path / "a.parquet", max_samples=4)) == 4
