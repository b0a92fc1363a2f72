"""Which loads does a plan ask about, with which very requests, and what does the simulator commit itself to?"""

from typing import Any, NamedTuple

from inferometer.api import memory_check, simulation, verify_belief
from inferometer.api.cluster import RouterRules, Servers
from inferometer.api.progress import talk
from inferometer.api.server import deployment_of
from inferometer.api.verify_belief import server_of
from inferometer.api.workload import N_REQUESTS
from inferometer.errors import SpecError
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.verify_plan import BelievedServer, Traffic
from inferometer.inputs.workload import plan, reading, replay, types
from inferometer.measure.executors.local import Inline
from inferometer.simulate.cluster_config import ROUTERS
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
    server: BelievedServer, traffic: Traffic, loads: tuple[AskedLoad, ...]
) -> claims.Commitment:
    """What the simulator says of these loads on this server.

    Raises
    ------
    SpecError, ModelError
        The server cannot be.
    """
    servers = _servers(server)
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
            servers=servers._replace(seed=asked.spec.seed),
            workload=asked.drawn,
            objective=objective,
            until_ns=None,
            gate=None,
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
    n_replicas = (
        f"{servers.n_replicas} replicas ({servers.rules.router}), "
        if servers.n_replicas > 1
        else ""
    )
    rests_on = (
        f"{n_replicas}rules of {deployed.config.engine}; step times: {deployed.step_times.origin}; "
    )
    rests_on += f"{deployed.config.n_kv_blocks} KV blocks, {deployed.kv_origin}"
    belief = verify_belief.belief_of(
        server, deployed.step_times.basis, rests_on, model_id=deployed.model.model_id
    )
    return claims.Commitment(belief, tuple(made), tuple(promises))


def _servers(server: BelievedServer) -> Servers:
    if server.router not in ROUTERS:
        raise SpecError(
            f"router = {server.router!r}",
            where="the plan, key server.router",
            allowed=", ".join(ROUTERS),
        )
    deployed = deployment_of(server_of(server))
    return Servers(deployed, server.replicas, RouterRules(router=server.router))


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
