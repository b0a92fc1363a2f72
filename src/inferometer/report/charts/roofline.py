"""How far below the machine's roof is each phase, and which part of the roof is above it?"""

from collections.abc import Sequence

import altair as alt

from inferometer.report.cells import estimate_cell, has_several_runs, notes_text, statistic_text
from inferometer.report.charts.frame import (
    INK,
    MUTED,
    POINT_SIZE,
    ChartSpec,
    Row,
    ends,
    finished,
    interval_fields,
    log_axis_domain,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.views import RoofCeiling, RooflinePoint, SweepReportView
from inferometer.units import format_number, format_rate


def roofline_chart(view: SweepReportView) -> ChartSpec | None:
    """FLOP/s against FLOP per byte, both logarithmic, under measured and nominal roofs."""
    roof = view.roofline
    if roof is None or not roof.points:
        return None
    has_runs = has_several_runs(point.run_label for point in roof.points)
    rows = [_point_row(point, has_runs=has_runs) for point in roof.points]
    intensities = [point.intensity_flop_per_byte for point in roof.points]
    ridges = [ceiling.peak_flop_per_s / ceiling.read_bytes_per_s for ceiling in roof.ceilings]
    left, right = min([*intensities, *ridges]) / 1.6, max([*intensities, *ridges]) * 1.6
    estimates = [point.achieved_flop_per_s for point in roof.points]
    x_scale = alt.Scale(type="log", domain=[left, right], nice=False)
    x = alt.X(
        "x:Q",
        scale=x_scale,
        axis=alt.Axis(
            title="intensity, FLOP per byte (log scale)", format="~g", tickCount=6, grid=False
        ),
    )
    title = (
        "achieved FLOP/s (log scale)",
        statistic_text(estimates),
        _roof_words(roof.ceilings, notes_text(estimates)),
    )
    rates = [end for row in rows for end in ends(row)]
    rates += [
        rate
        for ceiling in roof.ceilings
        for rate in (ceiling.peak_flop_per_s, _roof_at(ceiling, left))
    ]
    y_scale = alt.Scale(type="log", domain=log_axis_domain(rates, margin_ratio=1.8), nice=False)
    y = alt.Y("value:Q", scale=y_scale, axis=y_axis(*title, number_format="~s", tick_count=5))
    layers = [
        *(_roof_line(ceiling, left, right, x, y) for ceiling in roof.ceilings),
        *_point_layers(rows, x, y, right=right),
    ]
    return ChartSpec(
        chart_id="roofline",
        title="Roofline",
        finding=_finding(roof.points, roof.ceilings),
        spec=finished(layers, height=340),
        header=(
            "phase",
            *(("run",) if has_runs else ()),
            "prompt tokens",
            "batch",
            "FLOP/byte",
            "achieved TFLOP/s [95 %]",
        ),
        rows=tuple(_cells(point, has_runs=has_runs) for point in roof.points),
    )


def _point_layers(rows: Sequence[Row], x: alt.X, y: alt.Y, *, right: float) -> list[alt.Chart]:
    """Error bars, points, and the names of the ends of each phase."""
    layers: list[alt.Chart] = []
    channels = series_channels(list(dict.fromkeys(row["series"] for row in rows)))
    bars = [row for row in rows if "low" in row]
    if bars:
        layers.append(
            alt.Chart(values(bars))
            .mark_rule(strokeWidth=2)
            .encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=channels["color"])
        )
    tooltip = [
        "series:N",
        "prompt:Q",
        "batch:Q",
        alt.Tooltip("x:Q", title="FLOP/byte", format=".3~r"),
        alt.Tooltip("text:N", title="FLOP/s"),
    ]
    layers.append(
        alt.Chart(values(rows))
        .mark_point(filled=True, size=POINT_SIZE, opacity=1)
        .encode(x=x, y=y, **channels, tooltip=tooltip)
    )
    labels = _direct_labels(rows, right)
    for text, side in (
        (alt.Chart().mark_text(align="left", dx=8, dy=10, color=MUTED, fontSize=11), "left"),
        (alt.Chart().mark_text(align="right", dx=-8, dy=10, color=MUTED, fontSize=11), "right"),
    ):
        chosen = [label for label in labels if label["align"] == side]
        if chosen:
            layers.append(text.properties(data=values(chosen)).encode(x=x, y=y, text="label:N"))
    return layers


