"""How far are predictions from measurements: of a fitted model, and of sealed experiments?"""

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from inferometer.report.charts.plot import (
    Axis,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    Text,
    band_of,
    bar_of,
    box_of,
    colours_of,
    rows_plot,
    tip,
)
from inferometer.report.tables import (
    ClaimRow,
    VerifyView,
    error_cell,
    estimate_cell,
    has_several_runs,
    held_out_text,
    notes_text,
    statistic_text,
)
from inferometer.report.views import HeldOutRow, PredictedPoint, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number

BAND_FRACTION: Final = 0.1
MS_PER_S: Final = 1e3


def predicted_chart(view: SweepReportView) -> Chart | None:
    """Measured against predicted (log-log), y = x and ±10 % band; held-out points are filled."""
    points = view.predictions
    if not points:
        return None
    has_runs = has_several_runs(point.run_label for point in points)
    estimates = [point.measured_s for point in points]
    has_in_sample = not all(point.is_held_out for point in points)
    words = "line: measured = predicted · band: ±10 %" + (
        " · hollow: in sample" if has_in_sample else " · all held out"
    )
    marks = _marks(points, has_runs=has_runs)
    numbers = [x for mark in marks if isinstance(mark, Dots) for x in (*mark.xs, *mark.ys)]
    return Chart(
        chart_id="predicted-vs-measured",
        title="Predicted against measured",
        finding=_finding(points, view.held_out),
        plots=(
            Plot(
                x=Axis(title="predicted, ms (log scale)", scale="log"),
                y=Axis(title="measured, ms (log scale)", scale="log"),
                marks=(*identity_marks(min(numbers) / 1.3, max(numbers) * 1.3), *marks),
                height=380,
                legend=" · ".join(
                    text
                    for text in (statistic_text(estimates), words, notes_text(estimates))
                    if text
                ),
            ),
        ),
        header=(
            "phase",
            *(("run",) if has_runs else ()),
            "prompt tokens",
            "batch",
            "predicted ms",
            "measured ms",
            "error",
            "held out",
        ),
        rows=tuple(_cells(point, has_runs=has_runs) for point in points),
    )


def _marks(points: Sequence[PredictedPoint], *, has_runs: bool) -> list[Mark]:
    """Points of each phase of each run; hollow if the model had seen them."""
    names = [f"{point.run_label} · {point.phase}" if has_runs else point.phase for point in points]
    marks = list[Mark]()
    for name, colour in colours_of(names).items():
        chosen = [point for point, of in zip(points, names, strict=True) if of == name]
        marks.append(
            Dots(
                xs=[point.predicted_s.value * MS_PER_S for point in chosen],
                ys=[point.measured_s.value * MS_PER_S for point in chosen],
                name=name,
                colour=colour,
                bars=[bar_of(point.measured_s, MS_PER_S) for point in chosen],
                is_hollow=[not point.is_held_out for point in chosen],
                tips=[
                    tip(
                        (f"{name}, {point.prompt_tokens} × {point.batch_size}", ""),
                        ("predicted, ms", estimate_cell(point.predicted_s, MS_PER_S)),
                        ("measured, ms", estimate_cell(point.measured_s, MS_PER_S)),
                        ("error", f"{_error_fraction(point):+.1%}"),
                    )
                    for point in chosen
                ],
            )
        )
    return marks


def identity_marks(low: float, high: float) -> list[Mark]:
    """The band of ±10 % around the diagonal, and the diagonal."""
    xs = (low, high)
    ends = [(x * (1 - BAND_FRACTION), x * (1 + BAND_FRACTION)) for x in xs]
    return [band_of(xs, ends, colour="c5"), Line(xs=xs, ys=xs, colour="c5", is_faint=True)]


def _error_fraction(point: PredictedPoint) -> float:
    return point.predicted_s.value / point.measured_s.value - 1


