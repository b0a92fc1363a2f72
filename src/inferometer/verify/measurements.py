"""What does a measured run say of a question that was sealed?"""

from inferometer.errors import RecordError
from inferometer.records.promises import judge_objective
from inferometer.records.request_summaries import summarise_requests
from inferometer.records.summaries import summarise_points
from inferometer.records.types import Run
from inferometer.spec.objectives import parse_objective
from inferometer.spec.types import SweepPoint
from inferometer.verify.checking import Measured, Measurement
from inferometer.verify.claims import values_of_point, values_of_requests
from inferometer.verify.evidence import FileSum
from inferometer.verify.seals import Seal


def load_measurement(
    seal: Seal, at: str, run: Run, asked_as: str, evidence: tuple[FileSum, ...]
) -> Measurement:
    """What a run of requests says of the load ``at``.

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
    """What a sweep says of those of its points that were asked about, by name.

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
