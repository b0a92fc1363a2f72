"""How much memory does each point take, and which points did not fit?"""

from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.report.cells import estimate_cell
from inferometer.report.charts.bars import MAX_ROWS, label_axis, labelled, rows_height
from inferometer.report.charts.frame import INK, PALETTE, ChartSpec, Row, finished, values
from inferometer.report.views import PointRow, SweepReportView
from inferometer.units import format_bytes

NAMES: Final = ("reserved", "allocated")
COLOURS: Final = {"reserved": PALETTE[4], "allocated": PALETTE[0]}
GIB_PER_BYTE: Final = 2.0**-30


def memory_chart(view: SweepReportView) -> ChartSpec | None:
    """Peak memory of each point: a reserved bar, a thinner allocated bar, out-of-memory marks."""
    points = [
        pair
        for pair in labelled(view.points)
        if pair[1].reserved_bytes or pair[1].allocated_bytes or pair[1].status == "out_of_memory"
    ]
    if not any(point.reserved_bytes or point.allocated_bytes for _, point in points):
        return None
    shown = points[:MAX_ROWS]
    labels = [label for label, _ in shown]
    rows = [row for label, point in shown for row in _bar_rows(label, point)]
    x = alt.X(
        "value:Q", axis=alt.Axis(title="peak memory, GiB", tickCount=6), scale=alt.Scale(zero=True)
    )
    y = label_axis(labels, "peak memory, GiB: highest of the repetitions", n_all=len(points))
    failed = [label for label, point in shown if point.status == "out_of_memory"]
    return ChartSpec(
        chart_id="memory",
        title="Peak memory",
        finding=_finding([point for _, point in points]),
        spec=finished(_layers(rows, failed, x, y), height=rows_height(labels)),
        header=("point", "reserved GiB", "allocated GiB", "status"),
        rows=tuple(_cells(label, point) for label, point in points),
    )


def _layers(rows: Sequence[Row], failed: Sequence[str], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """A thin bar in a thick one, and a cross where the point was out of memory."""
    present = [name for name in NAMES if any(row["series"] == name for row in rows)]
    colours = alt.Scale(domain=present, range=[COLOURS[name] for name in present])
    colour = alt.Color("series:N", scale=colours, sort=present, legend=alt.Legend(title=None))
    layers: list[alt.Chart] = []
    for name, size in zip(NAMES, (14, 6), strict=True):
        chosen = [row for row in rows if row["series"] == name]
        if chosen:
            bars = alt.Chart(values(chosen)).mark_bar(size=size, stroke=INK, strokeWidth=0.6)
            layers.append(
                bars.encode(
                    x=x,
                    y=y,
                    color=colour,
                    tooltip=[
                        "label:N",
                        "series:N",
                        alt.Tooltip("value:Q", title="GiB", format=".3~r"),
                    ],
                )
            )
    if failed:
        crosses: list[Row] = [
            {"label": label, "value": 0, "text": "✕ out of memory"} for label in failed
        ]
        layers.append(
            alt.Chart(values(crosses))
            .mark_text(align="left", dx=6, fontWeight="bold")
            .encode(x=x, y=y, text="text:N")
        )
    return layers


def _bar_rows(label: str, point: PointRow) -> list[Row]:
    pairs = zip(NAMES, (point.reserved_bytes, point.allocated_bytes), strict=True)
    return [
        {"label": label, "series": name, "value": estimate.value * GIB_PER_BYTE}
        for name, estimate in pairs
        if estimate is not None
    ]


def _finding(points: list[PointRow]) -> str:
    held = [((point.reserved_bytes or point.allocated_bytes), point) for point in points]
    sizes = [(estimate.value, point) for estimate, point in held if estimate is not None]
    most, where = max(sizes, key=lambda pair: pair[0])
    least = min(size for size, _ in sizes)
    text = (
        f"Peak memory runs from {format_bytes(least)} to {format_bytes(most)} (prompt"
        f" {where.prompt_tokens}, batch {where.batch_size})"
    )
    failed = list(
        dict.fromkeys(
            f"{point.prompt_tokens} × {point.batch_size}"
            for point in points
            if point.status == "out_of_memory"
        )
    )
    return (
        f"{text}; out of memory at prompt × batch {', '.join(failed)}."
        if failed
        else f"{text}; every point fitted."
    )


def _cells(label: str, point: PointRow) -> tuple[str, ...]:
    sizes = (
        estimate_cell(point.reserved_bytes, GIB_PER_BYTE),
        estimate_cell(point.allocated_bytes, GIB_PER_BYTE),
    )
    return (label, *sizes, point.status.replace("_", " "))
