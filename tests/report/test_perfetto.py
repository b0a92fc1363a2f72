"""Does the trace keep to the documented trace event format, and say what the tables say?"""

import gzip
import json
import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from inferometer.api.explored import simulator_at
from inferometer.api.question import question_of
from inferometer.api.simulate import Simulate
from inferometer.api.simulation import OneCase
from inferometer.errors import RecordError
from inferometer.records import tables
from inferometer.records.slot_timeline import slices_of, slot_timeline
from inferometer.records.types import ABSENT
from inferometer.report import perfetto
from inferometer.report.perfetto import perfetto_trace, write_perfetto


def check_trace(trace):
    """The rules of the Trace Event Format for the phases that we write, and those of Perfetto's importer: slices of a track nest."""
    assert set(trace) <= {
        "traceEvents",
        "displayTimeUnit",
        "systemTraceEvents",
        "otherData",
        "stackFrames",
        "samples",
    }
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    slices, opened = defaultdict(list), defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["ph"] in {"X", "C", "M", "b", "e"}
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            key = {
                "process_name": "name",
                "thread_name": "name",
                "thread_sort_index": "sort_index",
            }[event["name"]]
            assert set(event["args"]) == {key}
            continue
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert math.isfinite(event["dur"])
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in {"b", "e"}:
            track = opened[event["pid"], event["cat"], event["id"]]
            if event["ph"] == "b":
                assert not track or event["ts"] >= track[-1][1]
                track.append((event["name"], event["ts"]))
            else:
                name, since = track.pop()
                assert name == event["name"], "the innermost that is open ends first"
                assert event["ts"] >= since
        else:
            assert event["args"]
            assert all(
                isinstance(value, int | float) and not isinstance(value, bool)
                for value in event["args"].values()
            )
    assert not any(opened.values()), "what begins ends"
    for track in slices.values():
        assert all(after[0] >= before[1] - 1e-6 for before, after in pairwise(track)), (
            "in order, none over another"
        )


@pytest.fixture(scope="module")
def trace(recorded_requests):
    return perfetto_trace(recorded_requests)[0]


def test_format(trace):
    check_trace(trace)


def test_the_check_finds_overlaps_and_bad_numbers(trace):
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for change in ({"dur": 10**9}, {"ts": -1.0}, {"dur": float("nan")}):
        broken = {
            **trace,
            "traceEvents": [*trace["traceEvents"][:-1], {**spans[0], **change}, spans[1]],
        }
        with pytest.raises(AssertionError):
            check_trace(broken)


def test_slices_are_those_of_the_timeline(recorded_requests, trace):
    expected = slices_of(slot_timeline(recorded_requests, n_steps=10**9))
    found = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(found) == len(expected)
    assert sum(event["args"]["tokens"] for event in found) == int(
        recorded_requests.parts.n_computed_tokens.sum()
    )
    assert {event["name"] for event in found} == {
        "context (prefill)",
        "generation (decode)",
        "end of sequence",
    }
    assert found[0]["ts"] * 1000 == expected[0].start_ns


def test_counters_are_those_of_the_steps(recorded_requests, trace):
    steps = recorded_requests.steps
    points = [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "C" and event["name"] == "requests waiting"
    ]
    changes = int((np.diff(steps.n_waiting_requests) != 0).sum()) + 1
    assert len(points) == changes + 1
    assert max(event["args"]["value"] for event in points) == steps.n_waiting_requests.max()
    at = {event["ts"]: event["args"]["value"] for event in points}
    assert at[steps.start_ns[0] / 1000] == steps.n_waiting_requests[0]


def test_steps_that_overlap_make_no_slices_that_do(recorded_requests):
    steps = recorded_requests.steps
    check_trace(
        perfetto_trace(
            replace(recorded_requests, steps=steps._replace(duration_ns=steps.duration_ns * 2))
        )[0]
    )


def test_size_is_bounded_and_said(recorded_requests, monkeypatch):
    monkeypatch.setattr(perfetto, "MAX_EVENTS", 2000)
    trace, n_steps = perfetto_trace(recorded_requests)
    check_trace(trace)
    assert len(trace["traceEvents"]) <= 2000
    assert 0 < n_steps < len(recorded_requests.steps.start_ns)
    assert trace["otherData"]["n_steps"] == n_steps
    assert trace["otherData"]["n_steps_of_run"] == len(recorded_requests.steps.start_ns)


def test_without_parts_counters_remain(recorded_requests):
    trace, _ = perfetto_trace(replace(recorded_requests, parts=None))
    check_trace(trace)
    assert {event["ph"] for event in trace["traceEvents"]} == {"C", "M", "b", "e"}
    bare, _ = perfetto_trace(replace(recorded_requests, parts=None, requests=None))
    assert {event["ph"] for event in bare["traceEvents"]} == {"C", "M"}


