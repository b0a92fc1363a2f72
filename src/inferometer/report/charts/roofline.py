"""How far below the machine's roof is each phase, what bounds it, and was the roof constant?"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from inferometer.report.charts.plot import (
    Axis,
    Boxes,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    Text,
    bar_of,
    box_of,
    colours_of,
    rows_plot,
    tip,
)
from inferometer.report.tables import estimate_cell, has_several_runs, notes_text, statistic_text
from inferometer.report.views import CeilingMoment, RoofCeiling, RooflinePoint, SweepReportView
from inferometer.units import format_duration, format_number, format_rate


def roofline_chart(view: SweepReportView) -> Chart | None:
    """FLOP/s against FLOP per byte, both logarithmic, under measured and nominal roofs."""
    roof = view.roofline
    if roof is None or not roof.points:
        return None
    has_runs = has_several_runs(point.run_label for point in roof.points)
    intensities = [point.intensity_flop_per_byte for point in roof.points]
    ridges = [ceiling.peak_flop_per_s / ceiling.read_bytes_per_s for ceiling in roof.ceilings]
    left, right = min([*intensities, *ridges]) / 1.6, max([*intensities, *ridges]) * 1.6
    estimates = [point.achieved_flop_per_s for point in roof.points]
    notes = (statistic_text(estimates), _roof_words(roof.ceilings, notes_text(estimates)))
    roofs = [_roof_line(ceiling, left, right) for ceiling in roof.ceilings]
    plot = Plot(
        x=Axis(title="intensity, FLOP per byte (log scale)", scale="log", low=left, high=right),
        y=Axis(title="achieved FLOP/s (log scale)", scale="log"),
        marks=(*roofs, *_point_marks(roof.points, right, has_runs=has_runs)),
        height=340,
        legend=" · ".join(note for note in notes if note),
    )
    return Chart(
        chart_id="roofline",
        title="Roofline",
        finding=_finding(roof.points, roof.ceilings),
        plots=(plot,),
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


def _point_marks(points: Sequence[RooflinePoint], right: float, *, has_runs: bool) -> list[Mark]:
    """Points with their intervals, and the names of the ends of each phase in the first run."""
    names = [f"{one.run_label} · {one.phase}" if has_runs else one.phase for one in points]
    marks = list[Mark]()
    for name, colour in colours_of(names).items():
        chosen = [point for point, of in zip(points, names, strict=True) if of == name]
        marks.append(
            Dots(
                xs=[one.intensity_flop_per_byte for one in chosen],
                ys=[one.achieved_flop_per_s.value for one in chosen],
                name=name,
                colour=colour,
                bars=[bar_of(one.achieved_flop_per_s) for one in chosen],
                tips=[
                    tip(
                        (f"{name}, {one.prompt_tokens} × {one.batch_size}", ""),
                        ("achieved", format_rate(one.achieved_flop_per_s.value, "FLOP/s")),
                        ("FLOP/byte", format_number(one.intensity_flop_per_byte)),
                    )
                    for one in chosen
                ],
            )
        )
    for phase in ("decode", "prefill"):
        chosen = [one for one in points if one.phase == phase]
        chosen = [one for one in chosen if one.run_label == chosen[0].run_label]
        ends = sorted(chosen, key=lambda one: one.intensity_flop_per_byte)
        for one in dict.fromkeys((ends[0], ends[-1])) if ends else ():
            marks.append(
                Text(
                    x=one.intensity_flop_per_byte,
                    y=one.achieved_flop_per_s.value / 1.25,
                    text=f"{phase} {one.prompt_tokens} × {one.batch_size}",
                    anchor="end" if one.intensity_flop_per_byte * 6 > right else "start",
                    is_wide_only=True,
                )
            )
    return marks


def _roof_line(ceiling: RoofCeiling, left: float, right: float) -> Line:
    ridge = ceiling.peak_flop_per_s / ceiling.read_bytes_per_s
    is_measured = ceiling.kind == "measured"
    xs = (left, ridge, right)
    return Line(
        xs=xs,
        ys=[_roof_at(ceiling, at) for at in xs],
        name=ceiling.label,
        colour="end" if is_measured else "c5",
        dash="" if is_measured else "dashed",
    )


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


_COLOURS: Final = {"compute": "c1", "memory": "c0", "links": "c2"}


class PhaseBounds(NamedTuple):
    """Time of each resource for one step at its peak."""

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
        finding=f"{'; '.join(_bounds_finding(phase) for phase in phases)}.",
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


def _bounds_finding(phase: PhaseBounds) -> str:
    """``decode: memory 4.5 ms, 290 times compute``"""
    (first, first_s), (second, second_s), *_ = sorted(phase.parts, key=lambda one: -one[1])
    words = f"{phase.phase} is bound by {first}, {format_duration(first_s)}"
    return (
        f"{words} ({format_number(first_s / second_s)} times {second})" if second_s > 0 else words
    )


MAX_DRAWN: Final = 150
"""More marks a line than this tell nothing more and make pages heavy; a longer watch is thinned
evenly, its extremes remain in the table."""
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
        finding=_ceilings_finding(lines),
        plots=(plot,),
        header=("ceiling", "probes", "first", "median", "last", "lowest", "highest"),
        rows=tuple(_ceilings_cells(name, moments) for name, moments in lines.items()),
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


def _ceilings_finding(lines: dict[str, list[CeilingMoment]]) -> str:
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


def _ceilings_cells(name: str, moments: Sequence[CeilingMoment]) -> tuple[str, ...]:
    unit = UNITS[moments[0].kind]
    rates = [moment.value_per_s for moment in moments]
    shown = (rates[0], median(rates), rates[-1], min(rates), max(rates))
    return (name, str(len(moments)), *(format_rate(rate, unit) for rate in shown))
