"""Distributions of a workload's numbers: tokens, seconds or turns, in the key's unit.

Each distribution is a quantile function of a uniform number: with the same uniform numbers a longer
mean makes every draw longer, and no other part of the workload moves.

Logarithm, exponential and the normal distribution are the same to the last bit on every machine.
Numpy's logarithm differs in the last bit between processors with and without AVX-512, so that a gap
may round to another nanosecond. Here all functions consist of +, -, ·, /, sqrt and powers of two,
which IEEE 754 rounds exactly, one array operation at a time, so that no compiler can fuse two.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SpecError
from inferometer.units import NS_PER_S

Floats = NDArray[np.float64]

_LN2_HIGH: Final = 0.693147180369123816490
_LN2_LOW: Final = 1.90821492927058770002e-10
"""Together ln 2; the high part has so few bits that its product with an exponent is exact."""

_ATANH: Final = tuple(1 / (2 * k + 1) for k in range(10, -1, -1))
"""atanh(s)/s in powers of s^2, highest first; s is at most 0.172, so the next term is below
1e-18."""

_MAX_EXPONENT: Final = 700.0

# Source: Wichura 1988, Algorithm AS 241 (PPND16), numerators and denominators, highest power first.
_CENTRE: Final = (
    (
        *(
            2.5090809287301226727e3,
            3.3430575583588128105e4,
            6.7265770927008700853e4,
            4.5921953931549871457e4,
        ),
        *(
            1.3731693765509461125e4,
            1.9715909503065514427e3,
            1.3314166789178437745e2,
            3.3871328727963666080e0,
        ),
    ),
    (
        *(
            5.2264952788528545610e3,
            2.8729085735721942674e4,
            3.9307895800092710610e4,
            2.1213794301586595867e4,
        ),
        *(5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
    ),
)
_NEAR: Final = (
    (
        *(
            7.74545014278341407640e-4,
            2.27238449892691845833e-2,
            2.41780725177450611770e-1,
            1.27045825245236838258e0,
        ),
        *(
            3.64784832476320460504e0,
            5.76949722146069140550e0,
            4.63033784615654529590e0,
            1.42343711074968357734e0,
        ),
    ),
    (
        *(
            1.05075007164441684324e-9,
            5.47593808499534494600e-4,
            1.51986665636164571966e-2,
            1.48103976427480074590e-1,
        ),
        *(6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
    ),
)
_FAR: Final = (
    (
        *(
            2.01033439929228813265e-7,
            2.71155556874348757815e-5,
            1.24266094738807843860e-3,
            2.65321895265761230930e-2,
        ),
        *(
            2.96560571828504891230e-1,
            1.78482653991729133580e0,
            5.46378491116411436990e0,
            6.65790464350110377720e0,
        ),
    ),
    (
        *(
            2.04426310338993978564e-15,
            1.42151175831644588870e-7,
            1.84631831751005468180e-5,
            7.86869131145613259100e-4,
        ),
        *(1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
    ),
)

# Source: Hart 1968, approximation 5666, as in West 2005, "Better approximations to cumulative
# normal functions".
_TAIL: Final = (
    (
        3.52624965998911e-2,
        0.700383064443688,
        6.37396220353165,
        33.912866078383,
        112.079291497871,
        221.213596169931,
        220.206867912376,
    ),
    (
        *(
            8.83883476483184e-2,
            1.75566716318264,
            16.064177579207,
            86.7807322029461,
            296.564248779674,
            637.333633378831,
        ),
        *(793.826512519948, 440.413735824752),
    ),
)
_MAX_DEVIATION: Final = 7.0
_MOST: Final = 1e12
_MAX_S: Final = 9e9  # int64 nanoseconds hold 292 years

Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-9, le=_MOST)]
"""Requests per second, or a speed-up; at lower values no request would ever arrive."""
NotNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


def log(values: Floats) -> Floats:
    """The natural logarithm of positive numbers."""
    mantissa, exponent = np.frexp(values)
    is_low = mantissa < 0.7071067811865476
    mantissa = np.where(is_low, mantissa * 2, mantissa)
    exponent = (exponent - is_low).astype(np.float64)
    s = (mantissa - 1) / (mantissa + 1)
    value: Floats = exponent * _LN2_HIGH + (
        exponent * _LN2_LOW + 2 * s * _polynomial(_ATANH, s * s)
    )
    return value


def exp(values: Floats) -> Floats:
    """The exponential, with arguments clipped to ±700."""
    within = np.clip(values, -_MAX_EXPONENT, _MAX_EXPONENT)
    n_doublings = np.rint(within / (_LN2_HIGH + _LN2_LOW))
    rest = (within - n_doublings * _LN2_HIGH) - n_doublings * _LN2_LOW
    series = np.ones_like(rest)
    for k in range(14, 0, -1):
        series = 1 + series * rest / k
    value: Floats = np.ldexp(series, n_doublings.astype(np.int64))
    return value


def normal_quantile(fractions: Floats) -> Floats:
    """Quantile function of the standard normal distribution."""
    centred = fractions - 0.5
    in_centre = np.abs(centred) <= 0.425
    middle = centred * _rational(_CENTRE, 0.180625 - np.where(in_centre, centred * centred, 0.0))
    distance = np.sqrt(-log(np.minimum(fractions, 1 - fractions)))
    outside = np.where(
        distance <= 5.0, _rational(_NEAR, distance - 1.6), _rational(_FAR, distance - 5.0)
    )
    return np.where(in_centre, middle, np.where(centred < 0, -outside, outside))


def normal_fraction(deviations: Floats) -> Floats:
    """Distribution function of the standard normal distribution, strictly within (0, 1)."""
    distance = np.minimum(np.abs(deviations), _MAX_DEVIATION)
    tail = exp(-distance * distance / 2) * _rational(_TAIL, distance)
    return np.where(deviations > 0, 1 - tail, tail)


def _polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _rational(coefficients: tuple[Sequence[float], Sequence[float]], x: Floats) -> Floats:
    numerator, denominator = coefficients
    return _polynomial(numerator, x) / _polynomial(denominator, x)


class Tagged(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """A table whose ``kind`` is that of its type."""


class Constant(Tagged, frozen=True, kw_only=True, tag="constant"):
    """Always this value."""

    value: NotNegative


class Uniform(Tagged, frozen=True, kw_only=True, tag="uniform"):
    """Uniform between low and high."""

    low: NotNegative
    high: NotNegative

    def __post_init__(self) -> None:
        _ordered(low=self.low, high=self.high)


class Normal(Tagged, frozen=True, kw_only=True, tag="normal"):
    """Normal around a mean, clipped to min and max."""

    mean: NotNegative
    sd: NotNegative
    min: NotNegative = 0.0
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(min=self.min, max=self.max)


class Lognormal(Tagged, frozen=True, kw_only=True, tag="lognormal"):
    """Log-normal around the median with standard deviation sigma, clipped to min and max."""

    median: Positive
    sigma: Annotated[float, msgspec.Meta(ge=0, le=20)]
    min: NotNegative = 0.0
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(min=self.min, max=self.max)


class Exponential(Tagged, frozen=True, kw_only=True, tag="exponential"):
    """Exponential with this mean, clipped to min and max."""

    mean: Positive
    min: NotNegative = 0.0
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(min=self.min, max=self.max)


class Pareto(Tagged, frozen=True, kw_only=True, tag="pareto"):
    """From low on, with the fraction (low/x)^exponent beyond x; clipped to max."""

    low: Positive
    exponent: Annotated[float, msgspec.Meta(gt=0, le=100)]
    max: Positive = _MOST

    def __post_init__(self) -> None:
        _ordered(low=self.low, max=self.max)


class Zipf(Tagged, frozen=True, kw_only=True, tag="zipf"):
    """The whole numbers from low to high, k with a probability that goes as k^-exponent."""

    exponent: Annotated[float, msgspec.Meta(ge=0, le=100)]
    low: Natural = 1
    high: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]

    def __post_init__(self) -> None:
        _ordered(low=self.low, high=self.high)


class Table(Tagged, frozen=True, kw_only=True, tag="table"):
    """One of these values with its weight (equal without weights).

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


