"""Is a table whose columns cannot be what they are called named, before anybody takes its numbers as indices or counts?"""

from dataclasses import replace

import numpy as np
import pytest
from tests.records.load_run import load_run

from inferometer.errors import RecordError
from inferometer.records.reading import check_plausible
from inferometer.records.types import ABSENT

RUN = load_run(40)


def with_value(table, column, value):
    columns = getattr(RUN, table)
    values = getattr(columns, column).copy()
    values[3] = value
    return replace(RUN, **{table: columns._replace(**{column: values})})


def test_a_sound_run_passes():
    check_plausible(RUN)
    check_plausible(with_value("requests", "first_token_ns", ABSENT))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("chunks", "request_index", -1),
        ("chunks", "request_index", 40),
        ("requests", "request_index", 2**31 - 1),
        ("requests", "class_index", 2**30),
        ("requests", "status", 99),
        ("requests", "output_tokens", -1761602813),
        ("requests", "finished_ns", 2**62 + 1),
        ("exchanges", "received_bytes", -(2**60)),
        ("chunks", "kind", -5),
    ],
)
def test_what_cannot_be_is_named(table, column, value):
    with pytest.raises(RecordError, match=f"{column} of the table {table} is {value}") as caught:
        check_plausible(with_value(table, column, value))
    assert caught.value.allowed


def test_a_step_that_is_not_there():
    steps = np.zeros(1, np.int64)
    parts = type(
        "StepPartTable", (), {"_asdict": lambda _: {"step_index": np.array([5], np.int32)}}
    )()
    run = replace(
        RUN,
        steps=type("StepTable", (), {"start_ns": steps, "_asdict": lambda _: {}})(),
        parts=parts,
    )
    with pytest.raises(RecordError, match="step_index of the table parts is 5"):
        check_plausible(run)
