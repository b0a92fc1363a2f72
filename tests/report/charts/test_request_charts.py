"""Does each chart of a run of requests say what its view says, for readers who see no colours too?"""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.report.marks import marks, words
from tests.report.request_example import recorded_run

from inferometer.records.latencies import deliveries
from inferometer.records.slot_timeline import CellState, SlotTimeline, slices_of
from inferometer.report.charts.catalogue import REQUEST_CHARTS, request_charts_of
from inferometer.report.charts.load import kv_chart, preemption_chart, queue_chart
from inferometer.report.charts.online import (
    MAX_SLICES,
    MAX_SLOTS,
    gap_chart,
    history_chart,
    slots_chart,
)
from inferometer.report.charts.plot import Band, Boxes, Dots, Line, Text
from inferometer.report.charts.svg import SERIES_COLOURS, drawn
from inferometer.report.charts.tails import tails_chart
from inferometer.report.charts.time_parts import ttft_parts_chart
from inferometer.report.request_tables import STATE_COLOURS, STATE_LETTERS


@pytest.fixture(scope="module")
def charts(request_example):
    return {chart.chart_id: chart for chart in request_charts_of(request_example)}


def test_all_are_drawn_with_a_sentence_and_a_table(charts):
    assert len(charts) == len(REQUEST_CHARTS)
    for chart in charts.values():
        assert chart.finding.endswith(".")
        assert "  " not in chart.finding
        assert chart.rows
        assert all(len(row) == len(chart.header) for row in chart.rows), chart.chart_id
        text = "".join(drawn(plot) for plot in chart.plots)
        assert "http" not in text
        assert "nan" not in text


def test_without_data_nothing_is_drawn(request_example):
    bare = replace(
        request_example,
        tails=(),
        history=None,
        load=None,
        timeline=None,
        gaps=None,
        ttft_parts=None,
    )
    assert request_charts_of(bare) == ()


def paths_of(plot):
    """The coordinates of each line that is drawn."""
    text = drawn(plot)
    return [
        [tuple(map(int, pair.split())) for pair in re.findall(r"-?\d+ -?\d+", path)]
        for path in re.findall(r'<path class="line [^>]* d="([^"]*)"', text)
    ]


def first_windows(series, n):
    return series._replace(
        **{name: value[:n] for name, value in series._asdict().items() if np.ndim(value)}
    )


def test_one_window_has_the_lines_that_its_legend_names(request_example):
    load = first_windows(request_example.load, 1)
    history = replace(
        request_example.history, windows=first_windows(request_example.history.windows, 1)
    )
    one = replace(request_example, load=load, history=history)
    for chart in (queue_chart(one), preemption_chart(one)):
        for path in paths_of(chart.plots[0]):
            assert (path[0][0], path[-1][0]) == (0, 10_000)
    (plot,) = history_chart(one).plots
    assert "lines: percentiles" in plot.legend
    assert all(path[0][0] < path[-1][0] for path in paths_of(plot))
    columns = {name: np.array([np.nan]) for name in ("p50_s", "p90_s", "p99_s")}
    few = replace(history, windows=history.windows._replace(**columns))
    (plot,) = history_chart(replace(one, history=few)).plots
    assert (paths_of(plot), "lines" in plot.legend) == ([], False)


def test_the_last_window_is_drawn_to_its_end(request_example):
    n_windows = len(request_example.load.start_s)
    (path,) = paths_of(preemption_chart(request_example).plots[0])
    assert (path[0][0], path[-1][0]) == (0, 10_000)
    assert len({x for x, _ in path}) == n_windows + 1


def test_a_step_lasts_until_its_gap(request_example):
    load = request_example.load
    gap = np.where(np.arange(len(load.start_s)) == 3, np.nan, load.n_running_mean)
    path = paths_of(
        queue_chart(replace(request_example, load=load._replace(n_running_mean=gap))).plots[0]
    )[0]
    assert round(10_000 * 3 / len(load.start_s)) in {x for x, _ in path}


def test_where_the_first_token_waits(request_example):
    chart = ttft_parts_chart(request_example)
    run = recorded_run()
    first = run.requests.first_token_ns >= 0
    queue_ms = 1e-6 * (run.requests.admitted_ns - run.requests.sent_ns)[first].mean()
    ((name, n_requests, whole, client, queue, prefill),) = chart.rows
    assert (name, int(n_requests)) == ("all requests", int(first.sum()))
    assert float(queue) == pytest.approx(queue_ms, rel=0.01)
    assert float(client) + float(queue) + float(prefill) == pytest.approx(float(whole), rel=0.01)
    bars = [mark for mark in marks(chart, Boxes) if mark.boxes]
    assert bars[-1].boxes[0][1] == pytest.approx(100)
    assert [bar.name for bar in bars] == ["queue", "prefill"]
    assert "of the mean TTFT is queue" in chart.finding
    assert "of the mean TTFT is queue" in request_example.five_lines.limit


def test_a_part_that_nobody_told_is_no_bar(request_example):
    view = replace(
        request_example,
        ttft_parts=replace(
            request_example.ttft_parts, queue_s=None, prefill_s=None, network_s=-1e-6
        ),
    )
    chart = ttft_parts_chart(view)
    assert "–" in chart.rows[0] or "queue, ms" not in chart.header
    assert all(box[1] > box[0] for mark in marks(chart, Boxes) for box in mark.boxes)


def test_stalls_of_a_simulated_run_are_mapped(request_example):
    chart = gap_chart(request_example)
    cells = [box for mark in marks(chart, Boxes) for box in mark.boxes]
    tokens = deliveries(recorded_run())
    assert len(cells) == len(request_example.gaps.gap_s)
    assert int(request_example.gaps.n_gaps.sum()) == len(tokens.n_tokens) - len(
        np.unique(tokens.request_index)
    )
    slow = request_example.gaps.gap_s.argmax()
    hottest = max(marks(chart, Boxes), key=lambda mark: mark.colour)
    assert request_example.gaps.time_s[slow] in {box[0] for box in hottest.boxes}


