"""Do exchanges bound a clock's offset, and are a host's instants brought to the driver's clock?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.records.load_frames import (
    MS,
    SESSION,
    end_frame,
    lag_frame,
    plan_of,
    request_frame,
    sse,
    usage,
)

from inferometer.errors import RecordError
from inferometer.records import load_decoding, raw_log
from inferometer.records.load_decoding import decode_load
from inferometer.records.types import ClockReading, HostClock

S = 1_000_000_000
delays = st.integers(min_value=1, max_value=5 * MS)


@given(
    st.lists(st.tuples(delays, delays), min_size=1, max_size=30),
    st.integers(min_value=-(10**15), max_value=10**15),
)
def test_the_offset_lies_within_its_doubt_whatever_the_ways_take(ways, offset_ns):
    begins = [i * 20 * MS for i in range(len(ways))]
    exchanges = [
        (begin, begin + there + offset_ns, begin + there + back)
        for begin, (there, back) in zip(begins, ways, strict=True)
    ]
    said = load_decoding.reading_from(exchanges)
    assert abs(said.offset_ns - offset_ns) <= said.doubt_ns
    assert said.doubt_ns <= min(there + back for there, back in ways) / 2 + 1


def clock(moved_ns, *, doubt_ns=MS, over_ns=100 * S, index=0):
    before = ClockReading(at_ns=0, offset_ns=7 * S, doubt_ns=doubt_ns, n_exchanges=50)
    after = ClockReading(
        at_ns=over_ns, offset_ns=7 * S + moved_ns, doubt_ns=doubt_ns, n_exchanges=50
    )
    return HostClock(process_index=index, host_hash="abc", before=before, after=after)


def test_a_clock_that_ran_fast_is_set_right_instant_by_instant():
    """It gained 10 ms in 100 s: what it called 50 s was 49.995 s."""
    ran_fast = clock(10 * MS)
    frame = request_frame(
        sse(usage(1)),
        intended_ns=50 * S,
        sent_ns=50 * S + MS,
        read_ms=[60_000],
        finished_ns=100 * S,
    )
    moved = load_decoding.on_driver_clock(frame, ran_fast)
    assert (moved.intended_ns, moved.sent_ns, moved.finished_ns) == (
        50 * S - 5 * MS,
        50 * S - 4 * MS - 100,
        100 * S - 10 * MS,
    )
    assert raw_log.int64s(moved.read_ns).tolist() == [60 * S - 6 * MS]
    assert moved.connected_ns is None
    assert load_decoding.on_driver_clock(SESSION, ran_fast) == SESSION
    lag = load_decoding.on_driver_clock(lag_frame(due_ms=[50_000], lag_ms=[1]), ran_fast)
    assert raw_log.int64s(lag.due_ns).tolist() == [50 * S - 5 * MS]


def test_what_lies_within_the_doubt_is_no_drift():
    frame = request_frame(sse(usage(1)), intended_ns=50 * S)
    assert load_decoding.on_driver_clock(frame, clock(2 * MS)) == frame
    assert load_decoding.on_driver_clock(frame, clock(3 * MS)) != frame
    assert load_decoding.on_driver_clock(frame, replace(clock(9 * MS), after=None)) == frame


def test_the_error_is_what_moved_and_what_is_not_known():
    assert clock(10 * MS).error_s == pytest.approx(0.011)
    assert replace(clock(10 * MS), after=None).error_s == pytest.approx(0.001)


def test_each_log_is_read_by_its_own_clock(tmp_path):
    (tmp_path / "raw").mkdir()
    for process in range(2):
        path = tmp_path / "raw" / raw_log.file_name(0, process)
        frames = (
            SESSION,
            request_frame(sse(usage(1)), request_index=process, intended_ns=50 * S),
            end_frame(),
        )
        path.write_bytes(raw_log.MAGIC + b"".join(raw_log.encode_frame(frame) for frame in frames))
    load_decoding.write_clocks(tmp_path, 0, [clock(10 * MS, index=1)])
    decoded = decode_load(tmp_path, plan_of(2))
    assert dict(
        zip(
            decoded.requests.request_index.tolist(),
            decoded.requests.intended_send_ns.tolist(),
            strict=True,
        )
    ) == {0: 50 * S, 1: 50 * S - 5 * MS}
    assert decoded.clocks == (clock(10 * MS, index=1),)
    (tmp_path / "raw" / "session-000-clocks.json").write_text("[{")
    with pytest.raises(RecordError, match="the file of the hosts' clocks is damaged"):
        decode_load(tmp_path, plan_of(2))


@pytest.mark.parametrize(
    "offsets",
    [(2**63, 0), (0, 10 * S)],
    ids=["a clock beyond 64 bits", "a clock that runs twice as fast as the driver's"],
)
def test_clocks_that_cannot_be(offsets, tmp_path):
    (tmp_path / "raw").mkdir()
    before, after = (
        ClockReading(at_ns=at, offset_ns=offset, doubt_ns=1, n_exchanges=3)
        for at, offset in zip((0, 9 * S), offsets, strict=True)
    )
    load_decoding.write_clocks(
        tmp_path, 0, [HostClock(process_index=0, host_hash="a", before=before, after=after)]
    )
    with pytest.raises(RecordError, match=r"a clock (reads|drifts)"):
        load_decoding.clock_of(tmp_path, tmp_path / "raw" / raw_log.file_name(0, 0))


def test_numbers_of_a_frame_are_whole():
    moved = load_decoding.on_driver_clock(
        request_frame(sse(usage(1)), intended_ns=33 * S), clock(10 * MS + 1)
    )
    assert isinstance(moved.intended_ns, int)
    assert raw_log.int64s(moved.read_ns).dtype == np.dtype("<i8")
