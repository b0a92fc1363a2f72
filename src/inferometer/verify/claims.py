"""Claims: numbers that a simulation or a step-time model predicts, with their intervals.

Latencies and rates of a load are those of its simulated run. Their interval covers the runs of
the same requests at the fast and the slow end of the step times, or on all servers drawn from
the posterior. A step's interval is the fit's own, or covers the shares of its peaks that a
device may reach.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from inferometer.errors import RecordError
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import SweepPoint
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import RequestSummary, summarise_requests
from inferometer.records.slo_verdicts import judge_objective
from inferometer.records.summaries import PointSummary, summarise_points
from inferometer.records.types import Run
from inferometer.stats.estimate import Estimate
from inferometer.verify.checking import Measured, Measurement
from inferometer.verify.seals import Belief, Claim, FileSum, Metric, PromiseClaim, Seal

CONFIDENCE_FRACTION: Final = 0.9
_N_ENDS: Final = 2
LEAST_DOUBT_FRACTION: Final = 0.01
"""No claim is narrower to either side: replayed on an emulated server of exactly these step
times, numbers come out as far off."""


class Commitment(NamedTuple):
    """What is claimed, and what it is based on."""

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
}


def values_of_requests(summary: RequestSummary) -> dict[Metric, Estimate]:
    """Value of each metric in a run of requests, where it has one."""
    said: dict[Metric, Estimate] = {}
    for metric, (latency, fraction) in _PERCENTILES.items():
        found = summary.latency(latency).percentile(fraction)
        if found is not None:
            said[metric] = found.seconds
    if summary.output_tokens_per_s is not None:
        said["output_tokens_per_s"] = summary.output_tokens_per_s
    if summary.completed_requests_per_s is not None:
        said["completed_requests_per_s"] = summary.completed_requests_per_s
    return said


def values_of_point(summary: PointSummary) -> dict[Metric, Estimate]:
    """The same for a point of a sweep."""
    said: dict[Metric, Estimate] = {}
    if summary.prefill_s is not None:
        said["prefill_s"] = summary.prefill_s
    if summary.decode_step_s is not None:
        said["decode_step_s"] = summary.decode_step_s
    return said


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
                said.value,
                [other[metric].value for other in others if metric in other],
                n_samples=said.n_samples,
            ),
        )
        for metric, said in values_of_requests(likely).items()
        if said.value > 0
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
        else judge_objective(run, parse_objective(objective, where="the seal")).verdict
    )
    return Measurement(
        measured=_measured(at, run, asked_as, evidence),
        values=values_of_requests(summarise_requests(run)),
        promise=promise,
    )


def point_measurements(
    run: Run, asked: dict[str, SweepPoint], evidence: tuple[FileSum, ...]
) -> tuple[Measurement, ...]:
    """Measured metrics of the requested points of a sweep, by name.

    Raises
    ------
    RecordError
        None of them is in the sweep.
    """
    found = {summary.point: summary for summary in summarise_points(run) if summary.status == "ok"}
    measurements = tuple(
        Measurement(
            measured=_measured(at, run, "the same point", evidence),
            values=values_of_point(found[point]),
            promise=None,
        )
        for at, point in asked.items()
        if point in found
    )
    if not measurements:
        raise RecordError(
            "the sweep measured none of the points that were sealed",
            where=f"run {run.manifest.run_id}",
            allowed=f"{'; '.join(asked)}; as many generated tokens",
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
