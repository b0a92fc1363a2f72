"""Do several runs of requests make curves, with doubtful runs hollow and closed loops apart?"""

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from tests.records.load_run import load_plan, load_run
from tests.report.marks import marks, words
from tests.report.request_example import recorded_run

from inferometer.api.report import rate_view
from inferometer.api.request_view import RequestQuestion, request_view
from inferometer.api.run_titles import traffic_text
from inferometer.cli.main import app
from inferometer.inputs.catalog import known_model
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import Source
from inferometer.inputs.workload.types import ClosedArrivals, OpenArrivals
from inferometer.records.store import write_run
from inferometer.report import request_tables
from inferometer.report.charts.plot import Dots, Line, Rule
from inferometer.report.charts.rates import (
    goodput_rate_chart,
    throughput_latency_chart,
    tpot_rate_chart,
    ttft_rate_chart,
)
from inferometer.report.charts.time_parts import ttft_parts_rate_chart
from inferometer.report.html import render_page
from inferometer.report.request_page import RATE_CHARTS, rate_page_of, request_page_of
from inferometer.units import format_number

QUESTION = RequestQuestion(objective=parse_objective("ttft:p95<40ms"))


def run_at(rate_per_s, *, slower=1.0, send_lag_s=0.0, concurrency=None):
    ttft_s = 0.02 * slower * np.random.default_rng(2).lognormal(0, 0.1, 400)
    run = load_run(rate_per_s=rate_per_s, ttft_s=ttft_s, send_lag_s=send_lag_s)
    load = load_plan()
    arrivals = (
        OpenArrivals(rate_per_s=rate_per_s)
        if concurrency is None
        else ClosedArrivals(concurrency=concurrency)
    )
    load = replace(
        load, workload=msgspec.structs.replace(load.workload, n_requests=400, arrivals=arrivals)
    )
    return replace(run, manifest=replace(run.manifest, run_id=f"at {rate_per_s:g}", load=load))


def view_of(*runs, question=QUESTION):
    return rate_view(
        runs, [request_view(run, question) for run in runs], [f"runs/{i}" for i in range(len(runs))]
    )


@pytest.fixture(scope="module")
def view():
    return view_of(run_at(40, slower=3), run_at(10), run_at(20, send_lag_s=0.06))


def test_runs_stand_in_order_of_their_rate(view):
    rates = [point.offered_requests_per_s for point in view.points]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(10, rel=0.15)
    assert [point.verdict for point in view.points] == ["VALID", "INVALID", "VALID"]
    (chip,) = rate_page_of(view).chips
    assert (chip.verdict, chip.text) == ("INVALID", "20 requests/s is INVALID")
    assert "most goodput within the SLO" in view.answer


def test_runs_of_unlike_requests_are_on_one_page_with_the_caution_of_a_comparison():
    longer = run_at(20)
    longer = replace(
        longer,
        requests=longer.requests._replace(output_tokens=2 * longer.requests.output_tokens),
    )
    assert view_of(run_at(10), run_at(20)).cautions == ()
    view = view_of(run_at(10), longer)
    (caution,) = rate_page_of(view).cautions
    assert caution.code == "UNLIKE_LOADS"
    assert caution.text.startswith("one curve of unlike work (10 requests/s against 20 requests/s)")
    assert "answers of " in caution.text


def simulated(run, rests_on):
    manifest = replace(
        run.manifest,
        origin="simulated",
        load=None,
        model=known_model("llama-3.1-8b"),
        source=Source(kind="derived", where=rests_on),
    )
    return replace(run, manifest=manifest)


