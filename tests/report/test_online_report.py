"""Is a load test shown with its verdict first, then its tokens, errors, other tools' numbers, and charts over time?"""

import io
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from rich.console import Console
from tests.records.load_run import changed, load_run
from tests.report.marks import words

from inferometer.api.load import LoadAnswer
from inferometer.api.request_answer import answer_of
from inferometer.api.request_view import RequestQuestion, request_view
from inferometer.inputs.objectives import parse_objective
from inferometer.records.types import RequestStatus
from inferometer.report.charts.catalogue import ONLINE_CHARTS, request_charts_of
from inferometer.report.html import render_page
from inferometer.report.request_page import request_page_of
from inferometer.report.terminal import page_text

N = 400
IS_BAD = np.arange(N) % 57 == 3


def bad_run():
    """A cold start, four tokens a chunk, some errors."""
    ttft_s = (
        0.03 * np.where(np.arange(N) < 30, 6, 1) * np.random.default_rng(4).lognormal(0, 0.1, N)
    )
    run = load_run(tokens=64, tokens_per_chunk=4, ttft_s=ttft_s, send_lag_s=0.0003)
    run = changed(
        run, "requests", status=np.where(IS_BAD, RequestStatus.FAILED, RequestStatus.LENGTH)
    )
    return changed(
        run,
        "exchanges",
        error=np.where(IS_BAD, "http_error", ""),
        http_status=np.where(IS_BAD, 500, 200),
    )


@pytest.fixture(scope="module")
def view():
    return request_view(bad_run())


@pytest.fixture(scope="module")
def page(view):
    return render_page(request_page_of(view))


def text_of(shown, width=160):
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=False)
    console.print(page_text(request_page_of(shown), is_verbose=True))
    return console.file.getvalue()


def test_the_verdict_stands_first(view, page):
    text = text_of(view)
    assert text.index("SUSPECT: ") < text.index("TTFT p95  ")
    assert page.index("SUSPECT: ") < page.index('class="cards"')
    clean = request_view(load_run())
    assert text_of(clean).splitlines()[1].startswith("✔ VALID: 16 checks; of TTFT, up to")
    late = request_view(load_run(send_lag_s=0.06))
    assert text_of(late).splitlines()[1].startswith("✘ INVALID: ")
    assert late.five_lines.next == late.online.validity.reasons[0].remedy


def test_an_invalid_run_names_no_limit():
    invalid = request_view(load_run(send_lag_s=0.06))
    assert invalid.five_lines.limit.startswith("not known: the run is INVALID (")
    assert (invalid.ttft_parts, invalid.online.ttft_parts) == (None, None)


def test_both_times_to_first_token_and_both_gaps(view):
    text = text_of(view)
    for word in ("TTFT uncorrected", "per chunk", "per token", "4 tokens a chunk", "5 ms", "20 ms"):
        assert word in text


def test_the_whole_run_and_its_steady_part(view):
    names = [summary.name for summary in view.summaries]
    assert names == ["all requests", "steady state"]
    assert view.summaries[0].n_requests == N
    assert view.summaries[1].n_requests == view.online.steady.n_steady < N
    assert "requests of the warm-up" in view.five_lines.trust
    assert [summary.name for summary in request_view(load_run()).summaries] == ["all requests"]


def run_of_two_classes():
    """Every fourth request is of the class ``report``, and waits 0.4 s instead of 20 ms."""
    is_report = np.arange(N) % 4 == 0
    run = changed(
        load_run(ttft_s=np.where(is_report, 0.4, 0.02)), "requests", class_index=is_report * 1
    )
    load = run.manifest.load
    (chat,) = load.workload.classes
    classes = (
        structs.replace(chat, slo="ttft:p95<100ms"),
        structs.replace(chat, name="report", slo="ttft:p95<200ms"),
    )
    load = replace(load, workload=structs.replace(load.workload, classes=classes))
    return replace(run, manifest=replace(run.manifest, load=load))


def test_each_class_is_judged_by_its_own_slo():
    whole = parse_objective("ttft:p50<1s")
    shown = request_view(run_of_two_classes(), RequestQuestion(objective=whole))
    judged = {one.name: one.judgement for one in answer_of(shown).class_judgements}
    assert {name: one.verdict for name, one in judged.items()} == {
        "chat": "met",
        "report": "missed",
    }
    assert judged["report"].n_good == 0
    assert judged["chat"].n_good == 3 * N // 4
    text = text_of(shown)
    assert "✔ meets the SLO: 100 % of requests within ttft:p50<1000ms" in text
    assert "✘ report misses the SLO: 0 % of requests within ttft:p95<200ms" in text
    assert "chat: Goodput is 15.2 requests/s, 100 % [98.7 %, 100 %] of its requests" in text
    answer = LoadAnswer(requests=answer_of(shown), is_interrupted=False, record="run")
    assert shown.judgement.verdict == "met"
    assert answer.exit_code == 10


