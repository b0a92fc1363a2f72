"""Did the machine stay the same while the run was measured?"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from inferometer.report.cells import has_several_runs
from inferometer.report.charts.plot import (
    Axis,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    colours_of,
    tip,
)
from inferometer.report.views import CeilingMoment, SweepReportView
from inferometer.units import format_duration, format_number, format_rate

MAX_DRAWN: Final = 150
"""More marks a line than this tell nothing more and make pages heavy; a longer watch is thinned
evenly, its extremes kept in the table."""
UNITS: Final = {"read": "B/s", "copy": "B/s", "matmul": "FLOP/s"}


def ceilings_chart(view: SweepReportView) -> Chart | None:
    """Each ceiling over the run's time, as a share of its own median: noise is scatter, drift is slope."""
    if not view.ceilings:
        return None
    lines = _lines(view.ceilings)
    colours, marks = colours_of(lines), list[Mark]()
    for name, moments in lines.items():
        middle = median(moment.value_per_s for moment in moments)
        shown = moments[:: 1 + len(moments) // MAX_DRAWN]
        xs = [moment.elapsed_s for moment in shown]
        ys = [100 * moment.value_per_s / middle for moment in shown]
        tips = [
            tip(
                (name, format_rate(moment.value_per_s, UNITS[moment.kind])),
                ("after", f"{moment.elapsed_s:.1f} s"),
            )
            for moment in shown
        ]
        marks.append(Line(xs=xs, ys=ys, name=name, colour=colours[name], is_faint=True))
        marks.append(Dots(xs=xs, ys=ys, name=name, colour=colours[name], tips=tips))
    numbers = [y for mark in marks if isinstance(mark, Dots) for y in mark.ys]
    room = max(1.0, 0.1 * (max(numbers) - min(numbers)))
    plot = Plot(
        x=Axis(title="time since the start of the run, s"),
        y=Axis(
            title="% of this ceiling's median", low=min(numbers) - room, high=max(numbers) + room
        ),
        marks=(Rule(at=100, text="", tone="plain"), *marks),
        height=240,
        has_brush=True,
        legend=_mark_words(lines),
    )
    return Chart(
        chart_id="ceilings",
        title="Ceilings of the machine during the run",
        finding=_finding(lines),
        plots=(plot,),
        header=("ceiling", "probes", "first", "median", "last", "lowest", "highest"),
        rows=tuple(_cells(name, moments) for name, moments in lines.items()),
    )


def _mark_words(lines: Mapping[str, Sequence[CeilingMoment]]) -> str:
    step = max(1 + len(moments) // MAX_DRAWN for moments in lines.values())
    return (
        "each mark is one probe"
        if step == 1
        else f"marks are single probes, up to one in {step} of each ceiling drawn"
    )


def _lines(moments: Sequence[CeilingMoment]) -> dict[str, list[CeilingMoment]]:
    has_runs = has_several_runs(moment.run_label for moment in moments)
    lines: dict[str, list[CeilingMoment]] = {}
    for moment in moments:
        name = f"{moment.run_label} · {moment.kind}" if has_runs else moment.kind
        lines.setdefault(name, []).append(moment)
    return lines


def _finding(lines: dict[str, list[CeilingMoment]]) -> str:
    """The widest spread around a median, and how long the watch was."""
    spreads = {
        name: max(
            abs(moment.value_per_s / median(m.value_per_s for m in moments) - 1)
            for moment in moments
        )
        for name, moments in lines.items()
    }
    widest = max(spreads, key=lambda name: spreads[name])
    watched_s = max(moment.elapsed_s for moments in lines.values() for moment in moments)
    n_probes = sum(len(moments) for moments in lines.values())
    return (
        f"In {n_probes} probes over {format_duration(watched_s)} every ceiling stayed within "
        f"{format_number(100 * spreads[widest])} % of its median; {widest} strayed furthest."
    )


def _cells(name: str, moments: Sequence[CeilingMoment]) -> tuple[str, ...]:
    unit = UNITS[moments[0].kind]
    rates = [moment.value_per_s for moment in moments]
    shown = (rates[0], median(rates), rates[-1], min(rates), max(rates))
    return (name, str(len(moments)), *(format_rate(rate, unit) for rate in shown))
