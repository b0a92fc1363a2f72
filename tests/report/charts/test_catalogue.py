"""Does each chart say what the view says, and stay away where there is nothing to say?"""

import re
from dataclasses import replace

import pytest
from tests.report.marks import marks, words

from inferometer.report.charts.catalogue import CHARTS, charts_of
from inferometer.report.charts.curves import Ranked, ranked_chart
from inferometer.report.charts.latency import step_chart, throughput_chart, ttft_chart
from inferometer.report.charts.plot import Axis, Boxes, Dots, Line, Text
from inferometer.report.charts.predicted import predicted_chart
from inferometer.report.charts.roofline import (
    MAX_DRAWN,
    ceilings_chart,
    memory_chart,
    roofline_chart,
    utilisation_chart,
)
from inferometer.report.charts.svg import drawn
from inferometer.report.charts.time_parts import decode_time_chart, prefill_time_chart
from inferometer.report.views import CeilingMoment


@pytest.fixture(scope="module")
def charts(example_view):
    return {chart.chart_id: chart for chart in charts_of(example_view)}


def test_all_but_prefill_time_and_paired_steps_are_drawn(charts):
    """The view has no steps of a narrow copy of the model."""
    assert len(charts) == len(CHARTS) - 2
    assert next(iter(charts)) == "roofline"


def test_nothing_measured_draws_nothing(bare_view):
    assert charts_of(bare_view) == ()


def test_every_chart_has_a_sentence_and_a_table(charts):
    for chart in charts.values():
        assert chart.finding.endswith(".")
        assert "  " not in chart.finding
        assert chart.rows
        assert all(len(row) == len(chart.header) for row in chart.rows), chart.chart_id
        assert all(isinstance(cell, str) for row in chart.rows for cell in row)


def test_no_mark_is_lost_or_leaves_the_plot(charts):
    """Every point is drawn, and within the box of ten thousand in which marks are placed."""
    for chart in charts.values():
        for plot in chart.plots:
            text = drawn(plot)
            assert "http" not in text
            assert "nan" not in text
            places = re.findall(r'class="dot[^>]* d="M(-?\d+) (-?\d+)h0"', text)
            n_points = sum(len(mark.xs) for mark in plot.marks if isinstance(mark, Dots))
            assert len(places) == n_points
            assert all(0 <= int(number) <= 10_000 for pair in places for number in pair)


def test_a_chart_of_the_same_view_is_the_same(example_view, charts):
    assert {chart.chart_id: chart for chart in charts_of(example_view)} == charts


def test_ttft_finding_and_units(one_run_view):
    chart = ttft_chart(one_run_view)
    assert (
        chart.finding
        == "Time to first token: 34.8 ms at 128 prompt tokens, 1757 ms at 4096 prompt tokens (50.5"
        " times as long)."
    )
    assert [row[0] for row in chart.rows] == ["128", "512", "2048", "4096"]
    assert "COLLAPSE_PREFILL(x3.4)" in chart.rows[-1][1]


def test_points_of_the_other_axis_are_not_a_line(one_run_view):
    names = {mark.name for mark in marks(step_chart(one_run_view), Dots)}
    assert names == {"prompt 128"}


def test_several_runs_are_several_lines(example_view):
    names = {mark.name for mark in marks(step_chart(example_view), Dots)}
    assert names == {"fp16 eager · prompt 128", "fp16 graphs · prompt 128"}


def test_statistic_and_n_stand_in_the_axis_title(example_view):
    text = words(step_chart(example_view))
    assert "median of 3–7 repetitions, 95 % interval" in text
    assert "no bar: n too small" in text


def test_an_estimate_without_interval_has_no_bar_and_says_so(example_view):
    chart = throughput_chart(example_view)
    assert "n too small: 3" in chart.rows[-1][2]
    assert any(bar is None for mark in marks(chart, Dots) for bar in mark.bars)


def test_a_lone_point_is_still_drawn(one_run_view):
    view = replace(one_run_view, points=one_run_view.points[:1])
    assert ttft_chart(view).finding == "Time to first token: 34.8 ms at 128 prompt tokens."
    assert throughput_chart(view).rows


def test_roofline_against_the_measured_roof(example_view):
    assert roofline_chart(example_view).finding.startswith(
        "Under the measured roof (580 GB/s, 88 TFLOP/s) decode reaches at most "
    )


def test_roofline_without_roofs(example_view):
    chart = roofline_chart(
        replace(example_view, roofline=replace(example_view.roofline, ceilings=()))
    )
    assert "FLOP/s" in chart.finding


