"""Charts over offered load: latency, goodput, and throughput against TTFT; a point per run.

Points whose run is not VALID are hollow. Closed loops go with their concurrency. Beside runs with a
rate they stand in throughput against latency alone, as a line of their own.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from inferometer.inputs.objectives import Threshold, parse_objective
from inferometer.records.request_summaries import Percentile
from inferometer.report.charts.plot import (
    Axis,
    Chart,
    Dash,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    band_of,
    bar_of,
    colours_of,
    tip,
)
from inferometer.report.request_tables import duration_cell, rate_text
from inferometer.report.views import RatePoint, RateView
from inferometer.units import format_number

_HOLLOW: Final = "hollow: not VALID"
_FINE_RATIO: Final = 1.25
"""Between loads that are further apart a crossing is not interpolated."""
_MOST_FOUND: Final = 2
"""Servers that a finding names; the chart has all."""
_SAME_RATIO: Final = 1.1
"""Loads that are drawn differ by less where one was wanted."""


class _Traffic(NamedTuple):
    """The quantity on the x-axis: rate or concurrency."""

    words: str
    axis: str
    header: str
    unit: str


_RATE: Final = _Traffic("the offered rate", "offered requests/s", "offered/s", "requests/s offered")
_CONCURRENCY: Final = _Traffic(
    "concurrency",
    "concurrency (users who wait for their answers)",
    "concurrency",
    "concurrent requests",
)


_Pick: TypeAlias = tuple[str, Callable[[RatePoint], Percentile | None]]
"""A percentile's name, and where a run has it."""


def ttft_rate_chart(view: RateView) -> Chart | None:
    """TTFT p50 and p95 against the offered rate, or the concurrency."""
    return _latency_chart(
        view, "TTFT", (("p50", lambda point: point.ttft_p50), ("p95", lambda point: point.ttft_p95))
    )


def tpot_rate_chart(view: RateView) -> Chart | None:
    """TPOT p50 and p95 against the offered rate, or the concurrency."""
    return _latency_chart(
        view, "TPOT", (("p50", lambda point: point.tpot_p50), ("p95", lambda point: point.tpot_p95))
    )


def goodput_rate_chart(view: RateView) -> Chart | None:
    """Goodput against the offered rate (dashed: all requests are good), or against concurrency."""
    traffic = _traffic(view)
    shown = [point for point in _placed(view) if point.good_requests_per_s is not None]
    if not shown:
        return None
    xs = [_place(point) for point in shown]
    ys = [point.good_requests_per_s or 0.0 for point in shown]
    end = 1.05 * max(*xs, *ys)
    tips = [
        tip(
            (point.label, _flag(point)),
            (traffic.header, format_number(x)),
            ("good/s", format_number(y)),
        )
        for point, x, y in zip(shown, xs, ys, strict=True)
    ]
    ideal = () if view.is_closed else (Line(xs=(0, end), ys=(0, end), colour="c5", dash="dashed"),)
    notes = ("" if view.is_closed else "dashed: all that were offered", _hollow(shown))
    best = max(shown, key=lambda point: point.good_requests_per_s or 0.0)
    return Chart(
        chart_id="goodput-vs-rate",
        title=f"Goodput against {traffic.words}",
        finding=(
            f"Goodput is at most {format_number(best.good_requests_per_s or 0.0)} requests/s, "
            f"at {format_number(_place(best))} {traffic.unit}."
        ),
        plots=(
            Plot(
                x=Axis(title=traffic.axis, low=0, high=1.05 * max(xs) if view.is_closed else end),
                y=Axis(title="requests/s within every limit", low=0),
                marks=(
                    *ideal,
                    *_good_marks(shown, tips),
                    *_marked(view),
                ),
                height=260,
                legend=" · ".join(note for note in notes if note),
            ),
        ),
        header=("run", traffic.header, "good/s", "verdict"),
        rows=tuple(
            (point.label, format_number(x), format_number(y), _flag(point))
            for point, x, y in zip(shown, xs, ys, strict=True)
        ),
    )


