"""Do Parquet files say what is wrong with them?"""

import duckdb
import pytest

from inferometer.errors import RecordError
from inferometer.records import tables
from inferometer.records.types import ABSENT, CeilingTable


def write(path, query):
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


def test_columns_of_another_table_are_named(tmp_path):
    path = write(tmp_path / "t.parquet", "SELECT 1 AS point_index")
    with pytest.raises(RecordError, match="do not match") as caught:
        tables.read_table(path, CeilingTable)
    assert caught.value.where == str(path)


def test_absent_where_it_cannot_be(tmp_path):
    path = write(tmp_path / "t.parquet", "SELECT CAST(NULL AS INTEGER) AS point_index")
    with pytest.raises(RecordError, match="1 absent values"):
        tables.read_columns(path)


def test_the_number_that_means_absent_is_not_data(tmp_path):
    path = write(tmp_path / "t.parquet", f"SELECT CAST({ABSENT} AS BIGINT) AS started_ns")
    with pytest.raises(RecordError, match="means absent"):
        tables.read_columns(path)


def test_lists_are_no_text(tmp_path):
    path = write(tmp_path / "t.parquet", "SELECT * FROM (VALUES (['a']), (['b', 'c'])) t(device)")
    with pytest.raises(RecordError, match="column device holds lists"):
        tables.read_columns(path)


def test_no_parquet_and_no_file(tmp_path):
    (tmp_path / "t.parquet").write_text("not a table")
    with pytest.raises(RecordError, match="cannot be read"):
        tables.read_columns(tmp_path / "t.parquet")
    with pytest.raises(RecordError, match="cannot be read"):
        tables.read_columns(tmp_path / "nowhere.parquet")
    with pytest.raises(RecordError, match="cannot be written"):
        tables.write_table(tmp_path / "nowhere" / "t.parquet", tables.empty(CeilingTable))
