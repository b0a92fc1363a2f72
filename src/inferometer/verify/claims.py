"""Claims: numbers that a simulation or a step-time model predicts, with their intervals.

Latencies and rates of a load are those of its simulated run. Their interval covers the runs of
the same requests at the fast and the slow end of the step times, or on all servers drawn from
the posterior. A step's interval is the fit's own, or covers the shares of its peaks that a
device may reach.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.errors import RecordError
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import SweepPoint
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import (
    RequestSummary,
    judge_objective,
    summarise_requests,
)
from inferometer.records.summaries import PointSummary, summarise_points
from inferometer.records.types import Run, ValidityVerdict
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.verify.seals import Belief, Claim, FileSum, Metric, PromiseClaim, Seal

# Compare sealed predictions with measurements.
#
# A claim *held* where the measured value lies inside its interval, and the measurement has an
# interval too. It was *wrong* where the measured interval does not even touch the claimed one. In
# between, or where too little was measured for an interval, it is *undecided*. An INVALID
# measurement proves nothing: its question stays open.
#
# Of a percentile that is known to a bucket of a server's histogram the edges are compared: it held
# where the whole bucket lies inside. Where only a part of it does, the bucket leaves open whether the
# percentile is inside, and how far the prediction is off.


ClaimVerdict: TypeAlias = Literal["held", "wrong", "undecided"]
CheckVerdict: TypeAlias = Literal["held", "wrong", "undecided", "INVALID", "open"]

KNOWN_TO_A_BUCKET: Final = "the bucket of the server's histogram"
"""Method of estimates whose value is anywhere between their ends."""
REPLAYED: Final = "the very requests, replayed"
"""Origin of a measurement that this command itself made."""
_WORST_FIRST: Final[tuple[CheckVerdict, ...]] = ("INVALID", "wrong", "open", "undecided", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurement of one question."""

    at: str
    run_id: str
    measured_utc: str
    """Start of the measurement."""
    asked_as: str
    """How it is known that the question is the same."""
    validity: ValidityVerdict | None
    """None: not judged (sweeps, other tools)."""
    why: str | None
    """Why it is not VALID."""
    evidence: tuple[FileSum, ...] = ()
    """The files of the run and their SHA-256; empty in entries of versions that did not store
    them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measured question, and its metrics."""

    measured: Measured
    values: Mapping[Metric, Estimate]
    promise: Verdict | None
    """Verdict on the SLO, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A claim with its measurement."""

    at: str
    metric: Metric
    measured: Estimate
    error_fraction: float | None
    """Predicted / measured - 1; of a bucket to its nearest edge. None: a bucket leaves it open."""
    is_inside: bool | None
    """The measured value is inside the predicted interval; None: a bucket leaves it open."""
    verdict: ClaimVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseOutcome:
    """An SLO claim with its measurement."""

    at: str
    measured: Verdict
    verdict: ClaimVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A measurement that is about to begin: a run that is killed leaves this line."""

    seal_sha256: str
    at: str
    folder: str
    """Name inside the experiment's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Outcomes of measuring some questions of a seal, or all."""

    seal_sha256: str
    measured: tuple[Measured, ...]
    outcomes: tuple[Outcome, ...]
    """Outcomes of valid measurements only."""
    promises: tuple[PromiseOutcome, ...]


def checked(
    seal: Seal, seal_sha256: str, sealed_utc: str, measurements: Sequence[Measurement]
) -> Check:
    """Compare a seal with measurements.

    ``sealed_utc`` is when the ledger took the seal in.

    Raises
    ------
    RecordError
        Something was measured before the predictions were sealed.
    """
    for one in measurements:
        _refuse_early(one.measured, max(sealed_utc, seal.sealed_utc))
    valid = {one.measured.at: one for one in measurements if one.measured.validity != "INVALID"}
    return Check(
        seal_sha256=seal_sha256,
        measured=tuple(one.measured for one in measurements),
        outcomes=tuple(
            outcome_of(claim, valid[claim.at].values[claim.metric])
            for claim in seal.claims
            if claim.at in valid
            and claim.metric in valid[claim.at].values
            and valid[claim.at].values[claim.metric].value > 0
        ),
        promises=tuple(
            _promise_outcome(claim, seen)
            for claim in seal.promises
            if claim.at in valid and (seen := valid[claim.at].promise) is not None
        ),
    )


