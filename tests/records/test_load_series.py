"""Are counts in flight, lateness and gaps over time those of the record, and errors counted by their code?"""

import numpy as np
import pytest
from tests.records.load_run import changed, load_run

from inferometer.records.exchange_errors import error_counts
from inferometer.records.latencies import deliveries, delivery_gaps, end_ns
from inferometer.records.run_series import gap_map, in_flight, lateness
from inferometer.records.types import ABSENT

RUN = load_run(send_lag_s=0.002)


def test_in_flight_is_what_littles_law_says():
    exchanges, requests = RUN.exchanges, RUN.requests
    found = in_flight(requests, exchanges, at_ns=end_ns(RUN))
    stayed_s = (exchanges.last_byte_ns - requests.sent_ns).sum() / 1e9
    assert found.mean.sum() * found.width_s == pytest.approx(stayed_s)
    instants = np.linspace(requests.sent_ns.min(), exchanges.last_byte_ns.max(), 50_000)
    there = (requests.sent_ns[:, None] <= instants) & (exchanges.last_byte_ns[:, None] > instants)
    assert there.sum(axis=0).max() <= found.most.max() <= there.sum(axis=0).max() + 1
    assert (found.most >= found.mean - 1e-9).all()


def test_in_flight_without_an_end_lasts_until_the_end():
    run = changed(
        changed(load_run(n=1), "exchanges", last_byte_ns=ABSENT), "requests", finished_ns=ABSENT
    )
    found = in_flight(run.requests, run.exchanges, at_ns=int(run.requests.sent_ns[0]) + 10**9)
    assert found.mean.sum() * found.width_s == pytest.approx(1.0)
    assert (
        in_flight(changed(run, "requests", sent_ns=ABSENT).requests, run.exchanges, at_ns=0) is None
    )


def test_lateness_is_the_largest_of_each_window():
    found = lateness(RUN.requests, RUN.lags)
    assert np.nanmax(found.send_s) == pytest.approx(0.002)
    assert np.nanmax(found.loop_s) == pytest.approx(0.001)
    alone = lateness(RUN.requests, None)
    assert np.isnan(alone.loop_s).all()
    assert lateness(changed(RUN, "requests", sent_ns=ABSENT).requests, None) is None


def test_the_map_of_gaps_holds_all_of_them():
    gaps = delivery_gaps(deliveries(RUN))
    found = gap_map(RUN.requests, gaps)
    assert found.n_gaps.sum() == len(gaps.gap_ns)
    assert found.gap_s == pytest.approx(0.005)
    assert (found.gap_s * found.n_gaps).sum() == pytest.approx(gaps.gap_ns.sum() / 1e9)
    assert found.request.max() < 400
    assert gap_map(RUN.requests, delivery_gaps(deliveries(load_run(tokens=1)))) is None


def test_errors_by_code():
    codes = ["http_error"] * 3 + ["reset"] * 5 + ["of tomorrow"] + [""] * 391
    run = changed(
        RUN, "exchanges", error=codes, http_status=np.where(np.arange(400) < 3, 500, ABSENT)
    )
    found = error_counts(run.exchanges)
    assert [(one.code, one.n_requests) for one in found] == [
        ("reset", 5),
        ("http_error", 3),
        ("of tomorrow", 1),
    ]
    assert [one.http_statuses for one in found] == [(), (500,), ()]
    assert found[0].share_fraction == 5 / 400
    assert found[0].remedy
    assert error_counts(RUN.exchanges) == ()
