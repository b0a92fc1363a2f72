"""Do tables keep their types, their length and what is absent?"""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from inferometer.errors import RecordError
from inferometer.records import tables
from inferometer.records.types import ABSENT, CeilingTable, StepTable, SweepTable

PROBE = {
    "point_index": 0,
    "repetition": 0,
    "started_ns": 5,
    "kind": 0,
    "dtype": "",
    "footprint_bytes": 2**28,
    "value_per_s": 2e10,
}


def test_types_are_those_of_the_annotations():
    assert {name: dtype.str[1:] for name, dtype in tables.column_types(SweepTable).items()} == {
        "point_index": "i4",
        "repetition": "i4",
        "is_warmup": "b1",
        "status": "i1",
        "prompt_tokens": "i4",
        "batch_size": "i4",
        "gen_tokens": "i4",
        "started_ns": "i8",
        "prefill_ns": "i8",
        "decode_ns": "i8",
        "n_decode_steps": "i4",
        "reserved_bytes": "i8",
        "allocated_bytes": "i8",
        "cpu_fraction": "f8",
        "device_fraction": "f8",
        "energy_joule": "f8",
        "power_watt": "f8",
        "median_step_ns": "i8",
        "minor_faults": "f8",
        "major_faults": "f8",
    }


@pytest.mark.parametrize("table_type", [SweepTable, StepTable, CeilingTable])
def test_empty_tables_have_types(table_type, tmp_path):
    empty = tables.empty(table_type)
    assert tables.n_rows(empty) == 0
    tables.write_table(tmp_path / "t.parquet", empty)
    back = tables.read_table(tmp_path / "t.parquet", table_type)
    assert [column.dtype.kind for column in back] == [column.dtype.kind for column in empty]
    assert tables.n_rows(tables.concat(table_type, [])) == 0


def test_what_is_missing_in_a_row_is_absent():
    table = tables.from_rows(CeilingTable, [PROBE | {"started_ns": None, "value_per_s": None}])
    assert table.started_ns.tolist() == [ABSENT]
    assert np.isnan(table.value_per_s).all()
    assert np.isnan(tables.optional_ns(table.started_ns)).all()
    with pytest.raises(RecordError, match="lacks kind, which cannot be absent"):
        tables.from_rows(CeilingTable, [PROBE | {"kind": None}])
    with pytest.raises(RecordError, match=r"row 1 .* unknown \['colour'\]"):
        tables.from_rows(CeilingTable, [PROBE, PROBE | {"colour": 3}])


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("point_index", [2**40], "no int32"),
        ("point_index", [1.5], "no int32"),
        ("kind", [300], "no int8"),
        ("started_ns", ["soon"], "no int64"),
        ("value_per_s", [[1.0]], "2 dimensions"),
        ("value_per_s", [1.0, 2.0], "differ in length"),
    ],
)
def test_what_does_not_fit_is_refused(name, values, problem):
    columns = {key: [value] for key, value in PROBE.items()}
    with pytest.raises(RecordError, match=problem):
        tables.from_columns(CeilingTable, columns | {name: values})


def test_columns_must_be_all_there():
    columns = {key: [value] for key, value in PROBE.items()}
    del columns["kind"]
    with pytest.raises(RecordError, match=r"missing: \['kind'\], unknown: \['sort'\]"):
        tables.from_columns(CeilingTable, columns | {"sort": [1]})


def test_select_and_concat():
    one = tables.from_rows(CeilingTable, [PROBE | {"repetition": i} for i in range(4)])
    both = tables.concat(
        CeilingTable, [tables.select(one, one.repetition > 1), tables.select(one, np.array([0]))]
    )
    assert both.repetition.tolist() == [2, 3, 0]


def test_end_is_after_everything():
    assert tables.end_ns(tables.empty(SweepTable), tables.empty(CeilingTable)) == 0
    assert tables.end_ns(tables.empty(SweepTable), tables.from_rows(CeilingTable, [PROBE])) == 6


@pytest.mark.slow
@given(st.data())
def test_a_table_comes_back_from_its_file_as_it_was(tmp_path_factory, data):
    n = data.draw(st.integers(0, 5))
    columns = {}
    for name, dtype in tables.column_types(CeilingTable).items():
        texts = st.text(
            st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4
        )
        columns[name] = (
            data.draw(st.lists(texts, min_size=n, max_size=n))
            if dtype.kind == "U"
            else data.draw(hnp.arrays(dtype, n))
        )
    path = tmp_path_factory.mktemp("table") / "t.parquet"
    table = tables.from_columns(CeilingTable, columns)
    tables.write_table(path, table)
    back = tables.read_table(path, CeilingTable)
    for before, after in zip(table, back, strict=True):
        assert np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