def outcome_of(claim: Claim, measured: Estimate) -> Outcome:
    """Compare this claim with its measurement.

    Example
    -------
    >>> from inferometer.verify.claims import spanned
    >>> seen = Estimate(
    ...     value=2.6, low=2.4, high=2.7, confidence_fraction=0.95, n_samples=400, method="median"
    ... )
    >>> outcome_of(Claim(at="2 requests/s", metric="ttft_p50_s", predicted=spanned(2.0, [1.9, 2.5])), seen).verdict
    'undecided'
    """
    predicted = claim.predicted
    low, high = predicted.low, predicted.high
    if low is None or high is None:
        raise ValueError(f"{claim.metric} at {claim.at} was claimed without an interval")
    if measured.method == KNOWN_TO_A_BUCKET:
        is_inside, error_fraction = _against_bucket(predicted.value, (low, high), measured)
    else:
        is_inside = low <= measured.value <= high
        error_fraction = predicted.value / measured.value - 1
    return Outcome(
        at=claim.at,
        metric=claim.metric,
        measured=_storable(measured),
        error_fraction=error_fraction,
        is_inside=is_inside,
        verdict=_verdict(low, high, measured, is_inside=is_inside),
    )


def _against_bucket(
    predicted: float, claimed: tuple[float, float], bucket: Estimate
) -> tuple[bool | None, float | None]:
    """Is the measured percentile inside, and by how much is the prediction off at least?"""
    low, high = claimed
    if bucket.low is None or bucket.high is None:
        return None, None
    if bucket.low > high or bucket.high < low:
        edge = bucket.low if bucket.low > high else bucket.high
        return False, predicted / edge - 1
    is_whole = low <= bucket.low and bucket.high <= high
    return (True, predicted / bucket.value - 1) if is_whole else (None, None)


def verdict_of(verdicts: Sequence[CheckVerdict]) -> CheckVerdict:
    """The worst of several verdicts: INVALID, wrong, open, undecided, held."""
    for verdict in _WORST_FIRST:
        if verdict in verdicts:
            return verdict
    return "open"


def _verdict(
    low: float, high: float, measured: Estimate, *, is_inside: bool | None
) -> ClaimVerdict:
    if measured.low is None or measured.high is None:
        return "undecided"
    if is_inside:
        return "held"
    return "wrong" if measured.low > high or measured.high < low else "undecided"


def _promise_outcome(claim: PromiseClaim, seen: Verdict) -> PromiseOutcome:
    if "undecided" in {claim.predicted, seen}:
        verdict: ClaimVerdict = "undecided"
    else:
        verdict = "held" if claim.predicted == seen else "wrong"
    return PromiseOutcome(at=claim.at, measured=seen, verdict=verdict)


def _storable(estimate: Estimate) -> Estimate:
    """JSON has no infinity.

    If the slowest requests did not end, there is no upper end, and so no interval.
    """
    if estimate.high is None or math.isfinite(estimate.high):
        return estimate
    return replace(
        estimate,
        low=None,
        high=None,
        method=f"{estimate.method}; no upper end: the slowest were not done",
    )


def _refuse_early(measured: Measured, sealed_utc: str) -> None:
    try:
        is_early = datetime.fromisoformat(measured.measured_utc) < datetime.fromisoformat(
            sealed_utc
        )
    except (ValueError, TypeError) as error:
        raise RecordError(
            f"when {measured.at} was measured is unknown: {measured.measured_utc!r}",
            where=f"run {measured.run_id}",
            allowed="a run that records when it began, with its time zone",
        ) from error
    if is_early:
        raise RecordError(
            f"{measured.at} was measured at {measured.measured_utc}, before its prediction was"
            f" sealed at {sealed_utc}",
            where=f"run {measured.run_id}",
            allowed="measurements that began after the seal",
            try_="measure again; this run can train a model, not prove one",
        )


CONFIDENCE_FRACTION: Final = 0.9
_N_ENDS: Final = 2
LEAST_DOUBT_FRACTION: Final = 0.01
"""No claim is narrower to either side: replayed on an emulated server of exactly these step
times, numbers come out as far off."""


class Commitment(NamedTuple):
    """Claims, and what they are based on."""

    belief: Belief
    claims: tuple[Claim, ...]
    promises: tuple[PromiseClaim, ...] = ()


class _Percentile(NamedTuple):
    latency: Latency
    fraction: float


_PERCENTILES: Final[Mapping[Metric, _Percentile]] = {
    "ttft_p50_s": _Percentile("ttft", 0.5),
    "ttft_p95_s": _Percentile("ttft", 0.95),
    "tpot_p50_s": _Percentile("tpot", 0.5),
    "tpot_p95_s": _Percentile("tpot", 0.95),
    "e2e_p50_s": _Percentile("e2e", 0.5),
    "e2e_p95_s": _Percentile("e2e", 0.95),
    "workflow_p50_s": _Percentile("workflow", 0.5),
    "workflow_p95_s": _Percentile("workflow", 0.95),
}


