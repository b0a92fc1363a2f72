"""Which loads does a plan contain, and what does the simulator predict for their requests?"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inferometer import suggestions, units
from inferometer.api import memory_check, progress, simulation, workload
from inferometer.api.cluster import Servers, gate_of, gate_text
from inferometer.api.fleet import FleetOptions, servers_of
from inferometer.api.question import question_of
from inferometer.api.server import Server, deployment_of
from inferometer.errors import ModelError, SpecError
from inferometer.fit.loads.server_fit import SERVER_FIT_NAME, is_server_fit
from inferometer.fit.published.efficiencies import efficiency_file
from inferometer.inputs import catalog, foreign_bytes, objectives, resolve
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.verify_plan import ServerTable, Traffic
from inferometer.inputs.workload import plan, reading, replay, types
from inferometer.measure.executors.local import Inline
from inferometer.perfmodel.steptime import FIT_NAME
from inferometer.perfmodel.steptime_levels import Basis
from inferometer.verify import claims, seals


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
    spec: types.WorkloadSpec
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
        memory_check.check_drawn(
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


def _ending(spec: types.WorkloadSpec, traffic: Traffic) -> types.WorkloadSpec:
    """The workload with the plan's seed and end."""
    changes: dict[str, Any] = {} if traffic.seed is None else {"seed": traffic.seed}
    if traffic.n_requests is not None or traffic.duration_s is not None:
        changes |= {"n_requests": traffic.n_requests, "duration_s": traffic.duration_s}
    elif spec.classes and spec.n_requests is None and spec.duration_s is None:
        changes["n_requests"] = workload.N_REQUESTS
    return reading.with_changes(spec, changes, where="the plan's traffic")


def _asked(at: str, spec: types.WorkloadSpec, arrivals: dict[str, Any] | None) -> AskedLoad:
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
