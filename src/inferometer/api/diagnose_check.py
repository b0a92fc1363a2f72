"""How is the change that a diagnosis advises sealed, and did its prediction come true?

The prediction is sealed in the ledger before anything is changed. The command that checks it reads
the changed server's metrics for as long as they were diagnosed, and sends it nothing; a load test
that was made after the change does as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from inferometer import __version__, suggestions
from inferometer.api.diagnose_source import Source, live_source
from inferometer.api.diagnose_stored import stored_source
from inferometer.api.progress import talk
from inferometer.api.verify_sealing import git_commit
from inferometer.decide.diagnosis import causes
from inferometer.decide.diagnosis.rebuilding import Rebuilt
from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.errors import RecordError, SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.objectives import parse_objective
from inferometer.records import reading, run_folder, tables
from inferometer.records.run_folder import SERVER_NAME, new_run_id, now_utc
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.verify import changes, claims, ledger, seals

CHANGE_NAME: Final = "change.json"
_WATCHED: Final = "its own metrics, after the change"
_DOOR: Final = Door(
    noun="sealed change",
    allowed="the file as it was written",
    refusal=RecordError,
    try_="a copy of it; its seal is in the ledger too",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """A change of a setting, and the plausible servers with other requests."""

    share: causes.Share
    change: str
    fresh: Sequence[Rebuilt]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedCheck:
    """Sealed prediction of the change, and the command that tests it."""

    folder: str
    ledger: str
    sha256: str
    sealed_utc: str
    claims: tuple[seals.Claim, ...]
    promises: tuple[seals.PromiseClaim, ...]
    command: str


def sealed_check(
    target: str,
    source: Source,
    advised: Advised,
    objective: str | None,
    place: tuple[Path | None, Path],
    replica: str | None = None,
) -> SealedCheck:
    """Seal the predicted effect of the change; ``place``: folder (None: a new one) and ledger.

    ``replica`` was chosen of several; where none was, the check observes the fullest again.

    Raises
    ------
    RecordError
        The folder or the ledger cannot be written, or the folder holds another seal.
    """
    window = source.window
    change = changes.SealedChange(
        target=target,
        cause=advised.share.cause.name,
        change=advised.change,
        objective=objective,
        window_s=window.duration_s,
        n_requests=window.prompt_lengths.seen.n,
        server_started_s=changes.started_s(window),
        replica=replica,
        **changes.traffic_of(window),  # type: ignore[arg-type]
    )
    seal = _seal(change, advised, window)
    sha256 = seals.sha256_of(seal)
    folder = place[0] or Path("runs") / f"diagnose-{sha256[:8]}"
    if (folder / CHANGE_NAME).exists():
        raise RecordError(
            "a prediction was sealed here before",
            where=str(folder),
            allowed="one seal in a folder",
            try_="another folder with --out",
        )
    seals.write_seal(folder, seal)
    run_folder.replace_file(
        folder / CHANGE_NAME, msgspec.json.format(msgspec.json.encode(change), indent=2) + b"\n"
    )
    ledger.append(place[1], at_utc=now_utc(), add=lambda _: seal)
    how = ("--url", target) if "://" in target else ("--check", "RUN")
    return SealedCheck(
        folder=str(folder),
        ledger=str(place[1]),
        sha256=sha256,
        sealed_utc=seal.sealed_utc,
        claims=seal.claims,
        promises=seal.promises,
        command=suggestions.command("verify", folder, *how, "--ledger", place[1]),
    )


def _seal(change: changes.SealedChange, advised: Advised, window: ServerWindow) -> seals.Seal:
    objective = () if change.objective is None else parse_objective(change.objective).thresholds
    limits = [one for one in objective if one.percentile_fraction is not None]
    wanted: causes.Statistics = (
        *changes.STATISTICS.values(),
        *((one.metric, one.percentile_fraction) for one in limits),
    )
    share = advised.share
    predicted = causes.predicted_with(advised.fresh, share.cause, share.change, wanted)
    reported = changes.measured_latencies(window)
    n_claims = len(changes.STATISTICS)
    promises = (
        ()
        if change.objective is None
        else (
            seals.PromiseClaim(
                at=changes.AT,
                objective=change.objective,
                predicted=_verdict(predicted[n_claims:], [one.limit_s for one in limits]),
            ),
        )
    )
    sum_ = changes.change_sha256(change)
    claims = tuple(
        seals.Claim(at=changes.AT, metric=metric, predicted=one)
        for metric, one in zip(changes.STATISTICS, predicted[:n_claims], strict=True)
        if metric in reported and one.value > 0
    )
    return seals.Seal(
        experiment=f"diagnose, {change.cause}: {change.change}",
        kind="change",
        sealed_utc=now_utc(),
        code=seals.CodeVersion(version=__version__, git_commit=git_commit()),
        plan_sha256=sum_,
        belief=seals.Belief(
            basis="fitted",
            subject=f"{window.summary.kind} server at {change.target}",
            rests_on=f"servers rebuilt from {window.duration_s:.0f} s of its metrics",
            sha256=seals.sha256_of([str(one.config) for one in advised.fresh]),
        ),
        questions=(
            seals.Question(at=changes.AT, asks="the same traffic, after the change", sha256=sum_),
        ),
        claims=claims,
        promises=promises,
    )


def _verdict(predicted: Sequence[Estimate], limits_s: Sequence[float]) -> Verdict:
    pairs = list(zip(predicted, limits_s, strict=True))
    if any(one.low is not None and one.low > limit_s for one, limit_s in pairs):
        return "missed"
    is_met = all(one.high is not None and one.high <= limit_s for one, limit_s in pairs)
    return "met" if is_met else "undecided"


def is_change(folder: Path) -> bool:
    """Does this folder hold a sealed change?"""
    return (folder / CHANGE_NAME).is_file()


def checked_change(
    folder: Path, ledger_path: Path, url: str | None, runs: Sequence[Path]
) -> ledger.Experiment:
    """Measure the changed server, or read its load test, and return the ledger's verdict.

    Raises
    ------
    SpecError
        Several load tests, or neither a server nor a load test.
    RecordError
        The seal or the ledger was changed; the load test is older than the seal.
    MeasureError, ModelError
        The metrics cannot be read, or there are too few requests.
    """
    change = _DOOR.json(
        _DOOR.bytes_of(folder / CHANGE_NAME), changes.SealedChange, where=str(folder / CHANGE_NAME)
    )
    seal = seals.read_seal(folder)
    if seal is None or changes.change_sha256(change) != seal.plan_sha256:
        raise RecordError(
            "the change and its seal differ: one of them was edited",
            where=str(folder),
            allowed="both files as they were written",
            try_="a copy of the folder",
        )
    sha256 = seals.sha256_of(seal)
    standing = _standing(ledger_path, sha256)
    if not standing.open_questions:
        talk("it was measured before: this is what the ledger says")
        return standing
    if len(runs) + (url is not None) != 1:
        raise SpecError(
            "exactly one measurement of the change is needed",
            where="--url, --check",
            allowed="the changed server, or one load test of it",
            try_=suggestions.command("verify", folder, "--url", change.target),
        )
    measurement = (
        _watched(change, seal, folder, url) if url is not None else _loaded(change, seal, runs[0])
    )
    ledger.append(
        ledger_path,
        at_utc=now_utc(),
        add=lambda entries: ledger.check_of(entries, sha256, [measurement]),
    )
    return _standing(ledger_path, sha256)


def _standing(ledger_path: Path, sha256: str) -> ledger.Experiment:
    entries = ledger.read_ledger(ledger_path)
    sealed = ledger.sealed_entry(entries, sha256)
    if sealed is None:
        raise RecordError(
            "this prediction is not in the ledger",
            where=str(ledger_path),
            try_="--ledger with the ledger in which it was sealed",
        )
    return ledger.experiment_of(entries, sealed)


def _watched(
    change: changes.SealedChange, seal: seals.Seal, folder: Path, url: str
) -> claims.Measurement:
    """Measurement of the server at this address, from now on."""
    began_utc = now_utc()
    run_id = new_run_id(began_utc)
    source = live_source(url, change.window_s, replica=change.replica)
    place = folder / run_id
    run_folder.make_folder(place)
    if source.samples is not None:
        tables.write_table(place / SERVER_NAME, source.samples)
    measured = claims.Measured(
        at=changes.AT,
        run_id=run_id,
        measured_utc=began_utc,
        asked_as=_WATCHED,
        validity=None,
        why=None,
        evidence=seals.evidence_of(place / SERVER_NAME),
    )
    return _measurement(change, seal, source.window, measured)


def _loaded(change: changes.SealedChange, seal: seals.Seal, path: Path) -> claims.Measurement:
    """Measurement from the metrics that a load test of the changed server stored."""
    manifest = reading.read_run(path).manifest
    measured = claims.Measured(
        at=changes.AT,
        run_id=manifest.run_id,
        measured_utc=manifest.created_utc,
        asked_as="a load test, after the change",
        validity=None,
        why=None,
        evidence=seals.evidence_of(path),
    )
    window = stored_source(path, change.replica).window
    return _measurement(change, seal, window, measured)


def _measurement(
    change: changes.SealedChange, seal: seals.Seal, window: ServerWindow, measured: claims.Measured
) -> claims.Measurement:
    why = changes.why_nothing_is_proved(change, window)
    promise = seal.promises[0].objective if seal.promises else None
    return claims.Measurement(
        measured=replace(measured, validity="INVALID", why=why) if why else measured,
        values=changes.measured_latencies(window),
        promise=None if promise is None else changes.objective_met(promise, window),
    )
