"""What is predicted of a plan's loads, and how is that sealed, or found as it was sealed before?

The ledger takes a seal in before the first byte is sent; ``seal.json`` in the experiment's folder
is a copy for whoever measures elsewhere.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from inferometer import __version__, suggestions, units
from inferometer.api import named_fit, progress, simulation, workload
from inferometer.api.cluster import Servers, gate_of, gate_text
from inferometer.api.fleet import FleetOptions, servers_of
from inferometer.api.question import question_of
from inferometer.api.server import Server, deployment_of, step_times_of
from inferometer.errors import ModelError, RecordError, SpecError
from inferometer.fit.loads.server_fit import SERVER_FIT_NAME, is_server_fit
from inferometer.fit.published.efficiencies import efficiency_file
from inferometer.inputs import catalog, foreign_bytes, objectives, resolve
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.types import HardwareSpec, ModelSpec, SweepPoint
from inferometer.inputs.verify_plan import Points, ServerTable, Traffic, VerifyPlan
from inferometer.inputs.workload import plan, reading, replay
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.measure.executors.local import Inline
from inferometer.measure.host import now_utc
from inferometer.perfmodel import steptime_arrays, types
from inferometer.perfmodel.steptime import FIT_NAME
from inferometer.perfmodel.steptime_levels import Basis
from inferometer.records import layout
from inferometer.records.layout import MANIFEST_NAME
from inferometer.stats.estimate import Estimate
from inferometer.verify import checking, claims, ledger, score, seals


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The fleet of a plan: its keys are the fields of these groups."""

    server: Server
    fleet: FleetOptions = field(default_factory=FleetOptions)
    given: frozenset[str] = frozenset()


def believed_of(table: ServerTable) -> Believed:
    """The fleet that a plan's table describes.

    Raises
    ------
    SpecError
        A key that no flag of ``inferometer simulate`` has, or a value that cannot be.
    """
    settings = dict[str, object](table)
    own = settings.pop("own", {})
    try:
        return question_of(Believed, settings | {"set": own})
    except SpecError as error:
        raise SpecError(
            error.what,
            where="the plan's [server]" + f": {error.where}" * (error.where != Believed.__name__),
            allowed=error.allowed,
            try_=error.try_,
        ) from None


def belief_of(believed: Believed, basis: Basis, rests_on: str, *, model_id: str) -> seals.Belief:
    """The belief in this fleet.

    Raises
    ------
    ModelError, SpecError
        Its fit cannot be read; its model or device is not known.
    """
    server, n_devices = believed.server, _n_devices(believed)
    hardware = None if server.hardware is None else catalog.find_hardware(server.hardware).name
    where = (
        ""
        if hardware is None
        else f" on {n_devices} x {hardware}"
        if n_devices > 1
        else f" on {hardware}"
    )
    return seals.Belief(
        basis=basis, subject=f"{model_id}{where}", rests_on=rests_on, sha256=belief_sha256(believed)
    )


def _n_devices(believed: Believed) -> int:
    cluster, prefill, tp = believed.fleet.cluster, believed.fleet.prefill, believed.server.tp or 1
    n_both = max(cluster.replicas or 1, cluster.data_parallel_size)
    return n_both * tp + (prefill.prefill_replicas or 0) * (prefill.prefill_tp or tp)


def belief_sha256(believed: Believed) -> str:
    """SHA-256 of what the predictions rest on: the fit's file, or the catalogue's entries.

    Without a fit: of model and device as they are in the catalogue, or in the model's own files,
    and of the package's published efficiencies of the device, unless the plan asks for the
    datasheet.
    With a gate: of that and of the gate.

    Raises
    ------
    ModelError, SpecError
        The same.
    """
    of_server, gate = _server_sha256(believed.server), gate_of(believed.fleet.gate)
    return of_server if gate is None else seals.sha256_of((of_server, gate))


def _server_sha256(server: Server) -> str:
    if server.fit is None:
        hardware = None if server.hardware is None else catalog.find_hardware(server.hardware)
        model = resolve.resolve_model(server.model, load_format="dummy").spec
        known = None if hardware is None or server.datasheet else efficiency_file(hardware)
        # Sums that were sealed before there was such a file stay as they are.
        return seals.sha256_of(
            (model, hardware, *([] if known is None else [seals.sha256_of(known)]))
        )
    path = server.fit
    if path.is_dir():
        path /= SERVER_FIT_NAME if is_server_fit(path) else FIT_NAME
    again = suggestions.command("fit", "RUN")
    return seals.sha256_of(
        foreign_bytes.Door(
            noun="fit", allowed="a file of inferometer fit", refusal=ModelError, try_=again
        ).bytes_of(path)
    )


class AskedLoad(NamedTuple):
    """A load, and its very requests."""

    question: seals.Question
    spec: WorkloadSpec
    drawn: plan.DrawnWorkload