def test_memory_names_points_that_did_not_fit(example_view):
    chart = memory_chart(example_view)
    assert chart.finding.endswith("out of memory at prompt × batch 128 × 128.")
    assert any(mark.text == "✕ out of memory" for mark in marks(chart, Text))


def test_utilisation_says_which_point_is_best(example_view):
    assert utilisation_chart(example_view).finding.startswith("MBU of decode runs from ")


def test_time_parts_stack_to_what_was_measured(example_view):
    chart = decode_time_chart(example_view)
    assert prefill_time_chart(example_view) is None
    sums = {}
    for mark in marks(chart, Boxes):
        for start, end, top, _ in mark.boxes:
            sign = -1 if end <= 0 else 1
            sums[int(top)] = sums.get(int(top), 0.0) + sign * (end - start)
    assert len(sums) == 14
    assert all(total == pytest.approx(100) for total in sums.values())


def test_predicted_counts_held_out_points_only(example_view):
    chart = predicted_chart(example_view)
    assert chart.finding.startswith("14 of 14 held-out points lie within ±10 %")
    in_sample = predicted_chart(
        replace(
            example_view,
            predictions=tuple(p for p in example_view.predictions if not p.is_held_out),
        )
    )
    assert "in-sample" in in_sample.finding


def test_a_long_watch_is_thinned(example_view):
    moments = tuple(
        CeilingMoment(run_label="a", elapsed_s=float(i), kind="read", value_per_s=1e9 + i)
        for i in range(2000)
    )
    chart = ceilings_chart(replace(example_view, ceilings=moments))
    (dots,) = marks(chart, Dots)
    assert len(dots.xs) <= MAX_DRAWN
    assert chart.rows[0][1] == "2000"
    assert "up to one in" in words(chart)


def swept(one_run_view, pairs):
    """The view with these (prompt, batch) points alone, each a copy of the first."""
    first = one_run_view.points[0]
    points = tuple(
        replace(first, prompt_tokens=prompt, batch_size=batch) for prompt, batch in pairs
    )
    return replace(one_run_view, points=points, curves=())


@pytest.mark.parametrize("build", [ttft_chart, step_chart, throughput_chart])
def test_what_was_swept_is_the_x_axis(one_run_view, build):
    """A sweep of lengths has no batch axis on which all lengths would stand above one another, and the other way round."""
    lengths = swept(one_run_view, [(prompt, 1) for prompt in range(100, 900, 100)])
    assert build(lengths, axis="batch_size") is None
    chart = build(lengths, axis="prompt_tokens")
    assert [row[0] for row in chart.rows] == [str(prompt) for prompt in range(100, 900, 100)]
    assert {x for mark in marks(chart, Dots) for x in mark.xs} == set(range(100, 900, 100))
    batches = swept(one_run_view, [(128, batch) for batch in (1, 2, 4)])
    assert build(batches, axis="prompt_tokens") is None
    assert [row[0] for row in build(batches, axis="batch_size").rows] == ["1", "2", "4"]
    grid = swept(one_run_view, [(prompt, batch) for prompt in (128, 256) for batch in (1, 2)])
    assert build(grid, axis="prompt_tokens") is not None
    assert build(grid, axis="batch_size") is not None


@pytest.mark.parametrize("build", [ttft_chart, step_chart, throughput_chart])
def test_lines_beyond_the_palette_are_in_the_table_and_named(one_run_view, build):
    view = swept(
        one_run_view, [(prompt, batch) for prompt in range(100, 900, 100) for batch in (1, 2)]
    )
    chart = build(view, axis="batch_size")
    note = "6 of 8 lines are drawn, the table has all"
    assert note in chart.finding
    assert note in words(chart)
    assert len(chart.header) == 1 + 8
    assert len({mark.name for mark in marks(chart, Line)}) == 6
    few = swept(
        one_run_view, [(prompt, batch) for prompt in range(100, 700, 100) for batch in (1, 2)]
    )
    assert "lines are drawn" not in words(build(few, axis="batch_size"))


def test_rows_beyond_what_is_drawn_are_counted(one_run_view):
    view = swept(one_run_view, [(prompt, 1) for prompt in range(1, 46)])
    for build in (memory_chart, utilisation_chart):
        assert "the first 40 of 45 rows, the table has all" in words(build(view))
        assert len(build(view).rows) == 45


def test_a_ranking_of_nothing_but_zeros_is_drawn():
    """Its axis had no extent: "math domain error"."""
    rows = [Ranked("a", 0.0, None, None), Ranked("b", 0.0, 0.0, 0.0)]
    chart = ranked_chart("ranked", "Title", "", rows, x=Axis(title="req/s"), intervals="")
    assert "req/s" in drawn(chart.plots[0])
