"""Saving and loading: lossless, whole or not at all."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from nbrl.errors import DataError, NbrlError, StoreError
from nbrl.types import Prompts, Rollouts, Scored, load, storage
from tests.values import chains, make_chain, make_prompts, make_rollouts, make_scored


def assert_same(a, b) -> None:
    """Equal type, columns, bits (NaN included) and spec, link by link."""
    assert type(a) is type(b)
    for (link, (table, spec)), (other_link, (other, other_spec)) in zip(
        a.links().items(), b.links().items(), strict=True
    ):
        assert link == other_link
        assert table.schema.equals(other.schema)
        for name in table.column_names:
            assert same_column(table.column(name), other.column(name)), (link, name)
        assert spec == other_spec


def same_column(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    """Equal values and nulls; NaN equals NaN, and 0.0 does not equal -0.0."""
    return repr(a.to_pylist()) == repr(b.to_pylist())


@given(chain=chains())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_link_comes_back_as_it_was_saved(chain, tmp_path):
    rollouts = chain.scored.rollouts
    for name, value in (
        ("prompts", rollouts.prompts),
        ("rollouts", rollouts),
        ("scored", chain.scored),
        ("advantaged", chain),
    ):
        value.save(tmp_path / name)
        assert_same(load(tmp_path / name), value)


def test_bits_of_odd_floats_survive(tmp_path):
    odd = [float("nan"), float("inf"), -0.0, 1e-45, None]
    column = pa.array([odd], pa.list_(pa.float32()))
    rollouts = make_rollouts(make_prompts(1), [4], {"old_logprobs": column})
    rollouts.save(tmp_path / "value")
    back = load(tmp_path / "value").table.column("old_logprobs")[0].as_py()
    assert math.isnan(back[0])
    assert back[1] == math.inf
    assert math.copysign(1, back[2]) == -1
    assert back[3] == np.float32(1e-45)
    assert back[4] is None


def test_a_folder_name_with_an_equals_sign_adds_no_column(tmp_path):
    prompts = make_prompts(2)
    prompts.save(tmp_path / "lr=0.1" / "value")
    assert load(tmp_path / "lr=0.1" / "value").table.column_names == prompts.table.column_names


def test_tuples_of_a_spec_come_back_as_lists(tmp_path):
    make_prompts(1, betas=(0.9, 0.95)).save(tmp_path / "value")
    assert load(tmp_path / "value").spec == {"betas": [0.9, 0.95]}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"fn": print}, "prompts.spec['fn'] is a builtin_function_or_method"),
        ({"a": [{"b": {1}}]}, "prompts.spec['a'][0]['b'] is a set"),
        ({"a": {3: 4}}, "prompts.spec['a'] has the key 3"),
    ],
)
def test_a_spec_that_is_not_plain_data_is_refused_by_place(tmp_path, spec, named):
    with pytest.raises(DataError) as raised:
        Prompts(table=make_prompts(1).table, spec=spec).save(tmp_path / "value")
    assert named in str(raised.value)
    assert not (tmp_path / "value").exists()


def test_saving_again_replaces_the_value_and_its_files(tmp_path):
    make_chain(3).save(tmp_path / "value")
    make_prompts(1).save(tmp_path / "value")
    back = load(tmp_path / "value")
    assert type(back) is Prompts
    assert len(back) == 1
    assert len(list((tmp_path / "value").iterdir())) == 2


def test_a_foreign_folder_or_file_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        make_prompts(1).save(tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        make_prompts(1).save(tmp_path / "file")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"
    assert (tmp_path / "file").read_text() == "x"


def test_an_empty_folder_may_be_saved_to(tmp_path):
    make_prompts(1).save(tmp_path)
    assert len(load(tmp_path)) == 1


def full_disk(monkeypatch, after: int) -> None:
    """Make the disk full after this many flushed files."""
    flushed = []
    flush = storage._to_disk

    def failing(file) -> None:
        flushed.append(file)
        if len(flushed) > after:
            raise OSError(28, "No space left on device")
        flush(file)

    monkeypatch.setattr(storage, "_to_disk", failing)


@pytest.mark.parametrize("after", range(5))
def test_a_full_disk_leaves_the_old_value(tmp_path, monkeypatch, after):
    make_prompts(3).save(tmp_path / "value")
    before = sorted((tmp_path / "value").iterdir())
    full_disk(monkeypatch, after)
    with pytest.raises(StoreError, match="No space left"):
        make_chain(2).save(tmp_path / "value")
    assert_same(load(tmp_path / "value"), make_prompts(3))
    assert sorted((tmp_path / "value").iterdir()) == before


@pytest.mark.parametrize("after", range(5))
def test_a_full_disk_leaves_no_half_value(tmp_path, monkeypatch, after):
    full_disk(monkeypatch, after)
    with pytest.raises(StoreError, match="No space left"):
        make_chain(2).save(tmp_path / "value")
    assert not (tmp_path / "value").exists()


KILLED = """
import sys
sys.path.insert(0, {root!r})
from tests.values import make_prompts
size = 0
while True:
    size = size % 5 + 1
    make_prompts(size * 100, size=size).save({path!r})
    print(size, flush=True)
