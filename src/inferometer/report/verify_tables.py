"""Which tables say how predictions and measurements agree, and what do their words mean?"""

from typing import Final

from inferometer.report.cells import ABSENT_TEXT, estimate_cell
from inferometer.report.tables import TextTable
from inferometer.report.verify_views import ClaimRow, VerifyView

DEFINITIONS: Final = (
    (
        "Predicted",
        (
            "sealed before the measurement, with a 90 % interval: over what is not known of step"
            " times."
        ),
    ),
    (
        "Measured",
        (
            "with a 95 % interval that takes into account how far the requests of a run depend on"
            " one another."
        ),
    ),
    ("Error", "predicted ÷ measured − 1."),
    (
        "Held",
        (
            "the measured value lies inside the predicted interval, and enough was measured for an"
            " interval of its own."
        ),
    ),
    (
        "Wrong",
        (
            "the measured interval does not touch the predicted one; of a promise: the other"
            " verdict was measured."
        ),
    ),
    (
        "Undecided",
        (
            "the intervals touch but the value lies outside, or too little was measured for an"
            " interval."
        ),
    ),
    ("Open", "never measured, or only by runs that are INVALID and prove nothing."),
)


def claims_table(view: VerifyView) -> TextTable:
    """Every number that was predicted, and what was measured of it."""
    return TextTable(
        caption="Predicted and measured",
        header=("at", "metric", "predicted", "measured", "error", "verdict"),
        rows=tuple(_row(claim) for claim in view.claims),
    )


def promises_table(view: VerifyView) -> TextTable | None:
    """What was said of the promise at each load; None where nothing was promised."""
    if not view.promises:
        return None
    return TextTable(
        caption="The promise",
        header=("at", "promise", "predicted", "measured", "verdict"),
        rows=tuple(
            (row.at, row.objective, row.predicted, row.measured, row.verdict)
            for row in view.promises
        ),
    )


def error_cell(error_fraction: float | None) -> str:
    """``+3.1%``"""
    return ABSENT_TEXT if error_fraction is None else f"{error_fraction:+.1%}"


def _row(claim: ClaimRow) -> tuple[str, ...]:
    return (
        claim.at,
        f"{claim.metric}, {claim.unit}",
        estimate_cell(claim.predicted),
        estimate_cell(claim.measured),
        error_cell(claim.error_fraction),
        claim.verdict,
    )
