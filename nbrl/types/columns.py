"""Arrow columns: rows by id, ragged token lists, joins; knows tables, not what they mean."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.errors import DataError

Rows = int | slice | Sequence[int] | np.ndarray


def check_columns(table: pa.Table, required: pa.Schema, owner: str) -> None:
    """Raise where a required column is missing or of another type; more columns are welcome."""
    problems = []
    for field in required:
        if field.name not in table.column_names:
            problems.append(f"missing column {field.name!r} ({field.type})")
        elif table.schema.field(field.name).type != field.type:
            got = table.schema.field(field.name).type
            problems.append(f"column {field.name!r} is {got}, must be {field.type}")
    if problems:
        raise DataError(f"{owner}: {'; '.join(problems)}. Columns given: {table.column_names}.")


def check_unique(table: pa.Table, id_column: str, owner: str) -> None:
    """Raise where ids repeat."""
    column = table.column(id_column)
    if pc.count_distinct(column).as_py() != len(column):
        counts = pc.value_counts(column.combine_chunks()).to_pylist()
        repeated = [c["values"] for c in counts if c["counts"] > 1][:5]
        raise DataError(f"{owner}: {id_column} must be unique; repeated: {repeated}.")


def check_same_lengths(table: pa.Table, reference: str, owner: str) -> None:
    """Raise where a list column's rows are not as long as those of ``reference``."""
    wanted = pc.list_value_length(table.column(reference))
    for field in table.schema:
        if not pa.types.is_list(field.type) or field.name == reference:
            continue
        got = pc.list_value_length(table.column(field.name))
        if not got.equals(wanted):
            row = int(np.argmax(got.to_numpy() != wanted.to_numpy()))
            raise DataError(
                f"{owner}: column {field.name!r} must be as long as {reference!r} in every row; "
                f"row {row} has {got[row]} and {wanted[row]}."
            )


def indices_of(ids: pa.ChunkedArray, wanted: Sequence[str] | pa.ChunkedArray) -> np.ndarray:
    """The row of each wanted id, in the order wanted; unknown ids raise."""
    values = wanted if isinstance(wanted, pa.ChunkedArray) else pa.array(list(wanted), pa.string())
    found = pc.index_in(values, value_set=ids.combine_chunks())
    if found.null_count:
        missing = pc.filter(values, pc.is_null(found)).to_pylist()[:5]
        raise DataError(f"unknown ids {missing}; {len(ids)} are known, e.g. {ids[:3].to_pylist()}.")
    return found.to_numpy()


def rows_kept(keep: Callable[[dict], bool] | Sequence[bool] | np.ndarray | pa.Array, num_rows: int,
              row_at: Callable[[int], dict]) -> np.ndarray:
    """The indices of the rows that a mask or a predicate on row dicts keeps."""
    if callable(keep):
        mask = np.array([bool(keep(row_at(i))) for i in range(num_rows)], dtype=bool)
    else:
        mask = np.asarray(keep)
    if mask.dtype != bool or mask.shape != (num_rows,):
        raise DataError(
            f"filter takes a predicate or {num_rows} booleans; got {mask.dtype} of shape {mask.shape}."
        )
    return np.flatnonzero(mask)


def ragged(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The flat values and the row offsets ``[N + 1]`` of a list column, starting at 0."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    offsets = array.offsets.to_numpy()
    flat = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return flat.to_numpy(zero_copy_only=False), (offsets - offsets[0]).astype(np.int64)


def ragged_column(flat: np.ndarray, offsets: np.ndarray, value_type: pa.DataType) -> pa.ListArray:
    """A list column from flat values and row offsets ``[N + 1]``."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat, value_type))


def list_column(rows: Sequence[Sequence | np.ndarray], value_type: pa.DataType) -> pa.ListArray:
    """A list column from one sequence a row."""
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    flat = np.concatenate([np.asarray(r) for r in rows]) if len(rows) else np.empty(0)
    return ragged_column(flat, offsets, value_type)


def with_columns(table: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """The table with these columns added, or replaced where the name is there."""
    for name, column in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table
