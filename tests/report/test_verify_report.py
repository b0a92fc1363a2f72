"""Does the page of sealed predictions draw both intervals, and say what was not measured?"""

from dataclasses import replace

import pytest
from tests.report.marks import marks, words

from inferometer.api.verify import verify_page_of
from inferometer.report.charts.plot import Dots, Line
from inferometer.report.charts.predicted import verified_charts
from inferometer.report.html import render_page
from inferometer.report.tables import ClaimRow, PromiseRow, VerifyView
from inferometer.stats.estimate import Estimate


def estimate(value, low=None, high=None):
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.9, n_samples=60, method=""
    )


def claim(name, predicted, measured, verdict, *, unit="ms"):
    return ClaimRow(
        at="2 requests/s",
        series=name.partition(" ")[0],
        metric=name,
        unit=unit,
        predicted=predicted,
        measured=measured,
        error_fraction=None if measured is None else predicted.value / measured.value - 1,
        verdict=verdict,
    )


CLAIMS = (
    claim("TTFT p50", estimate(100.0, 90.0, 110.0), estimate(104.0, 99.0, 120.0), "held"),
    claim("TTFT p95", estimate(200.0, 180.0, 220.0), estimate(260.0), "undecided"),
    claim("TPOT p50", estimate(20.0, 19.0, 21.0), estimate(30.0, 28.0, 31.0), "wrong"),
    claim("TPOT p95", estimate(25.0, 24.0, 26.0), None, "open"),
    claim("output", estimate(50.0, 49.0, 51.0), estimate(50.5, 0.0, 60.0), "held", unit="tok/s"),
)
VIEW = VerifyView(
    title="<b>an experiment</b>",
    subtitle="m on a device",
    answer="<b>an experiment</b>: not all was right",
    verdict="wrong",
    why="",
    trust="fitted",
    seal="",
    measured="",
    next="",
    claims=CLAIMS,
    promises=(
        PromiseRow(
            at="2 requests/s",
            objective="ttft:p95<500ms",
            predicted="met",
            measured="met",
            verdict="held",
        ),
    ),
    facts=(),
    tool_version="0",
)


def test_each_unit_has_its_chart_of_what_was_measured():
    ms, rate = verified_charts(VIEW)
    assert (ms.chart_id, rate.chart_id) == ("verified-ms", "verified-tok-per-s")
    assert {mark.name: len(mark.xs) for mark in marks(ms, Dots)} == {"TTFT": 2, "TPOT": 1}
    assert ms.finding == "1 of 3 held, 1 lie within ±10 %; the median error is 23.1 % in size."
    assert [row[0:2] + row[-2:] for row in ms.rows][2] == (
        "2 requests/s",
        "TPOT p50",
        "-33.3%",
        "wrong",
    )


def test_what_buckets_leave_open_has_no_error_in_words():
    open_ = replace(CLAIMS[0], error_fraction=None, verdict="undecided")
    (chart,) = verified_charts(replace(VIEW, claims=(open_,)))
    assert chart.finding == "0 of 1 held; the server's buckets do not tell the errors."


def test_both_intervals_are_drawn_where_they_are_known():
    ms, rate = verified_charts(VIEW)
    ttft = marks(ms, Dots)[0]
    assert (90.0, 110.0) in [tuple(mark.xs) for mark in marks(ms, Line)]
    assert list(ttft.bars) == [(99.0, 120.0), None]
    (output,) = marks(rate, Dots)
    assert list(output.bars) == [None], "an end at 0 has no place on a logarithmic axis"
    assert "no bar: n too small" in words(ms)


def test_the_page_says_all_of_it_and_lets_no_name_in():
    page = render_page(verify_page_of(VIEW))
    for word in ("Predicted vs measured", "ttft:p95&lt;500ms", "undecided", "open", "TPOT p95"):
        assert word in page
    assert "<b>an experiment" not in page


@pytest.mark.parametrize("claims", [(), CLAIMS[3:4]])
def test_nothing_measured_is_no_chart(claims):
    assert verified_charts(replace(VIEW, claims=claims)) == ()
