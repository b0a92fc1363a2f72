"""What takes a decode step's time: launches, reading the weights, or work for each sequence?

From steps of the model and of a narrow one, each at two batch sizes, measured in turns
(``measure.engines.transformers_pairs``). With L the launches, W the reading of all weights and R
the work of one sequence, a step of n sequences and a share φ of the weights takes L + φ W + n φ R;
the four give the three shares of the first.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.records.columns import F64
from inferometer.records.types import CeilingTable, ProbeKind
from inferometer.stats.estimate import Estimate
from inferometer.units import format_bytes, format_duration, format_fraction

StepCause: TypeAlias = Literal["launch overhead", "weight bandwidth", "compute"]
CAUSES: Final[tuple[StepCause, ...]] = ("launch overhead", "weight bandwidth", "compute")
MORE_SEQUENCES: Final = 4
"""Of a ``BATCH_STEP``."""
_SAME_WIDTH_RATIO: Final = 0.5
_MIN_ROUNDS: Final = 8
_QUANTILE: Final = 0.25
_N_DRAWS: Final = 2000
_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One cause and its share of the step."""

    cause: StepCause
    fraction: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """The shares of one sequence's step, and which is the largest with 95 % confidence."""

    step_s: Estimate
    parts: tuple[StepPart, ...]
    """The largest first."""
    limited_by: StepCause | None
    """None: the intervals of the differences hold 0."""
    n_rounds: int
    weight_bytes: int


class _Rounds(NamedTuple):
    """Seconds of each round's four steps, and the narrow model's share of the weights."""

    seconds: F64
    """(4, R) Full, narrow, then both of more sequences."""
    narrow_fraction: float


def step_shares(ceilings: CeilingTable | None) -> StepShares | None:
    """The shares by the paired steps of a run; None where it has none, or too few.

    The time of each kind of step is the lower quartile over the rounds: other work on the machine
    only ever makes a step longer. Intervals are of whole rounds drawn again (percentile bootstrap).
    """
    rounds = _rounds(ceilings)
    if ceilings is None or rounds is None or rounds.seconds.shape[1] < _MIN_ROUNDS:
        return None
    n_rounds = rounds.seconds.shape[1]
    drawn = np.random.default_rng(0).integers(n_rounds, size=(_N_DRAWS, n_rounds))
    whole = _parts_s(np.quantile(rounds.seconds, _QUANTILE, axis=1), rounds.narrow_fraction)
    again = _parts_s(
        np.quantile(rounds.seconds[:, drawn], _QUANTILE, axis=2), rounds.narrow_fraction
    )
    shares, drawn_shares = whole / whole.sum(axis=0), again / again.sum(axis=0)
    parts = [
        StepPart(cause=cause, fraction=_estimate(float(share), drawn_share, n_rounds))
        for cause, share, drawn_share in zip(CAUSES, shares, drawn_shares, strict=True)
    ]
    is_step = ceilings.kind == ProbeKind.STEP
    return StepShares(
        step_s=_estimate(float(whole.sum()), again.sum(axis=0), n_rounds),
        parts=tuple(sorted(parts, key=lambda part: -part.fraction.value)),
        limited_by=_largest(shares, drawn_shares),
        n_rounds=n_rounds,
        weight_bytes=int(ceilings.footprint_bytes[is_step].max()),
    )


def _parts_s(seconds: F64, narrow_fraction: float) -> F64:
    """Seconds of the three causes, which sum to the full step of one sequence."""
    full_s, narrow_s, full_more_s, narrow_more_s = seconds
    whole = 1 - narrow_fraction
    rows_s = np.clip((full_s - narrow_s) / whole, 0.0, full_s)
    each_s = (full_more_s - full_s) - (narrow_more_s - narrow_s)
    compute_s = np.clip(each_s / (MORE_SEQUENCES - 1) / whole, 0.0, rows_s)
    return np.stack([full_s - rows_s, rows_s - compute_s, compute_s])


def _estimate(value: float, drawn: F64, n_rounds: int) -> Estimate:
    low, high = np.quantile(drawn, (_TAIL, 1 - _TAIL))
    return Estimate(
        value=value,
        low=min(float(low), value),
        high=max(float(high), value),
        confidence_fraction=1 - 2 * _TAIL,
        n_samples=n_rounds,
        method="lower quartile of paired rounds, percentile bootstrap over rounds",
    )


def _largest(shares: F64, drawn_shares: F64) -> StepCause | None:
    """The cause that is ahead of each other one in the same draws."""
    first = int(np.argmax(shares))
    others = [i for i in range(len(CAUSES)) if i != first]
    leads = [np.quantile(drawn_shares[first] - drawn_shares[other], _TAIL) for other in others]
    return CAUSES[first] if min(leads) > 0 else None


def _rounds(ceilings: CeilingTable | None) -> _Rounds | None:
    if ceilings is None:
        return None
    is_step = (ceilings.kind == ProbeKind.STEP) | (ceilings.kind == ProbeKind.BATCH_STEP)
    if not is_step.any():
        return None
    widest = int(ceilings.footprint_bytes[is_step].max())
    is_full = ceilings.footprint_bytes > _SAME_WIDTH_RATIO * widest
    seconds = [
        1 / ceilings.value_per_s[(ceilings.kind == kind) & (is_full == full)]
        for kind in (ProbeKind.STEP, ProbeKind.BATCH_STEP)
        for full in (True, False)
    ]
    n_rounds = min(len(one) for one in seconds)
    if n_rounds == 0:
        return None
    narrow_bytes = int(ceilings.footprint_bytes[is_step & ~is_full].max())
    return _Rounds(np.stack([one[:n_rounds] for one in seconds]), narrow_bytes / widest)


# What limits the step, in a sentence to repeat, and what would decide it?


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
