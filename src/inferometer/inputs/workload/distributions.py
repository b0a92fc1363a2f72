"""Distributions of a workload's numbers: tokens, seconds or turns, in the key's unit.

Each distribution is a quantile function of a uniform number: with the same uniform numbers a longer
mean makes every draw longer, and no other part of the workload moves.
"""

from itertools import pairwise
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SpecError
from inferometer.inputs.workload.exact_math import Floats, exp, log, normal_quantile
from inferometer.units import NS_PER_S

_MOST: Final = 1e12
_MAX_S: Final = 9e9  # int64 nanoseconds hold 292 years

Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-9, le=_MOST)]
"""Requests per second, or how many times as fast: below, none comes in a lifetime."""
NotNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Constant(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="constant",
):
    """Always this value."""

    value: NotNegative


class Uniform(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="uniform",
):
    """Any value from low to high, all alike."""

    low: NotNegative
    high: NotNegative

    def __post_init__(self) -> None:
        _ordered(low=self.low, high=self.high)


class Normal(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="normal",
):
    """Around a mean; what falls outside of min and max is moved to them."""

    mean: NotNegative
    sd: NotNegative
    min: NotNegative = 0.0
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(min=self.min, max=self.max)


class Lognormal(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="lognormal",
):
    """Log-normal around the median with standard deviation sigma, clipped to min and max."""

    median: Positive
    sigma: Annotated[float, msgspec.Meta(ge=0, le=20)]
    min: NotNegative = 0.0
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(min=self.min, max=self.max)


class Exponential(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="exponential",
):
    """Memoryless with this mean; moved into min and max."""

    mean: Positive
    min: NotNegative = 0.0
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(min=self.min, max=self.max)


class Pareto(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="pareto",
):
    """From low on, with the fraction (low/x)^exponent beyond x; moved below max."""

    low: Positive
    exponent: Annotated[float, msgspec.Meta(gt=0, le=100)]
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(low=self.low, max=self.max)


class Zipf(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="zipf",
):
    """The whole numbers from low to high, k with a probability that goes as k^-exponent."""

    exponent: Annotated[float, msgspec.Meta(ge=0, le=100)]
    low: Natural = 1
    high: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]

    def __post_init__(self) -> None:
        _ordered(low=self.low, high=self.high)


class Table(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="table",
):
    """One of these values, each with its weight (all alike without weights).

    An empirical sample or a probability table.
    """

    values: tuple[NotNegative, ...]
    weights: tuple[NotNegative, ...] | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a table without values")
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.weights)} weights for {len(self.values)} values")
        if self.weights is not None and not any(self.weights):
            raise ValueError("every weight is 0: no value can come")


class Quantiles(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="quantiles",
):
    """Straight lines between the values below which these fractions lie; fractions run from 0 to 1."""

    fractions: tuple[Annotated[float, msgspec.Meta(ge=0, le=1)], ...]
    values: tuple[NotNegative, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.fractions):
            raise ValueError(f"{len(self.values)} values for {len(self.fractions)} fractions")
        if len(self.fractions) < 2 or self.fractions[0] != 0 or self.fractions[-1] != 1:
            raise ValueError("fractions do not run from 0 to 1")
        if any(b <= a for a, b in pairwise(self.fractions)):
            raise ValueError("fractions do not grow")
        if any(b < a for a, b in pairwise(self.values)):
            raise ValueError("values fall as fractions grow")


class TraceLengths(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="trace",
):
    """A column of a trace file, every row alike."""

    path: str
    column: Literal["prompt_tokens", "output_tokens"]
    format: str | None = None


Sampled: TypeAlias = (
    Constant | Uniform | Normal | Lognormal | Exponential | Pareto | Zipf | Table | Quantiles
)
"""Distributions that can be drawn from as they are."""
Distribution: TypeAlias = Sampled | TraceLengths


def quantile(distribution: Sampled, fractions: Floats) -> Floats:
    """Below which values do these fractions (within 0 and 1) of the distribution lie?

    Example
    -------
    >>> quantile(Uniform(low=10, high=20), np.array([0.5])).tolist()
    [15.0]
    """
    match distribution:
        case Constant(value=value):
            return np.full(len(fractions), float(value))
        case Uniform(low=low, high=high):
            return low + (high - low) * fractions
        case Table() | Zipf():
            return _tabulated(distribution, fractions)
        case Quantiles(fractions=knots, values=values):
            return interpolated(fractions, np.array(knots), np.array(values, dtype=np.float64))
        case Pareto(low=low, exponent=exponent):
            free = low * exp(-log(1 - fractions) / exponent)
        case Exponential(mean=mean):
            free = -mean * log(1 - fractions)
        case Lognormal(median=median, sigma=sigma):
            free = median * exp(sigma * normal_quantile(fractions))
        case Normal(mean=mean, sd=sd):
            free = mean + sd * normal_quantile(fractions)
    smallest = distribution.low if isinstance(distribution, Pareto) else distribution.min
    return np.clip(free, smallest, distribution.max)


def mean_of(distribution: Sampled, *, at_least: float = 0.0) -> float:
    """Mean of the values rounded to whole numbers ≥ ``at_least``, over 4,096 quantiles."""
    middles = (np.arange(4096) + 0.5) / 4096
    return float(
        np.cumsum(np.maximum(np.rint(quantile(distribution, middles)), at_least))[-1] / 4096
    )


def seconds_to_ns(distribution: Sampled, fractions: Floats) -> NDArray[np.int64]:
    """Draws of a distribution of seconds, in nanoseconds."""
    drawn_s = np.minimum(quantile(distribution, fractions), _MAX_S)
    return np.asarray(np.rint(drawn_s * NS_PER_S), dtype=np.int64)


def sampled(distribution: Distribution) -> Sampled:
    """The distribution, which must not point to a trace any more.

    Raises
    ------
    SpecError
        It does: ``draw_workload`` reads traces, ``draw_classes`` does not.
    """
    if isinstance(distribution, TraceLengths):
        raise SpecError(
            "a distribution points to a trace that has not been read",
            where="the workload",
            try_="draw_workload",
        )
    return distribution


def interpolated(x: Floats, knots: Floats, values: Floats) -> Floats:
    """The values at x on straight lines between knots, held beyond them.

    The same on every machine, unlike ``numpy.interp``.
    """
    right = np.clip(np.searchsorted(knots, x, side="right"), 1, len(knots) - 1)
    left = right - 1
    share = np.clip((x - knots[left]) / (knots[right] - knots[left]), 0.0, 1.0)
    return values[left] + share * (values[right] - values[left])


def _tabulated(distribution: Table | Zipf, fractions: Floats) -> Floats:
    if isinstance(distribution, Zipf):
        values = np.arange(distribution.low, distribution.high + 1, dtype=np.float64)
        weights = exp(-distribution.exponent * log(values))
    else:
        values = np.array(distribution.values, dtype=np.float64)
        weights = (
            np.ones(len(values))
            if distribution.weights is None
            else np.array(distribution.weights, dtype=np.float64)
        )
        order = np.argsort(values, kind="stable")
        values, weights = values[order], weights[order]
    below = np.cumsum(weights)
    row = np.minimum(np.searchsorted(below, fractions * below[-1], side="right"), len(values) - 1)
    return np.asarray(values[row], dtype=np.float64)


def _ordered(**bounds: float) -> None:
    (low_name, low), (high_name, high) = bounds.items()
    if low > high:
        raise ValueError(f"{low_name} = {low:g} is above {high_name} = {high:g}: no value can come")
