"""What do charts with one row per point share: the order of rows, their labels, the height of the chart?"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from inferometer.report.cells import has_several_runs, point_label
from inferometer.report.charts.plot import Axis, Boxes, Mark, Plot, Text, tip
from inferometer.report.views import PointRow
from inferometer.units import format_duration, format_number

MAX_ROWS: Final = 40
"""More rows than this are in the table only: bars thinner than a letter tell nothing."""
_ROW_HEIGHT: Final = 34
_FROM: Final = 0.46
_TO: Final = 0.92
"""Where the bars of a row lie: its label stands above them."""


class Part(NamedTuple):
    """A part of a bar, in percent of the whole."""

    name: str
    start: float
    end: float
    duration_s: float


def labelled(points: Sequence[PointRow]) -> tuple[tuple[str, PointRow], ...]:
    """Each point with its label, in the order of the view."""
    has_runs = has_several_runs(row.run_label for row in points)
    return tuple((point_label(row, has_runs=has_runs), row) for row in points)


def box_of(
    row: int, start: float, end: float, *, rank: int = 0, n_of: int = 1
) -> tuple[float, float, float, float]:
    """The box of a bar in its row; where a row has several, this is number ``rank`` of ``n_of``."""
    height = (_TO - _FROM) / n_of
    top = row + _FROM + rank * height
    return start, end, top, top + height * 0.92


def rows_plot(
    labels: Sequence[str],
    x: Axis,
    marks: Sequence[Mark],
    *notes: str,
    n_all: int,
    rows: str = "rows: prompt × batch",
    row_height: int = _ROW_HEIGHT,
) -> Plot:
    """A row for each label, in the given order; where not all of ``n_all`` are drawn, it says so."""
    left_out = (
        f"the first {len(labels)} of {n_all} rows, the table has all" if n_all > len(labels) else ""
    )
    return Plot(
        x=x,
        y=Axis(title=" · ".join(one for one in (*notes, rows, left_out) if one)),
        marks=tuple(marks),
        rows=tuple(labels),
        height=row_height * len(labels),
    )


def stacked(
    rows: Sequence[tuple[str, Sequence[Part], float]], colours: Mapping[str, str]
) -> list[Mark]:
    """Bars made of parts, each in its colour, with the whole's duration at the right.

    Each row is a label, its parts, and the whole in seconds.
    """
    marks = list[Mark]()
    for name, colour in colours.items():
        chosen = [
            (rank, label, part)
            for rank, (label, parts, _) in enumerate(rows)
            for part in parts
            if part.name == name
        ]
        tips = [
            tip(
                (label, ""),
                (name, format_duration(part.duration_s)),
                ("share", f"{format_number(abs(part.end - part.start))} %"),
            )
            for _, label, part in chosen
        ]
        boxes = [box_of(rank, part.start, part.end) for rank, _, part in chosen]
        marks.append(Boxes(boxes=boxes, name=name, colour=colour, tips=tips))
    for rank, (_, parts, whole_s) in enumerate(rows):
        right = max((max(part.start, part.end) for part in parts), default=0.0)
        place = box_of(rank, 0, 0)
        marks.append(
            Text(
                x=right + 1,
                y=(place[2] + place[3]) / 2,
                text=format_duration(whole_s),
                anchor="start",
            )
        )
    return marks
