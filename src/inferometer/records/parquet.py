"""How does a table of a run become a Parquet file and come back? Absent is NULL there.

Through duckdb alone.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.foreign_parquet import connection, parquet_columns
from inferometer.records.tables import AnyTable, Column, Table, column_types, from_columns
from inferometer.records.types import ABSENT

_DOOR: Final = Door(
    noun="table",
    allowed="a Parquet file as it was written",
    refusal=RecordError,
    try_="--skip-damaged, or the run again",
)


def write_table(path: Path, table: AnyTable) -> None:
    """Write a table to ``path``; neither atomic nor durable, which is ``durability``'s work.

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
