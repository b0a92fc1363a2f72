"""Are ids of spans unique, evenly sampled, and read back from the header that carries them?"""

import pytest
from hypothesis import given, strategies as st

from inferometer.inputs.spans import TraceParent, span_ids, traceparent_of

N = 10_000


def test_each_request_has_an_id_of_its_own_and_another_run_other_ones():
    ids, others = (span_ids(name, sample_fraction=1.0) for name in ("a", "b"))
    mine, theirs = ({one.of_request(row) for row in range(N)} for one in (ids, others))
    assert len(mine) == N
    assert not mine & theirs
    assert ids.trace_id != others.trace_id
    assert 0 not in mine


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_the_share_that_is_wanted_is_traced_and_spread_over_the_run(fraction):
    ids = span_ids("run", sample_fraction=fraction)
    for start in range(0, N, 1000):
        n_traced = sum(ids.is_sampled(row) for row in range(start, start + 1000))
        assert abs(n_traced - 1000 * fraction) <= 2


def test_a_smaller_share_is_a_part_of_a_larger_one():
    few, many = (span_ids("run", sample_fraction=fraction) for fraction in (0.1, 0.3))
    assert all(many.is_sampled(row) for row in range(N) if few.is_sampled(row))


@given(row=st.integers(0, 2**31 - 1), fraction=st.sampled_from([0.0, 0.5, 1.0]))
def test_what_the_header_says_is_read_back(row, fraction):
    ids = span_ids("run", sample_fraction=fraction)
    assert traceparent_of(ids.traceparent(row)) == TraceParent(
        ids.trace_id, ids.of_request(row), ids.is_sampled(row)
    )


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        f"00-{0:032x}-{1:016x}-01",  # no trace
        f"00-{1:032x}-{0:016x}-01",  # no span
        f"ff-{1:032x}-{1:016x}-01",  # a version that the standard forbids
        f"00-{1:032X}g-{1:016x}-01",
    ],
)
def test_a_header_that_is_none_says_nothing(header):
    assert traceparent_of(header) is None


def test_a_later_version_may_say_more():
    assert traceparent_of(f"01-{1:032x}-{2:016x}-00-more") == TraceParent(1, 2, False)
