"""What is there to show of predictions that were sealed, and of what came of them?"""

from dataclasses import dataclass

from inferometer.report.views import FactGroup
from inferometer.stats.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One number that was predicted."""

    at: str
    """Of which load, or point."""
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
    """What was said of a promise at a load."""

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