def test_runs_of_two_servers_are_named_by_their_folders_and_not_joined():
    """Simulated runs were "simulated #1" to "#3", and one line went from device to device."""
    runs = [run_at(10), run_at(40, slower=2), run_at(20, slower=4)]
    devices = ("an H100", "an H100", "an A100")
    view = view_of(*(simulated(run, where) for run, where in zip(runs, devices, strict=True)))
    assert {point.label: point.server for point in view.points} == {
        "0": "0 … 1",
        "1": "0 … 1",
        "2": "2",
    }
    for chart in (ttft_rate_chart(view), goodput_rate_chart(view), throughput_latency_chart(view)):
        named = [line for line in marks(chart, Line) if line.name]
        assert sorted(len(line.xs) for line in named) == [1, 2]
    assert "0 … 1: TTFT p95 crosses its limit between" in ttft_rate_chart(view).finding
    assert "2: TTFT p95 is " in ttft_rate_chart(view).finding
    assert "above its limit" in ttft_rate_chart(view).finding
    (same,) = {point.server for point in view_of(*runs).points}
    assert not same


def test_limits_are_lines_that_say_what_was_promised(view):
    rules = marks(ttft_rate_chart(view), Rule)
    assert [(rule.at, rule.text) for rule in rules] == [(40.0, "SLO: ttft:p95<40ms")]
    assert not marks(tpot_rate_chart(view), Rule)
    assert not marks(ttft_rate_chart(replace(view, objective="")), Rule)


def test_where_a_latency_crosses_its_limit_is_the_finding(view):
    assert ttft_rate_chart(view).finding.startswith("TTFT p95 crosses its limit between ")
    below = replace(view, objective="ttft:p95<10s")
    assert "stays below its limit up to" in ttft_rate_chart(below).finding
    assert "goes from" in ttft_rate_chart(replace(view, objective="")).finding


def test_runs_of_one_load_are_no_course_over_loads(view):
    one = replace(view.points[0], offered_requests_per_s=1.0)
    same = replace(
        view, points=(one, replace(one, label="again", offered_requests_per_s=1.05)), objective=""
    )
    lone = replace(same, points=(one, replace(one, label="again", ttft_p95=None)))
    p95 = format_number(1e3 * one.ttft_p95.seconds.value)
    assert (
        ttft_rate_chart(same).finding
        == f"TTFT p95 is {p95} to {p95} ms in 2 runs at 1 to 1.05 requests/s offered."
    )
    assert ttft_rate_chart(lone).finding == f"TTFT p95 is {p95} ms at 1 requests/s offered."


def test_capacity_and_traffic_are_drawn(view):
    chart = ttft_rate_chart(replace(view, capacity_per_s=25.0, traffic_per_s=20.0))
    rules = [mark for mark in marks(chart, Rule) if mark.is_vertical]
    assert [(rule.at, rule.tone) for rule in rules] == [(25.0, "capacity"), (20.0, "traffic")]


def test_curves(view):
    charts = {chart.chart_id: chart for build in RATE_CHARTS if (chart := build(view)) is not None}
    assert set(charts) == {"ttft-vs-rate", "tpot-vs-rate", "goodput-vs-rate", "throughput-latency"}
    for chart in charts.values():
        assert chart.finding.endswith(".")
        assert len(chart.rows) == 3
        assert all(len(row) == len(chart.header) for row in chart.rows)
        assert "hollow: not VALID" in words(chart)
    (values,) = [mark.ys for mark in marks(charts["ttft-vs-rate"], Line) if mark.name == "p50"]
    assert min(values) == pytest.approx(20, rel=0.1)
    assert max(values) == pytest.approx(80, rel=0.1)


def test_where_the_first_token_waits_at_each_rate():
    slow, fast = (
        replace(recorded_run(), manifest=replace(recorded_run().manifest, run_id=name))
        for name in ("slow", "fast")
    )
    chart = ttft_parts_rate_chart(view_of(slow, fast, question=RequestQuestion()))
    assert {row[0] for row in chart.rows} == {"slow", "fast"}
    assert "rows: runs by their traffic" in words(chart)
    assert ttft_parts_rate_chart(view_of(run_at(10), run_at(20))) is None


def test_goodput_is_what_was_promised(view):
    by_rate = [point.good_requests_per_s for point in view.points]
    assert by_rate[0] == pytest.approx(view.points[0].completed_requests_per_s.value, rel=0.05)
    assert by_rate[1] == by_rate[2] == 0
    assert goodput_rate_chart(view_of(run_at(10), run_at(20), question=RequestQuestion())) is None


