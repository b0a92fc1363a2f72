"""Sealing the predictions of a plan, or reading them as sealed before.

The ledger takes a seal in before the first byte is sent; ``seal.json`` in the experiment's folder
is a copy for whoever measures elsewhere.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from inferometer import __version__
from inferometer.api import named_fit, verify_belief, verify_loads
from inferometer.api.groups import asked_in
from inferometer.api.server import Server, step_times_of
from inferometer.errors import RecordError, SpecError
from inferometer.inputs import catalog, resolve
from inferometer.inputs.plans import Points, VerifyPlan
from inferometer.inputs.types import HardwareSpec, ModelSpec, SweepPoint
from inferometer.perfmodel import steptime_terms, types
from inferometer.records import run_folder
from inferometer.records.run_folder import MANIFEST_NAME, now_utc
from inferometer.stats.estimate import Estimate
from inferometer.verify import claims, ledger, seals
from inferometer.verify.ledger import Experiment

# Which points of a sweep does a plan ask about, and what does the step-time model commit itself
# to?


class PlannedPoint(NamedTuple):
    """A point of a sweep."""

    question: seals.Question
    point: SweepPoint


class _Step(NamedTuple):
    at: str
    metric: seals.Metric
    shape: types.BatchShape


def planned_points(points: Points) -> tuple[PlannedPoint, ...]:
    """Each batch size at each prompt length."""
    grid = [
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=points.gen_tokens)
        for prompt in points.prompt_tokens
        for batch in points.batch_sizes
    ]
    return tuple(
        PlannedPoint(
            seals.Question(
                at=f"prompt {point.prompt_tokens}, batch {point.batch_size}",
                asks=f"prefill, then {point.gen_tokens} tokens for each sequence",
                sha256=seals.sha256_of(point),
            ),
            point,
        )
        for point in grid
    )


def predict_points(
    believed: verify_belief.Believed, points: Sequence[PlannedPoint]
) -> claims.Commitment:
    """Predicted prefill and median decode step of these points, by the fit or the datasheet.

    Raises
    ------
    SpecError, ModelError
        The model or the device is not known, or the fit is another one's.
    """
    server = believed.server
    if believed.groups is not None:
        raise SpecError(
            "points of a sweep on groups of replicas",
            where="the plan's [server]: groups",
            allowed="[traffic] with groups; [points] are measured on one server",
            try_="a plan with the model, device and settings of one group as its [server]",
        )
    found = resolve.resolve_model(server.model, load_format="dummy")
    model = found.spec
    hardware = None if server.hardware is None else catalog.find_hardware(server.hardware)
    steps = [step for one in points for step in _steps(one)]
    levels = step_times_of(server, found, hardware).times
    if server.fit is not None:
        predicted = _fitted(server.fit, server, model, hardware, steps)
    else:
        paces = (levels.likely, levels.fast, levels.slow, *(draw.steps for draw in levels.draws))
        each = (
            [steptime_terms.shape_duration_s(pace, step.shape) for pace in paces] for step in steps
        )
        predicted = [claims.spanned(value, ends) for value, *ends in each]
    return claims.Commitment(
        verify_belief.belief_of(believed, levels.basis, levels.origin, model_id=model.model_id),
        tuple(
            seals.Claim(at=step.at, metric=step.metric, predicted=duration)
            for step, duration in zip(steps, predicted, strict=True)
        ),
    )


def _fitted(
    path: Path,
    server: Server,
    model: ModelSpec,
    hardware: HardwareSpec | None,
    steps: Sequence[_Step],
) -> list[Estimate]:
    fit = named_fit.step_fit(
        path, named_fit.question_of(server.stated(), model, hardware), is_transfer=server.transfer
    )
    return [said.duration_s for said in fit.model.predict_all([step.shape for step in steps])]


def _steps(asked: PlannedPoint) -> tuple[_Step, _Step]:
    """The prefill, and the decode step in the middle of the generation."""
    point = asked.point
    middle = point.prompt_tokens + round(point.gen_tokens / 2)
    return (
        _Step(
            asked.question.at,
            "prefill_s",
            types.prefill_shape(batch_size=point.batch_size, prompt_tokens=point.prompt_tokens),
        ),
        _Step(
            asked.question.at,
            "decode_step_s",
            types.decode_shape(batch_size=point.batch_size, context_tokens=middle),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A plan with sealed predictions, and its ledger."""

    plan: VerifyPlan
    ledger: Path
    folder: Path
    seal: seals.Seal
    seal_sha256: str
    loads: tuple[verify_loads.PlannedLoad, ...]
    points: tuple[PlannedPoint, ...]

    def standing(self) -> Experiment:
        """State of the predictions, by the ledger.

        Raises
        ------
        RecordError
            The ledger was tampered with.
        """
        entries = ledger.read_ledger(self.ledger)
        return next(
            ledger.experiment_of(entries, entry)
            for entry in entries
            if entry.seal is not None and entry.seal_sha256 == self.seal_sha256
        )

    def begin(self, at: str, folder: Path) -> None:
        """Put into the ledger that this question is about to be measured.

        Raises
        ------
        RecordError
            The ledger cannot be written, or was tampered with.
        """
        attempt = claims.Attempt(seal_sha256=self.seal_sha256, at=at, folder=folder.name)
        ledger.append(self.ledger, at_utc=now_utc(), add=lambda _: attempt)

    def record(self, measurements: Sequence[claims.Measurement]) -> None:
        """Add new results of these measurements to the ledger.

        Raises
        ------
        RecordError
            One was made before the seal, or answers what another run answered before; the ledger
            cannot be written.
        """
        ledger.append(
            self.ledger,
            at_utc=now_utc(),
            add=lambda entries: ledger.check_of(entries, self.seal_sha256, measurements),
        )


