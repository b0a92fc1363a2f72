"""Was it so: how far are sealed predictions from what was then measured?"""

from collections.abc import Sequence
from statistics import median

from inferometer.report.cells import estimate_cell, notes_text
from inferometer.report.charts.plot import Axis, Chart, Dots, Line, Mark, Plot, colours_of, tip
from inferometer.report.charts.predicted import BAND_FRACTION, identity_marks
from inferometer.report.verify_tables import ClaimRow, VerifyView, error_cell
from inferometer.units import format_number


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
        finding=_finding(claims),
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


def _finding(claims: Sequence[ClaimRow]) -> str:
    errors = [claim.error_fraction for claim in claims if claim.error_fraction is not None]
    n_near = sum(abs(error) <= BAND_FRACTION for error in errors)
    n_held = sum(claim.verdict == "held" for claim in claims)
    size = format_number(100 * median(abs(error) for error in errors))
    which = "median error" if len(errors) > 1 else "error"
    return (
        f"{n_held} of {len(claims)} held, {n_near} lie within ±10 %; the {which} is {size} % in"
        " size."
    )
