"""Do the parts of a request's time add up, and is a window told from a queue?"""

import numpy as np
import pytest

from inferometer.records.run_series import PART_NAMES, Around, e2e_parts, gathered_ns, idle_ns
from inferometer.records.tables import from_rows
from inferometer.records.types import RequestTable, StepTable

MS = 1_000_000
_COUNTS = {name: 1 for name in RequestTable._fields if not name.endswith("_ns")}
_STEP = {name: 1 for name in StepTable._fields if not name.endswith("_ns")} | {"is_warmup": False}


def requests(*rows):
    """Times of each in ms: intended, admitted, first token, finished."""
    names = ("intended_send_ns", "admitted_ns", "first_token_ns", "finished_ns")
    return from_rows(
        RequestTable,
        [
            _COUNTS
            | {name: None if at is None else at * MS for name, at in zip(names, row, strict=True)}
            for row in rows
        ],
    )


def steps(*rows):
    return from_rows(
        StepTable,
        [_STEP | {"start_ns": start * MS, "duration_ns": took * MS} for start, took in rows],
    )


def test_parts_add_up():
    around = Around(front_end_s=0.002, network_s=0.010, post_s=0.003)
    parts = e2e_parts(requests((0, 20, 50, 90), (10, 31, 40, 50)), around)
    found = {name: getattr(parts, f"{name}_s") for name in PART_NAMES}
    assert found.pop("window") is found.pop("handover") is None
    assert sum(found.values()) == pytest.approx(parts.total_s)
    assert found["queue"] == pytest.approx((5 + 6) / 2e3)
    assert found["prefill"] == pytest.approx((30 + 9) / 2e3)


def test_a_wait_while_the_replica_is_idle_is_the_window():
    # Idle from 0 to 30, busy to 40, idle to 60: the second waits 5 of its 30 ms behind a step.
    table = requests((0, 30, 40, 40), (35, 65, 70, 70))
    parts = e2e_parts(table, Around(), idle_ns(table, Around(), steps((30, 10), (65, 5))))
    assert parts.window_s == pytest.approx((30 + 25) / 2e3)
    assert parts.queue_s == pytest.approx((0 + 5) / 2e3)


def test_windows_open_when_they_are_over_or_full():
    since_ns = np.array([0, 4, 30, 31, 33, 100])
    classes = np.array([0, 0, 0, 0, 0, 1], np.int32)
    # The first opens at 10; the second is full with the third of it, at 33; class 1 has none.
    assert gathered_ns(since_ns, classes, [(10, 3), (0, 0)]).tolist() == [10, 6, 3, 2, 0, 0]


def test_who_has_not_finished_has_no_parts():
    assert e2e_parts(requests((0, 20, None, None)), Around()) is None


def test_what_nobody_said_is_absent_and_not_zero():
    parts = e2e_parts(requests((0, 20, 50, 90)), Around())
    assert parts.network_s is None
    assert parts.post_s is None
    assert np.isclose(parts.total_s, 0.09)


def test_the_way_of_a_kv_cache_is_neither_prefill_nor_decode():
    # The first is handed over from 50 to 70 ms and gets its first token there; the second stays.
    table = requests((0, 20, 80, 120), (0, 30, 40, 50))
    left_ns, came_ns = np.array([50, 40]) * MS, np.array([70, 40]) * MS
    parts = e2e_parts(table, Around(), on_way_ns=(left_ns, came_ns))
    found = {name: getattr(parts, f"{name}_s") or 0.0 for name in PART_NAMES}
    assert sum(found.values()) == pytest.approx(parts.total_s)
    assert found["prefill"] == pytest.approx((30 + 10) / 2e3)
    assert found["handover"] == pytest.approx((20 + 0) / 2e3)
    assert found["decode"] == pytest.approx((50 + 10) / 2e3)
    assert e2e_parts(table, Around()).handover_s is None