def sealed(plan: VerifyPlan, folder: Path, ledger_path: Path) -> Sealed:
    """Seal the plan's predictions; if sealed before in this folder, check that they are unchanged.

    Raises
    ------
    RecordError
        The folder holds another plan's seal, or one that was edited; the ledger was tampered with,
        or cannot be written.
    SpecError, ModelError
        The plan cannot be predicted.
    """
    with asked_in("the plan's [traffic]", verify_belief.Believed):
        loads = () if plan.traffic is None else verify_loads.planned_loads(plan.traffic)
    points = () if plan.points is None else planned_points(plan.points)
    questions = (*(load.question for load in loads), *(point.question for point in points))
    ledger.read_ledger(ledger_path)  # nothing is predicted for a ledger that cannot be trusted
    seal = seals.read_seal(folder)
    if seal is None:
        seal = _new(plan, questions, loads, points)
        seals.write_seal(folder, seal)
    else:
        _refuse_changed(plan, questions, seal, folder)
    sha256 = seals.sha256_of(seal)
    ledger.append(
        ledger_path,
        at_utc=now_utc(),
        add=lambda entries: None if ledger.sealed_entry(entries, sha256) else seal,
    )
    _refuse_changed_runs(folder, ledger.checks_of(ledger.read_ledger(ledger_path), sha256))
    return Sealed(
        plan=plan,
        ledger=ledger_path,
        folder=folder,
        seal=seal,
        seal_sha256=sha256,
        loads=loads,
        points=points,
    )


def _refuse_changed_runs(folder: Path, checks: Sequence[claims.Check]) -> None:
    """The runs of this folder that the ledger has must be as they were when it took them in."""
    stored = {
        one.run_id: one.evidence for check in checks for one in check.measured if one.evidence
    }
    for manifest_path in sorted(folder.glob(f"*/{MANIFEST_NAME}")):
        run_id = run_folder.read_manifest(manifest_path).manifest.run_id
        if run_id in stored:
            seals.refuse_changed(manifest_path.parent, stored[run_id], run_id=run_id)


def _new(
    plan: VerifyPlan,
    questions: tuple[seals.Question, ...],
    loads: tuple[verify_loads.PlannedLoad, ...],
    points: tuple[PlannedPoint, ...],
) -> seals.Seal:
    believed = verify_belief.believed_of(plan.server)
    with asked_in(verify_belief.OF_SERVER, verify_belief.Believed):
        committed = (
            predict_points(believed, points)
            if plan.traffic is None
            else verify_loads.predict_loads(believed, plan.traffic, loads)
        )
    return seals.Seal(
        experiment=plan.name,
        kind=plan.kind,
        sealed_utc=now_utc(),
        code=seals.CodeVersion(version=__version__, git_commit=git_commit()),
        plan_sha256=seals.plan_sha256(plan),
        belief=committed.belief,
        questions=questions,
        claims=committed.claims,
        promises=committed.promises,
    )


def _refuse_changed(
    plan: VerifyPlan, questions: tuple[seals.Question, ...], seal: seals.Seal, folder: Path
) -> None:
    unchanged = {
        "the plan": seals.plan_sha256(plan) == seal.plan_sha256,
        "the workload, or its points": questions == seal.questions,
        "the fit, the gate, the groups, or the model and its device,": (
            verify_belief.belief_sha256(verify_belief.believed_of(plan.server))
            == seal.belief.sha256
        ),
    }
    changed = [name for name, is_same in unchanged.items() if not is_same]
    if changed:
        raise RecordError(
            f"{' and '.join(changed)} changed since {seal.sealed_utc}, when the predictions were"
            " sealed",
            where=str(folder),
            allowed="what was sealed",
            try_="another folder with --out, for new predictions",
        )


_HERE: Final = Path(__file__).parent
_TIMEOUT_S: Final = 10


def git_commit() -> str | None:
    """The commit that this code is at, ``+changes`` if files differ; None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return (
        f"{commit}+changes"
        if _git("status", "--porcelain", "--untracked-files=no", "--", str(_HERE.parent))
        else commit
    )


def _git(*words: str) -> str | None:
    try:
        output = subprocess.run(
            ["git", *words],
            cwd=_HERE,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.stdout.strip()
