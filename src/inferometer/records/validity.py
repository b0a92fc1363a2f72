"""May the numbers of a load test be trusted? One verdict with its reasons; the worst check decides.

VALID: nothing speaks against them. SUSPECT: some of them are doubtful, and the reason says which.
INVALID: they are not the server's.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from inferometer.errors import MeasureError
from inferometer.records import validity_answers, validity_client, validity_course
from inferometer.records.load_evidence import LoadEvidence
from inferometer.records.load_types import Validity, ValidityReason, ValidityVerdict
from inferometer.records.steady_state import steady_state
from inferometer.records.types import Run
from inferometer.spec.workload.plan import RequestPlan

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
    validity_course.warm_up,
    validity_course.stationarity,
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
