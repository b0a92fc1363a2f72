"""Do timelines, series and tails say what the tables say, and nothing more?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import lfilter

from inferometer.errors import RecordError
from inferometer.records import tables
from inferometer.records.latencies import LatencySamples, end_ns, latency_samples, tail_of
from inferometer.records.reading import read_run
from inferometer.records.request_summaries import summarise_latency
from inferometer.records.run_series import latency_windows, step_series
from inferometer.records.slot_timeline import (
    NOBODY,
    CellState,
    slices_of,
    slot_timeline,
    state_shares,
)
from inferometer.records.types import (
    ABSENT,
    PartKind,
    RequestStatus,
    RequestTable,
    Run,
    StepPartTable,
    StepTable,
)

C, G, E, N = CellState.CONTEXT, CellState.GENERATION, CellState.END, CellState.IDLE


@pytest.fixture(scope="module")
def recorded() -> Run:
    return read_run(Path(__file__).parent / "fixtures" / "version_2")


@pytest.fixture
def static_batch(make_manifest) -> Run:
    """Two requests of a static batch of 1 + 2 and 1 + 3 tokens in slots 0 and 2.

    Request 5 waits for nothing and never ends.
    """
    step = dict.fromkeys(StepTable._fields, 0) | {"is_warmup": False, "duration_ns": 10}
    rows = [
        (0, 7, 0, PartKind.CONTEXT, 4), (0, 9, 2, PartKind.CONTEXT, 6),
        (1, 7, 0, PartKind.GENERATION, 1), (1, 9, 2, PartKind.GENERATION, 1), (1, 5, 3, PartKind.CONTEXT, 2),
        (2, 7, 0, PartKind.GENERATION, 1), (2, 9, 2, PartKind.GENERATION, 1), (2, 5, 3, PartKind.GENERATION, 1),
        (3, 7, 0, PartKind.ENDED, 0), (3, 9, 2, PartKind.GENERATION, 1),
    ]  # fmt: skip
    names = ("step_index", "request_index", "slot", "kind", "n_computed_tokens")
    request = dict.fromkeys(RequestTable._fields, 0) | {"status": RequestStatus.LENGTH}
    ends = [(5, RequestStatus.UNFINISHED), (7, RequestStatus.LENGTH), (9, RequestStatus.STOPPED)]
    return Run(
        manifest=make_manifest(None),
        sweep=None,
        steps=tables.from_rows(StepTable, [step | {"start_ns": 10 * i} for i in range(5)]),
        ceilings=None,
        requests=tables.from_rows(
            RequestTable, [request | {"request_index": i, "status": status} for i, status in ends]
        ),
        parts=tables.from_rows(
            StepPartTable,
            [dict(zip(names, row, strict=True)) | {"n_delivered_tokens": 0} for row in rows],
        ),
    )


def test_cells(static_batch):
    timeline = slot_timeline(static_batch)
    assert timeline.states.tolist() == [
        [C, G, E, E, N],
        [N, N, N, N, N],
        [C, G, G, E, N],
        [N, C, G, N, N],
    ]
    assert timeline.requests[0].tolist() == [7, 7, 7, 7, NOBODY]
    assert timeline.tokens[2].tolist() == [6, 1, 1, 1, 0]
    assert state_shares(timeline) == {N: 10 / 20, C: 3 / 20, G: 4 / 20, E: 3 / 20}


def test_a_window_knows_what_comes_after_it(static_batch):
    timeline = slot_timeline(static_batch, first_step=1, n_steps=2)
    assert timeline.states.tolist() == [
        [G, E],
        [N, N],
        [G, G],
        [C, G],
    ], "a token is not the last because the window ends"
    assert timeline.first_step == 1
    assert timeline.n_steps_of_run == 5


def test_slices_join_equal_cells(static_batch):
    slices = slices_of(slot_timeline(static_batch))
    assert [
        (
            s.slot,
            s.state,
            s.request_index,
            s.first_step,
            s.n_steps,
            s.start_ns,
            s.duration_ns,
            s.n_tokens,
        )
        for s in slices[:4]
    ] == [
        (0, C, 7, 0, 1, 0, 10, 4),
        (0, G, 7, 1, 1, 10, 10, 1),
        (0, E, 7, 2, 2, 20, 20, 1),
        (2, C, 9, 0, 1, 0, 10, 6),
    ]


def test_cells_of_a_simulated_run(recorded):
    whole = slot_timeline(recorded, n_steps=10**9)
    computing = recorded.parts.kind != PartKind.ENDED
    assert int((whole.states != N).sum()) == len(recorded.parts.slot)
    assert int(whole.tokens.sum()) == int(recorded.parts.n_computed_tokens.sum())
    n_done = (
        int(recorded.parts.step_index[-1]) + 1
    )  # the others were under way when the time was over
    assert int(computing.sum()) == int(
        (recorded.steps.n_prefill_requests + recorded.steps.n_decode_requests)[:n_done].sum()
    )
    last_kind = dict(
        zip(recorded.parts.request_index.tolist(), recorded.parts.kind.tolist(), strict=True)
    )
    completed = recorded.requests.request_index[
        recorded.requests.status == RequestStatus.LENGTH
    ].tolist()
    by_generation = [request for request in completed if last_kind[request] == PartKind.GENERATION]
    assert 0 < len(by_generation) < len(completed), "answers of one token end with their context"
    assert int((whole.states == E).sum()) == len(by_generation)
    assert sum(s.n_steps for s in slices_of(whole)) == len(recorded.parts.slot)


@pytest.mark.parametrize(("first_step", "n_steps"), [(-1, 5), (10**9, 5), (0, 0)])
def test_windows_outside_the_run(recorded, first_step, n_steps):
    with pytest.raises(RecordError, match="window") as caught:
        slot_timeline(recorded, first_step=first_step, n_steps=n_steps)
    assert "steps 0 to 6387" in caught.value.allowed


def test_without_parts_there_is_no_timeline(recorded):
    with pytest.raises(RecordError, match="was not recorded"):
        slot_timeline(replace(recorded, parts=None))


@pytest.mark.parametrize("n_windows", [1, 7, 240])
def test_series_keep_sums_and_extremes(recorded, n_windows):
    steps, series = recorded.steps, step_series(recorded.steps, n_windows=n_windows)
    assert len(series.start_s) == n_windows
    assert series.n_steps.sum() == len(steps.start_ns)
    assert series.n_preempted.sum() == steps.n_preempted_requests.sum()
    assert np.nanmax(series.n_waiting_max) == steps.n_waiting_requests.max()
    assert np.nanmax(series.kv_blocks_max) == steps.kv_blocks_used.max()
    running = steps.n_prefill_requests + steps.n_decode_requests
    if n_windows == 1:
        assert series.n_running_mean[0] == pytest.approx(
            np.average(running, weights=steps.duration_ns)
        )
    assert (series.n_running_mean <= series.n_running_max + 1e-9)[series.n_steps > 0].all()


def test_windows_without_steps_are_absent_not_zero(recorded):
    steps = tables.select(recorded.steps, np.array([0, 1, 6000]))._replace(
        kv_blocks_used=np.array([3, ABSENT, ABSENT])
    )
    nobody = np.zeros(3, np.int32)
    series = step_series(
        steps._replace(n_decode_requests=nobody, n_waiting_requests=nobody), n_windows=3
    )
    assert np.isnan(series.n_waiting_mean).tolist() == [False, True, False]
    assert np.isnan(series.kv_blocks_max).tolist() == [False, True, True]


def test_replicas_are_added_up(recorded):
    """Two replicas that do the same are twice one; one that is idle for a while adds nothing then."""
    one = recorded.steps._replace(replica=np.zeros_like(recorded.steps.start_ns))
    twice = tables.concat(StepTable, [one, one._replace(replica=one.replica + 1)])
    alone, both = step_series(one, n_windows=7), step_series(twice, n_windows=7)
    for name in ("n_running_mean", "n_waiting_max", "kv_blocks_mean", "n_preempted", "n_steps"):
        assert np.allclose(getattr(both, name), 2 * getattr(alone, name)), name
    early = tables.select(one, np.arange(10))
    beside = step_series(
        tables.concat(StepTable, [one, early._replace(replica=early.replica + 1)]), n_windows=7
    )
    assert beside.n_running_mean[-1] == alone.n_running_mean[-1]


def steps_of(*rows):
    """(replica, start, duration, running, decoding) in ns; the KV cache holds ten blocks of each."""
    step = dict.fromkeys(StepTable._fields, 0) | {"is_warmup": False}
    names = ("replica", "start_ns", "duration_ns", "n_prefill_requests", "n_decode_requests")
    made = [
        step | dict(zip(names, (replica, start, duration, n - n_old, n_old), strict=True))
        for replica, start, duration, n, n_old in rows
    ]
    return tables.from_rows(
        StepTable,
        [one | {"kv_blocks_used": 10 * row[3]} for one, row in zip(made, rows, strict=True)],
    )


def test_a_replica_whose_step_is_longer_than_a_window_does_not_vanish():
    short = [(0, 10 * i, 10, 4, 4) for i in range(100)]
    long = [
        (1, 250 * i, 240, 6, 6) for i in range(4)
    ]  # 10 ns between two steps, in which its requests are still there
    series = step_series(steps_of(*short, *long), n_windows=100)
    assert series.n_running_mean[:99] == pytest.approx(10.0)
    assert series.n_running_max[:99] == pytest.approx(10.0)
    assert series.kv_blocks_mean[:99] == pytest.approx(100.0)


def test_a_replica_without_requests_has_none_running():
    """Replica 1 runs one request for a tenth of the time and starts anew after a pause: nothing goes on in between."""
    busy = [(0, 10 * i, 10, 4, 4) for i in range(100)]
    rare = [(1, 0, 50, 1, 0), (1, 500, 50, 1, 0)]
    series = step_series(steps_of(*busy, *rare), n_windows=20)
    assert series.n_running_mean.mean() == pytest.approx(4.1)
    assert series.n_running_mean.tolist() == [
        pytest.approx(5.0 if i in {0, 10} else 4.0) for i in range(20)
    ]


def test_the_mean_over_time_is_that_of_the_requests(recorded):
    """Little: requests in a step, over time, are the time that requests spent in steps."""
    steps = recorded.steps
    series = step_series(steps, n_windows=50)
    running = steps.n_prefill_requests + steps.n_decode_requests
    lasted_s = series.width_s * 50
    gaps_s = lasted_s - steps.duration_ns.sum() / 1e9
    assert series.n_running_mean.mean() * lasted_s == pytest.approx(
        (running * steps.duration_ns).sum() / 1e9, abs=running.max() * gaps_s + 1e-6
    )


def test_latency_over_time(recorded):
    samples = latency_samples(recorded.requests, "ttft", at_ns=end_ns(recorded))
    windows = latency_windows(recorded.requests, samples)
    assert windows.n_samples.sum() == len(samples.rows)
    assert windows.n_bounded_below_only.sum() == samples.n_bounded_below_only
    first = samples.lower_s[: windows.n_samples[0]]
    assert windows.p50_s[0] == np.quantile(first, 0.5, method="inverted_cdf")
    assert np.isnan(windows.p99_s).all(), "no window has a hundred"


def test_a_tail_falls_and_holds_its_interval(recorded):
    samples = latency_samples(recorded.requests, "tpot", at_ns=end_ns(recorded))
    tail = tail_of(samples)
    assert (np.diff(tail.share_fraction) < 0).all()
    assert (np.diff(tail.value_s) >= 0).all()
    assert tail.value_s[-1] == samples.lower_s.max()
    assert np.isnan(tail.high_s[-1]), "one in n has no interval"
    has = ~np.isnan(tail.low_s)
    assert has.sum() > 10
    assert ((tail.low_s <= tail.value_s) & (tail.value_s <= tail.high_s))[has].all()
    shares = [(samples.lower_s > value).mean() for value in tail.value_s]
    assert (shares <= tail.share_fraction + 1e-12).all()


def test_a_tail_has_the_intervals_of_tables_and_they_are_in_order():
    rng = np.random.default_rng(0)
    taken_s = np.exp(lfilter([1.0], [1.0, -0.9], rng.standard_normal(4000)))
    taken_s[1000:1240] = rng.uniform(5.0, 6.0, 240)
    samples = LatencySamples(np.arange(4000), taken_s, taken_s)
    tail = tail_of(samples)
    for ends in (tail.low_s, tail.high_s):
        assert (np.diff(ends[~np.isnan(ends)]) >= 0).all()
    for one in summarise_latency("e2e", samples).percentiles:
        at = int(np.argmin(np.abs(tail.share_fraction - (1 - one.percentile_fraction))))
        assert (tail.low_s[at], tail.high_s[at]) == (one.seconds.low, one.seconds.high)


def test_a_tail_of_what_was_not_done(recorded):
    samples = latency_samples(recorded.requests, "ttft", at_ns=end_ns(recorded))
    tail = tail_of(samples)
    assert tail.is_lower_bound[-1] == 1
    assert tail.is_lower_bound[0] == 0
    assert tail_of(LatencySamples(np.arange(1), np.ones(1), np.ones(1))) is None