def _good_marks(points: Sequence[RatePoint], tips: Sequence[str]) -> list[Mark]:
    """A line through the runs of each server, and its points."""
    marks = list[Mark]()
    for server, colour in colours_of(point.server for point in points).items():
        own = [(one, text) for one, text in zip(points, tips, strict=True) if one.server == server]
        xs = [_place(one) for one, _ in own]
        ys = [one.good_requests_per_s or 0.0 for one, _ in own]
        is_hollow = [bool(_flag(one)) for one, _ in own]
        marks += [
            Line(xs=xs, ys=ys, name=server, colour=colour, is_faint=True),
            Dots(
                xs=xs,
                ys=ys,
                name=server,
                colour=colour,
                is_hollow=is_hollow,
                tips=[text for _, text in own],
            ),
        ]
    return marks


def throughput_latency_chart(view: RateView) -> Chart | None:
    """Output tokens per second against TTFT p95: a line through the runs in the order of their traffic."""
    shown = [
        (point, 1e3 * point.ttft_p95.seconds.value, point.output_tokens_per_s.value)
        for point in view.points
        if point.output_tokens_per_s is not None
        and point.ttft_p95 is not None
        and point.ttft_p95.seconds.value > 0
    ]
    if len(shown) < 2:
        return None
    marks = list[Mark]()
    for name, colour in colours_of(_course(point) for point, _, _ in shown).items():
        chosen = sorted(
            (one for one in shown if _course(one[0]) == name),
            key=lambda one: _place(one[0]) or one[2],
        )
        xs, ys = [x for _, x, _ in chosen], [y for _, _, y in chosen]
        tips = [
            tip(
                (point.label, _flag(point)),
                ("TTFT p95, ms", format_number(x)),
                ("tok/s", format_number(y)),
            )
            for point, x, y in chosen
        ]
        is_hollow = [bool(_flag(point)) for point, _, _ in chosen]
        marks.append(Line(xs=xs, ys=ys, name=name, colour=colour, is_faint=True))
        marks.append(Dots(xs=xs, ys=ys, name=name, colour=colour, is_hollow=is_hollow, tips=tips))
    _, ttft_ms, most = max(shown, key=lambda one: one[2])
    return Chart(
        chart_id="throughput-latency",
        title="Throughput against TTFT",
        finding=(
            f"The most output is {format_number(most)} tok/s, at a TTFT p95 of"
            f" {format_number(ttft_ms)} ms."
        ),
        plots=(
            Plot(
                x=Axis(title="TTFT p95, ms (log scale)", scale="log"),
                y=Axis(title="output tok/s", has_zero=True),
                marks=tuple(marks),
                height=280,
                legend=_hollow([point for point, _, _ in shown]),
            ),
        ),
        header=("run", "TTFT p95, ms", "output tok/s", "verdict"),
        rows=tuple(
            (point.label, format_number(x), format_number(y), _flag(point)) for point, x, y in shown
        ),
    )


def _latency_chart(view: RateView, name: str, picks: Sequence[_Pick]) -> Chart | None:
    traffic, placed = _traffic(view), _placed(view)
    series = {
        label: [(point, found) for point in placed if (found := _positive(pick(point))) is not None]
        for label, pick in picks
    }
    if len({point.label for points in series.values() for point, _ in points}) < 2:
        return None
    limits = _limits(view, name)
    label, pick = picks[-1]
    servers = _by_server(series[label])
    marks: list[Mark] = [
        *(Rule(at=one.limit_s * 1e3, text=f"SLO: {one.text}") for one in limits),
        *_curves(series, servers, traffic),
        *_measured_marks(view, traffic, label, pick),
    ]
    shown = f"{name} {label}" if len(servers) > 1 else name
    return Chart(
        chart_id=f"{name.lower()}-vs-rate",
        title=f"{name} against {traffic.words}",
        finding=" ".join(
            f"{f'{server}: ' if server else ''}{_finding(name, label, points, limits, traffic)}"
            for server, points in list(servers.items())[:_MOST_FOUND]
        ),
        plots=(
            Plot(
                x=Axis(title=traffic.axis),
                y=Axis(title=f"{shown}, ms (log scale)", scale="log"),
                marks=(*marks, *_marked(view)),
                legend=" · ".join(
                    note for note in (f"bars and band: {view.interval}", _hollow(placed)) if note
                ),
            ),
        ),
        header=("run", traffic.header, *(f"{name} {label}" for label, _ in picks), "verdict"),
        rows=tuple(
            (
                point.label,
                format_number(_place(point)),
                *(
                    duration_cell(None if (found := pick(point)) is None else found.seconds)
                    for _, pick in picks
                ),
                _flag(point),
            )
            for point in placed
        ),
    )