def spans_of(trace, process):
    """Seconds of each part of each request, by name."""
    (pid,) = [
        event["pid"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name" and event["args"]["name"].endswith(process)
    ]
    found, begun = defaultdict(dict), {}
    for event in trace["traceEvents"]:
        if event["pid"] == pid and event["ph"] == "b":
            begun[event["id"], event["name"]] = event
        elif event["pid"] == pid and event["ph"] == "e":
            whole = begun[event["id"], event["name"]]
            found[event["id"]][event["name"]] = event["ts"] - whole["ts"]
            assert whole["args"]["request"] == event["id"]
    return found


def test_requests_are_those_of_the_client_and_their_parts_add_up(recorded_requests, trace):
    requests, spans = recorded_requests.requests, spans_of(trace, "client")
    assert set(spans) == set(requests.request_index.tolist())
    is_done = np.flatnonzero((requests.first_token_ns != ABSENT) & (requests.finished_ns != ABSENT))
    for row in is_done.tolist():
        found = spans[int(requests.request_index[row])]
        took_us = (requests.finished_ns[row] - requests.intended_send_ns[row]) / 1000
        assert found["request"] == pytest.approx(took_us)
        assert sum(found.values()) - found["request"] == pytest.approx(took_us)


def test_a_fleet_has_a_router_and_the_tracks_of_each_replica():
    words = {"model": "smollm2-135m", "hardware": "l4", "datasheet": True}
    servers = question_of(Simulate, {**words, "rate": 60.0, "requests": 80, "replicas": 2})
    case = OneCase("likely", record_steps=True, record_parts=True)
    run = simulator_at(servers, record_steps=True).at(case).run
    trace, _ = perfetto_trace(run)
    check_trace(trace)
    names = {
        event["args"]["name"].partition(": ")[2]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    replicas = {f"{what}, replica {one}" for what in ("slots", "engine") for one in (0, 1)}
    assert names == replicas | {"client", "router"}
    sent_to = {
        event["id"]: event["args"]["replica"]
        for event in trace["traceEvents"]
        if event["ph"] == "b" and event["name"].startswith("to replica")
    }
    assert set(sent_to) == set(run.requests.request_index.tolist())
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["pid"] == 10 + 2 * sent_to[event["args"]["request"]]
    slots = [
        event["args"]["sort_index"]
        for event in trace["traceEvents"]
        if "sort_index" in event.get("args", {})
    ]
    assert min(slots) == 0
    assert max(slots) < 80, "those that were used, counted in each replica"
    for part in range(0, len(run.parts.step_index), 97):
        step, request = run.parts.step_index[part], run.parts.request_index[part]
        assert any(
            event["args"]["request"] == request
            and event["ts"] * 1000 <= run.steps.start_ns[step] + 1
            for event in trace["traceEvents"]
            if event["ph"] == "X"
        )
    most = {
        event["name"]: event["args"]["value"]
        for event in trace["traceEvents"]
        if event["ph"] == "C" and event["name"].startswith("requests at replica")
    }
    assert most == {"requests at replica 0": 0, "requests at replica 1": 0}, "all have left"


def test_what_nobody_could_tell_is_no_counter(recorded_requests):
    steps = recorded_requests.steps
    unknown = replace(
        recorded_requests,
        steps=steps._replace(kv_blocks_used=np.full_like(steps.kv_blocks_used, ABSENT)),
    )
    assert "KV blocks used" not in {
        event["name"] for event in perfetto_trace(unknown)[0]["traceEvents"]
    }


def test_file(recorded_requests, tmp_path):
    n_steps = write_perfetto(recorded_requests, tmp_path / "deep" / "trace.json.gz")
    assert n_steps == len(recorded_requests.steps.start_ns)
    check_trace(json.loads(gzip.decompress((tmp_path / "deep" / "trace.json.gz").read_bytes())))
    write_perfetto(recorded_requests, tmp_path / "plain.json")
    check_trace(json.loads((tmp_path / "plain.json").read_text()))
    first = (tmp_path / "deep" / "trace.json.gz").read_bytes()
    write_perfetto(recorded_requests, tmp_path / "deep" / "trace.json.gz")
    assert (tmp_path / "deep" / "trace.json.gz").read_bytes() == first, "same run, same bytes"


def test_without_steps_there_is_no_trace(recorded_requests):
    for run in (
        replace(recorded_requests, steps=None),
        replace(recorded_requests, steps=tables.select(recorded_requests.steps, [])),
    ):
        with pytest.raises(RecordError, match="no steps"):
            perfetto_trace(run)
