"""How far below the machine's roof is each phase, and which part of the roof is above it?"""

from collections.abc import Sequence

from inferometer.report.cells import estimate_cell, has_several_runs, notes_text, statistic_text
from inferometer.report.charts.plot import (
    Axis,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Text,
    bar_of,
    colours_of,
    tip,
)
from inferometer.report.views import RoofCeiling, RooflinePoint, SweepReportView
from inferometer.units import format_number, format_rate


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