def _point_row(point: RooflinePoint, *, has_runs: bool) -> Row:
    series = f"{point.run_label} · {point.phase}" if has_runs else point.phase
    row: Row = {
        "series": series,
        "phase": point.phase,
        "x": point.intensity_flop_per_byte,
        "prompt": point.prompt_tokens,
        "batch": point.batch_size,
        "text": format_rate(point.achieved_flop_per_s.value, "FLOP/s"),
    }
    return row | interval_fields(point.achieved_flop_per_s, 1.0)


def _direct_labels(rows: Sequence[Row], right: float) -> list[Row]:
    """The ends of each phase are named where they lie.

    The first run's least and most intense point; inside the right edge.
    """
    found: list[Row] = []
    for phase in ("decode", "prefill"):
        chosen = [row for row in rows if row["phase"] == phase]
        if not chosen:
            continue
        chosen = [row for row in chosen if row["series"] == chosen[0]["series"]]
        lowest = min(chosen, key=lambda row: row["x"])
        highest = max(chosen, key=lambda row: row["x"])
        for row in (lowest, highest)[: 1 if lowest is highest else 2]:
            align = "right" if row["x"] * 6 > right else "left"
            found.append(
                {
                    "x": row["x"],
                    "value": row["value"],
                    "align": align,
                    "label": f"{phase} {row['prompt']} × {row['batch']}",
                }
            )
    return found


def _roof_line(ceiling: RoofCeiling, left: float, right: float, x: alt.X, y: alt.Y) -> alt.Chart:
    ridge = ceiling.peak_flop_per_s / ceiling.read_bytes_per_s
    rows: list[Row] = [
        {"x": at, "value": _roof_at(ceiling, at), "label": ceiling.label}
        for at in (left, ridge, right)
    ]
    is_measured = ceiling.kind == "measured"
    dash = [1, 0] if is_measured else [6, 4]
    line = alt.Chart(values(rows)).mark_line(
        color=INK if is_measured else MUTED, strokeDash=dash, strokeWidth=2 if is_measured else 1.5
    )
    return line.encode(x=x, y=y, tooltip=alt.Tooltip("label:N", title="ceiling"))


def _roof_at(ceiling: RoofCeiling, intensity_flop_per_byte: float) -> float:
    """The height of the drawn line: the lower of the slope and the flat."""
    return min(ceiling.peak_flop_per_s, intensity_flop_per_byte * ceiling.read_bytes_per_s)


def _roof_words(ceilings: Sequence[RoofCeiling], notes: str) -> str:
    kinds = {ceiling.kind for ceiling in ceilings}
    words = [
        word
        for kind, word in (
            ("measured", "solid: measured ceiling"),
            ("datasheet", "dashed: data sheet"),
        )
        if kind in kinds
    ]
    return " · ".join([*words, *([notes] if notes else [])])


def _finding(points: Sequence[RooflinePoint], ceilings: Sequence[RoofCeiling]) -> str:
    """The best share of its roof per phase, against the first measured roof (else the first)."""
    roofs = sorted(ceilings, key=lambda ceiling: ceiling.kind != "measured")
    if not roofs:
        return (
            f"{len(points)} points achieve up to"
            f" {format_rate(max(p.achieved_flop_per_s.value for p in points), 'FLOP/s')}."
        )
    roof = roofs[0]
    parts: list[str] = []
    for phase in ("decode", "prefill"):
        shares = [
            (
                p.achieved_flop_per_s.value
                / min(roof.peak_flop_per_s, p.intensity_flop_per_byte * roof.read_bytes_per_s),
                p,
            )
            for p in points
            if p.phase == phase
        ]
        if shares:
            share, best = max(shares, key=lambda pair: pair[0])
            parts.append(
                f"{phase} reaches at most {format_number(share * 100)} % of it (prompt"
                f" {best.prompt_tokens}, batch {best.batch_size})"
            )
    roof_text = (
        f"{format_rate(roof.read_bytes_per_s, 'B/s')},"
        f" {format_rate(roof.peak_flop_per_s, 'FLOP/s')}"
    )
    return (
        f"Under the {'measured' if roof.kind == 'measured' else 'data-sheet'} roof ({roof_text})"
        f" {' and '.join(parts)}."
    )


def _cells(point: RooflinePoint, *, has_runs: bool) -> tuple[str, ...]:
    return (
        point.phase,
        *((point.run_label,) if has_runs else ()),
        str(point.prompt_tokens),
        str(point.batch_size),
        format_number(point.intensity_flop_per_byte),
        estimate_cell(point.achieved_flop_per_s, 1e-12),
    )