def _finding(points: Sequence[PredictedPoint], held_out: Sequence[HeldOutRow]) -> str:
    """Share of held-out points within ±10 %, and their errors."""
    judged = [point for point in points if point.is_held_out and point.is_judged] or [
        point for point in points if not point.is_held_out
    ]
    n_inside = sum(abs(_error_fraction(point)) <= BAND_FRACTION for point in judged)
    n_noisy = sum(not point.is_judged for point in points)
    if not judged:
        return "No point's repetitions agree well enough to judge the model."
    kind = "held-out" if judged[0].is_held_out else "in-sample"
    errors = f"; error on points held out: {held_out_text(held_out)}" if held_out else ""
    noisy = f"; {n_noisy} whose repetitions disagree do not judge it" if n_noisy else ""
    return f"{n_inside} of {len(judged)} {kind} points lie within ±10 %{errors}{noisy}."


def _cells(point: PredictedPoint, *, has_runs: bool) -> tuple[str, ...]:
    return (
        point.phase,
        *((point.run_label,) if has_runs else ()),
        str(point.prompt_tokens),
        str(point.batch_size),
        estimate_cell(point.predicted_s, MS_PER_S),
        estimate_cell(point.measured_s, MS_PER_S),
        f"{_error_fraction(point):+.1%}",
        "yes" if point.is_held_out else "no",
    )


def verified_charts(view: VerifyView) -> tuple[Chart, ...]:
    """A chart for each unit in which something was measured."""
    units = dict.fromkeys(claim.unit for claim in view.claims if claim.measured is not None)
    return tuple(
        _chart(
            unit,
            [claim for claim in view.claims if claim.unit == unit and claim.measured is not None],
        )
        for unit in units
    )


def _chart(unit: str, claims: Sequence[ClaimRow]) -> Chart:
    """Measured against predicted, both with their intervals, with y = x and a band of ±10 %."""
    return Chart(
        chart_id=f"verified-{unit.replace('/', '-per-').replace(' ', '-')}",
        title=f"Predicted against measured, {unit}",
        finding=_verified_finding(claims),
        plots=(_plot(unit, claims),),
        header=("at", "metric", "predicted", "measured", "error", "verdict"),
        rows=tuple(
            (
                one.at,
                one.metric,
                estimate_cell(one.predicted),
                estimate_cell(one.measured),
                error_cell(one.error_fraction),
                one.verdict,
            )
            for one in claims
        ),
    )


def _plot(unit: str, claims: Sequence[ClaimRow]) -> Plot:
    """The line of equality, both intervals as a cross, and the points."""
    marks, numbers = list[Mark](), list[float]()
    for name, colour in colours_of(claim.series for claim in claims).items():
        pairs = [
            (claim, claim.measured)
            for claim in claims
            if claim.series == name and claim.measured is not None
        ]
        for claim, measured in pairs:
            low, high = claim.predicted.low, claim.predicted.high
            if low is not None and high is not None and low > 0:
                ys = (measured.value, measured.value)
                marks.append(Line(xs=(low, high), ys=ys, colour=colour, is_faint=True))
                numbers += [low, high]
        marks.append(
            Dots(
                xs=[claim.predicted.value for claim, _ in pairs],
                ys=[measured.value for _, measured in pairs],
                name=name,
                colour=colour,
                # An end at 0 has no place on a logarithmic axis.
                bars=[
                    (one.low, one.high)
                    if one.low is not None and one.high is not None and one.low > 0
                    else None
                    for _, one in pairs
                ],
                is_hollow=[claim.verdict != "held" for claim, _ in pairs],
                tips=[_tip(unit, claim) for claim, _ in pairs],
            )
        )
        numbers += [x for claim, one in pairs for x in (claim.predicted.value, one.value)]
    words = (
        "line: measured = predicted · band: ±10 %",
        "bars: 95 % measured, 90 % predicted · hollow: not held",
        notes_text(one.measured for one in claims),
    )
    return Plot(
        x=Axis(title=f"predicted, {unit} (log scale)", scale="log"),
        y=Axis(title=f"measured, {unit} (log scale)", scale="log"),
        marks=(*identity_marks(min(numbers) / 1.15, max(numbers) * 1.15), *marks),
        height=380,
        legend=" · ".join(text for text in words if text),
    )


