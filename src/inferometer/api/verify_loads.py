"""Which loads does a plan contain, and what does the simulator predict for their requests?"""

import math
from typing import Any, Final, NamedTuple

from inferometer import units
from inferometer.api import memory_check, progress, simulation, verify_belief, workload
from inferometer.api.cluster import gate_of
from inferometer.api.fleet import servers_described
from inferometer.inputs import objectives
from inferometer.inputs.plans import Traffic
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import plan, reading, replay, types
from inferometer.measure.executors.local import Inline
from inferometer.stats.quantiles import min_samples
from inferometer.verify import claims, seals

_WHERE_SLO: Final = "the plan's slo"


class PlannedLoad(NamedTuple):
    """A load, and its very requests."""

    question: seals.Question
    spec: types.WorkloadSpec
    drawn: plan.DrawnWorkload


def planned_loads(traffic: Traffic) -> tuple[PlannedLoad, ...]:
    """Every load of the plan, with its requests drawn.

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
    believed: verify_belief.Believed, traffic: Traffic, loads: tuple[PlannedLoad, ...]
) -> claims.Commitment:
    """Simulated predictions for these loads on this server.

    Raises
    ------
    SpecError, ModelError
        The server is impossible.
    """
    servers = servers_described(believed.groups, believed.server, believed.fleet)
    gate = gate_of(believed.fleet.gate)
    objective = objective_of(traffic)
    if objective is not None:
        is_known = all(plan.has_workflows(load.drawn.plan) for load in loads)
        objectives.check_workflows(objective, has_workflows=is_known, where=_WHERE_SLO)
    made = list[seals.Claim]()
    slos = list[seals.PromiseClaim]()
    for load in loads:
        memory_check.check_drawn(
            load.drawn.plan, servers.cluster, record_steps=False, n_replicas=servers.n_in_all
        )
        progress.talk(
            f"simulating {load.question.at}: {load.question.asks} (the engine's rules are"
            " compiled once)"
        )
        simulator = simulation.Simulator(
            servers=servers.known(load.drawn).seeded(load.spec.seed),
            workload=load.drawn,
            objective=objective,
            until_ns=None,
            gate=gate,
        )
        simulated = simulation.simulate_workload(simulator, Inline()).answer
        likely, *ends = (level.summary for level in simulated.levels)
        made += claims.load_claims(load.question.at, likely, ends)
        if objective is not None:
            of_all = simulated.every_slo[0].verdict
            slos.append(
                seals.PromiseClaim(at=load.question.at, objective=objective.text, predicted=of_all)
            )
    return claims.Commitment(
        verify_belief.belief_in(believed, servers, gate), tuple(made), tuple(slos)
    )


def too_few_requests(
    traffic: Traffic | None, loads: tuple[PlannedLoad, ...], seal: seals.Seal
) -> tuple[Caution, ...]:
    """Cautions on loads with too few requests for the highest sealed percentile.

    A percentile of fewer has no interval, and what has none stays undecided.
    """
    objective = None if traffic is None else objective_of(traffic)
    thresholds = () if objective is None else objective.thresholds
    found = list[Caution]()
    for load in loads:
        metrics = {claim.metric for claim in seal.claims if claim.at == load.question.at}
        for is_of_workflows in (False, True):
            of_claims = [
                0.95
                for metric in metrics
                if "_p95_" in metric and metric.startswith("workflow") == is_of_workflows
            ]
            of_slo = [
                one.percentile_fraction or 0.0
                for one in thresholds
                if (one.metric == "workflow") == is_of_workflows
            ]
            found += _too_few(load, max([*of_claims, *of_slo], default=0.0), is_of_workflows)
    return tuple(found) or _undecided(seal)


def _undecided(seal: seals.Seal) -> tuple[Caution, ...]:
    """A caution for each SLO whose sealed verdict is undecided despite enough requests."""
    return tuple(
        Caution(
            code="UNDECIDED_SLO",
            text=(
                f"{slo.at}: whether the SLO is met is sealed as undecided, which no measurement"
                " can prove or refute"
            ),
            remedy=(
                "a larger n_requests, since requests that depend on one another are worth fewer; or"
                " a fit of this device and engine, where the interval reaches over the limit"
            ),
        )
        for slo in seal.promises
        if slo.predicted == "undecided"
    )


def _too_few(
    load: PlannedLoad,
    highest_fraction: float,
    is_of_workflows: bool,  # noqa: FBT001 -- of what
) -> list[Caution]:
    n_requests, what = load.drawn.plan.n_requests, "requests"
    needed = min_samples(highest_fraction) if highest_fraction else 0
    n_samples, wanted = n_requests, needed
    if is_of_workflows:
        n_samples, what = plan.n_workflows(load.drawn.plan), "workflows"
        wanted = math.ceil(needed * n_requests / max(n_samples, 1))
    if n_samples >= needed:
        return []
    return [
        Caution(
            code="TOO_FEW_REQUESTS",
            text=(
                f"{load.question.at}: {objectives.percentile_name(highest_fraction)} of"
                f" {n_samples:,} {what} has no interval, so it may stay undecided"
            ),
            remedy=f"n_requests = {wanted} or more, and more still where requests queue",
        )
    ]


def objective_of(traffic: Traffic) -> objectives.ObjectiveSpec | None:
    """SLO of the plan, which may limit workflows."""
    if traffic.slo is None:
        return None
    return objectives.parse_objective(traffic.slo, where=_WHERE_SLO, has_workflows=True)


def _ending(spec: types.WorkloadSpec, traffic: Traffic) -> types.WorkloadSpec:
    """The workload with the plan's seed and end."""
    changes: dict[str, Any] = {} if traffic.seed is None else {"seed": traffic.seed}
    if traffic.n_requests is not None or traffic.duration_s is not None:
        changes |= {"n_requests": traffic.n_requests, "duration_s": traffic.duration_s}
    elif spec.classes and spec.n_requests is None and spec.duration_s is None:
        changes["n_requests"] = workload.N_REQUESTS
    return reading.with_changes(spec, changes, where="the plan's traffic")


def _asked(at: str, spec: types.WorkloadSpec, arrivals: dict[str, Any] | None) -> PlannedLoad:
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
    return PlannedLoad(question, turned, drawn)
