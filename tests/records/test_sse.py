"""Are the events of a stream those of the standard, whatever the cuts, and does nothing make it fail?"""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.records.load_frames import fuzzed_bodies

from inferometer.records.answers import events_of, reads_of


def data_of(body):
    return [event.data for event in events_of(body)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", []),
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b": keep-alive\n\ndata: a\n: in between\ndata: b\n\n:\n\n", [b"a\nb"]),
        (b"data\n\ndata:\n\n", [b"", b""]),
        (b"id: 7\nretry: 3\ndata: a\nunknown: x\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: \xff\xfe\n\n", [b"\xff\xfe"]),
        (b"data: cut", [b"cut"]),
        (b"data: a\n", [b"a"]),
        (b"event: x\n\n", []),
    ],
)
def test_events_of_the_standard(body, expected):
    assert data_of(body) == expected


@given(
    lines=st.lists(
        st.binary(max_size=8).filter(lambda line: not set(line) & set(b"\r\n")), max_size=6
    )
)
def test_usual_streams_are_read_as_any_other(lines):
    body = b"".join(b"data: " + line + b"\n\n" for line in lines)
    assert data_of(body) == lines
    assert events_of(body + b": a comment\n\n") == events_of(body), (
        "a comment is no event, and needs the reading line by line"
    )


def test_an_event_has_a_name_where_the_stream_gives_one():
    assert [
        (event.name, event.data) for event in events_of(b"event: error\ndata: a\n\ndata: b\n\n")
    ] == [(b"error", b"a"), (b"", b"b")]


def test_an_event_that_the_body_cuts_off_says_so():
    assert [event.is_whole for event in events_of(b"data: a\n\ndata: b\n")] == [True, False]


def test_an_event_is_there_with_the_first_byte_of_its_last_line_end():
    assert [event.end for event in events_of(b"data: a\n\ndata: b\r\n\r\n")] == [9, 19]


def reads_by_hand(ends, sizes):
    arrived = np.cumsum(sizes)
    return [min(int(np.searchsorted(arrived, end)), len(sizes) - 1) for end in ends]


@given(
    ends=st.lists(st.integers(0, 60)).map(sorted),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=20),
)
def test_reads_are_those_that_brought_the_last_byte(ends, sizes):
    assert reads_of(ends, sizes) == reads_by_hand(ends, sizes)
    assert reads_of(ends, sizes) == sorted(reads_of(ends, sizes))


EVENTS = st.lists(
    st.tuples(
        st.binary(max_size=12).filter(lambda b: not {10, 13} & set(b)),
        st.sampled_from([b"\n", b"\r\n", b"\r"]),
    )
)


@given(EVENTS)
def test_what_is_written_is_read(events):
    body = b"".join(b"data: " + data + end + end for data, end in events)
    assert data_of(body) == [data for data, _ in events]


def check_bodies(n, seed):
    n_events = 0
    for body, rng in fuzzed_bodies(n, seed):
        events = events_of(body)
        ends = [event.end for event in events]
        assert ends == sorted(set(ends))
        assert not ends or 0 < ends[-1] <= len(body)
        assert all(event.is_whole for event in events[:-1])
        cuts = np.diff(
            np.sort(np.concatenate([[0, len(body)], rng.integers(0, len(body) + 1, 3)]))
        ).tolist()
        assert reads_of(ends, cuts) == reads_by_hand(ends, cuts)
        n_events += len(events)
    assert n_events > n / 4, "the fuzz finds events"


def test_no_bytes_make_it_fail():
    check_bodies(4000, 1)


@pytest.mark.slow
@pytest.mark.long
def test_200_000_bodies_do_not_make_it_fail():
    check_bodies(200_000, 2)


@settings(max_examples=300)
@given(st.binary())
def test_any_bytes_have_events_in_order(body):
    ends = [event.end for event in events_of(body)]
    assert ends == sorted(set(ends))
