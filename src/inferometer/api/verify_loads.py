"""Which loads does a plan ask about, with which very requests, and what does the simulator commit itself to?"""

from typing import Any, NamedTuple

from inferometer.api import memory_check, simulation, verify_belief
from inferometer.api.cluster import Servers
from inferometer.api.fleet import servers_of
from inferometer.api.gate import gate_of, gate_text
from inferometer.api.progress import talk
from inferometer.api.server import deployment_of
from inferometer.api.verify_belief import Believed
from inferometer.api.workload import N_REQUESTS
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.verify_plan import Traffic
from inferometer.inputs.workload import plan, reading, replay, types
from inferometer.measure.executors.local import Inline
from inferometer.units import format_number
from inferometer.verify import claims, seals


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
        _asked(f"{format_number(rate)} requests/s", spec, {"kind": "open", "rate_per_s": rate})
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
        None if traffic.slo is None else parse_objective(traffic.slo, where="the plan's slo")
    )
    made = list[seals.Claim]()
    promises = list[seals.PromiseClaim]()
    for asked in loads:
        memory_check.check_drawn(
            asked.drawn.plan, servers.cluster, record_steps=False, n_replicas=servers.n_in_all
        )
        talk(
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
        said = simulation.simulate_workload(simulator, Inline()).answer
        likely, *ends = (level.summary for level in said.levels)
        made += claims.load_claims(asked.question.at, likely, ends)
        if objective is not None and said.verdict is not None:
            promises.append(
                seals.PromiseClaim(
                    at=asked.question.at, objective=objective.text, predicted=said.verdict
                )
            )
    deployed = servers.deployment
    rests_on = (
        f"{_around(servers, gate)}rules of {deployed.config.engine}; step times:"
        f" {deployed.step_times.origin}; {deployed.config.n_kv_blocks} KV blocks,"
        f" {deployed.kv_origin}"
    )
    belief = verify_belief.belief_of(
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
        changes["n_requests"] = N_REQUESTS
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
