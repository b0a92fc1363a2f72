"""How long do the usual and the slowest requests take, and how sure is that?"""

from collections.abc import Sequence
from typing import Final

from inferometer.inputs.objectives import percentile_name
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import PERCENTILES, Percentile, RequestSummary
from inferometer.records.slo_verdicts import Judgement
from inferometer.report.charts.plot import Axis, Chart, Dots, Line, Mark, Plot, Rule, band_of, tip
from inferometer.report.request_words import LATENCY_NAMES, percentile_text
from inferometer.units import format_duration

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
        finding=_finding(name, known, spans, [one.limit_s for one in limits], ends),
        plots=(
            Plot(
                x=Axis(
                    title="percentile of requests", low=-0.1, high=3.1, ticks=_PLACES, labels=_NAMES
                ),
                y=Axis(title=f"{name}, ms (log scale)", scale="log"),
                marks=(
                    *(Rule(at=one.limit_s * 1e3, text=f"SLO: {one.text}") for one in limits),
                    *_marks(known, spans),
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


def _marks(
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


def _finding(
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
