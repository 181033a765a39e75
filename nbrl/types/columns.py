"""Arrow columns: rows by id, ragged token lists, joins; knows tables, not what they mean.

May import ``errors``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.errors import DataError

Rows = int | np.integer | slice | Sequence[int] | np.ndarray
Keep = Callable[[dict[str, Any]], bool] | Sequence[bool] | np.ndarray | pa.Array | pa.ChunkedArray


def check_columns(table: pa.Table, required: pa.Schema, owner: str) -> None:
    """Raise where a required column is missing or of another type; more columns are welcome."""
    names = table.column_names
    problems = [f"column {n!r} stands twice" for n in sorted(set(names)) if names.count(n) > 1]
    for field in required:
        if field.name not in names:
            problems.append(f"missing column {field.name!r} ({field.type})")
        elif names.count(field.name) == 1 and table.schema.field(field.name).type != field.type:
            got = table.schema.field(field.name).type
            problems.append(f"column {field.name!r} is {got}, must be {field.type}")
    if problems:
        raise DataError(f"{owner}: {'; '.join(problems)}. Columns given: {names}.")


def check_present(table: pa.Table, names: Sequence[str], owner: str) -> None:
    """Raise where a column that needs a value in every row has none."""
    for name in names:
        missing = table.column(name).null_count
        if missing:
            row = table.column(name).is_null().to_pylist().index(True)
            raise DataError(
                f"{owner}: {name} needs a value in every row; {missing} of {table.num_rows} "
                f"have none, the first is row {row}."
            )


def check_unique(table: pa.Table, id_column: str, owner: str) -> None:
    """Raise where ids are missing or repeat."""
    check_present(table, [id_column], owner)
    column = table.column(id_column)
    if len(column.unique()) != len(column):
        repeated = [c["values"] for c in column.value_counts().to_pylist() if c["counts"] > 1][:5]
        raise DataError(f"{owner}: {id_column} must be unique; repeated: {repeated}.")


def check_among(table: pa.Table, name: str, known: Sequence[str], owner: str) -> None:
    """Raise where a column holds anything but the known words."""
    unknown = sorted(set(table.column(name).unique().to_pylist()) - set(known), key=repr)
    if unknown:
        raise DataError(f"{owner}: {name} must be one of {list(known)}; got {unknown[:5]}.")


def check_same_lengths(table: pa.Table, names: Sequence[str], wanted: pa.Table, owner: str) -> None:
    """Raise where a list column's rows are not as long as ``token_ids`` of ``wanted``."""
    expected = row_lengths(wanted.column("token_ids"))
    for name in names:
        got = row_lengths(table.column(name))
        if not np.array_equal(got, expected):
            row = int(np.argmax(got != expected))
            raise DataError(
                f"{owner}: column {name!r} must be as long as token_ids in every row; "
                f"row {row} has {got[row]} (-1: none) and {expected[row]}."
            )


def list_columns(table: pa.Table) -> list[str]:
    """The names of the columns that hold a list a row."""
    return [field.name for field in table.schema if pa.types.is_list(field.type)]


def row_lengths(column: pa.ChunkedArray) -> np.ndarray:
    """How long each row of a list column is, -1 where it is null."""
    lengths = pc.call_function("list_value_length", [column])
    return lengths.fill_null(-1).to_numpy()


def indices_of(ids: pa.ChunkedArray, wanted: Sequence[str] | pa.ChunkedArray) -> np.ndarray:
    """The row of each wanted id, in the order wanted; unknown ids raise."""
    chunked = isinstance(wanted, pa.ChunkedArray)
    values: Any = wanted if chunked else pa.array(list(wanted), pa.string())
    options = pc.SetLookupOptions(value_set=ids.combine_chunks())
    found = pc.call_function("index_in", [values], options)
    if found.null_count:
        missing = values.filter(found.is_null()).to_pylist()[:5]
        raise DataError(f"unknown ids {missing}; {len(ids)} are known, e.g. {ids[:3].to_pylist()}.")
    return found.to_numpy()


def picked(value: Any, rows: Rows) -> Any:
    """What ``value[rows]`` gives: a row's dict for an integer, else the same kind of value."""
    if not isinstance(rows, int | np.integer):
        return value.take(np.arange(len(value))[rows])
    if not -len(value) <= rows < len(value):
        raise IndexError(f"row {rows} of {len(value)}")
    return value.take(np.array([int(rows) % len(value)])).to_arrow().to_pylist()[0]


def rows_kept(keep: Keep, num_rows: int, table: Callable[[], pa.Table]) -> np.ndarray:
    """The indices of the rows that a mask or a predicate on row dicts keeps."""
    if callable(keep):
        mask = np.fromiter((bool(keep(row)) for row in _row_dicts(table())), bool, num_rows)
    else:
        mask = np.asarray(keep)
    if not num_rows and not mask.size:
        return np.empty(0, np.int64)
    if mask.dtype != bool or mask.shape != (num_rows,):
        raise DataError(
            f"filter takes a predicate or {num_rows} booleans; "
            f"got {mask.dtype} of shape {mask.shape}."
        )
    return np.flatnonzero(mask)


def _row_dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def ragged(column: pa.ChunkedArray | pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """The flat values and the row offsets ``[N + 1]`` of a list column, starting at 0."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    offsets = array.offsets.to_numpy()
    flat = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return flat.to_numpy(zero_copy_only=False), (offsets - offsets[0]).astype(np.int64)


def row_sums(flat: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The sum of each row's flat values, all finite; 0 for an empty row. Of booleans: a count."""
    wide = np.float64 if flat.dtype.kind == "f" else np.int64
    return np.diff(np.concatenate([[0], np.cumsum(flat, dtype=wide)])[offsets])


def row_at(offsets: np.ndarray, place: int | np.integer) -> int:
    """The row that holds a place of the flat values."""
    return int(np.searchsorted(offsets, place, side="right")) - 1


def ragged_column(flat: np.ndarray, offsets: np.ndarray, value_type: pa.DataType) -> pa.ListArray:
    """A list column from flat values and row offsets ``[N + 1]``."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat, value_type))


def list_column(rows: Sequence[Sequence | np.ndarray], value_type: pa.DataType) -> pa.ListArray:
    """A list column from one sequence a row."""
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    # an empty row would be read as floats and turn the whole column into them
    full = [np.asarray(row) for row in rows if len(row)]
    flat = np.concatenate(full) if full else np.empty(0, value_type.to_pandas_dtype())
    return ragged_column(flat, offsets, value_type)


def with_columns(
    table: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray | Sequence]
) -> pa.Table:
    """The table with these columns added, or replaced where the name is there."""
    for name, column in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table


def beside(table: pa.Table, parent: pa.Table, prefix: str, keys: Sequence[str]) -> pa.Table:
    """Both tables' columns, row by row.

    A parent's column whose name the table has too is called ``prefix.name``; the ``keys``, which
    are equal, stand once.
    """
    mine = set(table.column_names)
    named = [(f"{prefix}.{n}" if n in mine else n, n) for n in parent.column_names if n not in keys]
    return with_columns(table, {new: parent.column(old) for new, old in named})
