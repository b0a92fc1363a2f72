"""Which tables say how predictions and measurements agree, and what do their words mean?"""

from dataclasses import dataclass
from typing import Final

from inferometer.report.tables import ABSENT_TEXT, TextTable, estimate_cell
from inferometer.report.views import FactGroup
from inferometer.stats.estimate import Estimate

# What is there to show of predictions that were sealed, and of what came of them?


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One number that was predicted."""

    at: str
    """The load, or the point."""
    series: str
    """Numbers that are drawn alike: ``TTFT``, ``decode step``."""
    metric: str
    """``TTFT p50``"""
    unit: str
    """``ms``, ``tok/s``; both estimates are in it."""
    predicted: Estimate
    measured: Estimate | None
    """None: not measured."""
    error_fraction: float | None
    """Predicted / measured - 1."""
    verdict: str
    """held, wrong, undecided, or open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    """The prediction for an SLO at a load."""

    at: str
    objective: str
    predicted: str
    measured: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyView:
    """An experiment: what was sealed, what was measured, and whether that agrees."""

    title: str
    subtitle: str
    answer: str
    verdict: str
    why: str
    trust: str
    """What the predictions rest on."""
    seal: str
    """When it was sealed, by what, and its sum."""
    measured: str
    """What was measured, when, and how it is known to be the same."""
    next: str
    """'' where there is nothing left to do."""
    claims: tuple[ClaimRow, ...]
    promises: tuple[PromiseRow, ...]
    facts: tuple[FactGroup, ...]
    tool_version: str


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
    """The prediction for the SLO at each load; None where there was none."""
    if not view.promises:
        return None
    return TextTable(
        caption="The SLO",
        header=("at", "limit", "predicted", "measured", "verdict"),
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
