"""Intervals of quantiles, means, shares and rates of one run, whose samples are autocorrelated.

Requests that meet the same queue are late together, so n of them carry less information than n
independent ones. The share of samples below the quantile is computed in consecutive batches. Its
variance between batches, divided by that of independent samples, is the *inflation*; n divided by
the inflation is the effective sample size. The interval is the binomial one of ``estimate`` for
that many samples. Batches of three lengths are tried and the largest inflation is used, since
batches that are too short hide correlation. A run with a small effective sample size has no
interval, however many requests it has.

Source: batch means, Law and Kelton, Simulation Modeling and Analysis (3rd ed.), sections 9.5.2
and 9.5.3; of the indicator for quantiles, Heidelberger and Lewis, Quantile Estimation in
Dependent Sequences, Operations Research 32 (1984).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import DEFAULT_CONFIDENCE_FRACTION, interval_ranks, min_samples
from inferometer.units import NS_PER_S

N_BATCHES: Final = (40, 20, 10)
"""Numbers of batches that are tried; with fewer than ten the variance between batches is itself
uncertain."""
MIN_SAMPLES: Final = 40
"""Fewest samples from which autocorrelation is estimated."""
MIN_INDEPENDENT_SAMPLES: Final = 10
"""Smallest effective sample size for an interval; below it, the size itself is too uncertain."""
MIN_SAMPLES_OF_A_BATCH: Final = 4
TABLED_FRACTIONS: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Quantiles that are shown in tables; their intervals must be in the order of the quantiles."""

_Floats = NDArray[np.float64]


class IntervalPlan(NamedTuple):
    """Ranks (from 0) of the samples that bound a quantile, and the method; None: too few."""

    low_rank: int | None
    high_rank: int | None
    method: str


def run_quantile_estimate(
    samples: ArrayLike,
    quantile_fraction: float,
    *,
    upper: ArrayLike | None = None,
) -> Estimate | None:
    """A quantile of one run; ``samples`` are in the order in which they were taken.

    None without samples. See ``run_quantile_estimates`` for the interval.

    Example
    -------
    >>> estimate = run_quantile_estimate(range(1000), 0.5)
    >>> estimate.method
    'quantile 0.5; n = 1000 is worth 6 independent samples; too small for a 95 % interval, which needs 10'
    """
    return next(iter(run_quantile_estimates(samples, (quantile_fraction,), upper=upper)), None)


def run_quantile_estimates(
    samples: ArrayLike,
    quantile_fractions: Sequence[float],
    *,
    upper: ArrayLike | None = None,
) -> tuple[Estimate, ...]:
    """Quantiles of one run; ``samples`` are in the order in which they were taken.

    Empty without samples. If ``samples`` are lower bounds (censored requests), ``upper`` has the
    upper bounds, infinite for a request that was never seen to end: the values and lower ends are
    computed from the lower bounds, the upper ends from the upper bounds.

    Each quantile has its own effective sample size, so that the interval of a higher quantile could
    begin or end below that of a lower one. Such intervals are widened until neither end decreases
    from quantile to quantile. ``TABLED_FRACTIONS`` are always included in this, so that a single
    quantile has the same interval as in a table.
    """
    lower = np.asarray(samples, dtype=np.float64)
    if lower.size == 0:
        return ()
    above = lower if upper is None else np.asarray(upper, dtype=np.float64)
    tabled = (
        fraction
        for fraction in TABLED_FRACTIONS
        if lower.size >= max(MIN_SAMPLES, min_samples(fraction))
    )
    sorted_lower, sorted_above = np.sort(lower), np.sort(above)
    estimates = {
        fraction: _quantile_alone(lower, sorted_lower, sorted_above, fraction)
        for fraction in sorted({*quantile_fractions, *tabled})
    }
    in_order = dict(zip(estimates, _in_order(list(estimates.values())), strict=True))
    return tuple(in_order[fraction] for fraction in quantile_fractions)


