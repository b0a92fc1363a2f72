"""What bounds a prefill and a decode step: compute, memory or the links between devices?"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inferometer.report.charts.bars import box_of, rows_plot
from inferometer.report.charts.plot import Axis, Boxes, Chart, Mark, Text, tip
from inferometer.units import format_duration, format_number

_COLOURS: Final = {"compute": "c1", "memory": "c0", "links": "c2"}


class PhaseBounds(NamedTuple):
    """How long each resource needs for one step at its peak."""

    phase: str
    compute_s: float
    memory_s: float
    link_s: float

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Each resource with its time."""
        return ("compute", self.compute_s), ("memory", self.memory_s), ("links", self.link_s)


def bounds_chart(phases: Sequence[PhaseBounds]) -> Chart:
    """Each resource's time as a share of the phase's longest, which is the bound."""
    rows = [
        (phase.phase, name, time_s, max(one for _, one in phase.parts))
        for phase in phases
        for name, time_s in phase.parts
        if time_s > 0
    ]
    marks = list[Mark]()
    for name, colour in _COLOURS.items():
        chosen = [(rank, row) for rank, row in enumerate(rows) if row[1] == name]
        if chosen:
            boxes = [box_of(rank, 0, 100 * row[2] / row[3]) for rank, row in chosen]
            tips = [tip((f"{row[0]}, {name}", format_duration(row[2]))) for _, row in chosen]
            marks.append(Boxes(boxes=boxes, name=name, colour=colour, tips=tips))
    for rank, (_, _, time_s, whole_s) in enumerate(rows):
        _, _, top, bottom = box_of(rank, 0, 0)
        x, y = 100 * time_s / whole_s + 1, (top + bottom) / 2
        marks.append(Text(x=x, y=y, text=format_duration(time_s), anchor="start"))
    return Chart(
        chart_id="bounds",
        title="Time that each resource needs for one step at its peak",
        finding=f"{'; '.join(_finding(phase) for phase in phases)}.",
        plots=(
            rows_plot(
                [f"{phase}: {name}" for phase, name, _, _ in rows],
                Axis(title="% of the longest", low=0, high=115, ticks=(0, 20, 40, 60, 80, 100)),
                marks,
                n_all=len(rows),
                rows="",
            ),
        ),
        header=("phase", "resource", "time at the peak"),
        rows=tuple((phase, name, format_duration(time_s)) for phase, name, time_s, _ in rows),
    )


def _finding(phase: PhaseBounds) -> str:
    """``decode: memory 4.5 ms, 290 times compute``"""
    (first, first_s), (second, second_s), *_ = sorted(phase.parts, key=lambda one: -one[1])
    words = f"{phase.phase} is bound by {first}, {format_duration(first_s)}"
    return (
        f"{words} ({format_number(first_s / second_s)} times {second})" if second_s > 0 else words
    )
