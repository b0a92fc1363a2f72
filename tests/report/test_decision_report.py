"""Does the page of a decision draw what there is: trades, costs, replicas over time, probes.

And nothing that there is not?
"""

from dataclasses import replace

import pytest
from tests.report.browser import check_looks_right, needs_browser
from tests.report.marks import marks, words

from inferometer.report import views
from inferometer.report.charts.decision import (
    limit_cost_chart,
    pareto_chart,
    probes_chart,
    replicas_chart,
    traffic_chart,
)
from inferometer.report.charts.plot import Dots, Line, Rule
from inferometer.report.decision_page import decision_sections
from inferometer.report.html import render_page
from inferometer.report.page import Page
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate


def about(value):
    return Estimate(
        value=value,
        low=value * 0.9,
        high=value * 1.1,
        confidence_fraction=0.95,
        n_samples=400,
        method="batches",
    )


def trade(device, load, per_user, output, verdict):
    return views.TradePoint(
        device=device,
        offered_requests_per_s=load,
        tokens_per_s_per_user=about(per_user),
        device_tokens_per_s=about(output),
        verdict=verdict,
    )


def probe(load, effort, verdict, margin):
    return views.ProbeRow(
        offered_load=load,
        effort=effort,
        n_requests=100,
        took_s=1.0,
        verdict=verdict,
        margin_ratio=margin,
        why=f"at {load}",
    )


def cost(device, ratio, usd):
    return views.LimitCost(
        device=device,
        limit_ratio=ratio,
        objective=f"ttft:p95<{ratio:g}s",
        n_replicas=2,
        usd_per_hour=usd,
    )


@pytest.fixture(scope="module")
def view():
    policies = (
        views.PolicyCourse(name="scheduled", n_replicas=(1, 2, 3), usd=4.0, slo_met_fraction=1.0),
        views.PolicyCourse(name="static peak", n_replicas=(3, 3, 3), usd=6.0, slo_met_fraction=1.0),
    )
    return views.DecisionView(
        trades=(
            trade("a", 1.0, 90.0, 100.0, "met"),
            trade("a", 9.0, 40.0, 800.0, "met"),
            trade("b", 1.0, 50.0, 90.0, "met"),
            trade("b", 12.0, 10.0, 900.0, "missed"),
        ),
        limit_costs=(
            cost("a", 0.5, 4.0),
            cost("a", 2.0, 2.0),
            cost("b", 1.0, 3.0),
            cost("b", 2.0, None),
        ),
        course=views.CourseView(window_s=600.0, rates_per_s=(2.0, 8.0, 4.0), policies=policies),
        probes=(
            probe(1.0, 0, "met", 0.2),
            probe(8.0, 0, "missed", None),
            probe(4.0, 1, "met", 0.9),
            probe(4.2, 1, "missed", 1.1),
        ),
        met_load=4.0,
        missed_load=4.2,
        objective="ttft:p95<1s",
    )


TABLE = TextTable(caption="Cost", header=("device", "$/h"), rows=(("a", "2"), ("b", "3")))


def page_of(view):
    sections = decision_sections(view, (TABLE,))
    return Page(title="a model on 2 x A", sections=sections, tool_version="0")


def test_the_best_trade_is_one_that_keeps_the_promise(view):
    chart = pareto_chart(view)
    assert "800 tok/s on a" in chart.finding
    assert [mark.is_hollow for mark in marks(chart, Dots)] == [[False, False], [True, False]]
    assert len(chart.rows) == 4


def test_a_device_has_one_colour_in_all_charts(view):
    """The pick comes first, whatever its name."""
    turned = replace(view, trades=view.trades[::-1], limit_costs=view.limit_costs[::-1])
    for chart in (pareto_chart(turned), limit_cost_chart(turned)):
        assert {mark.name: mark.colour for mark in marks(chart, Dots)} == {"b": "c0", "a": "c1"}


def test_costs_without_a_price_are_not_drawn(view):
    chart = limit_cost_chart(view)
    assert [row[:2] for row in chart.rows] == [("a", "x 0.5"), ("a", "x 2"), ("b", "x 1")]
    assert "4.00 $/h at 0.5 times the limits, 2.00 $/h at 2 times" in chart.finding


def test_replicas_over_time(view):
    assert list(marks(traffic_chart(view), Line)[0].ys) == [2.0, 8.0, 4.0, 4.0]
    chart = replicas_chart(view)
    assert (
        "cheapest policy is scheduled for 4.00 $: it meets the SLO 100.0% of the time"
        in chart.finding
    )
    assert chart.rows[0] == ("scheduled", "1 to 3", "4.00", "100.0%")


def test_every_probe_and_the_bracket(view):
    chart = probes_chart(view)
    assert [list(mark.ys) for mark in marks(chart, Dots)] == [[0.2, 10.0], [0.9, 1.1]]
    assert [mark.at for mark in marks(chart, Rule) if mark.is_vertical] == [4.0, 4.2]
    assert chart.rows[1][-2] == "–"
    assert "at the top: 10 or more" in words(chart)
    finding = probes_chart(replace(view, met_load=None, missed_load=None)).finding
    assert "No load was shown to meet the SLO, none was shown to break it" in finding


def test_the_page_has_what_there_is(view):
    page = render_page(page_of(view))
    assert len(page.encode()) <= 1_500_000
    assert render_page(page_of(view)) == page
    for name in ("pareto", "cost-vs-slo", "traffic", "replicas", "probes"):
        assert f'<figure class="fig" id="{name}"' in page
    bare = render_page(page_of(views.DecisionView()))
    assert "<figure" not in bare
    assert "<script" not in bare


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_draws_all_charts_without_a_word(view, tmp_path, width):
    check_looks_right(render_page(page_of(view)), tmp_path, width=width, n_charts=5)
