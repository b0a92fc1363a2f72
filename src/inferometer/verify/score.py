"""Score of a ledger: every prediction held, wrong, undecided or still open.

A claim counts once, by its first valid measurement. Open claims are shown and are in no share.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from inferometer.errors import RecordError
from inferometer.perfmodel.steptime_levels import Basis
from inferometer.verify.checking import (
    REPLAYED,
    Attempt,
    Check,
    CheckVerdict,
    ClaimVerdict,
    Measured,
    Measurement,
    Outcome,
    PromiseOutcome,
    checked,
    verdict_of,
)
from inferometer.verify.ledger import Entry, attempts_of, checks_of, sealed_entry
from inferometer.verify.seals import Claim, Metric, PromiseClaim, Seal, shared_raw_log


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """A claim, and its outcome so far."""

    claim: Claim
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseState:
    """An SLO claim, and its outcome so far."""

    claim: PromiseClaim
    outcome: PromiseOutcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A seal, and its state."""

    seal: Seal
    seal_sha256: str
    sealed_utc: str
    """When the ledger took it in."""
    claims: tuple[ClaimState, ...]
    promises: tuple[PromiseState, ...]
    measured: tuple[Measured, ...]
    """Every run that measured one of its questions, in the order of the ledger; INVALID ones
    too."""
    open_questions: tuple[str, ...]
    """Never measured, or only by INVALID runs."""
    attempts: tuple[Attempt, ...] = ()
    """Replays that were begun, in order."""

    @property
    def verdict(self) -> CheckVerdict:
        """Of all its claims together."""
        invalid = {one.at for one in self.measured if one.validity == "INVALID"}
        undone: list[CheckVerdict] = [
            "INVALID" if at in invalid else "open" for at in self.open_questions
        ]
        return verdict_of([*undone, *self.verdicts])

    @property
    def verdicts(self) -> tuple[ClaimVerdict, ...]:
        """Of every measured claim, SLO claims too."""
        found = list[ClaimVerdict]()
        for outcome in (
            *(one.outcome for one in self.claims),
            *(one.outcome for one in self.promises),
        ):
            if outcome is not None:
                found.append(outcome.verdict)
        return tuple(found)

    @property
    def n_broken_off(self) -> int:
        """Replays that were begun and have no run in the ledger."""
        n_runs = Counter(one.at for one in self.measured if one.asked_as == REPLAYED)
        return sum(
            max(n_begun - n_runs[at], 0)
            for at, n_begun in Counter(one.at for one in self.attempts).items()
        )

    def runs_of(self, at: str) -> tuple[Measured, ...]:
        """The runs that measured this question."""
        return tuple(one for one in self.measured if one.at == at)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricScore:
    """Score of all predictions of one metric with the same kind of step times."""

    metric: Metric | None
    """None: of all metrics."""
    basis: Basis
    n_measured: int
    n_inside: int
    n_held: int
    n_wrong: int
    n_undecided: int
    inside_fraction: float
    median_error_fraction: float
    """Of absolute errors."""
    p90_error_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A whole ledger."""

    experiments: tuple[Experiment, ...]
    totals: tuple[MetricScore, ...]
    """By kind of step times."""
    metrics: tuple[MetricScore, ...]
    """The same by metric."""
    n_claims: int
    n_open: int


def score_of(entries: Sequence[Entry]) -> Score:
    """State of every prediction."""
    experiments = tuple(
        experiment_of(entries, entry) for entry in entries if entry.seal is not None
    )
    outcomes: dict[tuple[Basis, Metric], list[Outcome]] = {}
    for experiment in experiments:
        for state in experiment.claims:
            if state.outcome is not None:
                outcomes.setdefault((experiment.seal.belief.basis, state.claim.metric), []).append(
                    state.outcome
                )
    bases: list[Basis] = [
        basis for basis in get_args(Basis) if any(key[0] == basis for key in outcomes)
    ]
    return Score(
        experiments=experiments,
        totals=tuple(
            _score(
                None,
                basis,
                [one for key, found in outcomes.items() if key[0] == basis for one in found],
            )
            for basis in bases
        ),
        metrics=tuple(_score(metric, basis, found) for (basis, metric), found in outcomes.items()),
        n_claims=sum(len(experiment.claims) for experiment in experiments),
        n_open=sum(
            state.outcome is None for experiment in experiments for state in experiment.claims
        ),
    )


def experiment_of(entries: Sequence[Entry], sealed: Entry) -> Experiment:
    """State of the predictions of this entry."""
    seal = sealed.seal
    if seal is None:
        raise ValueError(f"entry {sealed.number} seals nothing")
    outcomes: dict[tuple[str, Metric], Outcome] = {}
    promises: dict[str, PromiseOutcome] = {}
    checks = checks_of(entries, sealed.seal_sha256)
    for check in reversed(checks):  # the first valid one stays
        outcomes |= {(outcome.at, outcome.metric): outcome for outcome in check.outcomes}
        promises |= {outcome.at: outcome for outcome in check.promises}
    measured = tuple(one for check in checks for one in check.measured)
    decided = {one.at for one in measured if one.validity != "INVALID"}
    return Experiment(
        seal=seal,
        seal_sha256=sealed.seal_sha256,
        sealed_utc=sealed.at_utc,
        claims=tuple(
            ClaimState(claim=claim, outcome=outcomes.get((claim.at, claim.metric)))
            for claim in seal.claims
        ),
        promises=tuple(
            PromiseState(claim=claim, outcome=promises.get(claim.at)) for claim in seal.promises
        ),
        measured=measured,
        open_questions=tuple(one.at for one in seal.questions if one.at not in decided),
        attempts=attempts_of(entries, sealed.seal_sha256),
    )


def check_of(
    entries: Sequence[Entry], seal_sha256: str, measurements: Sequence[Measurement]
) -> Check | None:
    """What is new in these measurements; None where the ledger has all of them.

    Raises
    ------
    RecordError
        The ledger does not know the seal; something was measured before it; or a question was
        answered before, by another run.
    """
    sealed = sealed_entry(entries, seal_sha256)
    if sealed is None or sealed.seal is None:
        raise RecordError(
            "the ledger does not know these predictions",
            try_="the ledger that they were sealed in, with --ledger",
        )
    experiment = experiment_of(entries, sealed)
    for one in measurements:
        _refuse_second(experiment, one.measured)
        _refuse_copy(entries, one.measured)
    known = {(one.at, one.run_id) for one in experiment.measured}
    new = [one for one in measurements if (one.measured.at, one.measured.run_id) not in known]
    return checked(sealed.seal, seal_sha256, sealed.at_utc, new) if new else None


def _refuse_second(experiment: Experiment, measured: Measured) -> None:
    first = next(
        (one for one in experiment.runs_of(measured.at) if one.validity != "INVALID"), None
    )
    if first is not None and first.run_id != measured.run_id:
        raise RecordError(
            f"{measured.at} was answered before, by run {first.run_id} of {first.measured_utc}",
            where=f"run {measured.run_id}",
            allowed="the first valid measurement of a prediction; others prove nothing about it",
            try_="--seal-only with another folder, for a new prediction",
        )


def _refuse_copy(entries: Sequence[Entry], measured: Measured) -> None:
    """The same raw log under another run's name is no other measurement."""
    known = (
        one
        for entry in entries
        if entry.check is not None
        for one in entry.check.measured
        if one.run_id != measured.run_id
    )
    first = next((one for one in known if shared_raw_log(measured.evidence, one.evidence)), None)
    if first is not None:
        raise RecordError(
            f"run {measured.run_id} has a raw log of run {first.run_id}, which answered {first.at}",
            where=f"run {measured.run_id}",
            allowed="a measurement of its own",
            try_="measure again",
        )


def _score(metric: Metric | None, basis: Basis, outcomes: Sequence[Outcome]) -> MetricScore:
    verdicts = [outcome.verdict for outcome in outcomes]
    errors = np.abs([outcome.error_fraction for outcome in outcomes])
    n_inside = sum(outcome.is_inside for outcome in outcomes)
    return MetricScore(
        metric=metric,
        basis=basis,
        n_measured=len(outcomes),
        n_inside=n_inside,
        n_held=verdicts.count("held"),
        n_wrong=verdicts.count("wrong"),
        n_undecided=verdicts.count("undecided"),
        inside_fraction=n_inside / len(outcomes),
        median_error_fraction=float(np.median(errors)),
        p90_error_fraction=float(np.quantile(errors, 0.9)),
    )
