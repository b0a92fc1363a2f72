"""A number with its uncertainty, and verdicts on it against a limit."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from inferometer.units import format_number

Verdict: TypeAlias = Literal["met", "missed", "undecided"]


def worst_verdict(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The worst of these verdicts: missed, then undecided, then met; None without verdicts."""
    known = set(verdicts)
    order: tuple[Verdict, ...] = ("missed", "undecided", "met")
    return next((one for one in order if one in known), None)


AGREEING_FRACTION: Final = 0.9
"""Share of the other plausible servers: both ends of an interval, or 18 of 19 draws."""


def agreed_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Verdict of the likely server (the first) where 90 % of the others agree, else undecided."""
    likely, *others = verdicts
    is_agreed = others.count(likely) >= AGREEING_FRACTION * len(others)
    return likely if is_agreed else "undecided"


Z_90: Final = 1.645
"""A normal distribution has 90 % of its mass within this many standard deviations of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its interval; the unit is in the name of the variable that has it.

    ``low`` and ``high`` bound an interval of ``confidence_fraction``; both are None where
    ``n_samples`` cannot carry an interval, and ``method`` then says why. Never built from zero
    samples: no data is None, not an Estimate.
    """

    value: float
    low: float | None
    high: float | None
    confidence_fraction: float
    n_samples: int
    method: str

    def __post_init__(self) -> None:
        if self.n_samples < 1:
            raise ValueError("an Estimate needs at least one sample; absent data is None")
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has two ends or none")
        if (
            self.low is not None
            and self.high is not None
            and not self.low <= self.value <= self.high
        ):
            raise ValueError(f"value {self.value} outside its interval [{self.low}, {self.high}]")

    def text(
        self, write: Callable[[float], str] = format_number, *, unit: str = "", bare: str = ""
    ) -> str:
        """Value and interval as text; if there is no interval, the value and the text ``bare``.

        Example
        -------
        >>> seen = Estimate(
        ...     value=2.0, low=1.9, high=2.2, confidence_fraction=0.95, n_samples=7, method="order"
        ... )
        >>> seen.text(unit=" tok/s")
        '2 tok/s [1.9, 2.2]'
        """
        value = f"{write(self.value)}{unit}"
        if self.low is None or self.high is None:
            return value + bare
        return f"{value} [{write(self.low)}, {write(self.high)}]"

    @property
    def log_sd(self) -> float:
        """Standard deviation of the logarithm that a 90 % interval implies; 0 without one."""
        if self.low is None or self.high is None or self.low <= 0:
            return 0.0
        return math.log(self.high / self.low) / (2 * Z_90)

    def spread(self, log_sd: float) -> "Estimate":
        """The positive number, also off by a factor whose logarithm has this standard deviation."""
        if log_sd == 0 or self.low is None or self.high is None or self.low <= 0:
            return self
        lower, upper = (
            math.hypot(math.log(end / self.value), Z_90 * log_sd) for end in (self.low, self.high)
        )
        return replace(self, low=self.value * math.exp(-lower), high=self.value * math.exp(upper))

    def scaled(self, factor_ratio: float) -> "Estimate":
        """The same estimate in another unit: value and interval times a positive factor."""
        if factor_ratio <= 0:
            raise ValueError(f"factor {factor_ratio} is not positive")
        return Estimate(
            value=self.value * factor_ratio,
            low=None if self.low is None else self.low * factor_ratio,
            high=None if self.high is None else self.high * factor_ratio,
            confidence_fraction=self.confidence_fraction,
            n_samples=self.n_samples,
            method=self.method,
        )

    def inverted(self, numerator: float = 1.0) -> "Estimate":
        """The estimate of ``numerator`` / this positive number, such as tokens/s from s/token."""
        if self.value <= 0 or (self.low is not None and self.low <= 0):
            raise ValueError(f"cannot invert {self.value} [{self.low}, {self.high}]: not positive")
        return Estimate(
            value=numerator / self.value,
            low=None if self.high is None else numerator / self.high,
            high=None if self.low is None else numerator / self.low,
            confidence_fraction=self.confidence_fraction,
            n_samples=self.n_samples,
            method=self.method,
        )


def judge(estimate: Estimate | None, limit: float) -> Verdict:
    """Verdict of the estimate against an upper limit.

    No data and a straddling interval are *undecided*.

    Example
    -------
    >>> judge(Estimate(value=0.3, low=0.2, high=0.6, confidence_fraction=0.95, n_samples=9, method="bootstrap"), 0.5)
    'undecided'
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return "undecided"
    if estimate.high <= limit:
        return "met"
    return "missed" if estimate.low > limit else "undecided"


def envelope(estimates: Sequence[Estimate], *, method: str) -> Estimate:
    """One estimate that covers several estimates from the same data.

    It has the first one's value, and the lowest and the highest end of all intervals; no interval
    if any of them has none.

    Example
    -------
    >>> views = [
    ...     Estimate(
    ...         value=v, low=v - 1, high=v + 1, confidence_fraction=0.95, n_samples=7, method="median"
    ...     )
    ...     for v in (5, 8)
    ... ]
    >>> both = envelope(views, method="both")
    >>> both.value, both.low, both.high
    (5, 4, 9)
    """
    first = estimates[0]
    lows = [estimate.low for estimate in estimates if estimate.low is not None]
    highs = [estimate.high for estimate in estimates if estimate.high is not None]
    is_whole = len(lows) == len(highs) == len(estimates)
    return Estimate(
        value=first.value,
        low=min(lows) if is_whole else None,
        high=max(highs) if is_whole else None,
        confidence_fraction=first.confidence_fraction,
        n_samples=min(estimate.n_samples for estimate in estimates),
        method=method,
    )


def judge_share(share: Estimate, least_fraction: float) -> Verdict:
    """Verdict on a share that should be large: met by its value, missed if certainly too small."""
    if share.value >= least_fraction:
        return "met"
    return "missed" if share.high is not None and share.high < least_fraction else "undecided"
