"""Is a fact the same number wherever a page says it?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.api.analysis import analyse
from inferometer.api.fit_views import held_out_rows, predictions
from inferometer.api.request_view import request_view
from inferometer.api.sweep_view import sweep_view
from inferometer.fit.sweeps.step_time import held_out_errors
from inferometer.records.latencies import Latency
from inferometer.records.reading import read_run
from inferometer.report.charts.predicted import predicted_chart
from inferometer.report.charts.tails import tails_chart
from inferometer.report.page import Number
from inferometer.report.request_tables import LATENCY_NAMES, percentile_text
from inferometer.report.tables import LEAST_FOR_P95, error_text, held_out_table, held_out_text
from inferometer.report.views import HeldOutRow

SWEEP = Path(__file__).parents[1] / "fit" / "data" / "qwen2.5-0.5b-bfloat16"


@pytest.fixture(scope="module")
def analysis():
    return analyse(read_run(SWEEP), SWEEP, label="recorded")


@pytest.mark.slow
def test_the_error_on_points_held_out(analysis):
    """Trust line, chart, table.

    Of the points that judge the model, against measurements with the machine's drift taken out.
    """
    view = sweep_view([analysis])
    words = held_out_text(view.held_out)
    assert words.startswith("prefill ")
    assert f"error on points held out: {words}" in view.five_lines.trust
    assert f"error on points held out: {words}" in predicted_chart(view).finding
    drawn = [point for point in view.predictions if point.is_judged]
    for row in view.held_out:
        errors = [
            abs(point.predicted_s.value / point.measured_s.value - 1)
            for point in drawn
            if point.phase == row.phase
        ]
        assert len(errors) == row.n_points
        assert np.median(errors) == pytest.approx(row.median_fraction, rel=1e-9)
    n_noisy = len(view.predictions) - len(drawn)
    assert n_noisy > 0, "this record has points that a disturbed machine measured"
    assert f"{n_noisy} whose repetitions disagree" in predicted_chart(view).finding


@pytest.mark.parametrize(
    ("coverage_fraction", "n_points", "words"),
    [
        (0.5, 4, "prefill 5 % (median of 4, only 2 of them in the 90 % interval)"),
        (0.0, 2, "prefill 5 % (median of 2, none of them in the 90 % interval)"),
        (0.25, 4, "prefill 5 % (median of 4, only 1 of them in the 90 % interval)"),
        (0.75, 4, "prefill 5 % (median of 4)"),
        (19 / 22, 22, "prefill 5 % (median of 22)"),
        (16 / 22, 22, "prefill 5 % (median of 22, only 16 of them in the 90 % interval)"),
    ],
)
def test_an_interval_that_held_too_few_points_is_no_secret(coverage_fraction, n_points, words):
    assert error_text("prefill", 0.05, n_points, coverage_fraction) == words


@pytest.mark.slow
def test_one_point_has_no_median(analysis):
    only = [next(point for point in analysis.held_out if point.phase == "decode")]
    one = replace(
        analysis,
        model=replace(analysis.model, held_out=held_out_errors(only)),
        held_out=tuple(only),
    )
    assert held_out_text(held_out_rows(one)).endswith("(one point)")
    assert len(predictions(one)) == 1
    row = HeldOutRow(
        run_label="",
        phase="decode",
        n_points=LEAST_FOR_P95 - 1,
        median_fraction=0.1,
        p95_fraction=0.3,
        coverage_fraction=1.0,
    )
    assert held_out_table(replace(sweep_view([analysis]), held_out=(row,))).rows[0][3] == "–"


@pytest.mark.parametrize("n_requests", [3, 40, 173, 600])
def test_percentiles_of_latencies(n_requests, recorded_requests):
    """The tail's chart says the p50 and p95 of the table, at any number of requests."""
    table = recorded_requests.requests
    assert len(table.status) >= n_requests
    first = type(table)._make(column[:n_requests] for column in table)
    view = request_view(replace(recorded_requests, requests=first, steps=None, parts=None))
    chart, whole = tails_chart(view), view.summaries[0]
    for latency in ("ttft", "tpot", "e2e"):
        name: Latency = latency
        row = next(row for row in chart.rows if row[0] == LATENCY_NAMES[name])
        for share, column in ((0.5, 2), (0.05, 4), (0.01, 5)):
            told = (
                percentile_text(whole.latency(name).percentile(1 - share))
                .partition(" [")[0]
                .partition(" (")[0]
            )
            assert row[column] in {told, "–"}
        assert (
            f"{LATENCY_NAMES[name]} exceeds {row[2]} in half and {row[4]} in 5 %" in chart.finding
        )


def test_an_end_of_minutes_is_not_written_in_ms():
    number = Number(name="TTFT p95", value=1591.0, unit="ms", low=322.0, high=1.44e6)
    assert number.interval == "[322, 24 min]"
