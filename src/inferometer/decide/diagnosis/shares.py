"""How much of a latency does each cause cost, which is named, and what would a change do?

Each draw of the plausible server is simulated with one limit lifted, under the same
requests: what the latency falls by is the cause's share. The lowest and the highest of 19 draws are
the ends of an interval of 90 %.

A cause is named only where its share is above 0 in every draw, and more than a tenth of the
latency; a setting only where it does not lengthen another latency that misses its limit. Settings
come first, since they cost least to change; then the traffic; the work itself is named where the
SLO is missed and nothing else is to blame.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.decide.diagnosis.causes import CAUSES, Cause
from inferometer.decide.diagnosis.rebuilding import Rebuilt
from inferometer.errors import SpecError
from inferometer.inputs.objectives import Metric
from inferometer.records.columns import F64
from inferometer.records.types import ABSENT
from inferometer.simulate.outcome import Simulation
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import NS_PER_S

Finding: TypeAlias = Literal["healthy", "limited", "undecided"]

_WORTH_FRACTION: Final = 0.1
"""Share of the latency below which a cause is not worth a change."""
_MAY_BE_FRACTION: Final = 0.25
"""Share of the latency from which an uncertain cause is worth a longer window."""
_MOSTLY_FRACTION: Final = 0.5
_A_QUEUE: Final = 1.0
"""Requests that wait, on average."""
_BESIDE_TRAFFIC_FRACTION: Final = 0.5
"""A setting that gains less than this of what fewer requests gain is not the cause."""
_BUDGET_BESIDE_TRAFFIC_FRACTION: Final = 0.7
"""The same of a step budget: of an overloaded server one of thousands of tokens gains a third by its
size alone, one that is too small nearly all."""
_ENOUGH_OF_GAIN: Final = 0.9
"""A smaller change that gains this much of the largest is the better one."""
_METHOD: Final = "least .. most of the draws that show what the server shows"

Percentiles = tuple[tuple[Metric, float], ...]
"""Latencies, each with a percentile (a fraction)."""
Statistics = tuple[tuple[Metric, float | None], ...]
"""The same; None: their mean."""


class Change(NamedTuple):
    """A setting's new value, and the latencies with it."""

    value: int | None
    """None where it is no number."""
    factor: float
    """Factor on the limit."""
    predicted: tuple[Estimate, ...]
    """(percentiles) Seconds, in another window of the same traffic; of the work itself, which no
    setting changes, in the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The latency that one cause explains."""

    cause: Cause
    shares: tuple[Estimate, ...]
    """(percentiles) Seconds by which the latency falls without it; below 0: it rises."""
    change: Change
    """The smallest that gains nearly as much as the largest, of the first percentile."""


def seconds_at(rebuilt: Rebuilt, done: Simulation, percentiles: Statistics) -> F64:
    """(percentiles) Of the requests that came in the window."""
    table = done.requests
    came_ns = table.intended_send_ns
    ended = (table.finished_ns != ABSENT) & (table.first_token_ns != ABSENT)
    rows = ended & (came_ns >= rebuilt.start_ns) & (came_ns < rebuilt.until_ns)
    if not rows.any():  # without the limit a closed loop may be through before the window begins
        rows = ended
    if not rows.any():
        return np.full(len(percentiles), np.nan)
    came, began = table.intended_send_ns[rows], table.admitted_ns[rows]
    first, ended = table.first_token_ns[rows], table.finished_ns[rows]
    gaps = table.output_tokens[rows] - 1
    several = gaps > 0
    seconds: dict[Metric, F64] = {
        "ttft": (first - came) / NS_PER_S,
        "tpot": (ended - first)[several] / NS_PER_S / gaps[several],
        "e2e": (ended - came) / NS_PER_S,
        "queue": (began - came) / NS_PER_S,
    }
    return np.array([_statistic(seconds[metric], fraction) for metric, fraction in percentiles])


def _statistic(seconds: F64, fraction: float | None) -> float:
    if not seconds.size:
        return math.nan
    return float(seconds.mean() if fraction is None else np.quantile(seconds, fraction))


def estimates(seconds: F64) -> tuple[Estimate, ...]:
    """Median draw with the lowest and the highest; ``seconds`` is (draws, percentiles)."""
    return tuple(
        Estimate(
            value=float(np.median(column)),
            low=float(column.min()),
            high=float(column.max()),
            confidence_fraction=0.9,
            n_samples=len(column),
            method=_METHOD,
        )
        for column in seconds.T
    )


def _in_silence(n_done: int, n_causes: int) -> None:
    """A progress callback that does nothing."""