def test_nobody_claims_to_know_the_queue(view):
    assert view.summaries[0].latency("queue").n_samples == 0


def test_errors_and_other_tools(view, page):
    text = text_of(view)
    assert "http_error" in text
    assert "500" in text
    for tool in (
        "AIPerf",
        "GuideLLM",
        "inference-perf",
        "vLLM bench",
        "SGLang bench",
        "MLC endpoints",
        "MLPerf LoadGen",
    ):
        assert tool in text
    assert "What throughput each tool would have reported" in text
    assert "GuideLLM 0.8.1: schemas/base/statistics.py" in page, "where it is defined"
    assert "What went wrong" not in text_of(request_view(load_run()))


def test_the_page_has_every_section_and_stays_small(page):
    assert len(page.encode()) <= 1_500_000
    for section in ("tokens", "steady", "errors", "tools", "checks"):
        assert f'<section id="{section}"' in page
    for chart in ("tpot-over-time", "itl-map", "in-flight", "client-lateness"):
        assert f'<figure class="fig" id="{chart}"' in page


def test_charts_of_a_load_test(view):
    charts = {chart.chart_id: chart for chart in request_charts_of(view)}
    assert set(charts) == {
        "latency-tails",
        "ttft-over-time",
        "tpot-over-time",
        "itl-map",
        "in-flight",
        "client-lateness",
    }
    assert len(ONLINE_CHARTS) == 3
    for chart in charts.values():
        assert chart.finding.endswith(".")
        assert chart.rows
        assert all(len(row) == len(chart.header) for row in chart.rows)
    assert "shaded: warm-up" in words(charts["ttft-over-time"])
    assert charts["itl-map"].finding.startswith("Chunks came 20 ms apart on average")
    assert (
        charts["client-lateness"].finding
        == "Of the client, sending at most 300 µs late and its timer at most 1 ms late."
    )


def test_without_its_own_tables_a_chart_is_not_drawn(view):
    bare = replace(
        view,
        online=replace(view.online, in_flight=None, lateness=None),
        gaps=None,
        tpot_history=None,
    )
    assert {chart.chart_id for chart in request_charts_of(bare)} == {
        "latency-tails",
        "ttft-over-time",
    }


def test_machines_read_the_same(view):
    answer = answer_of(view)
    assert answer.online.validity == view.online.validity
    assert answer.online.tools == view.online.tools
    assert answer_of(request_view(load_run())).online.errors == ()


def test_a_simulated_run_is_shown_as_before(request_example):
    assert request_example.online is None
    assert answer_of(request_example).online is None


def test_a_page_beside_the_run_is_named_and_not_suggested_again(tmp_path):
    before = request_view(load_run(), path=tmp_path).five_lines
    assert before.report.startswith("none yet")
    (tmp_path / "report.html").touch()
    after = request_view(load_run(), path=tmp_path).five_lines
    assert after.report.startswith(str(tmp_path / "report.html"))
    assert "inferometer report" not in after.next


def test_a_fit_is_suggested_only_where_there_are_requests_for_one(tmp_path):
    """`fit --load` of 24 requests was suggested, and refused: it takes 30."""
    (tmp_path / "report.html").touch()
    for n_requests, command in ((24, "--requests 72"), (30, "fit --load")):
        found = request_view(with_command(load_run(n_requests)), path=tmp_path).five_lines.next
        assert command in found


def with_command(loaded):
    command = ("inferometer", "load", "http://h", "--rate", "5")
    return replace(loaded, manifest=replace(loaded.manifest, command=command))


@pytest.mark.parametrize(
    ("n_requests", "words"),
    [(24, "inferometer compare {} OTHER_RUN"), (30, "inferometer fit --load {}")],
)
def test_what_comes_after_the_page_of_an_imported_run(tmp_path, n_requests, words):
    loaded = load_run(n_requests)
    manifest = replace(loaded.manifest, origin="published", load=None, validity=None)
    imported = replace(loaded, manifest=manifest, exchanges=None, lags=None, server=None)
    before = request_view(imported, path=tmp_path).five_lines
    assert before.next == f"inferometer report {tmp_path}"
    (tmp_path / "report.html").touch()
    after = request_view(imported, path=tmp_path).five_lines
    assert after.next.endswith(words.format(tmp_path))
