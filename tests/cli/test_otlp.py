"""A load test and a server that both send spans: none lost, parents right, joined, read back."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import check_refused, run

import otlp_receiver
from inferometer.inputs import spans as names
from inferometer.inputs.spans import read_spans, span_ids
from inferometer.inputs.workload.traces import read_trace
from inferometer.inputs.workload.types import TraceSource
from inferometer.records.reading import read_run
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.stats.autocorrelated import quantile_rank

PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=64),
        linear_cost(launch_s=1e-3),
    ),
    mean_output_tokens=None,
)
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = {rate}
[[classes]]
name = "short"
prompt_tokens = {{ kind = "uniform", low = 5, high = 40 }}
output_tokens = {{ kind = "uniform", low = 1, high = 8 }}
"""


def traced_load(folder, url, collector, *flags, n_requests, rate):
    (folder / "short.toml").write_text(WORKLOAD.format(rate=rate))
    return run(
        *("load", url, "--model", "m", "--workload", "short.toml", "--requests", n_requests),
        *("--out", "run", "--no-report", "--otlp-endpoint", collector, *flags),
        folder=folder,
    )


def check_spans(folder, spans, *, n_requests, n_traced, n_served=0):
    """None lost, each id once, parents there and around their children; joined with the server's."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    kinds = Counter(span.name.partition(" ")[0] for span in spans if span.kind != "server")
    assert kinds["chat"] == kinds[names.SCHEDULE_DELAY] == n_traced
    assert kinds[names.RUN] == 1
    root = next(span for span in spans if span.name == names.RUN)
    for span in spans:
        assert span.trace_id == root.trace_id
        parent = by_id.get(span.parent_id)
        assert (span is root) == (parent is None)
        wanted = {
            names.RUN: None,
            names.PHASE: names.RUN,
            "chat": names.PHASE,
            names.SCHEDULE_DELAY: "chat",
            names.LLM_REQUEST: "chat",
        }[span.name.partition(" ")[0]]
        assert (parent and parent.name.partition(" ")[0]) == wanted
        if parent is not None and span.kind != "server":
            assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns
    served = [span for span in spans if span.kind == "server"]
    assert len(served) == n_served
    assert len({span.parent_id for span in served}) == n_served
    indices = [span.number(names.REQUEST_INDEX) for span in spans if span.kind == "client"]
    assert len(set(indices)) == n_traced <= n_requests


def check_quantiles(folder, spans):
    """The spans' latencies are the run's own, to the nanosecond."""
    requests = read_run(folder / "run").requests
    clients = [span for span in spans if span.kind == "client"]
    ttft_ns = np.sort([span.instant_ns(names.FIRST_TOKEN) - span.start_ns for span in clients])
    e2e_ns = np.sort([span.end_ns - span.start_ns for span in clients])
    own_ns = requests.first_token_ns - requests.intended_send_ns
    ends_ns = requests.finished_ns - requests.intended_send_ns
    for fraction in (0.5, 0.95, 0.99):
        rank = quantile_rank(len(clients), fraction)
        assert ttft_ns[rank] == np.sort(own_ns)[rank]
        assert e2e_ns[rank] == np.sort(ends_ns)[rank]


def check_metrics(folder, metrics, spans):
    """Sums and counts are the run's: the client's by its spans and tables, the server's by its own."""
    run_, clients = read_run(folder / "run"), [one for one in spans if one.kind == "client"]
    requests, served = run_.requests, [one for one in spans if one.kind == "server"]

    def point(instrument, **wanted):
        found = [
            one
            for one in metrics[instrument.name].histogram.data_points
            if wanted.items()
            <= {pair.key: pair.value.string_value for pair in one.attributes}.items()
        ]
        assert len(found) == 1
        assert sum(found[0].bucket_counts) == found[0].count
        return found[0].count, pytest.approx(found[0].sum)

    def both(values):
        return len(values), sum(values)

    assert point(names.CLIENT_DURATION) == both(
        [(one.end_ns - one.start_ns) / 1e9 for one in clients]
    )
    first_s = [one.number(names.TIME_TO_FIRST_CHUNK) for one in clients]
    assert point(names.CLIENT_FIRST_CHUNK) == both(first_s)
    arrivals = {
        index: run_.chunks.arrived_ns[run_.chunks.request_index == index]
        for index in requests.request_index.tolist()
    }
    gaps_ns = np.concatenate([np.diff(one) for one in arrivals.values()])
    assert point(names.CLIENT_PER_CHUNK) == both(gaps_ns / 1e9)
    for kind, counts in (("input", requests.prompt_tokens), ("output", requests.output_tokens)):
        tokens = point(names.TOKEN_USAGE, **{names.TOKEN_TYPE: kind})
        assert tokens == (len(counts), int(counts.sum()))
    assert point(names.SERVER_DURATION) == both([one.number(names.E2E) for one in served])
    to_first_s = [one.number(names.TO_FIRST_TOKEN) for one in served]
    assert point(names.SERVER_FIRST_TOKEN) == both(to_first_s)
    per_token_s = [
        one.number(names.IN_DECODE) / max(one.number(names.COMPLETION_TOKENS) - 1, 1)
        for one in served
    ]
    assert point(names.SERVER_PER_TOKEN) == both(per_token_s)


