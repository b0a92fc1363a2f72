"""Reading Parquet files that may be damaged or foreign.

Through duckdb alone.
"""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import Door

if TYPE_CHECKING:
    # Imported on use: it takes 60 CPU ms, and most load tests read no Parquet before their first
    # request.
    import duckdb

MOST_ROWS: Final = 100_000_000
"""Limit of rows: a few bytes can encode any number of repeated values."""


def parquet_columns(path: Path, door: Door) -> dict[str, NDArray[Any]]:
    """The columns of a Parquet file, masked where they are NULL.

    Raises
    ------
    InferometerError
        The refusal of ``door``: the file is missing, damaged, no Parquet, or has too many rows.
    """
    with door.refusing(str(path)), connection() as database:
        n_rows = database.execute(
            "SELECT sum(num_rows) FROM parquet_file_metadata(?)", [str(path)]
        ).fetchone()
        if n_rows is not None and n_rows[0] is not None and n_rows[0] > MOST_ROWS:
            raise SpecError(
                f"the {door.noun} has {n_rows[0]:,} rows",
                where=str(path),
                allowed=f"{MOST_ROWS:,} rows",
            )
        # A folder called a=1 on the way must not become a column.
        return database.execute(
            "SELECT * FROM read_parquet(?, hive_partitioning = false)", [str(path)]
        ).fetchnumpy()


def parquet_metadata(path: Path, key: str, door: Door) -> bytes | None:
    """The file's metadata under a key; None where it has none."""
    with door.refusing(str(path)), connection() as database:
        found = database.execute(
            "SELECT value FROM parquet_kv_metadata(?) WHERE decode(key) = ?", [str(path), key]
        ).fetchone()
        return None if found is None else bytes(found[0])


@contextmanager
def connection() -> Generator["duckdb.DuckDBPyConnection"]:
    """A new connection to the database of this process.

    Opening another database takes 13 ms, ten times as long as reading a small table.

    Raises
    ------
    OSError
        DuckDB's reason, where it has one.
    """
    import duckdb  # noqa: PLC0415

    try:
        with _database().cursor() as cursor:
            yield cursor
    except (duckdb.InternalException, duckdb.FatalException) as error:
        _database.cache_clear()  # it refuses all further calls
        raise OSError(_first_line(error)) from error
    except duckdb.Error as error:
        raise OSError(_first_line(error)) from error


@cache
def _database() -> "duckdb.DuckDBPyConnection":
    """A database without extensions or threads (which would disturb measurements)."""
    import duckdb  # noqa: PLC0415

    return duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    known = (
        os.strerror(code)
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)
    )
    return next(
        (reason for reason in known if reason in text), text
    )  # DuckDB wraps the reason in JSON
