"""Was it so: how far are sealed predictions from what was then measured?"""

from collections.abc import Sequence
from statistics import median

import altair as alt

from inferometer.report.cells import estimate_cell, notes_text
from inferometer.report.charts.frame import (
    POINT_SIZE,
    ChartSpec,
    Row,
    finished,
    log_axis_domain,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.charts.predicted import BAND_FRACTION, identity_layers
from inferometer.report.verify_tables import ClaimRow, VerifyView, error_cell
from inferometer.units import format_number


def verified_charts(view: VerifyView) -> tuple[ChartSpec, ...]:
    """A chart for each unit in which something was measured."""
    units = dict.fromkeys(claim.unit for claim in view.claims if claim.measured is not None)
    return tuple(
        _chart(
            unit,
            [claim for claim in view.claims if claim.unit == unit and claim.measured is not None],
        )
        for unit in units
    )


def _chart(unit: str, claims: Sequence[ClaimRow]) -> ChartSpec:
    """Measured against predicted, both with their intervals, with y = x and a band of ±10 %."""
    rows = [_row(claim) for claim in claims]
    return ChartSpec(
        chart_id=f"verified-{unit.replace('/', '-per-').replace(' ', '-')}",
        title=f"Predicted against measured, {unit}",
        finding=_finding(claims),
        spec=finished(_layers(unit, claims, rows), height=380),
        header=("at", "metric", "predicted", "measured", "error", "verdict"),
        rows=tuple(
            (
                one.at,
                one.metric,
                estimate_cell(one.predicted),
                estimate_cell(one.measured),
                error_cell(one.error_fraction),
                one.verdict,
            )
            for one in claims
        ),
    )


def _layers(unit: str, claims: Sequence[ClaimRow], rows: Sequence[Row]) -> list[alt.Chart]:
    """The line of equality, both intervals as a cross, and the points."""
    domain = log_axis_domain(
        [
            row[key]
            for row in rows
            for key in ("x", "x_low", "x_high", "value", "low", "high")
            if key in row
        ]
    )
    words = (
        "line: measured = predicted · band: ±10 % · bars: 95 % measured, 90 % predicted",
        notes_text(one.measured for one in claims),
    )
    title = (f"measured, {unit} (log scale)", " · ".join(text for text in words if text))
    x_axis = alt.Axis(title=f"predicted, {unit} (log scale)", format=",~r", tickCount=5, grid=False)
    x = alt.X("x:Q", scale=alt.Scale(type="log", domain=domain, nice=False), axis=x_axis)
    y_domain = [domain[0] * (1 - BAND_FRACTION), domain[1] * (1 + BAND_FRACTION)]
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(type="log", domain=y_domain, nice=False),
        axis=y_axis(*title, tick_count=5),
    )
    channels = series_channels(list(dict.fromkeys(row["series"] for row in rows)))
    tooltip = [
        "metric:N",
        alt.Tooltip("at:N", title=" "),
        alt.Tooltip("x:Q", title=f"predicted, {unit}", format=".3~r"),
        alt.Tooltip("value:Q", title=f"measured, {unit}", format=".3~r"),
        "error:N",
        "verdict:N",
    ]
    bounded = alt.Chart(values([row for row in rows if "low" in row]))
    all_rows = alt.Chart(values(rows))
    return [
        *identity_layers(domain, x, y),
        all_rows.mark_rule(strokeWidth=2).encode(
            x=alt.X("x_low:Q"), x2="x_high:Q", y=y, color=channels["color"]
        ),
        bounded.mark_rule(strokeWidth=2).encode(
            x=x, y=alt.Y("low:Q"), y2="high:Q", color=channels["color"]
        ),
        all_rows.mark_point(filled=True, size=POINT_SIZE, opacity=1).encode(
            x=x, y=y, **channels, tooltip=tooltip
        ),
    ]


def _row(claim: ClaimRow) -> Row:
    measured = claim.measured
    if measured is None:
        raise ValueError(f"{claim.metric} at {claim.at} was not measured")
    row: Row = {
        "series": claim.series,
        "metric": claim.metric,
        "at": claim.at,
        "x": claim.predicted.value,
        "x_low": claim.predicted.low,
        "x_high": claim.predicted.high,
        "value": measured.value,
        "error": error_cell(claim.error_fraction),
        "verdict": claim.verdict,
    }
    # An end at 0 has no place on a logarithmic axis.
    has_ends = measured.low is not None and measured.low > 0
    return row | {"low": measured.low, "high": measured.high} if has_ends else row


def _finding(claims: Sequence[ClaimRow]) -> str:
    errors = [claim.error_fraction for claim in claims if claim.error_fraction is not None]
    n_near = sum(abs(error) <= BAND_FRACTION for error in errors)
    n_held = sum(claim.verdict == "held" for claim in claims)
    size = format_number(100 * median(abs(error) for error in errors))
    which = "median error" if len(errors) > 1 else "error"
    return (
        f"{n_held} of {len(claims)} held, {n_near} lie within ±10 %; the {which} is {size} % in"
        " size."
    )
