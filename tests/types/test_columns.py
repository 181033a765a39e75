"""Ragged columns and their flat form."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.types import columns

ROWS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4), max_size=5)


@given(rows=ROWS, start=st.integers(0, 5), stop=st.integers(0, 5))
def test_ragged_of_a_sliced_column_starts_at_zero(rows, start, stop):
    column = pa.chunked_array([pa.array(rows, pa.list_(pa.int32()))]).slice(start, stop)
    flat, offsets = columns.ragged(column)
    assert offsets[0] == 0
    back = [flat[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert back == rows[start : start + stop]


@given(rows=ROWS)
def test_ragged_column_is_the_inverse_of_ragged(rows):
    column = columns.list_column(rows, pa.int32())
    assert column.to_pylist() == rows
    again = columns.ragged_column(*columns.ragged(pa.chunked_array([column])), pa.int32())
    assert again.equals(column)


@pytest.mark.parametrize(
    ("rows", "value_type"),
    [
        ([[], [True, False]], pa.bool_()),
        ([[2**53 + 1], []], pa.int64()),
        ([[], []], pa.int8()),
        ([], pa.float32()),
    ],
)
def test_empty_rows_do_not_change_the_others(rows, value_type):
    column = columns.list_column(rows, value_type)
    assert column.type == pa.list_(value_type)
    assert column.to_pylist() == rows


@given(rows=ROWS)
def test_row_sums_are_those_of_each_row(rows):
    flat, offsets = columns.ragged(columns.list_column(rows, pa.int32()))
    assert columns.row_sums(flat, offsets).tolist() == [sum(row) for row in rows]
    assert columns.row_sums(flat > 0, offsets).tolist() == [sum(x > 0 for x in r) for r in rows]
    assert columns.row_sums(flat / 4, offsets).tolist() == [sum(row) / 4 for row in rows]


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        columns.list_column([[2**40]], pa.int32())
    with pytest.raises(pa.ArrowInvalid):
        columns.list_column([np.array([1.5])], pa.int32())


def test_chunks_are_no_part_of_the_value():
    rows = [[1, 2], [], [3]]
    one = pa.chunked_array([pa.array(rows, pa.list_(pa.int32()))])
    many = pa.chunked_array([one.chunk(0).slice(0, 1), one.chunk(0).slice(1)])
    for a, b in zip(columns.ragged(one), columns.ragged(many), strict=True):
        assert a.tolist() == b.tolist()
