"""Are the numbers of a run that is scanned those of a run that is read?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.records import tables
from inferometer.records.large_runs import summarise_stored_latencies
from inferometer.records.reading import read_run
from inferometer.records.request_summaries import summarise_requests
from inferometer.records.types import RequestTable
from inferometer.records.whole_run import write_run

FIXTURE = Path(__file__).parent / "fixtures" / "version_2"


def assert_same(scanned, read):
    for one, other in zip(scanned, read, strict=True):
        assert (one.latency, one.n_samples, one.n_bounded_below_only) == (
            other.latency,
            other.n_samples,
            other.n_bounded_below_only,
        )
        assert (one.mean is None) == (other.mean is None)
        means = [] if one.mean is None or other.mean is None else [(one.mean, other.mean)]
        for a, b in (*means, *zip(one.percentiles, other.percentiles, strict=True)):
            assert a.is_lower_bound == b.is_lower_bound
            assert a.seconds.method == b.seconds.method
            for x, y in (
                (a.seconds.value, b.seconds.value),
                (a.seconds.low, b.seconds.low),
                (a.seconds.high, b.seconds.high),
            ):
                assert (x is None) == (y is None)
                assert x is None or x == pytest.approx(y, rel=1e-9)


def test_a_recorded_run():
    assert_same(
        summarise_stored_latencies(FIXTURE), summarise_requests(read_run(FIXTURE)).latencies
    )


@pytest.mark.parametrize("n", [1, 7, 39, 40, 200, 30_000])
def test_other_lengths(tmp_path, n):
    run = read_run(FIXTURE)
    rows = np.random.default_rng(n).integers(0, len(run.requests.status), n)
    other = replace(run, requests=tables.select(run.requests, rows), parts=None, steps=None)
    write_run(tmp_path / "run", other)
    assert_same(summarise_stored_latencies(tmp_path / "run"), summarise_requests(other).latencies)


def test_without_requests(tmp_path):
    run = read_run(FIXTURE)
    write_run(tmp_path / "steps", replace(run, requests=None, parts=None))
    with pytest.raises(RecordError, match="no table of requests"):
        summarise_stored_latencies(tmp_path / "steps")
    write_run(tmp_path / "none", replace(run, requests=tables.empty(RequestTable)))
    assert all(one.percentiles == () for one in summarise_stored_latencies(tmp_path / "none"))


def test_too_little_memory_is_said(tmp_path):
    run = read_run(FIXTURE)
    rows = np.random.default_rng(0).integers(0, len(run.requests.status), 600_000)
    write_run(
        tmp_path / "run", replace(run, requests=tables.select(run.requests, rows), parts=None)
    )
    with pytest.raises(RecordError, match="cannot be summarised"):
        summarise_stored_latencies(tmp_path / "run", memory_limit="1MB")
