"""May the numbers of a load test be trusted? One verdict with its reasons; the worst check decides.

VALID: nothing speaks against them. SUSPECT: some of them are doubtful, and the reason says which.
INVALID: they are not the server's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import MeasureError
from inferometer.inputs.objectives import percentile_name
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.records import validity_answers, validity_client
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.load_types import Validity, ValidityReason, ValidityVerdict
from inferometer.records.steady_state import SteadyState, steady_state
from inferometer.records.types import ABSENT, Run
from inferometer.records.validity_client import (
    Limits,
    LoadEvidence,
    percentile_of,
    reason,
    share_text,
)
from inferometer.stats.autocorrelated import run_quantile_estimate
from inferometer.units import NS_PER_S, format_duration, format_number

# Did the run take a course whose numbers stand for more than itself: no warm-up in them, and no
# drift after it?


_MOVED: Final = Limits(suspect=1.1, invalid=math.inf)
"""A percentile that is a tenth off is another answer; the steady state's stands beside it: never
INVALID."""
_MOVED_PERCENTILES: Final = (0.5, 0.75, 0.9, 0.95)
"""Those of them count that the steady state has enough requests for."""


def warm_up(evidence: LoadEvidence) -> ValidityReason | None:
    """Do requests of the warm-up and the drain move the numbers of the whole run?"""
    steady = evidence.steady
    if steady is None:
        return None
    n_cut = steady.n_warm_up + steady.n_drain
    share = f"{share_text(n_cut, len(evidence.requests.status))} requests are of warm-up and drain"
    moved = _moved_most(evidence, steady) if n_cut else None
    if moved is None:
        return reason(
            "warm-up", "VALID", f"{share}; they move no percentile by more than its interval", ""
        )
    factor = max(moved.whole_s / moved.steady_s, moved.steady_s / moved.whole_s)
    text = (
        f"{share}: {moved.name} is {format_duration(moved.whole_s)} with them and"
        f" {format_duration(moved.steady_s)} without"
    )
    return reason(
        "warm-up", _MOVED.verdict(factor), text, "read the steady state's numbers, or a longer run"
    )


def stationarity(evidence: LoadEvidence) -> ValidityReason | None:
    """Did latency stay the same after the warm-up?"""
    steady = evidence.steady
    if steady is None:
        return reason(
            "steady state", "VALID", "too few requests to tell a steady state from chance", ""
        )
    remedy = (
        "a lower rate where the queue grows, or a longer run: these numbers depend on how long it"
        " took"
    )
    if steady.drifting:
        changes = (
            f"{one.latency.upper()} became {format_number(one.trend.ratio)} times as long"
            for one in steady.drifting
        )
        return reason(
            "steady state",
            "SUSPECT",
            f"no steady state: {', '.join(changes)} from the first third to the last",
            remedy,
        )
    if not steady.is_reached:
        return reason(
            "steady state",
            "SUSPECT",
            "no steady state: more than half of the run would have to be cut",
            remedy,
        )
    return reason(
        "steady state", "VALID", f"latency stayed the same over {steady.n_steady:,} requests", ""
    )


class _Moved(NamedTuple):
    name: str
    whole_s: float
    steady_s: float


def _moved_most(evidence: LoadEvidence, steady: SteadyState) -> _Moved | None:
    """The percentile that differs most between the whole run and its steady state."""
    requests, is_steady = evidence.requests, steady.holds(evidence.requests)
    has_first = requests.first_token_ns != ABSENT
    has_tpot = (
        has_first
        & is_one_of(requests, COMPLETED)
        & (requests.output_tokens > 1)
        & (requests.finished_ns > requests.first_token_ns)
    )
    ttft_s = (requests.first_token_ns - requests.intended_send_ns) / NS_PER_S
    tpot_s = (
        (requests.finished_ns - requests.first_token_ns)
        / np.maximum(requests.output_tokens - 1, 1)
        / NS_PER_S
    )
    found: list[_Moved] = []
    for name, values_s, has_it in (("TTFT", ttft_s, has_first), ("TPOT", tpot_s, has_tpot)):
        for fraction in _MOVED_PERCENTILES:
            estimate = run_quantile_estimate(values_s[has_it & is_steady], fraction)
            if estimate is None or estimate.low is None or estimate.high is None:
                continue
            whole_s = percentile_of(values_s[has_it], fraction)
            if not estimate.low <= whole_s <= estimate.high:
                found.append(_Moved(f"{name} {percentile_name(fraction)}", whole_s, estimate.value))
    known = [one for one in found if one.whole_s > 0 and one.steady_s > 0]
    return max(known, key=lambda one: abs(math.log(one.whole_s / one.steady_s)), default=None)


Check: TypeAlias = Callable[[LoadEvidence], ValidityReason | None]

CHECKS: Final[tuple[Check, ...]] = (
    validity_client.client_delay,
    validity_client.send_lag,
    validity_client.loop_lag,
    validity_client.host_clocks,
    validity_client.rate,
    validity_client.dispersion,
    validity_client.connections,
    validity_answers.errors,
    validity_answers.undone,
    validity_answers.false_counts,
    validity_answers.output_length,
    validity_answers.cache_hits,
    validity_answers.coalescing,
    validity_answers.token_count,
    warm_up,
    stationarity,
    validity_answers.enough,
)

_ORDER: Final[dict[ValidityVerdict, int]] = {"INVALID": 0, "SUSPECT": 1, "VALID": 2}


def validity_of(
    run: Run, *, plan: RequestPlan | None = None, percentiles: Sequence[float] = ()
) -> Validity | None:
    """The verdict on a load test; None for a run that is none, which has no exchanges.

    ``plan`` tells which prompts the workload repeats. ``percentiles`` are those that somebody asked
    for, such as 0.99.
    """
    if run.requests is None or run.exchanges is None or run.chunks is None:
        return None
    if not len(run.requests.status):
        empty = ValidityReason(
            check="requests",
            verdict="INVALID",
            text="no request was made",
            remedy="a longer run, or a higher rate",
        )
        return Validity(verdict="INVALID", reasons=(empty,))
    evidence = LoadEvidence(
        requests=run.requests,
        exchanges=run.exchanges,
        chunks=run.chunks,
        lags=run.lags,
        load=run.manifest.load,
        plan=plan,
        steady=steady_state(run),
        percentiles=tuple(percentiles),
        clocks=run.manifest.clocks,
    )
    found = [one for check in CHECKS if (one := check(evidence)) is not None]
    reasons = tuple(sorted(found, key=lambda one: _ORDER[one.verdict]))
    return Validity(verdict=reasons[0].verdict, reasons=reasons)


def is_invalid(run: Run) -> bool:
    """Is it a load test whose numbers are not the server's?"""
    return run.manifest.validity is not None and run.manifest.validity.verdict == "INVALID"


def require_valid(run: Run, *, forced: bool = False) -> None:
    """Refuse to build on a load test whose numbers are not the server's.

    ``forced``: somebody knows better.

    Raises
    ------
    MeasureError
        The run is INVALID.
    """
    verdict = run.manifest.validity
    if forced or verdict is None or not is_invalid(run):
        return
    worst = [one for one in verdict.reasons if one.verdict == "INVALID"]
    raise MeasureError(
        f"the load test is INVALID: {'; '.join(one.text for one in worst)}",
        where=run.manifest.run_id,
        allowed="a run that is VALID or SUSPECT",
        try_=worst[0].remedy if worst else None,
    )