class Quantiles(Tagged, frozen=True, kw_only=True, tag="quantiles"):
    """Piecewise linear between values at these fractions (0 to 1)."""

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


class TraceLengths(Tagged, frozen=True, kw_only=True, tag="trace"):
    """A column of a trace file, each row with equal weight."""

    path: str
    column: Literal["prompt_tokens", "output_tokens"]
    format: str | None = None


Sampled: TypeAlias = (
    Constant | Uniform | Normal | Lognormal | Exponential | Pareto | Zipf | Table | Quantiles
)
"""Distributions that can be sampled directly."""
Distribution: TypeAlias = Sampled | TraceLengths


def quantile(distribution: Sampled, fractions: Floats) -> Floats:
    """Quantiles of the distribution at these fractions (0 to 1).

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
    """The distribution, after a check that it does not refer to a trace.

    Raises
    ------
    SpecError
        It refers to a trace: ``draw_workload`` reads traces, ``draw_classes`` does not.
    """
    if isinstance(distribution, TraceLengths):
        raise SpecError(
            "a distribution points to a trace that has not been read",
            where="the workload",
            try_="draw_workload",
        )
    return distribution


def interpolated(x: Floats, knots: Floats, values: Floats) -> Floats:
    """Linear interpolation between knots, constant beyond them.

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
