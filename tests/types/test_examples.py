"""Training data as values: columns by kind, rows by id, saved as they are."""

import pyarrow as pa
import pytest

import nbrl
from nbrl.errors import DataError, UnknownNameError
from nbrl.types import KINDS, Examples
from nbrl.types.columns import list_column

ROWS = {
    "conversations": {"prompt": "7+5=", "response": "12", "messages": None},
    "pairs": {
        "prompt": "7+5=",
        "chosen": "12",
        "rejected": "13",
        "chosen_messages": None,
        "rejected_messages": None,
        "margin": 0.5,
    },
    "labelled": {"prompt": "7+5=", "response": "12", "messages": None, "desirable": True},
    "steps": {"prompt": "7+5=", "steps": ["7+3=10", "10+2=12"], "labels": [1.0, 0.25]},
}


def make(kind, count=3, **spec):
    rows = [{"example_id": f"e{i}", **ROWS[kind], "metadata": "{}"} for i in range(count)]
    return Examples(
        kind=kind, table=pa.Table.from_pylist(rows, schema=KINDS[kind].columns), spec=spec
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_by_place_by_id_and_by_predicate(kind):
    examples = make(kind)
    assert examples[-1] == {"example_id": "e2", **ROWS[kind], "metadata": "{}"}
    assert examples[1:].table.column("example_id").to_pylist() == ["e1", "e2"]
    assert examples.select(["e2", "e0"]).table.column("example_id").to_pylist() == ["e2", "e0"]
    assert len(examples.filter(lambda row: row["example_id"] != "e1")) == 2
    with pytest.raises(IndexError):
        examples[3]
    with pytest.raises(DataError, match="unknown ids"):
        examples.select(["e9"])


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_is_the_same(kind, tmp_path):
    examples = make(kind, source="here", dropped=[{"row": 4, "reason": "none"}])
    column = list_column([[1, 2], [3], []], pa.int32())
    examples = examples.with_columns({f"{side}token_ids": column for side in examples.sides})
    examples.save(tmp_path / kind)
    back = nbrl.load(tmp_path / kind)
    assert isinstance(back, Examples)
    assert back.kind == kind
    assert back.table.equals(examples.table)
    assert back.spec == examples.spec
    assert back.is_tokenized


def test_what_it_is_stands_in_one_line():
    assert repr(make("pairs", 1)) == "Examples(1 pair)"
    dropped = make("conversations", dropped=[{"row": 2, "reason": "none"}])
    assert repr(dropped) == "Examples(3 conversations, 1 row left out)"


def test_what_is_no_example_is_refused():
    pairs = make("pairs")
    with pytest.raises(UnknownNameError, match="conversations, labelled, pairs, steps"):
        Examples(kind="triples", table=pairs.table)
    with pytest.raises(DataError, match="missing column 'desirable'"):
        Examples(kind="labelled", table=pairs.table)
    with pytest.raises(DataError, match="example_id must be unique"):
        Examples(kind="pairs", table=pa.concat_tables([pairs.table, pairs.table]))
    with pytest.raises(DataError, match="chosen needs a value in every row"):
        pairs.with_columns({"chosen": pa.array([None, "a", "b"], pa.string())})
