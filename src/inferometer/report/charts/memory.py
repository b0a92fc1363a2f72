"""How much memory does each point take, and which points did not fit?"""

from collections.abc import Sequence
from typing import Final

from inferometer.report.cells import estimate_cell
from inferometer.report.charts.bars import MAX_ROWS, box_of, labelled, rows_plot
from inferometer.report.charts.plot import Axis, Boxes, Chart, Mark, Text, tip
from inferometer.report.views import PointRow, SweepReportView
from inferometer.units import format_bytes

NAMES: Final = ("reserved", "allocated")
GIB_PER_BYTE: Final = 2.0**-30


def memory_chart(view: SweepReportView) -> Chart | None:
    """Peak memory of each point: a reserved and an allocated bar, and what was out of memory."""
    points = [
        pair
        for pair in labelled(view.points)
        if pair[1].reserved_bytes or pair[1].allocated_bytes or pair[1].status == "out_of_memory"
    ]
    if not any(point.reserved_bytes or point.allocated_bytes for _, point in points):
        return None
    shown = points[:MAX_ROWS]
    plot = rows_plot(
        [label for label, _ in shown],
        Axis(title="peak memory, GiB", has_zero=True),
        _marks(shown),
        "highest of the repetitions",
        n_all=len(points),
        row_height=44,
    )
    return Chart(
        chart_id="memory",
        title="Peak memory",
        finding=_finding([point for _, point in points]),
        plots=(plot,),
        header=("point", "reserved GiB", "allocated GiB", "status"),
        rows=tuple(_cells(label, point) for label, point in points),
    )


def _marks(points: Sequence[tuple[str, PointRow]]) -> list[Mark]:
    """A bar for each kind of memory, and words where the point was out of memory."""
    marks = list[Mark]()
    for rank, (name, colour) in enumerate(zip(NAMES, ("c4", "c0"), strict=True)):
        found = [
            (row, label, estimate.value * GIB_PER_BYTE)
            for row, (label, point) in enumerate(points)
            if (estimate := (point.reserved_bytes, point.allocated_bytes)[rank]) is not None
        ]
        if found:
            marks.append(
                Boxes(
                    boxes=[box_of(row, 0, size, rank=rank, n_of=2) for row, _, size in found],
                    name=name,
                    colour=colour,
                    tips=[tip((label, ""), (name, f"{size:.3g} GiB")) for _, label, size in found],
                )
            )
    marks += [
        Text(x=0, y=row + 0.7, text="✕ out of memory", anchor="start")
        for row, (_, point) in enumerate(points)
        if point.status == "out_of_memory"
    ]
    return marks


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
