"""How much of the machine does each point use, and how far below its roof is each phase?"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from inferometer.report.charts.plot import (
    MAX_ROWS,
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
    labelled,
    rows_plot,
    tip,
)
from inferometer.report.tables import estimate_cell, has_several_runs, notes_text, statistic_text
from inferometer.report.views import (
    CeilingMoment,
    PointRow,
    RoofCeiling,
    RooflinePoint,
    SweepReportView,
)
from inferometer.units import format_bytes, format_duration, format_number, format_rate

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
        finding=_most_used([point for _, point in points]),
        plots=(plot,),
        header=(
            "point",
            "MBU % of measured",
            "MFU % of measured",
            "MBU % of data sheet",
            "MFU % of data sheet",
        ),
        rows=tuple(_shares(label, point) for label, point in points),
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


def _most_used(points: list[PointRow]) -> str:
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


def _shares(label: str, point: PointRow) -> tuple[str, ...]:
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