@pytest.mark.slow
def test_client_and_server_spans_join_and_tell_where_the_time_is(tmp_path):
    with otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector:
        with start(replace(PLAN, otlp_endpoint=collector.url)) as emulator:
            done = traced_load(tmp_path, emulator.url, collector.url, n_requests=200, rate=200)
            assert done.returncode in {0, 3}, done.stderr
            emulator.stop()
        spans = read_spans(collector.path)
        check_spans(tmp_path, spans, n_requests=200, n_traced=200, n_served=200)
        check_quantiles(tmp_path, spans)
        served = [span for span in spans if span.kind == "server"]
        sampling = (names.TEMPERATURE, names.TOP_P, names.N_ANSWERS)
        assert {tuple(span.number(name) for name in sampling) for span in served} == {(1, 1, 1)}
        answer = run("explain", "spans.jsonl", "--json", folder=tmp_path)
        times = json.loads(answer.stdout)["times"]
        assert (times["seen_by"], times["n_requests"]) == ("client and server", 200)
        assert (times["n_client_only"], times["n_server_only"], times["n_failed"]) == (0, 0, 0)
        parts_s = [part["mean_s"]["value"] for part in times["parts"]]
        assert sum(parts_s) == pytest.approx(times["total_s"]["value"])
        assert all(value_s > -1e-3 for value_s in parts_s)
        assert "of the slowest 5 %" in run("explain", "spans.jsonl", folder=tmp_path).stdout
        check_metrics(tmp_path, collector.metrics, spans)
        # The same command, when the run is complete, sends the same spans again. A collector for
        # traces alone is said, and is no error.
        collector.takes_metrics = False
        collector.requests.clear()
        collector.path.unlink()
        again = traced_load(tmp_path, emulator.url, collector.url, n_requests=200, rate=200)
        assert "had been made before" in again.stderr
        assert "without metrics" in again.stderr
        assert "OTEL_METRICS_EXPORTER=none" in again.stderr
        assert again.returncode == done.returncode
        told = {span for span in map(identity, spans) if span[-1] != "server"}
        assert set(map(identity, read_spans(collector.path))) == told
    # The spans are a workload: what was sent is what they say.
    trace = read_trace(TraceSource(path=str(tmp_path / "spans.jsonl")))
    requests = read_run(tmp_path / "run").requests
    assert trace.has_instants
    due_ns = requests.intended_send_ns - requests.intended_send_ns[0]
    np.testing.assert_array_equal(trace.workload.plan.arrival_ns, due_ns)
    np.testing.assert_array_equal(trace.workload.plan.prompt_tokens, requests.prompt_tokens)
    np.testing.assert_array_equal(trace.workload.plan.output_tokens, requests.output_tokens)


def identity(span):
    return (
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.start_ns,
        span.end_ns,
        span.kind,
    )


