"""May the model be trusted: how far from the measured is the predicted?"""

from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.report.cells import (
    estimate_cell,
    has_several_runs,
    held_out_text,
    notes_text,
    statistic_text,
)
from inferometer.report.charts.frame import (
    INK,
    MUTED,
    PAPER,
    POINT_SIZE,
    ChartSpec,
    Row,
    finished,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.views import HeldOutRow, PredictedPoint, SweepReportView

BAND_FRACTION: Final = 0.1
MS_PER_S: Final = 1e3


def predicted_chart(view: SweepReportView) -> ChartSpec | None:
    """Measured against predicted (log-log), y = x and ±10 % band; held-out points are filled."""
    points = view.predictions
    if not points:
        return None
    has_runs = has_several_runs(point.run_label for point in points)
    rows = [_row(point, has_runs=has_runs) for point in points]
    numbers = [number for row in rows for number in (row["x"], row["value"])]
    domain = [min(numbers) / 1.3, max(numbers) * 1.3]
    estimates = [point.measured_s for point in points]
    has_in_sample = not all(point.is_held_out for point in points)
    words = "line: measured = predicted · band: ±10 %" + (
        " · hollow: in sample" if has_in_sample else " · all held out"
    )
    title = (
        "measured, ms (log scale)",
        statistic_text(estimates),
        " · ".join(text for text in (words, notes_text(estimates)) if text),
    )
    axis = alt.Axis(title="predicted, ms (log scale)", format=",~r", tickCount=5, grid=False)
    x = alt.X("x:Q", scale=alt.Scale(type="log", domain=domain, nice=False), axis=axis)
    y_domain = [domain[0] * (1 - BAND_FRACTION), domain[1] * (1 + BAND_FRACTION)]
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(type="log", domain=y_domain, nice=False),
        axis=y_axis(*title, number_format=",~r", tick_count=5),
    )
    layers = _layers(rows, domain, x, y)
    return ChartSpec(
        chart_id="predicted-vs-measured",
        title="Predicted against measured",
        finding=_finding(points, view.held_out),
        spec=finished(layers, height=380),
        header=(
            "phase",
            *(("run",) if has_runs else ()),
            "prompt tokens",
            "batch",
            "predicted ms",
            "measured ms",
            "error",
            "held out",
        ),
        rows=tuple(_cells(point, has_runs=has_runs) for point in points),
    )


def identity_layers(domain: Sequence[float], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """The band of ±10 % around the diagonal, and the diagonal."""
    ideal: list[Row] = [
        {"x": at, "value": at, "low": at * (1 - BAND_FRACTION), "high": at * (1 + BAND_FRACTION)}
        for at in domain
    ]
    return [
        alt.Chart(values(ideal))
        .mark_area(color=MUTED, opacity=0.15)
        .encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
        alt.Chart(values(ideal)).mark_line(color=INK, strokeWidth=1).encode(x=x, y=y),
    ]


def _layers(rows: Sequence[Row], domain: Sequence[float], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Band and diagonal, error bars, points, and the holes of those that the model had seen."""
    channels = series_channels(list(dict.fromkeys(row["series"] for row in rows)))
    tooltip = [
        "series:N",
        "prompt:Q",
        "batch:Q",
        alt.Tooltip("x:Q", title="predicted, ms", format=".3~r"),
    ]
    tooltip += [
        alt.Tooltip("value:Q", title="measured, ms", format=".3~r"),
        alt.Tooltip("error:N"),
        alt.Tooltip("held_out:N", title="held out"),
    ]
    layers = identity_layers(domain, x, y)
    bars = [row for row in rows if "low" in row]
    if bars:
        layers.append(
            alt.Chart(values(bars))
            .mark_rule(strokeWidth=2)
            .encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=channels["color"])
        )
    layers.append(
        alt.Chart(values(rows))
        .mark_point(filled=True, size=POINT_SIZE, opacity=1)
        .encode(x=x, y=y, **channels, tooltip=tooltip)
    )
    hollow = [row for row in rows if row["held_out"] == "no"]
    if hollow:
        inside = alt.Chart(values(hollow)).mark_point(
            filled=True, size=POINT_SIZE * 0.3, opacity=1, color=PAPER
        )
        layers.append(inside.encode(x=x, y=y, shape=channels["shape"], tooltip=tooltip))
    return layers


def _row(point: PredictedPoint, *, has_runs: bool) -> Row:
    row: Row = {
        "series": f"{point.run_label} · {point.phase}" if has_runs else point.phase,
        "x": point.predicted_s.value * MS_PER_S,
        "value": point.measured_s.value * MS_PER_S,
        "prompt": point.prompt_tokens,
        "batch": point.batch_size,
        "error": f"{_error_fraction(point):+.1%}",
        "held_out": "yes" if point.is_held_out else "no",
    }
    low, high = point.measured_s.low, point.measured_s.high
    return (
        row
        if low is None or high is None
        else row | {"low": low * MS_PER_S, "high": high * MS_PER_S}
    )


def _error_fraction(point: PredictedPoint) -> float:
    return point.predicted_s.value / point.measured_s.value - 1


def _finding(points: Sequence[PredictedPoint], held_out: Sequence[HeldOutRow]) -> str:
    """The share of held-out points within ±10 %, and the errors as elsewhere on the page."""
    judged = [point for point in points if point.is_held_out and point.is_judged] or [
        point for point in points if not point.is_held_out
    ]
    n_inside = sum(abs(_error_fraction(point)) <= BAND_FRACTION for point in judged)
    n_noisy = sum(not point.is_judged for point in points)
    if not judged:
        return "No point's repetitions agree well enough to judge the model."
    kind = "held-out" if judged[0].is_held_out else "in-sample"
    errors = f"; error on points held out: {held_out_text(held_out)}" if held_out else ""
    noisy = f"; {n_noisy} whose repetitions disagree do not judge it" if n_noisy else ""
    return f"{n_inside} of {len(judged)} {kind} points lie within ±10 %{errors}{noisy}."


def _cells(point: PredictedPoint, *, has_runs: bool) -> tuple[str, ...]:
    return (
        point.phase,
        *((point.run_label,) if has_runs else ()),
        str(point.prompt_tokens),
        str(point.batch_size),
        estimate_cell(point.predicted_s, MS_PER_S),
        estimate_cell(point.measured_s, MS_PER_S),
        f"{_error_fraction(point):+.1%}",
        "yes" if point.is_held_out else "no",
    )
