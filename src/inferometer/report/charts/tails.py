"""How long do the usual and the slowest requests take, and how large a share took longer?

Tails of TTFT, TPOT and E2E, both axes logarithmic, each in its interval; percentiles as points
with theirs.
"""

import math
from collections.abc import Sequence
from typing import Final

from inferometer.inputs.objectives import percentile_name
from inferometer.records.latencies import NAMED_SHARES, Latency
from inferometer.records.request_summaries import PERCENTILES, Judgement, Percentile, RequestSummary
from inferometer.report.charts.plot import (
    Axis,
    Band,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    band_of,
    tip,
)
from inferometer.report.request_tables import LATENCY_NAMES, percentile_text
from inferometer.report.tables import ABSENT_TEXT
from inferometer.report.views import LatencyTail, RequestReportView
from inferometer.units import format_duration, format_number


def tails_chart(view: RequestReportView) -> Chart | None:
    """1 - F of each latency; hollow marks: requests that were not done can push the value up only."""
    if not view.tails:
        return None
    counts = " · ".join(
        f"{LATENCY_NAMES[tail.latency]} n = {tail.n_samples}" for tail in view.tails
    )
    has_bounds = any(bool(tail.tail[4].any()) for tail in view.tails)
    hollow = " · hollow: at least, some were not done" if has_bounds else ""
    marks = tuple(mark for rank, tail in enumerate(view.tails) for mark in _marks(tail, f"c{rank}"))
    band = " · band: 95 % interval" if any(isinstance(mark, Band) for mark in marks) else ""
    plot = Plot(
        x=Axis(title="latency, ms (log scale)", scale="log"),
        y=Axis(title="% of requests that took longer (log scale)", scale="log", high=100),
        marks=marks,
        height=320,
        legend=f"{counts}{band}{hollow}",
    )
    return Chart(
        chart_id="latency-tails",
        title="Tails of latency",
        finding=_finding(view.tails),
        plots=(plot,),
        header=(
            "latency",
            "n",
            *(f"{format_number(100 * share)} % took longer than" for share in NAMED_SHARES),
        ),
        rows=tuple(
            (
                LATENCY_NAMES[tail.latency],
                str(tail.n_samples),
                *(_at(tail, share) for share in NAMED_SHARES),
            )
            for tail in view.tails
        ),
    )


def _marks(tail: LatencyTail, colour: str) -> list[Mark]:
    """A band, a line, and points, hollow where they are lower bounds."""
    name = LATENCY_NAMES[tail.latency]
    columns = (column.tolist() for column in tail.tail)
    rows = sorted(row for row in zip(*columns, strict=True) if row[1] > 0)
    largest_s = max(row[1] for row in rows) if rows else 0.0
    banded = [row for row in rows if not math.isnan(row[2]) and row[2] > 0]
    outline = [
        *((1e3 * low_s, 100 * share) for share, _, low_s, _, _ in banded),
        *(
            (1e3 * (largest_s if math.isinf(high_s) else high_s), 100 * share)
            for share, _, _, high_s, _ in reversed(banded)
        ),
    ]
    xs, ys = [1e3 * row[1] for row in rows], [100 * row[0] for row in rows]
    tips = [
        tip(
            (name, f"{'≥ ' if is_bound else ''}{format_duration(value_s)}"),
            ("took longer", f"{format_number(100 * share)} %"),
            (
                "interval",
                "" if math.isnan(low_s) else f"{format_duration(low_s)} to {_end(high_s)}",
            ),
        )
        for share, value_s, low_s, high_s, is_bound in rows
    ]
    return [
        *([Band(outline=outline, colour=colour, name=name)] if outline else []),
        Line(xs=xs, ys=ys, name=name, colour=colour),
        Dots(
            xs=xs,
            ys=ys,
            name=name,
            colour=colour,
            tips=tips,
            is_hollow=[bool(row[4]) for row in rows],
        ),
    ]


def _end(high_s: float) -> str:
    return "…" if math.isinf(high_s) else format_duration(high_s)


def _at(tail: LatencyTail, share: float) -> str:
    """The value at this height; absent where the run has too few requests."""
    for found, value_s, is_bound in zip(*(tail.tail[i].tolist() for i in (0, 1, 4)), strict=True):
        if math.isclose(found, share, rel_tol=1e-9):
            return f"{'≥ ' if is_bound else ''}{format_duration(value_s)}"
    return ABSENT_TEXT


