"""How are tables made, joined and cut, with typed columns of one length, and stored as Parquet?

The column types are read from the annotations of ``records.types``: they are written down once.
Parquet is written and read through duckdb alone; absent is NULL there.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.foreign_parquet import connection, parquet_columns
from inferometer.records.columns import ELEMENTS
from inferometer.records.types import (
    ABSENT,
    CeilingTable,
    ChunkTable,
    ExchangeTable,
    LagTable,
    RequestTable,
    ServerSampleTable,
    StepMemoryTable,
    StepPartTable,
    StepTable,
    SweepTable,
    VisitTable,
)

Table = TypeVar(
    "Table",
    SweepTable,
    StepTable,
    CeilingTable,
    RequestTable,
    StepPartTable,
    ChunkTable,
    ExchangeTable,
    LagTable,
    ServerSampleTable,
    VisitTable,
    StepMemoryTable,
)
AnyTable: TypeAlias = (
    SweepTable
    | StepTable
    | CeilingTable
    | RequestTable
    | StepPartTable
    | ChunkTable
    | ExchangeTable
    | LagTable
    | ServerSampleTable
    | VisitTable
    | StepMemoryTable
)
Column: TypeAlias = NDArray[Any]

_ABSENT_VALUES: Final[dict[str, int | float]] = {"i8": ABSENT, "f8": float("nan")}
"""Values that mean *unknown*, by numpy type code; other types must name one."""
_DOOR: Final = Door(
    noun="table",
    allowed="a Parquet file as it was written",
    refusal=RecordError,
    try_="--skip-damaged, or the run again",
)


def column_types(table_type: type[AnyTable]) -> dict[str, np.dtype[Any]]:
    """Columns of this kind of table in order, with their dtypes.

    Example
    -------
    >>> column_types(CeilingTable)["value_per_s"]
    dtype('float64')
    """
    hints = get_type_hints(table_type)
    return {name: ELEMENTS[hints[name]] for name in table_type._fields}


def from_columns(table_type: type[Table], columns: Mapping[str, object]) -> Table:
    """A table of these columns (array-likes), checked for names, types and length.

    Raises
    ------
    RecordError
        A column is missing, unknown, of another length, or does not fit its type without loss.
    """
    types = column_types(table_type)
    if set(columns) != set(types):
        problem = (
            f"missing: {sorted(set(types) - set(columns))}, unknown:"
            f" {sorted(set(columns) - set(types))}"
        )
        raise RecordError(
            f"columns of a {table_type.__name__} do not match; {problem}", allowed=", ".join(types)
        )
    arrays = [
        _cast(name, columns[name], dtype, table_type.__name__) for name, dtype in types.items()
    ]
    lengths = {name: len(array) for name, array in zip(types, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise RecordError(
            f"columns of a {table_type.__name__} differ in length: {lengths}",
            allowed="one value per row in each",
        )
    return table_type._make(arrays)


def from_rows(table_type: type[Table], rows: Iterable[Mapping[str, object]]) -> Table:
    """A table of these rows.

    A key that is missing or None is absent, which only int64 and float64 columns can be.

    Raises
    ------
    RecordError
        A row has an unknown key, or lacks one that cannot be absent.
    """
    types = column_types(table_type)
    columns: dict[str, list[object]] = {name: [] for name in types}
    for i_row, row in enumerate(rows):
        unknown = set(row) - set(types)
        if unknown:
            raise RecordError(
                f"row {i_row} of a {table_type.__name__} has unknown {sorted(unknown)}",
                allowed=", ".join(types),
            )
        for name, dtype in types.items():
            value = row.get(name)
            if value is None and dtype.str[1:] not in _ABSENT_VALUES:
                raise RecordError(
                    f"row {i_row} of a {table_type.__name__} lacks {name}, which cannot be absent"
                )
            columns[name].append(_ABSENT_VALUES[dtype.str[1:]] if value is None else value)
    return from_columns(table_type, columns)


def empty(table_type: type[Table]) -> Table:
    """A table of this kind without rows."""
    return from_columns(
        table_type, {name: np.empty(0, dtype) for name, dtype in column_types(table_type).items()}
    )


def concat(table_type: type[Table], tables: Sequence[Table]) -> Table:
    """All rows of these tables, one table after the other."""
    if not tables:
        return empty(table_type)
    return from_columns(
        table_type,
        {
            name: np.concatenate([getattr(table, name) for table in tables])
            for name in table_type._fields
        },
    )


def select(table: Table, rows: NDArray[Any]) -> Table:
    """The rows that a mask or an array of indices picks, in that order."""
    return type(table)._make(column[rows] for column in table)


def n_rows(table: AnyTable) -> int:
    """The number of rows of a table."""
    return len(table[0])


def optional_ns(column: NDArray[np.int64]) -> NDArray[np.float64]:
    """An int64 column as floats, absent values as NaN."""
    return np.where(column == ABSENT, np.nan, column.astype(np.float64))


def end_ns(sweep: SweepTable, ceilings: CeilingTable) -> int:
    """End of all rows, in nanoseconds since the start of the run; 0 for empty tables."""
    took_ns = np.maximum(sweep.prefill_ns, 0) + np.maximum(sweep.decode_ns, 0)
    ends = [*(sweep.started_ns + took_ns).tolist(), *ceilings.started_ns.tolist()]
    return max(ends) + 1 if ends else 0


def _cast(name: str, values: object, dtype: np.dtype[Any], table_name: str) -> Column:
    array = np.asarray(values)
    if array.ndim != 1:
        raise RecordError(
            f"column {name} of a {table_name} has {array.ndim} dimensions", allowed="1"
        )
    if array.dtype == dtype or (dtype.kind == "U" and array.dtype.kind == "U"):
        return array
    if array.size == 0:
        return array.astype(dtype)
    is_same_kind = np.can_cast(array.dtype, dtype, "same_kind") or (
        dtype.kind == "U" and array.dtype.kind == "O"
    )
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype) if is_same_kind else array
    is_lossless = is_same_kind and (dtype.kind in "fU" or bool(np.array_equal(cast, array)))
    if not is_lossless:
        raise RecordError(
            f"column {name} of a {table_name} holds {array.dtype} values that are no {dtype}",
            where=f"{array[:3]}...",
        )
    return cast


def write_table(path: Path, table: AnyTable) -> None:
    """Write a table to ``path``; neither atomic nor durable, which is ``run_folder``'s work.

    Raises
    ------
    RecordError
        The file cannot be written: a full disk, a folder that is missing or closed.
    """
    expressions = ", ".join(
        _to_null(name, dtype) for name, dtype in column_types(type(table)).items()
    )
    try:
        with connection() as database:
            database.register("columns_of_table", dict(zip(table._fields, table, strict=True)))
            database.execute(
                f"COPY (SELECT {expressions} FROM columns_of_table) TO ? (FORMAT parquet,"  # noqa: S608
                " COMPRESSION zstd)",
                [str(path)],
            )
    except OSError as error:
        raise RecordError(
            f"a table cannot be written: {error.strerror or error}", where=str(path)
        ) from error


def read_columns(path: Path) -> dict[str, Column]:
    """The columns of a Parquet file: NULL as ABSENT in int64 and NaN in float64 columns.

    Raises
    ------
    RecordError
        The file is missing, truncated or no Parquet.
    """
    columns = parquet_columns(path, _DOOR)
    return {name: _from_null(name, column, path) for name, column in columns.items()}


def read_table(path: Path, table_type: type[Table]) -> Table:
    """The table in a Parquet file of the present schema version."""
    try:
        return from_columns(table_type, read_columns(path))
    except RecordError as error:
        raise RecordError(error.what, where=str(path), allowed=error.allowed) from error


def _to_null(name: str, dtype: np.dtype[Any]) -> str:
    if dtype == np.int64:
        return f"nullif({name}, {ABSENT}) AS {name}"
    if dtype == np.float64:
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}"
    return name


def _from_null(name: str, column: NDArray[Any], path: Path) -> Column:
    is_null = np.ma.getmaskarray(column)
    values = np.ma.getdata(column)
    if values.dtype == np.int64 and bool((values[~is_null] == ABSENT).any()):
        raise RecordError(f"column {name} holds the number that means absent", where=str(path))
    if values.dtype.kind == "O" and not all(isinstance(one, str) for one in values[~is_null]):
        raise RecordError(
            f"column {name} holds lists or other values that are no text", where=str(path)
        )
    if not is_null.any():
        return values.astype(str) if values.dtype.kind == "O" else values
    if values.dtype == np.int64:
        return np.where(is_null, ABSENT, values)
    if values.dtype == np.float64:
        return np.where(is_null, np.nan, values)
    raise RecordError(
        f"column {name} has {int(is_null.sum())} absent values",
        where=str(path),
        allowed="none in a column of this type",
    )