def test_tails(request_example):
    chart = tails_chart(request_example)
    assert "TTFT exceeds 63.4 ms in half and ≥ 847 ms in 5 % of 599 requests" in chart.finding
    assert {mark.name for mark in marks(chart, Line)} == {"TTFT", "TPOT", "E2E"}
    assert any(any(mark.is_hollow) for mark in marks(chart, Dots))
    for band, line in zip(marks(chart, Band), marks(chart, Line), strict=True):
        value_at = dict(zip(line.ys, line.xs, strict=True))
        ends = {}
        for x, share in band.outline:
            ends.setdefault(share, []).append(x)
        assert all(min(xs) <= value_at[share] <= max(xs) for share, xs in ends.items())
    assert "hollow" in words(chart)


def test_tails_of_too_few_requests_have_no_band_and_speak_of_none(request_example):
    """An outline without points is a path that a browser refuses."""
    unknown = np.full_like
    tails = tuple(
        replace(
            tail,
            tail=(*tail.tail[:2], *(unknown(tail.tail[i], np.nan) for i in (2, 3)), tail.tail[4]),
        )
        for tail in request_example.tails
    )
    chart = tails_chart(replace(request_example, tails=tails))
    assert not marks(chart, Band)
    assert len(marks(chart, Line)) == 3
    assert "band" not in words(chart)
    assert "band: 95 % interval" in words(tails_chart(request_example))


def test_history_says_what_was_not_done(request_example):
    chart = history_chart(request_example)
    assert "14 of 599 requests were not that far" in chart.finding
    (undone,) = [mark for mark in marks(chart, Dots) if mark.colour == "c1"]
    assert len(undone.xs) >= 14


def test_load(request_example):
    assert queue_chart(request_example).finding.startswith(
        "At most 8 requests ran and 16 waited at once"
    )
    assert (
        kv_chart(request_example).finding
        == "At most 139 KV blocks of 139 (100 %) were in use at once."
    )
    assert (
        kv_chart(replace(request_example, n_kv_blocks=None)).finding
        == "At most 139 KV blocks were in use at once."
    )
    assert preemption_chart(request_example).finding == "19 preemptions, the first after 13.4 s."
    load = request_example.load
    assert (
        preemption_chart(
            replace(request_example, load=load._replace(n_preempted=load.n_preempted * 0))
        ).finding
        == "No request was preempted."
    )
    unknown = load._replace(kv_blocks_max=load.kv_blocks_max * np.nan)
    assert kv_chart(replace(request_example, load=unknown)) is None


def test_slots(request_example):
    chart = slots_chart(request_example)
    assert chart.title == "What each slot did, steps 3000 to 3059"
    slices = slices_of(request_example.timeline)
    bars = [mark for mark in marks(chart, Boxes) if mark.name]
    shown = {
        (int(top), round(left), round(right)) for mark in bars for left, right, top, _ in mark.boxes
    }
    assert shown == {(s.slot, s.first_step, s.first_step + s.n_steps) for s in slices}
    assert {mark.name[0] for mark in bars} == {"C", "g", "E"}
    labels = [mark.text for mark in marks(chart, Text)]
    assert "E" in labels
    assert any(label.startswith("g 2") for label in labels)


def test_a_large_batch_stays_light():
    rng = np.random.default_rng(0)
    states = rng.integers(0, 4, (256, 120)).astype(np.int8)
    timeline = SlotTimeline(
        first_step=0,
        n_steps_of_run=120,
        start_ns=np.arange(120) * 10,
        duration_ns=np.full(120, 10),
        states=states,
        requests=np.where(states == CellState.IDLE, -1, rng.integers(0, 999, states.shape)).astype(
            np.int32
        ),
        tokens=np.ones(states.shape, np.int32),
    )
    view = type("View", (), {"timeline": timeline})()
    chart = slots_chart(view)
    boxes = [box for mark in marks(chart, Boxes) if mark.name for box in mark.boxes]
    assert 0 < len(boxes) <= MAX_SLICES
    assert len({int(box[2]) for box in boxes}) <= MAX_SLOTS
    assert "of them are drawn" in chart.finding


# What a reader without one kind of cone sees (Machado, Oliveira and Fernandes 2009, severity 1.0),
# in linear RGB.
VISION = {
    "all cones": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def lab(colour, matrix):
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(matrix @ linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def smallest_difference(colours, matrix):
    return min(
        float(np.linalg.norm(lab(a, matrix) - lab(b, matrix)))
        for a, b in itertools.combinations(colours, 2)
    )


@pytest.mark.parametrize("vision", VISION)
def test_states_are_told_apart_by_everybody(vision):
    """ΔE of CIE 1976; the idle paper is one of the colours."""
    assert smallest_difference([*STATE_COLOURS.values(), "#ffffff"], VISION[vision]) > 40


@pytest.mark.parametrize("vision", [name for name in VISION if name != "tritan"])
def test_three_lines_are_told_apart(vision):
    """Without blue cones, which one in ten thousand readers lacks, labels and dashes alone tell blue from green."""
    assert smallest_difference(SERIES_COLOURS[:3], VISION[vision]) > 20


def test_the_colours_of_vllms_own_timeline_would_fail():
    vllm = ("#109618", "#FF7F0E", "#D62728")
    assert min(smallest_difference(vllm, VISION[vision]) for vision in ("protan", "deutan")) < 15


def test_letters_differ():
    assert len(set(STATE_LETTERS.values())) == len(CellState)