def _by_server(
    points: Sequence[tuple[RatePoint, Percentile]],
) -> dict[str, list[tuple[RatePoint, Percentile]]]:
    """No line joins the runs of two servers."""
    found = dict[str, list[tuple[RatePoint, Percentile]]]()
    for point, percentile in points:
        found.setdefault(point.server, []).append((point, percentile))
    return found


def _curves(
    series: dict[str, list[tuple[RatePoint, Percentile]]],
    servers: dict[str, list[tuple[RatePoint, Percentile]]],
    traffic: _Traffic,
) -> list[Mark]:
    """The percentiles of one server, or of several the upper one alone."""
    marks = list[Mark]()
    if len(servers) > 1:
        for server, colour in colours_of(servers).items():
            marks += _percentile_marks(servers[server], server, colour, traffic)
        return marks
    upper = list(series)[-1]
    for label, colour in zip(series, ("c5", "c0"), strict=True):
        dash: Dash = "" if label == upper else "dashed"
        marks += _percentile_marks(series[label], label, colour, traffic, dash=dash)
    return marks


def _percentile_marks(
    points: Sequence[tuple[RatePoint, Percentile]],
    label: str,
    colour: str,
    traffic: _Traffic,
    *,
    dash: Dash = "",
) -> list[Mark]:
    """A line through the runs, its points, and for the upper percentile its band."""
    xs = [_place(point) for point, _ in points]
    ys = [found.seconds.value * 1e3 for _, found in points]
    bars = [_bar(found) for _, found in points]
    tips = [
        tip(
            (f"{label}, {point.label}", _flag(point)),
            (traffic.header, format_number(x)),
            ("latency", duration_cell(found.seconds)),
        )
        for (point, found), x in zip(points, xs, strict=True)
    ]
    known = [(x, bar) for x, bar in zip(xs, bars, strict=True) if bar is not None]
    band = [band_of([x for x, _ in known], [bar for _, bar in known], colour=colour, name=label)]
    return [
        *(band if len(known) > 1 else []),
        Line(xs=xs, ys=ys, name=label, colour=colour, dash=dash),
        Dots(
            xs=xs,
            ys=ys,
            name=label,
            colour=colour,
            bars=bars,
            is_hollow=[bool(_flag(point)) for point, _ in points],
            tips=tips,
        ),
    ]


def _measured_marks(
    view: RateView,
    traffic: _Traffic,
    label: str,
    pick: Callable[[RatePoint], Percentile | None],
) -> list[Mark]:
    """Load tests together with the simulated points.

    Hollow where they are not VALID, of other traffic, or off the curve's ends.
    """
    ends = [_place(point) for point in _placed(view)]
    shown = [
        (point, found)
        for point in view.measured
        if (point.concurrency is None) != view.is_closed
        and (found := _positive(pick(point))) is not None
    ]
    if not shown:
        return []
    return [
        Dots(
            xs=[_place(point) for point, _ in shown],
            ys=[found.seconds.value * 1e3 for _, found in shown],
            name=f"measured {label}",
            colour="c1",
            bars=[_bar(found) for _, found in shown],
            is_hollow=[
                bool(_flag(point) or point.beyond) or not min(ends) <= _place(point) <= max(ends)
                for point, _ in shown
            ],
            tips=[
                tip(
                    (
                        f"measured {label}, {point.label}",
                        ", ".join(filter(None, (_flag(point), point.beyond))),
                    ),
                    (traffic.header, format_number(_place(point))),
                    ("latency", duration_cell(found.seconds)),
                )
                for point, found in shown
            ],
        )
    ]


def _bar(found: Percentile) -> tuple[float, float] | None:
    """Ends of an interval on a logarithmic axis; None where one is unknown or 0."""
    bar = bar_of(found.seconds, 1e3)
    return None if bar is None or bar[0] <= 0 else bar


def _positive(found: Percentile | None) -> Percentile | None:
    return None if found is None or found.seconds.value <= 0 else found