@pytest.mark.slow
def test_of_a_sample_the_server_traces_the_same_requests(tmp_path):
    with (
        otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector,
        start(replace(PLAN, otlp_endpoint=collector.url)) as emulator,
    ):
        done = traced_load(
            *(tmp_path, emulator.url, collector.url, "--otlp-sample", 0.1),
            n_requests=200,
            rate=200,
        )
        emulator.stop()
    assert done.returncode in {0, 3}, done.stderr
    n_traced = sum(span_ids("any", sample_fraction=0.1).is_sampled(row) for row in range(200))
    check_spans(
        tmp_path, read_spans(collector.path), n_requests=200, n_traced=n_traced, n_served=n_traced
    )


@pytest.mark.slow
def test_a_client_without_spans_leaves_the_server_to_its_own_traces(tmp_path):
    with (
        otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector,
        start(replace(PLAN, otlp_endpoint=collector.url)) as emulator,
    ):
        (tmp_path / "short.toml").write_text(WORKLOAD.format(rate=200))
        done = run(
            *("load", emulator.url, "--model", "m", "--workload", "short.toml"),
            *("--requests", 50, "--out", "run", "--no-report", "--no-preflight"),
            folder=tmp_path,
        )
        emulator.stop()
    assert done.returncode in {0, 3}, done.stderr
    spans = read_spans(collector.path)
    assert len({span.trace_id for span in spans}) == len(spans) == 50
    assert {span.parent_id for span in spans} == {None}
    answer = json.loads(run("explain", "spans.jsonl", "--json", folder=tmp_path).stdout)
    assert answer["times"]["seen_by"] == "server"


@pytest.mark.slow
def test_a_collector_that_is_not_there_is_said_before_anything_is_sent(tmp_path):
    with (
        otlp_receiver.receiver(tmp_path / "spans.jsonl", status=404) as collector,
        start(PLAN) as emulator,
    ):
        done = traced_load(tmp_path, emulator.url, collector.url, n_requests=20, rate=100)
    check_refused(done, 3, "the collector does not take spans", "404")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_header_given_twice_is_refused(tmp_path):
    with otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector, start(PLAN) as emulator:
        twice = traced_load(
            *(tmp_path, emulator.url, collector.url, "--header", "Traceparent: x"),
            n_requests=20,
            rate=100,
        )
    check_refused(twice, 2, "traceparent is given twice")


def test_spans_beside_a_run_are_refused(tmp_path):
    (tmp_path / "spans.jsonl").write_text('{"resourceSpans": []}\n')
    check_refused(run("explain", "spans.jsonl", "other", folder=tmp_path), 2, "a file of spans")
    nothing = run("explain", "spans.jsonl", folder=tmp_path)
    check_refused(nothing, 4, "no span is one of a request")


@pytest.mark.slow
@pytest.mark.parametrize("n_requests", [2000, pytest.param(10_000, marks=pytest.mark.long)])
def test_of_thousands_of_requests_no_span_is_lost(n_requests, tmp_path):
    inferometer = Path(sys.executable).parent / "inferometer"
    (tmp_path / "short.toml").write_text(WORKLOAD.format(rate=150))
    with (
        otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector,
        start(replace(PLAN, otlp_endpoint=collector.url)) as emulator,
    ):
        line = [inferometer, "load", emulator.url, "--model", "m", "--workload", "short.toml"]
        line += ["--requests", str(n_requests), "--out", "run", "--no-report"]
        line += ["--otlp-endpoint", collector.url]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        emulator.stop()
    assert done.returncode in {0, 3}, done.stderr
    spans = read_spans(collector.path)
    check_spans(tmp_path, spans, n_requests=n_requests, n_traced=n_requests, n_served=n_requests)
    check_quantiles(tmp_path, spans)
    answer = json.loads(run("explain", "spans.jsonl", "--json", folder=tmp_path).stdout)
    assert answer["times"]["n_requests"] == n_requests
    assert answer["times"]["n_client_only"] == 0