def _quantile_alone(
    lower: _Floats, sorted_lower: _Floats, sorted_above: _Floats, quantile_fraction: float
) -> Estimate:
    """A quantile with the interval of its own effective sample size, before any widening."""
    value = float(sorted_lower[quantile_rank(lower.size, quantile_fraction)])
    worth = independent_samples(lower <= value)
    plan = interval_plan(lower.size, worth, quantile_fraction)
    low = high = None
    if plan.low_rank is not None and plan.high_rank is not None:
        low = min(float(sorted_lower[plan.low_rank]), value)
        high = max(float(sorted_above[plan.high_rank]), value)
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=lower.size,
        method=plan.method,
    )


def _in_order(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Estimates of ascending quantiles, with intervals widened so that no end decreases."""
    lows = [math.inf if estimate.low is None else estimate.low for estimate in estimates]
    highs = [-math.inf if estimate.high is None else estimate.high for estimate in estimates]
    least = np.minimum.accumulate(lows[::-1])[::-1].tolist()
    most = np.maximum.accumulate(highs).tolist()
    return [
        estimate
        if estimate.low is None or (low, high) == (estimate.low, estimate.high)
        else replace(
            estimate, low=low, high=high, method=f"{estimate.method}, widened to other quantiles'"
        )
        for estimate, low, high in zip(estimates, least, most, strict=True)
    ]


def quantile_rank(n_samples: int, quantile_fraction: float) -> int:
    """Rank (from 0) of a quantile: of the least sample that this share of all do not exceed.

    Example
    -------
    >>> quantile_rank(4, 0.5), quantile_rank(100, 0.95), quantile_rank(1, 0.99)
    (1, 94, 0)
    """
    return min(max(math.ceil(quantile_fraction * n_samples - 1e-9) - 1, 0), n_samples - 1)


def interval_plan(n_samples: int, worth: int, quantile_fraction: float) -> IntervalPlan:
    """Ranks that bound a quantile of ``n_samples`` samples with effective sample size ``worth``."""
    needed = max(MIN_INDEPENDENT_SAMPLES, min_samples(quantile_fraction))
    ranks = interval_ranks(
        worth, quantile_fraction, confidence_fraction=DEFAULT_CONFIDENCE_FRACTION
    )
    n_text = (
        f"n = {n_samples}"
        if worth == n_samples
        else f"n = {n_samples} is worth {worth} independent samples"
    )
    name = f"quantile {quantile_fraction:g}; {n_text}"
    if ranks is None or worth < needed or n_samples < MIN_SAMPLES:
        needed = max(needed, MIN_SAMPLES) if worth == n_samples else needed
        percent = f"{DEFAULT_CONFIDENCE_FRACTION * 100:g}"
        method = f"{name}; too small for a {percent} % interval, which needs {needed}"
        return IntervalPlan(None, None, method)
    low_rank = math.floor((ranks.low - 1) / worth * n_samples)
    high_rank = min(math.ceil(ranks.high / worth * n_samples) - 1, n_samples - 1)
    method = f"{name}, order statistics {ranks.low} and {ranks.high} of those"
    return IntervalPlan(low_rank, high_rank, method)


def run_mean_estimate(
    batch_means: ArrayLike,
    value: float,
    *,
    name: str,
) -> Estimate:
    """The mean of a run, from the means of its consecutive batches.

    ``value`` is the mean of the whole run.

    Example
    -------
    >>> run_mean_estimate([9.0, 11.0] * 20, 10.0, name="rate").method
    'rate; batch means, widest of 40, 20 and 10 batches'
    """
    means = np.asarray(batch_means, dtype=np.float64)
    if means.size < max(N_BATCHES):
        method = f"{name}; {means.size} batches are too few for an interval"
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
            n_samples=max(means.size, 1),
            method=method,
        )
    halves: list[float] = []
    for n_batches in N_BATCHES:
        merged = _batch_means(means, n_batches)
        quantile = _student_quantile(merged.size - 1, 0.5 + DEFAULT_CONFIDENCE_FRACTION / 2)
        halves.append(quantile * math.sqrt(_variance(merged)) / math.sqrt(merged.size))
    half = max(halves)
    tried = f"{', '.join(str(n) for n in N_BATCHES[:-1])} and {N_BATCHES[-1]}"
    return Estimate(
        value=value,
        low=value - half,
        high=value + half,
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=means.size,
        method=f"{name}; batch means, widest of {tried} batches",
    )


def run_share_estimate(is_good: ArrayLike, *, name: str) -> Estimate | None:
    """A share of a run's samples: Wilson's interval at the effective sample size."""
    good = np.asarray(is_good, dtype=np.bool_)
    if good.size == 0:
        return None
    value = float(good.mean())
    worth = independent_samples(good)
    if good.size < MIN_SAMPLES or worth < MIN_INDEPENDENT_SAMPLES:
        method = f"{name}; n = {good.size} is too small for an interval"
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
            n_samples=good.size,
            method=method,
        )
    z = _student_quantile(math.inf, 0.5 + DEFAULT_CONFIDENCE_FRACTION / 2)
    centre = (value + z * z / (2 * worth)) / (1 + z * z / worth)
    half = (
        z
        / (1 + z * z / worth)
        * math.sqrt(value * (1 - value) / worth + z * z / (4 * worth * worth))
    )
    method = f"{name}; Wilson's interval of {worth} independent samples, of n = {good.size}"
    return Estimate(
        value=value,
        low=max(0.0, min(value, centre - half)),
        high=min(1.0, max(value, centre + half)),
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=good.size,
        method=method,
    )


def grouped_share(
    groups: Sequence[Sequence[bool]], *, confidence_fraction: float = 0.9
) -> Estimate:
    """Share of all members of G groups, whose members are correlated.

    Clopper and Pearson's interval at the effective sample size of Korn and Graubard (Survey
    Methodology 24, 1998); groups that do not differ count as one sample each. No interval of one
    group.

    Example
    -------
    >>> found = grouped_share([[True, True], [True, True], [False, False]])
    >>> round(found.low, 2), round(found.value, 2), round(found.high, 2)
    (0.01, 0.67, 1.0)
    """
    n = np.array([len(group) for group in groups], dtype=np.float64)
    good = np.array([sum(group) for group in groups], dtype=np.float64)
    value, n_all, n_groups = float(good.sum() / n.sum()), int(n.sum()), len(groups)
    method = f"share of {n_all} in {n_groups} groups"
    low = high = None
    if n_groups > 1:
        residual = float(np.square(good - value * n).sum())
        variance = n_groups / (n_groups - 1) * residual / n_all**2
        worth = float(n_groups)
        if variance > 0:
            wide, narrow = scipy.special.stdtrit(
                (n_groups - 1, n_all - 1), 0.5 + confidence_fraction / 2
            )
            worth = value * (1 - value) / variance * float(narrow / wide) ** 2
            worth = min(max(worth, 1.0), float(n_all))
        tail = (1 - confidence_fraction) / 2
        low = (
            float(scipy.special.betaincinv(value * worth, (1 - value) * worth + 1, tail))
            if value
            else 0.0
        )
        high = 1.0
        if value < 1:
            high = float(scipy.special.betaincinv(value * worth + 1, (1 - value) * worth, 1 - tail))
        method += f"; Clopper and Pearson's interval of {worth:.3g} independent samples"
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=confidence_fraction,
        n_samples=n_all,
        method=method,
    )


def independent_samples(is_below: NDArray[np.bool_]) -> int:
    """Effective sample size of a share in this sequence: at least 1, at most all of them.

    Example
    -------
    >>> independent_samples(np.arange(400) % 2 == 0)
    400
    """
    if is_below.size < MIN_SAMPLES:
        return is_below.size
    below = is_below.astype(np.float64)
    means = [
        _batch_means(below, n_batches)
        for n_batches in N_BATCHES
        if is_below.size // n_batches >= MIN_SAMPLES_OF_A_BATCH
    ]
    return worth_of_batches(is_below.size, np.count_nonzero(is_below) / is_below.size, means)


def worth_of_batches(n_samples: int, share_fraction: float, means: Sequence[ArrayLike]) -> int:
    """Effective sample size of a share, from its values in consecutive batches.

    ``means``: one array of batch means for each number of batches that is tried.
    """
    if share_fraction in {0.0, 1.0}:
        return n_samples
    inflation = 1.0
    for batch_means in means:
        array = np.asarray(batch_means, dtype=np.float64)
        # the variance of few batches is uncertain: widen as Student's t does the normal
        widening = (
            _student_quantile(array.size - 1, 0.975) / _student_quantile(math.inf, 0.975)
        ) ** 2
        n_each = n_samples // array.size
        inflation = max(
            inflation,
            widening * _variance(array) * n_each / (share_fraction * (1 - share_fraction)),
        )
    return max(1, math.floor(n_samples / inflation))


def _batch_means(samples: _Floats, n_batches: int) -> _Floats:
    """Means of ``n_batches`` consecutive batches of equal length.

    The first samples, which are left over, are dropped: a run warms up there.
    """
    n_each = samples.size // n_batches
    batches = samples[samples.size - n_each * n_batches :].reshape(n_batches, n_each)
    means: _Floats = np.add.reduce(batches, axis=1) / n_each
    return means


# ``np.mean`` and ``np.var`` do the same sums, but take five times as long to come to them: a
# simulation's summary has hundreds of such short arrays, which took a fifth of its time.
def _variance(samples: _Floats) -> float:
    """Unbiased, to the last bit that of ``np.var``."""
    deviations = samples - np.add.reduce(samples) / samples.size
    return float(np.add.reduce(deviations * deviations)) / (samples.size - 1)


@cache
def _student_quantile(degrees: float, share_fraction: float) -> float:
    return float(scipy.special.stdtrit(degrees, share_fraction))


# At which rates did a run serve, and how certain is that?
#
# In general a rate is that of equal windows, with the interval of their batch means. In a closed loop
# the windows would say too little: users wait for one another in the batch, so that answers end in
# bursts, and at the end fewer and fewer users are left. Both widen the differences between windows,
# but hardly differ between runs. There the work goes on at a rate that is nearly steady until the last
# request is sent; what differs between runs is that rate, and the time that the last answers take. An
# answer counts in each window by the share of its time in it, and the time of the last answers is the
# largest of the rests of those in flight: each is a uniform share of an answer met in proportion to
# its length (renewal theory; Cox, Renewal Theory, 1962, section 5.4). Its quantiles say how much sooner
# or later the run might have ended.


ONE_BURST: Final = "one burst"
_LEAST_WAVES: Final = 8
"""Answers of each user: with fewer the longest answers, which come last, may not have been seen."""
_LEAST_PER_VARIANCE: Final = 150
"""Answers, in squared coefficients of variation of their times: few with a long tail do not show it.
Of 200 runs with lognormal times 92 % of the intervals or more hold the mean of all runs where the
coefficient of variation is up to 1, and 81 to 96 % where it is 1.8."""
_N_GRID: Final = 1001
_AT_ONCE_NS: Final = 1000


class Rates(NamedTuple):
    """Rates of a run; None in a run that took no time."""

    output_tokens_per_s: Estimate | None
    total_tokens_per_s: Estimate | None
    completed_requests_per_s: Estimate | None


def window_rates(
    output: _Floats, read: _Floats, done: _Floats, edges_ns: _Floats, between_s: float
) -> Rates:
    """Rates of what came in each window: output tokens, read prompt tokens, ended requests."""
    return Rates(
        _window_rate(output, edges_ns, "output tokens/s", between_s),
        _window_rate(output + read, edges_ns, "input and output tokens/s", between_s),
        _window_rate(done, edges_ns, "completed requests/s", between_s),
    )


def _window_rate(
    per_window: _Floats, edges_ns: _Floats, name: str, between_s: float
) -> Estimate | None:
    """Rate with an interval from equal windows; without one in a single burst."""
    window_s = float(edges_ns[1] - edges_ns[0]) / NS_PER_S
    if float(edges_ns[-1] - edges_ns[0]) <= 1:
        return None
    rates = per_window / window_s
    estimate = run_mean_estimate(rates, float(rates.mean()), name=name)
    if between_s <= 0:  # fewer and fewer requests are left
        return replace(estimate, low=None, high=None, method=f"{name}; of {ONE_BURST}")
    return estimate if estimate.low is None else replace(estimate, low=max(estimate.low, 0.0))


def counted(
    instants_ns: NDArray[np.int64], edges_ns: _Floats, weights: NDArray[np.int32] | _Floats
) -> _Floats:
    """Sum of the weights of the instants in each window."""
    return np.histogram(
        instants_ns.astype(np.float64), bins=edges_ns, weights=weights.astype(np.float64)
    )[0]


def is_closed_loop(begun_ns: NDArray[np.int64], ended_ns: NDArray[np.int64]) -> bool:
    """Was each request after the first ones sent as another one ended, so that no more are in flight?

    Towards the end there may be fewer: a user who has no request left sends none.
    """
    sent_ns, in_order = np.unique(begun_ns), np.sort(ended_ns)
    n_ended = np.searchsorted(in_order, sent_ns, "right")
    n_in_flight = np.searchsorted(np.sort(begun_ns), sent_ns, "right") - n_ended
    if len(sent_ns) < 2 or n_ended[1] == 0:
        return False
    follows = bool((sent_ns[1:] - in_order[n_ended[1:] - 1] <= _AT_ONCE_NS).all())
    return follows and bool((np.diff(n_in_flight) <= 0).all())


def closed_loop_rates(
    begun_ns: NDArray[np.int64],
    ended_ns: NDArray[np.int64],
    prompt_tokens: NDArray[np.int32],
    output_until: Callable[[NDArray[np.int64]], _Floats],
    rates: Rates,
) -> Rates:
    """The rates with the intervals of a closed loop whose requests were all answered.

    ``output_until``: output tokens until each of these instants.
    """
    first_ns, last_ns, end_ns = int(begun_ns.min()), int(begun_ns.max()), int(ended_ns.max())
    n_users = int((ended_ns >= last_ns).sum())
    took_ns = np.maximum(ended_ns - begun_ns, 1)
    n_least = max(
        _LEAST_WAVES * n_users, _LEAST_PER_VARIANCE * (took_ns.std() / took_ns.mean()) ** 2
    )
    if len(begun_ns) < n_least or last_ns <= first_ns:
        return rates
    edges_ns = np.linspace(first_ns, last_ns, max(N_BATCHES) + 1).astype(np.int64)
    weights = np.stack((np.ones(len(begun_ns)), prompt_tokens))
    answers, prompts = np.array(
        [weights @ np.clip((at - begun_ns) / took_ns, 0.0, 1.0) for at in edges_ns.tolist()]
    ).T
    output = output_until(edges_ns)
    span_s = (end_ns - first_ns) / NS_PER_S
    steady_fraction = (last_ns - first_ns) / (end_ns - first_ns)
    # As long as the run would have been, had its last answers taken less or more time.
    others_s = (last_ns - first_ns) / NS_PER_S + _last_s(took_ns / NS_PER_S, n_users)
    longer_ratio, shorter_ratio = 1 - span_s / others_s[1], span_s / others_s[0] - 1
    last_ratios = max(longer_ratio, 0.0), max(shorter_ratio, 0.0)
    return Rates(
        *(
            _within(rate, np.diff(until), steady_fraction, last_ratios)
            for rate, until in zip(rates, (output, output + prompts, answers), strict=True)
        )
    )


def _within(
    rate: Estimate | None,
    per_window: _Floats,
    steady_fraction: float,
    last_ratios: tuple[float, float],
) -> Estimate | None:
    """The rate with the interval of its windows until the last send, and of the time after it."""
    mean = float(per_window.mean())
    steady = run_mean_estimate(per_window, mean, name="")
    if rate is None or steady.high is None or mean <= 0:
        return rate
    below, above = (
        math.hypot((steady.high / mean - 1) * steady_fraction, ratio) for ratio in last_ratios
    )
    low, high = rate.value * max(1 - below, 0.0), rate.value * (1 + above)
    name = rate.method.partition(";")[0]
    method = (
        f"{name}; closed loop: batch means until the last send, and the time of the last answers"
    )
    return replace(rate, low=low, high=high, method=method)


def _last_s(took_s: _Floats, n_users: int) -> _Floats:
    """Time in which the last answers of all users end: its 2.5 % and its 97.5 % quantile."""
    in_order = np.sort(took_s)
    upto = np.concatenate(([0.0], np.cumsum(in_order)))
    at_s = np.linspace(0.0, float(in_order[-1]), _N_GRID)
    n_below = np.searchsorted(in_order, at_s)
    rest = (upto[n_below] + at_s * (len(in_order) - n_below)) / upto[-1]
    ends: _Floats = at_s[np.searchsorted(rest**n_users, (0.025, 0.975)).clip(max=_N_GRID - 1)]
    return ends
