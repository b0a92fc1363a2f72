"""Does each tool's throughput come out of our record as the tool divides.

By its own stretch of time, of its own counts?

Ten requests at a constant 2/s, each of 100 + 16 tokens: intended at 0, 0.5, ..., 4.5 s, sent 10 ms
later, first token 0.1 s after, a token every 10 ms, the stream over 5 ms after the last.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.records.load_run import MS, changed, load_plan, load_run

from inferometer.inputs.workload.types import ClosedArrivals, OpenArrivals, WorkloadSpec
from inferometer.records.request_summaries import summarise_requests
from inferometer.records.tool_views import tool_views
from inferometer.records.types import ABSENT, RequestStatus

N, OUTPUT, INPUT = 10, 16, 100
SEND_S = 0.01
LAST_SENT_S = 4.5
ANSWER_S = SEND_S + 0.1 + 15 * 0.01
STREAM_END_S = LAST_SENT_S + ANSWER_S + 0.005
INTERVAL_S = 0.5


def asked(run, arrivals):
    workload = WorkloadSpec(n_requests=N, arrivals=arrivals, classes=load_plan().workload.classes)
    return replace(run, manifest=replace(run.manifest, load=load_plan(workload=workload)))


def constant_run(arrivals=None):
    run = load_run(N, tokens=OUTPUT)
    intended_ns = np.arange(N) * 500 * MS
    sent_ns = intended_ns + 10 * MS
    first_ns = sent_ns + 100 * MS
    last_ns = first_ns + 150 * MS
    run = changed(
        run,
        "requests",
        intended_send_ns=intended_ns,
        sent_ns=sent_ns,
        first_token_ns=first_ns,
        finished_ns=last_ns,
    )
    run = changed(run, "exchanges", last_byte_ns=last_ns + 5 * MS)
    run = changed(
        run, "chunks", arrived_ns=(first_ns[:, None] + 10 * MS * np.arange(OUTPUT)).ravel()
    )
    return asked(
        run, OpenArrivals(rate_per_s=2, process="constant") if arrivals is None else arrivals
    )


def rates(run):
    return {one.tool: one.rates for one in tool_views(run)}


def test_each_divides_by_its_own_stretch():
    seen = rates(constant_run())
    over = {tool: one.span_s for tool, one in seen.items()}
    whole = STREAM_END_S + INTERVAL_S
    assert over == pytest.approx(
        {
            "inferometer": LAST_SENT_S + ANSWER_S,
            "AIPerf": whole,
            "GuideLLM": whole,
            "inference-perf": STREAM_END_S - SEND_S,
            "vLLM bench": whole,
            "SGLang bench": STREAM_END_S,
            "MLC endpoints": STREAM_END_S - SEND_S,
            "MLPerf LoadGen": STREAM_END_S,
        }
    )
    for tool, one in seen.items():
        counted = N - 1 if tool == "MLPerf LoadGen" else N
        assert one.requests_per_s == pytest.approx(counted / over[tool]), tool
        assert one.output_tokens_per_s == pytest.approx(N * OUTPUT / over[tool]), tool
        if tool in {"MLC endpoints", "MLPerf LoadGen"}:
            assert one.total_tokens_per_s is None
        else:
            assert one.total_tokens_per_s == pytest.approx(N * (OUTPUT + INPUT) / over[tool]), tool
        assert one.source


def test_ours_are_the_rates_that_the_report_gives():
    run = load_run(tokens=64)
    is_odd = np.arange(400) % 2 == 1
    run = changed(
        run, "requests", status=np.where(is_odd, RequestStatus.FAILED, RequestStatus.LENGTH)
    )
    summary, ours = summarise_requests(run), rates(run)["inferometer"]
    assert ours.requests_per_s == pytest.approx(summary.completed_requests_per_s.value)
    assert ours.output_tokens_per_s == pytest.approx(summary.output_tokens_per_s.value)
    assert ours.total_tokens_per_s == pytest.approx(summary.total_tokens_per_s.value)


def test_a_closed_loop_has_no_interval_before_it():
    seen = rates(constant_run(ClosedArrivals(concurrency=4)))
    assert seen["vLLM bench"].span_s == seen["AIPerf"].span_s == pytest.approx(STREAM_END_S)


def test_who_stops_with_the_request_that_was_sent_last():
    run = constant_run(OpenArrivals(rate_per_s=2))
    slow_ns = run.exchanges.last_byte_ns + np.where(np.arange(N) == 3, 60_000 * MS, 0)
    seen = rates(changed(run, "exchanges", last_byte_ns=slow_ns))
    assert seen["vLLM bench"].span_s == pytest.approx(1.5 + ANSWER_S + 0.005 + 60 + INTERVAL_S), (
        "the slowest ends it"
    )
    assert seen["MLPerf LoadGen"].span_s == pytest.approx(STREAM_END_S)
    assert seen["MLC endpoints"].requests_per_s == pytest.approx(
        (N - 1) / (STREAM_END_S - SEND_S)
    ), "as LoadGen, where arrivals are Poisson"


def test_failed_requests_take_their_time_and_count_for_nothing():
    run = constant_run()
    is_last = np.arange(N) == N - 1
    run = changed(
        run, "requests", status=np.where(is_last, RequestStatus.FAILED, RequestStatus.LENGTH)
    )
    seen = rates(run)
    assert seen["vLLM bench"].requests_per_s == pytest.approx((N - 1) / (STREAM_END_S + INTERVAL_S))
    assert seen["inference-perf"].output_tokens_per_s == pytest.approx(
        (N - 1) * OUTPUT / (STREAM_END_S - SEND_S)
    )


def test_one_request_has_no_rate_that_leaves_one_out():
    run = constant_run(OpenArrivals(rate_per_s=2))
    is_first = np.arange(N) == 0
    one = changed(
        run, "requests", status=np.where(is_first, RequestStatus.LENGTH, RequestStatus.FAILED)
    )
    assert rates(one)["MLPerf LoadGen"].requests_per_s is None
    assert rates(changed(run, "requests", sent_ns=ABSENT)) == {}
