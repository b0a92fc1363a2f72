"""The ledger: an append-only file of seals and their outcomes, each line chained to the last.

A line is one entry in canonical JSON. It carries the SHA-256 of the line before it and of
itself: a line that is changed, removed or inserted breaks the chain at that place. An entry is
written in whole or not at all, by one writer at a time. The owner of the file can rewrite the
whole chain, or cut its end. An *anchor*, the number and sum of the last line, stored where the
owner cannot change it, shows that.
"""

import fcntl
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn, TypeAlias, get_args

import numpy as np

from inferometer.errors import RecordError, SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.perfmodel.types import Basis
from inferometer.records import run_folder
from inferometer.stats.autocorrelated import grouped_share
from inferometer.verify.claims import (
    KNOWN_TO_A_BUCKET,
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
    outcome_of,
    verdict_of,
)
from inferometer.verify.seals import (
    Claim,
    Metric,
    PromiseClaim,
    Seal,
    canonical,
    sha256_of,
    shared_raw_log,
)

Content: TypeAlias = Seal | Attempt | Check
_DOOR: Final = Door(
    noun="ledger",
    allowed="lines as they were written",
    refusal=RecordError,
    try_="another --ledger",
)
LEDGER: Final = Path("ledger/ledger.jsonl")
"""Default ledger."""
_CLOCKS_DIFFER_S: Final = 300.0
_SHA256: Final = re.compile("[0-9a-f]{64}")
FIRST: Final = "0" * 64
"""Predecessor of the first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: a seal, an attempt to measure, or an outcome.

    Fields that came later have a default: lines without them stay as they were written.
    """

    number: int
    at_utc: str
    seal: Seal | None
    check: Check | None
    previous_sha256: str
    sha256: str = ""
    """Hash of the entry with this field empty."""
    attempt: Attempt | None = None

    @property
    def seal_sha256(self) -> str:
        """The seal that this entry is about."""
        if self.seal is not None:
            return sha256_of(self.seal)
        about = self.check or self.attempt
        return "" if about is None else about.seal_sha256


def read_ledger(path: Path) -> tuple[Entry, ...]:
    """All entries in order; empty where there is no file.

    Raises
    ------
    RecordError
        It cannot be read, or a line is not what it was: the message says which.
    """
    lines = _DOOR.bytes_of(path).splitlines() if path.exists() else []
    entries = list[Entry]()
    previous = FIRST
    for number, line in enumerate(lines):
        entry = _entry(line, path, number)
        if entry.previous_sha256 != previous or entry.number != number:
            _refuse(
                path,
                number,
                "it does not follow the line before it: lines were taken out, put in or moved",
            )
        entries.append(entry)
        previous = entry.sha256
    return tuple(entries)


def append(
    path: Path, *, at_utc: str, add: Callable[[Sequence[Entry]], Content | None]
) -> Entry | None:
    """Append the entry that ``add`` makes from the present ones, unless it is None.

    A lock excludes other writers meanwhile.

    Raises
    ------
    RecordError
        The ledger cannot be read or written, was tampered with, or something is dated after
        ``at_utc``, which is now.
    """
    run_folder.make_folder(path.parent)
    with _alone(path.parent):
        entries = read_ledger(path)
        refuse_future(entries, now_utc=at_utc, where=str(path))
        content = add(entries)
        if content is None:
            return None
        _refuse_future_content(content, at_utc)
        entry = Entry(
            number=len(entries),
            at_utc=at_utc,
            seal=content if isinstance(content, Seal) else None,
            check=content if isinstance(content, Check) else None,
            attempt=content if isinstance(content, Attempt) else None,
            previous_sha256=entries[-1].sha256 if entries else FIRST,
        )
        entry = replace(entry, sha256=sha256_of(entry))
        before = _DOOR.bytes_of(path) if path.exists() else b""
        run_folder.replace_file(path, before + canonical(entry) + b"\n")
        return entry


def sealed_entry(entries: Sequence[Entry], seal_sha256: str) -> Entry | None:
    """The entry with which these predictions were sealed."""
    return next(
        (entry for entry in entries if entry.seal is not None and entry.seal_sha256 == seal_sha256),
        None,
    )


def checks_of(entries: Sequence[Entry], seal_sha256: str) -> tuple[Check, ...]:
    """Outcomes of these predictions, in order."""
    return tuple(
        entry.check
        for entry in entries
        if entry.check is not None and entry.check.seal_sha256 == seal_sha256
    )


def attempts_of(entries: Sequence[Entry], seal_sha256: str) -> tuple[Attempt, ...]:
    """All measurements of this seal that were begun, in order."""
    return tuple(
        entry.attempt
        for entry in entries
        if entry.attempt is not None and entry.attempt.seal_sha256 == seal_sha256
    )


