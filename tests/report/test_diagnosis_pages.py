"""The pages of a diagnosis and of spans: numbers, chart, and how they look in a browser."""

import re
import sys
from pathlib import Path

import pytest
from tests.report.browser import check_looks_right, needs_browser
from tests.report.marks import marks

from inferometer.api import diagnosis
from inferometer.api.diagnose_page import diagnose_page
from inferometer.api.diagnose_source import Source
from inferometer.api.explain_spans import SpansAnswer, spans_page
from inferometer.decide.diagnosis import rebuilding, window
from inferometer.inputs import spans as names
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.spans import Span, SpanEvent
from inferometer.records.request_spans import span_times
from inferometer.report.charts.plot import Dots, Line
from inferometer.report.charts.predicted import Effect, effects_chart
from inferometer.report.charts.svg import drawn
from inferometer.report.html import render_page
from inferometer.simulate import step_cost
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.stats.estimate import Estimate

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import served_pages

MS = 1_000_000
WIDTHS = pytest.mark.parametrize(("width", "is_dark"), [(390, True), (1440, False)])


def gain(value, low, high):
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.9, n_samples=9, method="a test"
    )


def test_effects_stand_with_their_intervals_the_largest_first():
    effects = [
        Effect("small", gain(1, -2, 4), "+1% [-2%, +4%]", is_chosen=False),
        Effect("large", gain(9, 5, 12), "+9% [+5%, +12%]", is_chosen=True),
    ]
    words = {"chart_id": "x", "title": "t", "finding": "f.", "axis": "gain, %", "legend": ""}
    chart = effects_chart(effects, **words)
    (dots,) = marks(chart, Dots)
    assert (dots.xs, dots.is_hollow) == ([9, 1], [False, True])
    assert [tuple(line.xs) for line in marks(chart, Line)] == [(5, 12), (-2, 4)]
    assert [row[0] for row in chart.rows] == ["large", "small"]
    assert effects_chart([], **words) is None
    (label,) = re.findall(r'<text class="row ([^"]*)"[^>]*>small', drawn(chart.plots[0]))
    assert label == "halo", "the line at zero goes behind the labels of rows"
    assert "rows: changes" in chart.plots[0].y.title
    of_causes = effects_chart(effects, **words, row="cause")
    assert ("rows: causes" in of_causes.plots[0].y.title, of_causes.header[0]) == (True, "cause")


@pytest.fixture(scope="module")
def diagnosed():
    """A server whose batch is small, by its own metrics."""
    config = SchedulerConfig(
        num_blocks=4000, max_model_len=20_100, max_num_seqs=4, enable_prefix_caching=False
    )
    plan = served_pages.poisson(10.0, 300, 1, prompt=(100, 0.1), output=(60, 0.1))
    steps = step_cost.linear_cost(launch_s=10e-3)
    samples, _ = served_pages.served_pages(config, steps, plan, start_s=2.0, for_s=24.0)
    found = window.observed_window(samples)
    agreement = rebuilding.rebuilt_servers(found, {})
    agreement.check()
    objective = parse_objective("ttft:p95<200ms")
    return diagnosis.answer_of("server", Source(window=found), agreement, objective, {}).answer


def spans():
    """Forty requests through a router, each a little longer than the last."""
    begin_ns = 1_795_540_200_000_000_000
    for i in range(40):
        start_ns = begin_ns + i * 50 * MS
        end_ns = start_ns + (200 + 5 * i) * MS
        first = SpanEvent(names.FIRST_TOKEN, start_ns + 90 * MS)
        chat = {names.OPERATION: names.CHAT}
        yield Span(i, 1, 9, "chat m", "client", start_ns, end_ns, chat, (first,), None)
        yield Span(i, 2, 1, "POST /v1", "server", start_ns + 4 * MS, end_ns - 4 * MS, {})
        parts = {names.E2E: 180.0, names.IN_QUEUE: 30.0 + i, names.IN_PREFILL: 25.0}
        told = {name: value / 1e3 for name, value in (parts | {names.IN_DECODE: 100.0}).items()}
        told[names.COMPLETION_TOKENS] = 5
        yield Span(i, 3, 2, "llm_request", "server", start_ns, start_ns + 180 * MS, told)


@pytest.mark.slow
@needs_browser
@WIDTHS
def test_a_browser_shows_a_diagnosis(diagnosed, tmp_path, width, is_dark):
    page = diagnose_page(diagnosed)
    assert diagnosed.cause == "max_num_seqs"
    check_looks_right(render_page(page), tmp_path, width=width, n_charts=1, is_dark=is_dark)


@pytest.mark.slow
@needs_browser
@WIDTHS
def test_a_browser_shows_where_the_time_of_spans_is(tmp_path, width, is_dark):
    page = spans_page(SpansAnswer(paths=("client.jsonl",), times=span_times(list(spans()))))
    check_looks_right(render_page(page), tmp_path, width=width, n_charts=1, is_dark=is_dark)