def asked_loads(traffic: Traffic) -> tuple[AskedLoad, ...]:
    """Every load of the plan, its requests drawn.

    Raises
    ------
    SpecError
        The workload is none, or cannot be turned to such a load.
    """
    spec = _ending(reading.resolve_workload(traffic.workload), traffic)
    rates = [
        _asked(
            f"{units.format_number(rate)} requests/s", spec, {"kind": "open", "rate_per_s": rate}
        )
        for rate in traffic.rates_per_s
    ]
    users = [
        _asked(f"{n} users", spec, {"kind": "closed", "concurrency": n})
        for n in traffic.concurrencies
    ]
    return (*rates, *users) or (_asked("as the workload says", spec, None),)


def predict_loads(
    believed: Believed, traffic: Traffic, loads: tuple[AskedLoad, ...]
) -> claims.Commitment:
    """What the simulator says of these loads on this server.

    Raises
    ------
    SpecError, ModelError
        The server cannot be.
    """
    n_sharing = believed.fleet.cluster.data_parallel_size
    deployment = deployment_of(believed.server, n_sharing=n_sharing)
    servers, gate = servers_of(believed.fleet, deployment), gate_of(believed.fleet.gate)
    objective = (
        None
        if traffic.slo is None
        else objectives.parse_objective(traffic.slo, where="the plan's slo")
    )
    made = list[seals.Claim]()
    promises = list[seals.PromiseClaim]()
    for asked in loads:
        simulation.check_drawn(
            asked.drawn.plan, servers.cluster, record_steps=False, n_replicas=servers.n_in_all
        )
        progress.talk(
            f"simulating {asked.question.at}: {asked.question.asks} (the engine's rules are"
            " compiled once)"
        )
        simulator = simulation.Simulator(
            servers=servers._replace(
                seed=asked.spec.seed,
                class_replicas=servers.rules.replicas_of(asked.drawn.class_names),
            ),
            workload=asked.drawn,
            objective=objective,
            until_ns=None,
            gate=gate,
        )
        simulated = simulation.simulate_workload(simulator, Inline()).answer
        likely, *ends = (level.summary for level in simulated.levels)
        made += claims.load_claims(asked.question.at, likely, ends)
        if objective is not None and simulated.verdict is not None:
            promises.append(
                seals.PromiseClaim(
                    at=asked.question.at, objective=objective.text, predicted=simulated.verdict
                )
            )
    deployed = servers.deployment
    rests_on = (
        f"{_around(servers, gate)}rules of {deployed.config.engine}; step times:"
        f" {deployed.step_times.origin}; {deployed.config.n_kv_blocks} KV blocks,"
        f" {deployed.kv_origin}"
    )
    belief = belief_of(
        believed, deployed.step_times.basis, rests_on, model_id=deployed.model.model_id
    )
    return claims.Commitment(belief, tuple(made), tuple(promises))


def _around(servers: Servers, gate: GateSpec | None) -> str:
    """What stands around a server, in words."""
    parts = [] if gate is None else [f"a gate ({gate_text(gate)})"]
    if servers.prefill is not None:
        parts.append(f"{servers.prefill.cluster.n_replicas} for prompts alone")
    if servers.n_replicas > 1:
        parts.append(f"{servers.n_replicas} replicas ({servers.rules.router})")
    return "".join(f"{part}, " for part in parts)


def _ending(spec: WorkloadSpec, traffic: Traffic) -> WorkloadSpec:
    """The workload with the plan's seed and end."""
    changes: dict[str, Any] = {} if traffic.seed is None else {"seed": traffic.seed}
    if traffic.n_requests is not None or traffic.duration_s is not None:
        changes |= {"n_requests": traffic.n_requests, "duration_s": traffic.duration_s}
    elif spec.classes and spec.n_requests is None and spec.duration_s is None:
        changes["n_requests"] = workload.N_REQUESTS
    return reading.with_changes(spec, changes, where="the plan's traffic")


def _asked(at: str, spec: WorkloadSpec, arrivals: dict[str, Any] | None) -> AskedLoad:
    changes: dict[str, Any] = {} if arrivals is None else {"arrivals": arrivals}
    if arrivals is not None and arrivals["kind"] == "closed":
        changes["duration_s"] = None
    turned = reading.with_changes(spec, changes, where="the plan's traffic")
    drawn = replay.draw_workload(turned)
    question = seals.Question(
        at=at,
        asks=f"{drawn.plan.n_requests:,} requests of {drawn.name}, seed {turned.seed}",
        sha256=seals.requests_sha256(drawn.plan),
    )
    return AskedLoad(question, turned, drawn)


# Which points of a sweep does a plan ask about, and what does the step-time model commit itself
# to?


class AskedPoint(NamedTuple):
    """A point of a sweep."""

    question: seals.Question
    point: SweepPoint


class _Step(NamedTuple):
    at: str
    metric: seals.Metric
    shape: types.BatchShape


