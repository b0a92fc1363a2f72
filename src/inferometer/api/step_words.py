"""What limits a decode step of one sequence, in a sentence to repeat, and what would decide it?"""

from typing import Final

from inferometer.records.step_shares import StepCause, StepShares
from inferometer.stats.estimate import Estimate
from inferometer.units import format_bytes, format_duration, format_fraction

PLAIN: Final[dict[StepCause, str]] = {
    "weight bandwidth": "reading weights",
    "launch overhead": "launching operations",
    "compute": "work for the sequence",
}


def limit_sentence(shares: StepShares) -> str:
    """The limit, its share, and what follows from it; else the shares, and what would decide."""
    first, *others = shares.parts
    beside = ", ".join(f"{PLAIN[part.cause]} {_share(part.fraction)}" for part in others)
    step = f"{shares.n_rounds} paired rounds of {format_duration(shares.step_s.value)} steps"
    if shares.limited_by is None:
        return (
            "In decode of one sequence the limit is undecided:"
            f" {PLAIN[first.cause]} {_share(first.fraction)} of a step, {beside} ({step}); a quieter machine, or"
            " four times the rounds for half the intervals, would decide."
        )
    return (
        f"In decode of one sequence the limit is {first.cause}: {_meaning(shares, first.fraction)}"
        f" ({beside}; {step})."
    )


def _meaning(shares: StepShares, most: Estimate) -> str:
    """Why that is the limit, as a student may repeat it."""
    if shares.limited_by == "weight bandwidth":
        half_ratio = 1 / (1 - most.value / 2)
        return (
            f"each token reads all {format_bytes(shares.weight_bytes)} of weights, which takes"
            f" {_share(most)} of its time; half the bytes would make it {half_ratio:.1f}x as fast"
        )
    if shares.limited_by == "launch overhead":
        return (
            f"starting many small operations takes {_share(most)} of each token's time; fewer of"
            " them, or more sequences at once, make it faster, and faster memory does not"
        )
    return (
        f"the work that grows with each sequence takes {_share(most)} of a token's time; larger"
        " batches gain little"
    )


def _share(share: Estimate) -> str:
    """``64 % [58, 70]``"""
    if share.low is None or share.high is None:
        return format_fraction(share.value)
    return f"{format_fraction(share.value)} [{share.low * 100:.0f}, {share.high * 100:.0f}]"