def values_of_requests(summary: RequestSummary) -> dict[Metric, Estimate]:
    """Value of each metric in a run of requests, where it has one."""
    values: dict[Metric, Estimate] = {}
    known = {one.latency: one for one in summary.latencies}
    for metric, (latency, fraction) in _PERCENTILES.items():
        found = known[latency].percentile(fraction) if latency in known else None
        if found is not None:
            values[metric] = found.seconds
    if summary.output_tokens_per_s is not None:
        values["output_tokens_per_s"] = summary.output_tokens_per_s
    if summary.completed_requests_per_s is not None:
        values["completed_requests_per_s"] = summary.completed_requests_per_s
    return values


def values_of_point(summary: PointSummary) -> dict[Metric, Estimate]:
    """Value of each metric in a point of a sweep, where it has one."""
    values: dict[Metric, Estimate] = {}
    if summary.prefill_s is not None:
        values["prefill_s"] = summary.prefill_s
    if summary.decode_step_s is not None:
        values["decode_step_s"] = summary.decode_step_s
    return values


def load_claims(
    at: str, likely: RequestSummary, ends: Sequence[RequestSummary]
) -> tuple[Claim, ...]:
    """Claims of a load.

    The expected run's numbers, with an interval that covers the same requests in all other
    possible runs.
    """
    others = [values_of_requests(summary) for summary in ends]
    return tuple(
        Claim(
            at=at,
            metric=metric,
            predicted=spanned(
                estimate.value,
                [other[metric].value for other in others if metric in other],
                n_samples=estimate.n_samples,
            ),
        )
        for metric, estimate in values_of_requests(likely).items()
        if estimate.value > 0
    )


def spanned(value: float, ends: Sequence[float], *, n_samples: int = 1) -> Estimate:
    """A claim of this value, with an interval that covers these ends.

    Example
    -------
    >>> claim = spanned(2.0, [1.5, 1.999])
    >>> claim.low, claim.high
    (1.5, 2.02)
    """
    return Estimate(
        value=value,
        low=min(*ends, value * (1 - LEAST_DOUBT_FRACTION)),
        high=max(*ends, value * (1 + LEAST_DOUBT_FRACTION)),
        confidence_fraction=CONFIDENCE_FRACTION,
        n_samples=n_samples,
        method=(
            f"over {len(ends)} draws" if len(ends) > _N_ENDS else "over fast and slow step times"
        ),
    )


def load_measurement(
    seal: Seal, at: str, run: Run, asked_as: str, evidence: tuple[FileSum, ...]
) -> Measurement:
    """Measured metrics of a run of requests at the load ``at``.

    Raises
    ------
    RecordError
        The run has no requests.
    """
    objective = next((promise.objective for promise in seal.promises if promise.at == at), None)
    promise = (
        None
        if objective is None
        else judge_objective(
            run, parse_objective(objective, where="the seal", has_workflows=True)
        ).verdict
    )
    return Measurement(
        measured=_measured(at, run, asked_as, evidence),
        values=values_of_requests(summarise_requests(run)),
        promise=promise,
    )


def point_measurements(
    run: Run, points: dict[str, SweepPoint], evidence: tuple[FileSum, ...]
) -> tuple[Measurement, ...]:
    """Measured metrics of the requested points of a sweep, by name.

    Raises
    ------
    RecordError
        The sweep has none of the points.
    """
    found = {summary.point: summary for summary in summarise_points(run) if summary.status == "ok"}
    measurements = tuple(
        Measurement(
            measured=_measured(at, run, "the same point", evidence),
            values=values_of_point(found[point]),
            promise=None,
        )
        for at, point in points.items()
        if point in found
    )
    if not measurements:
        raise RecordError(
            "the sweep measured none of the points that were sealed",
            where=f"run {run.manifest.run_id}",
            allowed=f"{'; '.join(points)}; as many generated tokens",
            try_="sweep with --seq, --batch-sizes and --gen-tokens as in the plan",
        )
    return measurements


def _measured(at: str, run: Run, asked_as: str, evidence: tuple[FileSum, ...]) -> Measured:
    validity = run.manifest.validity
    reasons = (
        []
        if validity is None
        else [reason.text for reason in validity.reasons if reason.verdict != "VALID"]
    )
    return Measured(
        at=at,
        run_id=run.manifest.run_id,
        measured_utc=run.manifest.created_utc,
        asked_as=asked_as,
        validity=None if validity is None else validity.verdict,
        why="; ".join(reasons) or None,
        evidence=evidence,
    )