def asked_points(points: Points) -> tuple[AskedPoint, ...]:
    """Each batch size at each prompt length."""
    grid = [
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=points.gen_tokens)
        for prompt in points.prompt_tokens
        for batch in points.batch_sizes
    ]
    return tuple(
        AskedPoint(
            seals.Question(
                at=f"prompt {point.prompt_tokens}, batch {point.batch_size}",
                asks=f"prefill, then {point.gen_tokens} tokens for each sequence",
                sha256=seals.sha256_of(point),
            ),
            point,
        )
        for point in grid
    )


def predict_points(believed: Believed, points: Sequence[AskedPoint]) -> claims.Commitment:
    """What the fit, or the datasheet, says of the prefill and the median decode step of these points.

    Raises
    ------
    SpecError, ModelError
        The model or the device is not known, or the fit is another one's.
    """
    server = believed.server
    found = resolve.resolve_model(server.model, load_format="dummy")
    model = found.spec
    hardware = None if server.hardware is None else catalog.find_hardware(server.hardware)
    steps = [step for one in points for step in _steps(one)]
    levels = step_times_of(server, found, hardware).times
    if server.fit is not None:
        predicted = _fitted(server.fit, server, model, hardware, steps)
    else:
        paces = (
            levels.likely,
            levels.fast,
            levels.slow,
            *(draw.steps for draw in levels.draws),
        )
        each = (
            [steptime_arrays.shape_duration_s(pace, step.shape) for pace in paces] for step in steps
        )
        predicted = [claims.spanned(value, ends) for value, *ends in each]
    return claims.Commitment(
        belief_of(believed, levels.basis, levels.origin, model_id=model.model_id),
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
        path,
        named_fit.question_of(server.stated(), model, hardware),
        is_transfer=server.transfer,
    )
    return [said.duration_s for said in fit.model.predict_all([step.shape for step in steps])]


def _steps(asked: AskedPoint) -> tuple[_Step, _Step]:
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
    """A plan whose predictions are sealed, in this ledger."""

    plan: VerifyPlan
    ledger: Path
    folder: Path
    seal: seals.Seal
    seal_sha256: str
    loads: tuple[AskedLoad, ...]
    points: tuple[AskedPoint, ...]

    def standing(self) -> score.Experiment:
        """Where the predictions stand, by the ledger.

        Raises
        ------
        RecordError
            The ledger was tampered with.
        """
        entries = ledger.read_ledger(self.ledger)
        return next(
            score.experiment_of(entries, entry)
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
        attempt = checking.Attempt(seal_sha256=self.seal_sha256, at=at, folder=folder.name)
        ledger.append(self.ledger, at_utc=now_utc(), add=lambda _: attempt)

    def record(self, measurements: Sequence[checking.Measurement]) -> None:
        """Put into the ledger what came of these measurements, those that it has left out.

        Raises
        ------
        RecordError
            One was made before the seal, or answers what another run answered before; the ledger
            cannot be written.
        """
        ledger.append(
            self.ledger,
            at_utc=now_utc(),
            add=lambda entries: score.check_of(entries, self.seal_sha256, measurements),
        )


def sealed(plan: VerifyPlan, folder: Path, ledger_path: Path) -> Sealed:
    """Seal what the plan predicts; where that was done before, in this folder, check that nothing changed since.

    Raises
    ------
    RecordError
        The folder holds another plan's seal, or one that was edited; the ledger was tampered with,
        or cannot be written.
    SpecError, ModelError
        The plan cannot be predicted.
    """
    loads = () if plan.traffic is None else asked_loads(plan.traffic)
    points = () if plan.points is None else asked_points(plan.points)
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


def _refuse_changed_runs(folder: Path, checks: Sequence[checking.Check]) -> None:
    """The runs of this folder that the ledger has must be as they were when it took them in."""
    stored = {
        one.run_id: one.evidence for check in checks for one in check.measured if one.evidence
    }
    for manifest_path in sorted(folder.glob(f"*/{MANIFEST_NAME}")):
        run_id = layout.read_manifest(manifest_path).manifest.run_id
        if run_id in stored:
            seals.refuse_changed(manifest_path.parent, stored[run_id], run_id=run_id)


def _new(
    plan: VerifyPlan,
    questions: tuple[seals.Question, ...],
    loads: tuple[AskedLoad, ...],
    points: tuple[AskedPoint, ...],
) -> seals.Seal:
    believed = believed_of(plan.server)
    committed = (
        predict_points(believed, points)
        if plan.traffic is None
        else predict_loads(believed, plan.traffic, loads)
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
        "the fit, the gate, or the model and its device,": (
            belief_sha256(believed_of(plan.server)) == seal.belief.sha256
        ),
    }
    changed = [name for name, is_same in unchanged.items() if not is_same]
    if changed:
        raise RecordError(
            f"{' and '.join(changed)} changed since {seal.sealed_utc}, when the predictions were"
            " sealed",
            where=str(folder),
            allowed="what was sealed",
            try_="another folder with --out, for predictions of their own",
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