def anchor_of(entries: Sequence[Entry]) -> str:
    """Number of lines and sum of the last line.

    To be stored where the ledger's owner cannot change it.
    """
    return f"{len(entries)}:{entries[-1].sha256 if entries else FIRST}"


def refuse_future(entries: Sequence[Entry], *, now_utc: str, where: str) -> None:
    """Refuse a line that is dated after now, or before the line above it."""
    before_utc = ""
    for entry in entries:
        if _is_after(entry.at_utc, now_utc):
            _refuse_date(
                f"line {entry.number + 1} of the ledger is dated {entry.at_utc}, which is in the"
                " future",
                where,
            )
        if before_utc and _is_after(before_utc, entry.at_utc):
            _refuse_date(
                f"line {entry.number + 1} of the ledger is dated {entry.at_utc}, before the line"
                f" above it: {before_utc}",
                where,
            )
        before_utc = entry.at_utc


def refuse_without(entries: Sequence[Entry], anchor: str, *, where: str) -> None:
    """Refuse a chain that no longer contains this anchor.

    Raises
    ------
    SpecError, RecordError
        It is no anchor; the chain was cut before it, or written anew.
    """
    number, _, sha256 = anchor.strip().partition(":")
    if not number.isdecimal() or not _SHA256.fullmatch(sha256):
        raise SpecError(
            f"{anchor!r} is no anchor",
            where="--expect",
            allowed="LINES:SHA256, as --anchor prints it",
            try_="--anchor",
        )
    n_lines = int(number)
    if n_lines > len(entries):
        what = (
            f"the ledger has {len(entries)} lines and had {n_lines} when it was anchored: its end"
            " was cut off"
        )
    elif (entries[n_lines - 1].sha256 if n_lines else FIRST) != sha256:
        what = (
            f"line {n_lines} of the ledger is not the one that was anchored: the chain was written"
            " anew"
        )
    else:
        return
    raise RecordError(
        what,
        where=where,
        allowed=f"a chain with {anchor}",
        try_="the original file, from version control or a backup",
    )


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Lock the folder, waiting for the lock's owner; the kernel releases it when a process dies."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise run_folder.cannot_write(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entry(line: bytes, path: Path, number: int) -> Entry:
    try:
        written = _DOOR.json(line, dict[str, object], where=str(path))
        entry = _DOOR.json(line, Entry, where=str(path))
    except RecordError as error:
        _refuse(path, number, f"it is no entry: {error.what}")
    # The sum is of the fields that were written: a line of an older version has fewer than Entry.
    if sha256_of(written | {"sha256": ""}) != entry.sha256 or canonical(written) != line:
        _refuse(path, number, "it differs from its own sum: it was changed")
    return entry


def _refuse_future_content(content: Content, now_utc: str) -> None:
    if isinstance(content, Seal) and _is_after(content.sealed_utc, now_utc):
        _refuse_date(
            f"the predictions are dated {content.sealed_utc}, which is in the future", "the seal"
        )
    for one in content.measured if isinstance(content, Check) else ():
        if _is_after(one.measured_utc, now_utc):
            _refuse_date(
                f"{one.at} was measured at {one.measured_utc}, which is in the future",
                f"run {one.run_id}",
            )


def _is_after(one_utc: str, other_utc: str) -> bool:
    """Later by more than two well-set clocks differ."""
    return (
        datetime.fromisoformat(one_utc) - datetime.fromisoformat(other_utc)
    ).total_seconds() > _CLOCKS_DIFFER_S


def _refuse_date(what: str, where: str) -> NoReturn:
    raise RecordError(
        what,
        where=where,
        allowed="dates up to now, in order",
        try_="the true date, or a corrected clock of this machine",
    )


def _refuse(path: Path, number: int, why: str) -> NoReturn:
    raise RecordError(
        f"line {number + 1} of the ledger cannot be trusted: {why}",
        where=str(path),
        allowed="lines as they were written",
        try_="the original file, from version control or a backup",
    )


