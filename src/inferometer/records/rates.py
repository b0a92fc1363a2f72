"""At which rates did a run serve, and how certain is that?

In general a rate is that of equal windows, with the interval of their batch means. In a closed loop
the windows would say too little: users wait for one another in the batch, so that answers end in
bursts, and at the end fewer and fewer users are left. Both widen the differences between windows,
but hardly differ between runs. There the work goes on at a rate that is nearly steady until the last
request is sent; what differs between runs is that rate, and the time that the last answers take. An
answer counts in each window by the share of its time in it, and the time of the last answers is the
largest of the rests of those in flight: each is a uniform share of an answer met in proportion to
its length (renewal theory; Cox, Renewal Theory, 1962, section 5.4). Its quantiles say how much sooner
or later the run might have ended.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import F64, I32, I64
from inferometer.stats.autocorrelated import N_BATCHES, run_mean_estimate
from inferometer.stats.estimate import Estimate
from inferometer.units import NS_PER_S

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


def window_rates(output: F64, read: F64, done: F64, edges_ns: F64, between_s: float) -> Rates:
    """Rates of what came in each window: output tokens, read prompt tokens, ended requests."""
    return Rates(
        _window_rate(output, edges_ns, "output tokens/s", between_s),
        _window_rate(output + read, edges_ns, "input and output tokens/s", between_s),
        _window_rate(done, edges_ns, "completed requests/s", between_s),
    )


def _window_rate(per_window: F64, edges_ns: F64, name: str, between_s: float) -> Estimate | None:
    """Rate with an interval from equal windows; without one in a single burst."""
    window_s = float(edges_ns[1] - edges_ns[0]) / NS_PER_S
    if float(edges_ns[-1] - edges_ns[0]) <= 1:
        return None
    rates = per_window / window_s
    estimate = run_mean_estimate(rates, float(rates.mean()), name=name)
    if between_s <= 0:  # fewer and fewer requests are left
        return replace(estimate, low=None, high=None, method=f"{name}; of {ONE_BURST}")
    return estimate if estimate.low is None else replace(estimate, low=max(estimate.low, 0.0))


def counted(instants_ns: I64, edges_ns: F64, weights: I32 | F64) -> F64:
    """Sum of the weights of the instants in each window."""
    return np.histogram(
        instants_ns.astype(np.float64), bins=edges_ns, weights=weights.astype(np.float64)
    )[0]


def is_closed_loop(begun_ns: I64, ended_ns: I64) -> bool:
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
    begun_ns: I64,
    ended_ns: I64,
    prompt_tokens: I32,
    output_until: Callable[[I64], F64],
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
    rate: Estimate | None, per_window: F64, steady_fraction: float, last_ratios: tuple[float, float]
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


def _last_s(took_s: F64, n_users: int) -> F64:
    """Time in which the last answers of all users end: its 2.5 % and its 97.5 % quantile."""
    in_order = np.sort(took_s)
    upto = np.concatenate(([0.0], np.cumsum(in_order)))
    at_s = np.linspace(0.0, float(in_order[-1]), _N_GRID)
    n_below = np.searchsorted(in_order, at_s)
    rest = (upto[n_below] + at_s * (len(in_order) - n_below)) / upto[-1]
    return at_s[np.searchsorted(rest**n_users, (0.025, 0.975)).clip(max=_N_GRID - 1)]