def _finding(
    name: str,
    label: str,
    points: Sequence[tuple[RatePoint, Percentile]],
    limits: Sequence[Threshold],
    traffic: _Traffic,
) -> str:
    """Where the curve crosses its limit; without a limit, how it grows."""
    places = sorted((_place(point), found.seconds.value) for point, found in points)
    if places[-1][0] < _SAME_RATIO * places[0][0] and (len(places) > 1 or not limits):
        return _finding_of_one_load(name, label, places, traffic)
    if limits:
        limit_s = min(one.limit_s for one in limits)
        for (x0, low_s), (x1, high_s) in pairwise(places):
            if low_s <= limit_s < high_s:
                if x1 > _FINE_RATIO * x0:
                    ends = f"{format_number(x0)} and {format_number(x1)}"
                    return f"{name} {label} crosses its limit between {ends} {traffic.unit}."
                share = math.log(limit_s / low_s) / math.log(high_s / low_s)
                at = format_number(x0 + share * (x1 - x0))
                return f"{name} {label} crosses its limit at {at} {traffic.unit}."
        if places[-1][1] <= limit_s:
            most = format_number(places[-1][0])
            return f"{name} {label} stays below its limit up to {most} {traffic.unit}."
        if len(places) == 1:
            return f"{_finding_of_one_load(name, label, places, traffic)[:-1]}, above its limit."
    first, last = places[0], places[-1]
    return (
        f"{name} {label} goes from {format_number(first[1] * 1e3)} ms at"
        f" {format_number(first[0])} {traffic.unit} to {format_number(last[1] * 1e3)} ms at"
        f" {format_number(last[0])}."
    )


def _finding_of_one_load(
    name: str, label: str, places: Sequence[tuple[float, float]], traffic: _Traffic
) -> str:
    """Runs of one load are no course over loads."""
    loads, values_s = zip(*places, strict=True)
    low, high = (format_number(end(values_s) * 1e3) for end in (min, max))
    at = " to ".join(dict.fromkeys(format_number(end(loads)) for end in (min, max)))
    span = f"{low} ms" if len(places) == 1 else f"{low} to {high} ms in {len(places)} runs"
    return f"{name} {label} is {span} at {at} {traffic.unit}."


def _limits(view: RateView, name: str) -> list[Threshold]:
    """The limits of this latency."""
    limits = (
        parse_objective(view.objective, has_workflows=True).thresholds if view.objective else ()
    )
    return [one for one in limits if one.metric == name.lower()]


def _marked(view: RateView) -> list[Mark]:
    """The capacity, and the user's own traffic."""
    marks = list[Mark]()
    if view.capacity_per_s is not None:
        text = f"capacity {format_number(view.capacity_per_s)}"
        marks.append(Rule(at=view.capacity_per_s, text=text, is_vertical=True, tone="capacity"))
    if view.traffic_per_s is not None:
        text = f"your traffic {format_number(view.traffic_per_s)}/s"
        marks.append(Rule(at=view.traffic_per_s, text=text, is_vertical=True, tone="traffic"))
    return marks


def _course(point: RatePoint) -> str:
    """Name of the line that a run belongs to: one server, one kind of load."""
    loop = "open loop" if point.concurrency is None else "closed loop"
    return f"{point.server}, {loop}" if point.server else loop


def _traffic(view: RateView) -> _Traffic:
    return _CONCURRENCY if view.is_closed else _RATE


def _placed(view: RateView) -> list[RatePoint]:
    """The points that have a place on the axis."""
    return [
        point
        for point in view.points
        if (point.concurrency is None) != view.is_closed and _place(point) > 0
    ]


def _place(point: RatePoint) -> float:
    """The run's rate or concurrency; 0 where neither is known."""
    return (
        float(point.offered_requests_per_s or 0.0)
        if point.concurrency is None
        else float(point.concurrency)
    )


def _flag(point: RatePoint) -> str:
    return "" if point.verdict in {None, "VALID"} else str(point.verdict)


def _hollow(points: Sequence[RatePoint]) -> str:
    return _HOLLOW if any(_flag(point) for point in points) else ""


def rate_cells(point: RatePoint) -> tuple[str, ...]:
    """One row of the table of runs."""
    place = _place(point)
    traffic = (
        "–"
        if not place
        else f"{format_number(place)}{'' if point.concurrency is None else ' concurrent'}"
    )
    good = "–" if point.good_requests_per_s is None else format_number(point.good_requests_per_s)
    latencies = (point.ttft_p50, point.ttft_p95, point.tpot_p50, point.tpot_p95)
    return (
        point.label,
        point.verdict or "",
        traffic,
        rate_text(point.completed_requests_per_s, "").strip(),
        good,
        rate_text(point.output_tokens_per_s, "").strip(),
        *(duration_cell(None if one is None else one.seconds) for one in latencies),
    )