def _tip(unit: str, claim: ClaimRow) -> str:
    return tip(
        (f"{claim.metric}, {claim.at}", claim.verdict),
        (f"predicted, {unit}", estimate_cell(claim.predicted)),
        (f"measured, {unit}", estimate_cell(claim.measured)),
        ("error", error_cell(claim.error_fraction)),
    )


def _verified_finding(claims: Sequence[ClaimRow]) -> str:
    errors = [claim.error_fraction for claim in claims if claim.error_fraction is not None]
    n_near = sum(abs(error) <= BAND_FRACTION for error in errors)
    n_held = sum(claim.verdict == "held" for claim in claims)
    if not errors:
        return f"{n_held} of {len(claims)} held; the server's buckets do not tell the errors."
    size = format_number(100 * median(abs(error) for error in errors))
    which = "median error" if len(errors) > 1 else "error"
    return (
        f"{n_held} of {len(claims)} held, {n_near} lie within ±10 %; the {which} is {size} % in"
        " size."
    )


# What does each of several changes bring, one row each with its interval?


_MAX_ROWS: Final = 10
"""The rest stands in the table."""
_NOTE_FRACTION: Final = 0.3
"""Room at the right for the numbers in words."""
_MAX_LETTERS: Final = 44
"""Of a row's label, so that a phone shows it; the tip and the table have all of it."""


class Effect(NamedTuple):
    """One change and its effect."""

    name: str
    gain: Estimate
    """In the unit of the axis."""
    words: str
    is_chosen: bool
    """Filled; the others are hollow."""


def effects_chart(
    effects: Sequence[Effect],
    *,
    chart_id: str,
    title: str,
    finding: str,
    axis: str,
    legend: str,
    row: str = "change",
) -> Chart | None:
    """The largest first, zero as a line; None where nothing was found. A ``row`` is a change."""
    if not effects:
        return None
    ranked = sorted(effects, key=lambda one: -one.gain.value)
    shown = ranked[:_MAX_ROWS]
    ends = [bar_of(one.gain) or (one.gain.value, one.gain.value) for one in shown]
    low = min(0.0, *(end[0] for end in ends))
    high = max(low + 1e-9, 0.0, *(end[1] for end in ends))
    middles = [sum(box_of(rank, 0, 0)[2:]) / 2 for rank in range(len(shown))]
    marks: list[Mark] = [Rule(at=0.0, text="", is_vertical=True, tone="plain")]
    for (left, right), y in zip(ends, middles, strict=True):
        marks.append(Line(xs=(left, right), ys=(y, y), colour="c0"))
    marks.append(
        Dots(
            xs=[one.gain.value for one in shown],
            ys=middles,
            is_hollow=[not one.is_chosen for one in shown],
            tips=[tip((one.name, ""), (axis, one.words)) for one in shown],
        )
    )
    room = _NOTE_FRACTION * (high - low)
    marks += [
        Text(x=end[1] + room / 20, y=y, text=one.words.partition(" [")[0], anchor="start")
        for one, end, y in zip(shown, ends, middles, strict=True)
    ]
    plot = rows_plot(
        [short_label(one.name) for one in shown],
        Axis(title=axis, low=low - room / 10, high=high + room),
        marks,
        legend,
        n_all=len(ranked),
        rows=f"rows: {row}s",
    )
    return Chart(
        chart_id=chart_id,
        title=title,
        finding=finding,
        plots=(plot,),
        header=(row, axis),
        rows=tuple((one.name, one.words) for one in ranked),
    )


def short_label(name: str) -> str:
    """The label of a row, so short that a phone shows it."""
    return name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 1]}…"