# Score of a ledger: every prediction held, wrong, undecided or still open.
#
# A claim counts once, by its first valid measurement. Open claims are shown and are in no share.


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
    """Time of the ledger's entry."""
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
        """Worst verdict of all claims."""
        invalid = {one.at for one in self.measured if one.validity == "INVALID"}
        undone: list[CheckVerdict] = [
            "INVALID" if at in invalid else "open" for at in self.open_questions
        ]
        return verdict_of([*undone, *self.verdicts])

    @property
    def verdicts(self) -> tuple[ClaimVerdict, ...]:
        """Verdict of every measured claim, SLO claims too."""
        found = list[ClaimVerdict]()
        for outcome in (
            *(one.outcome for one in self.claims),
            *(one.outcome for one in self.promises),
        ):
            if outcome is not None:
                found.append(outcome.verdict)
        return tuple(found)

    @property
    def n_predictions(self) -> int:
        """Everything that was sealed: numbers, and verdicts on SLOs."""
        return len(self.claims) + len(self.promises)

    @property
    def n_open(self) -> int:
        """The number of claims without an outcome."""
        return self.n_predictions - len(self.verdicts)

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
    n_known: int
    """Of these, those whose measurement tells whether they lay inside: a bucket may leave it open."""
    n_inside: int
    n_held: int
    n_wrong: int
    n_undecided: int
    inside_fraction: float | None
    """None where no measurement tells."""
    inside_low_fraction: float | None
    inside_high_fraction: float | None
    """Its interval of 90 %, in which predictions of one experiment err together; None of one
    experiment."""
    median_error_fraction: float | None
    """Median of absolute errors."""
    p90_error_fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A whole ledger."""

    experiments: tuple[Experiment, ...]
    totals: tuple[MetricScore, ...]
    """Totals by kind of step times."""
    metrics: tuple[MetricScore, ...]
    """The same by metric."""
    n_claims: int
    """Everything that was sealed: numbers, and verdicts on SLOs."""
    n_open: int
    """Claims that were never measured, or only by INVALID runs."""


def score_of(entries: Sequence[Entry]) -> Score:
    """State of every prediction."""
    experiments = tuple(
        experiment_of(entries, entry) for entry in entries if entry.seal is not None
    )
    keys: dict[tuple[Basis, Metric], None] = {}
    for experiment in experiments:
        keys |= dict.fromkeys(
            (experiment.seal.belief.basis, state.claim.metric)
            for state in experiment.claims
            if state.outcome is not None
        )
    bases: list[Basis] = [
        basis for basis in get_args(Basis) if any(key[0] == basis for key in keys)
    ]
    return Score(
        experiments=experiments,
        totals=tuple(_score(None, basis, experiments) for basis in bases),
        metrics=tuple(_score(metric, basis, experiments) for basis, metric in keys),
        n_claims=sum(experiment.n_predictions for experiment in experiments),
        n_open=sum(experiment.n_open for experiment in experiments),
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
            ClaimState(claim=claim, outcome=_judged(claim, outcomes.get((claim.at, claim.metric))))
            for claim in seal.claims
        ),
        promises=tuple(
            PromiseState(claim=claim, outcome=promises.get(claim.at)) for claim in seal.promises
        ),
        measured=measured,
        open_questions=tuple(one.at for one in seal.questions if one.at not in decided),
        attempts=attempts_of(entries, sealed.seal_sha256),
    )


def _judged(claim: Claim, outcome: Outcome | None) -> Outcome | None:
    """The outcome; of a bucket by its edges, where an older version interpolated in it."""
    if outcome is None or outcome.measured.method != KNOWN_TO_A_BUCKET:
        return outcome
    return outcome_of(claim, outcome.measured)


def check_of(
    entries: Sequence[Entry], seal_sha256: str, measurements: Sequence[Measurement]
) -> Check | None:
    """Results that are new in these measurements; None where the ledger has all of them.

    Raises
    ------
    RecordError
        The ledger does not know the seal; something was measured before it; or a question was
        answered before, by another run.
    """
    sealed = sealed_entry(entries, seal_sha256)
    if sealed is None or sealed.seal is None:
        raise RecordError(
            "these predictions are not in the ledger",
            try_="--ledger with the ledger in which they were sealed",
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
    """Refuse a run whose raw log is that of another run in the ledger."""
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
            allowed="a new measurement for each experiment",
            try_="measure again",
        )


def _score(metric: Metric | None, basis: Basis, experiments: Sequence[Experiment]) -> MetricScore:
    groups = [
        [
            state.outcome
            for state in experiment.claims
            if state.outcome is not None and metric in {None, state.claim.metric}
        ]
        for experiment in experiments
        if experiment.seal.belief.basis == basis
    ]
    outcomes = [one for group in groups for one in group]
    known = [[one.is_inside for one in group if one.is_inside is not None] for group in groups]
    inside = grouped_share([group for group in known if group]) if any(known) else None
    verdicts = [outcome.verdict for outcome in outcomes]
    errors = np.abs([one.error_fraction for one in outcomes if one.error_fraction is not None])
    return MetricScore(
        metric=metric,
        basis=basis,
        n_measured=len(outcomes),
        n_known=sum(map(len, known)),
        n_inside=sum(map(sum, known)),
        n_held=verdicts.count("held"),
        n_wrong=verdicts.count("wrong"),
        n_undecided=verdicts.count("undecided"),
        inside_fraction=None if inside is None else inside.value,
        inside_low_fraction=None if inside is None else inside.low,
        inside_high_fraction=None if inside is None else inside.high,
        median_error_fraction=float(np.median(errors)) if errors.size else None,
        p90_error_fraction=float(np.quantile(errors, 0.9)) if errors.size else None,
    )