def _finding(tails: tuple[LatencyTail, ...]) -> str:
    parts = [
        f"{LATENCY_NAMES[tail.latency]} exceeds {_at(tail, 0.5)} in half and {_at(tail, 0.05)} in 5"
        f" % of {tail.n_samples} requests"
        for tail in tails
    ]
    return f"{'; '.join(parts)}."


_PLACES: Final = tuple(float(rank) for rank in range(len(PERCENTILES)))
_NAMES: Final = tuple(percentile_name(fraction) for fraction in PERCENTILES)


def percentiles_chart(
    latency: Latency,
    likely: RequestSummary,
    others: Sequence[RequestSummary],
    judgement: Judgement | None,
    *,
    ends: str,
) -> Chart | None:
    """Percentiles of the likely run, in the band of the other runs, under the limits."""
    known = [
        (place, found)
        for place, fraction in zip(_PLACES, PERCENTILES, strict=True)
        if (found := likely.latency(latency).percentile(fraction)) is not None
        and found.seconds.value > 0
    ]
    if len(known) < 2:
        return None
    name = LATENCY_NAMES[latency]
    limits = [
        one.threshold
        for one in (() if judgement is None else judgement.thresholds)
        if one.threshold.metric == latency
    ]
    spans = [_span(found, others, latency) for _, found in known]
    return Chart(
        chart_id=f"{latency}-percentiles",
        title=f"Percentiles of {name}",
        finding=_percentiles_finding(name, known, spans, [one.limit_s for one in limits], ends),
        plots=(
            Plot(
                x=Axis(
                    title="percentile of requests", low=-0.1, high=3.1, ticks=_PLACES, labels=_NAMES
                ),
                y=Axis(title=f"{name}, ms (log scale)", scale="log"),
                marks=(
                    *(Rule(at=one.limit_s * 1e3, text=f"SLO: {one.text}") for one in limits),
                    *_percentiles_marks(known, spans),
                ),
                height=280,
                legend=f"band: {ends}" if others else "",
            ),
        ),
        header=("percentile", name, ends),
        rows=_rows(known, spans),
    )


def _rows(
    known: Sequence[tuple[float, Percentile]], spans: Sequence[tuple[float, float]]
) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            _NAMES[round(place)],
            percentile_text(found),
            f"{format_duration(low_s)} … {format_duration(high_s)}",
        )
        for (place, found), (low_s, high_s) in zip(known, spans, strict=True)
    )


def _span(
    found: Percentile, others: Sequence[RequestSummary], latency: Latency
) -> tuple[float, float]:
    """The least and the most of all runs."""
    alike = [one.latency(latency).percentile(found.percentile_fraction) for one in others]
    values = [found.seconds.value, *(one.seconds.value for one in alike if one is not None)]
    return min(values), max(values)


def _percentiles_marks(
    known: Sequence[tuple[float, Percentile]], spans: Sequence[tuple[float, float]]
) -> list[Mark]:
    xs = [place for place, _ in known]
    ys = [1e3 * found.seconds.value for _, found in known]
    ends = [(1e3 * low_s, 1e3 * high_s) for low_s, high_s in spans]
    tips = [tip((_NAMES[round(place)], percentile_text(found))) for place, found in known]
    is_hollow = [found.is_lower_bound for _, found in known]
    return [
        band_of(xs, ends),
        Line(xs=xs, ys=ys),
        Dots(xs=xs, ys=ys, is_hollow=is_hollow, tips=tips),
    ]


def _percentiles_finding(
    name: str,
    known: Sequence[tuple[float, Percentile]],
    spans: Sequence[tuple[float, float]],
    limits_s: Sequence[float],
    ends: str,
) -> str:
    """The 95th percentile, within which ends, and its limit."""
    ranked = zip(known, spans, strict=True)
    (place, found), (low_s, high_s) = min(
        ranked, key=lambda one: abs(one[0][1].percentile_fraction - 0.95)
    )
    limit = f"; the limit is {format_duration(min(limits_s))}" if limits_s else ""
    span = (
        f" ({ends}: {format_duration(low_s)} to {format_duration(high_s)})"
        if low_s < high_s
        else ""
    )
    return f"{name} {_NAMES[round(place)]} is {format_duration(found.seconds.value)}{span}{limit}."
