"""How much of the machine's bandwidth, arithmetic and memory does each point use?"""

from collections.abc import Sequence
from typing import Final

from inferometer.report.charts.plot import (
    MAX_ROWS,
    Axis,
    Boxes,
    Chart,
    Line,
    Mark,
    Text,
    bar_of,
    box_of,
    labelled,
    rows_plot,
    tip,
)
from inferometer.report.tables import estimate_cell, notes_text, statistic_text
from inferometer.report.views import PointRow, SweepReportView
from inferometer.units import format_bytes, format_number

NAMES: Final = ("MBU of decode", "MFU of prefill")
PERCENT: Final = 100.0


def utilisation_chart(view: SweepReportView) -> Chart | None:
    """MBU and MFU of each point against the measured ceilings, as bars with intervals."""
    points = [
        pair
        for pair in labelled(view.points)
        if pair[1].mbu_fraction is not None or pair[1].mfu_fraction is not None
    ]
    if not points:
        return None
    estimates = [
        estimate for _, point in points for estimate in (point.mbu_fraction, point.mfu_fraction)
    ]
    plot = rows_plot(
        [label for label, _ in points[:MAX_ROWS]],
        Axis(title="% of the measured ceiling", low=0, ticks=(0, 20, 40, 60, 80, 100)),
        _marks(points[:MAX_ROWS]),
        statistic_text(estimates),
        notes_text(estimates),
        n_all=len(points),
        row_height=44,
    )
    return Chart(
        chart_id="utilisation",
        title="Memory bandwidth (MBU) and arithmetic (MFU) in use",
        finding=_finding([point for _, point in points]),
        plots=(plot,),
        header=(
            "point",
            "MBU % of measured",
            "MFU % of measured",
            "MBU % of data sheet",
            "MFU % of data sheet",
        ),
        rows=tuple(_cells(label, point) for label, point in points),
    )


def energy_chart(view: SweepReportView) -> Chart | None:
    """Output tokens per second and watt of each point, with its power and energy in the table."""
    points = [
        (label, point, point.energy_joule_per_token.inverted(1))
        for label, point in labelled(view.points)
        if point.energy_joule_per_token is not None
    ]
    if not points:
        return None
    name = "output tokens per second and watt"
    shown = points[:MAX_ROWS]
    boxes = Boxes(
        boxes=[box_of(row, 0, rate.value) for row, (_, _, rate) in enumerate(shown)],
        name=name,
        tips=[tip((label, ""), (name, estimate_cell(rate))) for label, _, rate in shown],
    )
    best = max(points, key=lambda point: point[2].value)
    return Chart(
        chart_id="energy",
        title="Output tokens for the power",
        finding=f"{best[0]} yields the most: {format_number(best[2].value)} tok/s/W.",
        plots=(
            rows_plot(
                [label for label, _, _ in shown],
                Axis(title="output tok/s/W", has_zero=True),
                [boxes],
                statistic_text(rate for _, _, rate in points),
                n_all=len(points),
            ),
        ),
        header=("point", "device %", "W", "J of a batch", "output tok/s/W"),
        rows=tuple(
            (
                label,
                estimate_cell(point.device_fraction, PERCENT),
                estimate_cell(point.power_watt),
                estimate_cell(point.energy_joule),
                estimate_cell(rate),
            )
            for label, point, rate in points
        ),
    )


def _marks(points: Sequence[tuple[str, PointRow]]) -> list[Mark]:
    """A pair of bars for each point, and their intervals."""
    marks: list[Mark] = [Boxes(boxes=[(0, 100, 0, 0)])]
    for rank, (name, colour) in enumerate(zip(NAMES, ("c0", "c4"), strict=True)):
        found = [
            (row, label, estimate)
            for row, (label, point) in enumerate(points)
            if (estimate := (point.mbu_fraction, point.mfu_fraction)[rank]) is not None
        ]
        boxes = [box_of(row, 0, one.value * PERCENT, rank=rank, n_of=2) for row, _, one in found]
        tips = [
            tip((label, ""), (name, f"{estimate_cell(one, PERCENT)} %"), ("n", str(one.n_samples)))
            for _, label, one in found
        ]
        marks.append(Boxes(boxes=boxes, name=name, colour=colour, tips=tips))
        for box, (_, _, one) in zip(boxes, found, strict=True):
            ends = bar_of(one, PERCENT)
            if ends is not None:
                middle = (box[2] + box[3]) / 2
                marks.append(Line(xs=ends, ys=(middle, middle), colour="end", is_faint=True))
    return marks


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


MEMORY_NAMES: Final = ("reserved", "allocated")
GIB_PER_BYTE: Final = 2.0**-30


def memory_chart(view: SweepReportView) -> Chart | None:
    """Peak memory of each point: reserved and allocated; out of memory is marked."""
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
        _memory_marks(shown),
        "highest of the repetitions",
        n_all=len(points),
        row_height=44,
    )
    return Chart(
        chart_id="memory",
        title="Peak memory",
        finding=_memory_finding([point for _, point in points]),
        plots=(plot,),
        header=("point", "reserved GiB", "allocated GiB", "status"),
        rows=tuple(_memory_cells(label, point) for label, point in points),
    )


def _memory_marks(points: Sequence[tuple[str, PointRow]]) -> list[Mark]:
    """A bar for each kind of memory, and words where the point was out of memory."""
    marks = list[Mark]()
    for rank, (name, colour) in enumerate(zip(MEMORY_NAMES, ("c4", "c0"), strict=True)):
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


def _memory_finding(points: list[PointRow]) -> str:
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


def _memory_cells(label: str, point: PointRow) -> tuple[str, ...]:
    sizes = (
        estimate_cell(point.reserved_bytes, GIB_PER_BYTE),
        estimate_cell(point.allocated_bytes, GIB_PER_BYTE),
    )
    return (label, *sizes, point.status.replace("_", " "))