"""


@pytest.mark.slow
def test_a_process_killed_while_saving_leaves_a_whole_value(tmp_path):
    path = tmp_path / "value"
    root = str(Path(__file__).parents[2])
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(root=root, path=str(path))],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    for _ in range(20):
        os.kill(writer.pid, signal.SIGSTOP)
        stopped_at = load(path)
        assert len(stopped_at) == 100 * stopped_at.spec["size"]
        os.kill(writer.pid, signal.SIGCONT)
        time.sleep(0.013)
    writer.kill()
    writer.communicate()
    value = load(path)
    assert len(value) == 100 * value.spec["size"]
    make_prompts(1).save(path)
    assert len(list(path.iterdir())) == 2


def test_a_first_save_cut_short_is_no_value_and_may_be_repeated(tmp_path):
    make_chain().save(tmp_path / "value")
    (tmp_path / "value" / storage.MANIFEST).unlink()
    with pytest.raises(DataError, match="holds no saved nbrl value"):
        load(tmp_path / "value")
    make_prompts(1).save(tmp_path / "value")
    assert len(list((tmp_path / "value").iterdir())) == 2


def test_what_cannot_be_loaded_says_why(tmp_path):
    with pytest.raises(DataError, match="holds no saved nbrl value"):
        load(tmp_path / "nothing")
    path = tmp_path / "value"
    make_scored(make_rollouts(make_prompts(1), [1]), [1.0]).save(path)
    manifest = json.loads((path / storage.MANIFEST).read_text())

    (path / storage.MANIFEST).write_text(json.dumps(manifest | {"nbrl": 99}))
    with pytest.raises(DataError, match=r"schema 99.*up to 1.*Upgrade"):
        load(path)
    (path / storage.MANIFEST).write_text("{")
    with pytest.raises(DataError, match="not an nbrl manifest"):
        load(path)
    (path / storage.MANIFEST).write_text(json.dumps(manifest))
    assert type(load(path)) is Scored
    file = path / manifest["links"][1]["file"]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"rollouts-.*damaged"):
        load(path)


CHAIN = ("prompts", "rollouts", "scored")


def broken(manifest: dict, change: str):
    """The manifest with one thing wrong."""
    whole = json.loads(json.dumps(manifest))
    first, last = whole["links"][0], whole["links"][-1]
    forms = {
        "a list": [whole],
        "text": "manifest",
        "null": None,
        "no schema": {"links": whole["links"]},
        "schema true": whole | {"nbrl": True},
        "schema text": whole | {"nbrl": "1"},
        "schema 0": whole | {"nbrl": 0},
        "no links": {"nbrl": 1},
        "links empty": whole | {"links": []},
        "links an object": whole | {"links": {"a": 1}},
        "a link of text": whole | {"links": ["prompts"]},
        "no file": whole | {"links": [{"name": "prompts", "spec": {}}]},
        "file a number": whole | {"links": [first | {"file": 3}]},
        "file elsewhere": whole | {"links": [first | {"file": "../prompts-00000000.parquet"}]},
        "unknown name": whole | {"links": [first | {"name": "answers"}]},
        "spec a list": whole | {"links": [first | {"spec": []}]},
        "no parents": whole | {"links": [last]},
        "parents swapped": whole | {"links": whole["links"][::-1]},
        "a link left out": whole | {"links": [first, last]},
        "columns of another": whole | {"links": [first | {"file": last["file"]}]},
    }
    return forms[change]


CHANGES = (
    "a list", "text", "null", "no schema", "schema true", "schema text", "schema 0", "no links",
    "links empty", "links an object", "a link of text", "no file", "file a number",
    "file elsewhere", "unknown name", "spec a list", "no parents", "parents swapped",
    "a link left out", "columns of another",
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_each_damaged_form_of_a_manifest_is_an_error_of_ours(tmp_path, change):
    make_scored(make_rollouts(make_prompts(1), [1]), [1.0]).save(tmp_path)
    file = tmp_path / storage.MANIFEST
    manifest = json.loads(file.read_text())
    assert tuple(link["name"] for link in manifest["links"]) == CHAIN
    file.write_text(json.dumps(broken(manifest, change)))
    with pytest.raises(DataError, match=r"damaged|Columns given"):
        load(tmp_path)


def test_a_manifest_that_is_no_text_is_an_error_of_ours(tmp_path):
    make_prompts(1).save(tmp_path)
    (tmp_path / storage.MANIFEST).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not an nbrl manifest"):
        load(tmp_path)
    with pytest.raises(DataError, match=r"got ''\. Pass the folder's path"):
        load("")


def test_other_tools_can_read_the_files(tmp_path):
    rollouts = make_rollouts(make_prompts(2), [1, 3])
    rollouts.save(tmp_path / "value")
    (file,) = (tmp_path / "value").glob("rollouts-*.parquet")
    assert pq.read_table(file).column("token_ids").to_pylist() == [[7, 0], [7, 0, 1, 2]]
    assert type(load(tmp_path / "value")) is Rollouts


def test_store_errors_are_errors_of_ours():
    assert issubclass(StoreError, NbrlError)
    assert issubclass(StoreError, OSError)
