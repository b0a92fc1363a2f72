"""What do charts with one row per point share: the order of rows, their labels, the height of the chart?"""

from collections.abc import Mapping, Sequence
from typing import Final

import altair as alt

from inferometer.report.cells import has_several_runs, point_label
from inferometer.report.charts.frame import INK, Row, phone_lines, values
from inferometer.report.views import PointRow

MAX_LABEL_WIDTH: Final = 150
ROW_HEIGHT: Final = 22
MAX_ROWS: Final = 40
"""More rows than this are in the table only: bars thinner than a letter tell nothing."""


def labelled(points: Sequence[PointRow]) -> tuple[tuple[str, PointRow], ...]:
    """Each point with its label, in the order of the view."""
    has_runs = has_several_runs(row.run_label for row in points)
    return tuple((point_label(row, has_runs=has_runs), row) for row in points)


def label_axis(
    labels: Sequence[str], *title: str, n_all: int, rows: str = "rows: prompt × batch"
) -> alt.Y:
    """One row for each point, in the given order.

    The lines of the title lie flat above, from the left edge of the labels.

    Where not all of the ``n_all`` rows are drawn, the title says so.
    """
    sort = list(dict.fromkeys(labels))
    left_out = (
        f"the first {len(labels)} of {n_all} rows, the table has all" if n_all > len(labels) else ""
    )
    lines = phone_lines([*title, rows, left_out])
    axis = alt.Axis(
        title=lines,
        labelLimit=MAX_LABEL_WIDTH,
        labelPadding=5,
        ticks=False,
        domain=False,
        titleAngle=0,
        titleAlign="left",
        titleAnchor="end",
        titleBaseline="bottom",
        titleX=-min(MAX_LABEL_WIDTH, 6 * max(len(label) for label in sort)) - 5,
        titleY=-8 - 15 * (len(lines) - 1),
    )
    return alt.Y(
        "label:N",
        sort=sort,
        axis=axis,
        scale=alt.Scale(domain=sort, paddingInner=0.25, paddingOuter=0.2),
    )


def rows_height(labels: Sequence[str], *, row_height: int = ROW_HEIGHT) -> int:
    """As high as the rows need."""
    return max(3, len(set(labels))) * row_height


def stacked_layers(
    rows: Sequence[Row], totals: Sequence[Row], x: alt.X, y: alt.Y, colours: Mapping[str, str]
) -> list[alt.Chart]:
    """Bars made of parts, each in its colour, with the whole's duration as text at the right."""
    names = list(colours)
    colour = alt.Color(
        "part:N",
        sort=names,
        scale=alt.Scale(domain=names, range=list(colours.values())),
        legend=alt.Legend(title=None, columns=2),
    )
    tooltip = [
        "label:N",
        "part:N",
        alt.Tooltip("share:Q", title="%", format=".3~r"),
        alt.Tooltip("time:N"),
    ]
    bars = alt.Chart(values(rows)).mark_bar(stroke=INK, strokeWidth=0.5)
    text = alt.Chart(values(totals)).mark_text(align="left", dx=6).encode(x=x, y=y, text="text:N")
    return [bars.encode(x=x, x2="to:Q", y=y, color=colour, tooltip=tooltip), text]