def shares_of(
    draws: Sequence[Rebuilt],
    base: F64,
    percentiles: Percentiles,
    on_done: Callable[[int, int], None] = _in_silence,
    fresh: Sequence[Rebuilt] | None = None,
) -> tuple[Share, ...]:
    """The share of each possible cause; ``base`` (draws, percentiles): latencies with all limits.

    ``fresh`` are the draws under other requests of the same traffic, for which a change is
    predicted; None: it is predicted for those of the window.
    """
    found: list[Share] = []
    causes = [one for one in CAUSES if one.applies(draws[0])]
    for cause in causes:
        by_factor = [_lifted(draws, cause, factor, percentiles) for factor in cause.factors]
        gains = [float(np.median(base[:, 0] - after[:, 0])) for after in by_factor]
        best = int(np.argmax(gains))
        wanted = _ENOUGH_OF_GAIN * gains[best]
        enough = next((i for i, gain in enumerate(gains) if gain >= wanted), best)
        factor, predicted = cause.factors[enough], estimates(by_factor[enough])
        if fresh is not None and cause.kind != "work":
            predicted = predicted_with(fresh, cause, factor, percentiles)
        found.append(
            Share(
                cause=cause,
                shares=estimates(base - by_factor[best]),
                change=Change(_value(draws[0], cause, factor), factor, predicted),
            )
        )
        on_done(len(found), len(causes))
    return tuple(found)


def predicted_with(
    draws: Sequence[Rebuilt], cause: Cause, factor: float, percentiles: Statistics
) -> tuple[Estimate, ...]:
    """(percentiles) Seconds of these servers with the limit moved by this factor."""
    return estimates(_lifted(draws, cause, factor, percentiles))


def _lifted(draws: Sequence[Rebuilt], cause: Cause, factor: float, percentiles: Statistics) -> F64:
    """(draws, percentiles) With the limit moved; as they are where the server cannot be set so."""
    rows: list[F64] = []
    for one in draws:
        try:
            lifted = cause.lifted(one, factor)
        except SpecError:
            lifted = one
        rows.append(seconds_at(lifted, lifted.simulation(), percentiles))
    return np.stack(rows)


def _value(likely: Rebuilt, cause: Cause, factor: float) -> int | None:
    return None if cause.value_of is None else cause.value_of(cause.lifted(likely, factor), factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The cause that is named, and why."""

    finding: Finding
    cause: Share | None
    """The limiting cause; a possible one where undecided; None: nothing worth a change."""


def conclusion(
    shares: Sequence[Share],
    now: Estimate,
    slo: Verdict | None,
    verdicts: Sequence[Verdict] = (),
    *,
    mean_waiting: float = math.inf,
) -> Conclusion:
    """The cause of the first latency (``now``); ``slo``: verdict of the SLO.

    Where hardly a request waits (``mean_waiting``), fewer requests would shorten what they wait for
    each other's steps, but no replica lacks.

    ``verdicts`` (percentiles): of the limit of each latency. A setting that lengthens one that is
    missed is not what limits the server.
    """
    if slo == "met":
        return Conclusion(finding="healthy", cause=None)
    settings = [
        one
        for one in shares
        if one.cause.kind == "setting" and _is_worth(one, now) and not _worsens(one, verdicts)
    ]
    traffic = next((one for one in shares if one.cause.kind == "traffic"), None)
    ranked = sorted(settings, key=lambda one: -one.shares[0].value)
    sure = [one for one in ranked if _is_sure(one)]
    open_ones = [one for one in ranked if one.shares[0].value > _MAY_BE_FRACTION * now.value]
    is_overload = (
        traffic is not None
        and mean_waiting >= _A_QUEUE
        and _is_sure(traffic)
        and traffic.shares[0].value > _MOSTLY_FRACTION * now.value
    )
    if sure and (traffic is None or not is_overload or _rivals(sure[0], traffic)):
        return Conclusion(finding="limited", cause=sure[0])
    if is_overload and (sure or not open_ones):
        return Conclusion(finding="limited", cause=traffic)
    if open_ones:
        return Conclusion(finding="undecided", cause=open_ones[0])
    if slo is None:
        return Conclusion(finding="healthy", cause=None)
    work = [one for one in shares if one.cause.kind != "setting" and _is_sure(one)]
    largest = max(work, key=lambda one: one.shares[0].value, default=None)
    is_undecided = slo == "undecided" or largest is None
    return Conclusion(finding="undecided" if is_undecided else "limited", cause=largest)


def _is_worth(share: Share, now: Estimate) -> bool:
    return share.shares[0].value > _WORTH_FRACTION * now.value


def _worsens(share: Share, verdicts: Sequence[Verdict]) -> bool:
    return any(
        verdict == "missed" and one.high is not None and one.high < 0
        for one, verdict in zip(share.shares, verdicts, strict=False)
    )


def _rivals(setting: Share, traffic: Share) -> bool:
    is_budget = setting.cause.name == "small_step_budget"
    fraction = _BUDGET_BESIDE_TRAFFIC_FRACTION if is_budget else _BESIDE_TRAFFIC_FRACTION
    return setting.shares[0].value >= fraction * traffic.shares[0].value


def _is_sure(share: Share) -> bool:
    low = share.shares[0].low
    return low is not None and low > 0