def test_users_who_wait_have_no_rate_of_their_own():
    view = view_of(run_at(10), run_at(20), run_at(30, concurrency=8))
    tips = [tip for mark in marks(ttft_rate_chart(view), Dots) for tip in mark.tips]
    runs = {tip.partition("\t")[0].partition(", ")[2] for tip in tips}
    assert runs == {"10 requests/s", "20 requests/s"}
    loops = {mark.name for mark in marks(throughput_latency_chart(view), Line)}
    assert loops == {"open loop", "closed loop"}
    assert tpot_rate_chart(view_of(run_at(10), run_at(30, concurrency=8))) is None


def test_closed_loops_stand_by_concurrency_and_name_no_offered_rate():
    runs = [run_at(30, concurrency=32), run_at(10, concurrency=8), run_at(20, concurrency=16)]
    view = view_of(*runs)
    assert [point.label for point in view.points] == [
        "concurrency 8",
        "concurrency 16",
        "concurrency 32",
    ]
    for build in (ttft_rate_chart, tpot_rate_chart, goodput_rate_chart):
        assert sorted({x for mark in marks(build(view), Dots) for x in mark.xs}) == [8, 16, 32]
    page = render_page(rate_page_of(view))
    assert "Runs by concurrency" in page
    assert "concurrent requests" in page
    single = request_view(runs[0], QUESTION)
    for text in (page, render_page(request_page_of(single))):
        assert "offered" not in text.replace("Requests offered", "")
    assert single.summaries[0].offered_requests_per_s is None
    assert request_tables.rates_table(single).rows[0][4] == "32"


def test_classes_with_users_of_their_own_stand_by_these_and_under_their_names():
    run = run_at(10, concurrency=8)
    (one,) = run.manifest.load.workload.classes
    classes = tuple(
        msgspec.structs.replace(one, name=name, concurrency=users)
        for name, users in (("chat", 6), ("report", 2))
    )
    workload = msgspec.structs.replace(run.manifest.load.workload, classes=classes)
    load = replace(run.manifest.load, workload=workload)
    of_each = np.arange(len(run.requests.status), dtype=np.int32) % 2
    run = replace(
        run,
        requests=run.requests._replace(class_index=of_each),
        manifest=replace(run.manifest, load=load),
    )
    rows = request_tables.rates_table(request_view(run, QUESTION)).rows
    cells = {row[0]: row[4] for row in rows}
    assert (cells["all requests"], cells["chat"], cells["report"]) == ("8", "6", "2")


def test_titles_and_legends_name_model_server_workload_and_traffic(view):
    load = load_plan()
    names = (load.served_model, urlsplit(load.url).netloc, load.workload.name)
    assert view.title == " · ".join(names)
    assert [point.label for point in view.points] == [
        "10 requests/s",
        "20 requests/s",
        "40 requests/s",
    ]
    assert request_view(run_at(10), QUESTION).title == " · ".join((*names, "10 requests/s"))
    assert (
        traffic_text(replace(run_at(10).manifest.load, max_concurrency=4))
        == "10 requests/s, at most 4 in flight"
    )


def test_the_page(view):
    page = render_page(rate_page_of(view))
    assert len(page.encode()) <= 1_500_000
    for chart in ("ttft-vs-rate", "tpot-vs-rate", "goodput-vs-rate", "throughput-latency"):
        assert f'<figure class="fig" id="{chart}"' in page
    assert render_page(rate_page_of(view)) == page


def test_the_command(tmp_path):
    for name, rate in (("a", 10), ("b", 20)):
        write_run(tmp_path / name, run_at(rate))
    out = tmp_path / "rates.html"
    done = CliRunner().invoke(
        app,
        [
            "report",
            str(tmp_path / "a"),
            str(tmp_path / "b"),
            "--slo",
            "ttft:p95<40ms",
            "--out",
            str(out),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "goodput-vs-rate" in Path(out).read_text(encoding="utf-8")
