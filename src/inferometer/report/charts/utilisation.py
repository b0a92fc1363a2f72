"""How much of the machine's bandwidth does decode use, and how much of its arithmetic does prefill use?"""

from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.report.cells import estimate_cell, notes_text, statistic_text
from inferometer.report.charts.bars import MAX_ROWS, label_axis, labelled, rows_height
from inferometer.report.charts.frame import (
    INK,
    PALETTE,
    ChartSpec,
    Row,
    ends,
    finished,
    interval_fields,
    values,
)
from inferometer.report.views import PointRow, SweepReportView
from inferometer.units import format_number

NAMES: Final = ("MBU of decode", "MFU of prefill")
PERCENT: Final = 100.0


def utilisation_chart(view: SweepReportView) -> ChartSpec | None:
    """MBU and MFU of each point against the measured ceilings, as bars with intervals."""
    points = [
        pair
        for pair in labelled(view.points)
        if pair[1].mbu_fraction is not None or pair[1].mfu_fraction is not None
    ]
    if not points:
        return None
    rows = [row for label, point in points[:MAX_ROWS] for row in _bar_rows(label, point)]
    estimates = [
        estimate for _, point in points for estimate in (point.mbu_fraction, point.mfu_fraction)
    ]
    labels = [label for label, _ in points[:MAX_ROWS]]
    highest = max(ends(row)[1] for row in rows)
    x = alt.X(
        "value:Q",
        scale=alt.Scale(domain=[0, max(100.0, highest)], nice=False),
        axis=alt.Axis(title="% of the measured ceiling", tickCount=5),
    )
    y = label_axis(
        labels,
        "% of the measured ceiling",
        statistic_text(estimates),
        notes_text(estimates),
        n_all=len(points),
    )
    return ChartSpec(
        chart_id="utilisation",
        title="Memory bandwidth (MBU) and arithmetic (MFU) in use",
        finding=_finding([point for _, point in points]),
        spec=finished(_layers(rows, x, y), height=rows_height(labels, row_height=30)),
        header=(
            "point",
            "MBU % of measured",
            "MFU % of measured",
            "MBU % of data sheet",
            "MFU % of data sheet",
        ),
        rows=tuple(_cells(label, point) for label, point in points),
    )


def _layers(rows: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """A pair of bars for each point, and their intervals."""
    offset = alt.YOffset("series:N", sort=list(NAMES))
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=list(NAMES), range=[PALETTE[0], PALETTE[4]]),
        legend=alt.Legend(title=None),
    )
    tooltip = [
        "label:N",
        "series:N",
        alt.Tooltip("value:Q", title="%", format=".3~r"),
        alt.Tooltip("n:Q", title="repetitions"),
    ]
    bars = (
        alt.Chart(values(rows))
        .mark_bar(stroke=INK, strokeWidth=0.6)
        .encode(x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip)
    )
    layers = [bars]
    with_bar = [row for row in rows if "low" in row]
    if with_bar:
        layers.append(
            alt.Chart(values(with_bar))
            .mark_rule(color=INK, strokeWidth=1.5)
            .encode(x=alt.X("low:Q"), x2="high:Q", y=y, yOffset=offset)
        )
    return layers


def _bar_rows(label: str, point: PointRow) -> list[Row]:
    pairs = zip(NAMES, (point.mbu_fraction, point.mfu_fraction), strict=True)
    return [
        {"label": label, "series": name} | interval_fields(estimate, PERCENT)
        for name, estimate in pairs
        if estimate is not None
    ]


def _finding(points: list[PointRow]) -> str:
    parts: list[str] = []
    for name, pick in ((NAMES[0], "mbu"), (NAMES[1], "mfu")):
        found = [
            (estimate.value, point)
            for point in points
            if (estimate := point.mbu_fraction if pick == "mbu" else point.mfu_fraction)
        ]
        if found:
            low, high = min(found, key=lambda pair: pair[0]), max(found, key=lambda pair: pair[0])
            where = f"prompt {high[1].prompt_tokens}, batch {high[1].batch_size}"
            parts.append(
                f"{name} runs from {format_number(low[0] * 100)} % to"
                f" {format_number(high[0] * 100)} % ({where})"
            )
    return f"{'; '.join(parts)}."


def _cells(label: str, point: PointRow) -> tuple[str, ...]:
    fractions = (
        point.mbu_fraction,
        point.mfu_fraction,
        point.mbu_datasheet_fraction,
        point.mfu_datasheet_fraction,
    )
    return (label, *(estimate_cell(fraction, PERCENT) for fraction in fractions))
