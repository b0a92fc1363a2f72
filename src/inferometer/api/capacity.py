"""What is the highest load at which the SLO is met? Simulated."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from inferometer.api import decision_pages, executors
from inferometer.api.capacity_text import CapacityAnswer, CapacityRow, PacedCapacity, paced
from inferometer.api.cluster import Cluster, RouterRules, Servers, servers_of
from inferometer.api.gate import Gate, gate_of
from inferometer.api.missed import what_serves_one
from inferometer.api.prefill_pool import PrefillReplicas, with_prefill_pool
from inferometer.api.progress import talk
from inferometer.api.question import Option
from inferometer.api.server import Server, deployment_of
from inferometer.api.sizing_cautions import check_prompts
from inferometer.api.time_limit import TimeLimit, time_limit_field
from inferometer.api.workload import Workload, workload_of
from inferometer.decide import capacity as searches, lone_request, probing, traffic
from inferometer.simulate import gate_rules
from inferometer.simulate.cluster_config import ROUTERS
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.gate_config import GateConfig
from inferometer.spec.gate import GateSpec
from inferometer.spec.objectives import ObjectiveSpec, parse_objective
from inferometer.spec.workload import replay, types

_UNITS: Final = {"requests_per_s": "requests/s", "users": "users"}
_SPAN_RATIO: Final = 1e4
"""From the start of the search, up and down."""
_MOST_EFFORT: Final = 6
"""Probes get longer until verdicts are decided, the traffic's limit is reached, or the time is
over."""
_FIRST_REQUESTS: Final = 40
_LIKELY_FRACTION: Final = 0.7
"""Of the time limit, for the capacity at likely step times; the other cases share the rest."""
_ROUGH_RESOLUTION_RATIO: Final = 0.1
"""Of the capacities at fast and slow step times."""


REQUIRED_SLO: Final = Option(
    "The SLO: 'ttft:p95<500ms, tpot:p95<50ms', or mlperf:NAME.",
    heading="Limits",
    is_common=True,
    metavar="TEXT",
)
ROUTER_OPTION: Final = Option(
    "Who gets a request of several.", heading="Cluster", is_common=True, choices=ROUTERS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the highest load is looked for of."""

    server: Server
    workload: Workload = field(default_factory=Workload)
    slo: Annotated[str, REQUIRED_SLO]
    cluster: Cluster = field(default_factory=Cluster)
    prefill: PrefillReplicas = field(default_factory=PrefillReplicas)
    gate: Gate = field(default_factory=Gate)
    resolution: Annotated[
        float,
        Option(
            "How closely to locate the capacity.",
            heading="Limits",
            least=0,
            most=1,
            is_open=True,
        ),
    ] = 0.03
    probe_requests: Annotated[
        int,
        Option(
            "Of the shortest probe; --requests caps the longest.",
            heading="Limits",
            least=100,
        ),
    ] = 1000
    time_limit: Annotated[float, time_limit_field("7s")] = 7.0
    report: Annotated[Path | None, decision_pages.REPORT_OPTION] = None
    where: executors.Executor = field(default_factory=executors.Executor)
    given: frozenset[str] = frozenset()


def capacity(question: Capacity) -> CapacityAnswer:
    """How many requests per second, or users of a closed loop, are served within the SLO?

    The load that is given is where the search begins.

    Raises
    ------
    SpecError, ModelError
        The question cannot be answered as it is asked.
    """
    workload = workload_of(question.workload)
    deployment = deployment_of(question.server, n_sharing=question.cluster.data_parallel_size)
    servers = with_prefill_pool(servers_of(question.cluster, deployment), question.prefill)
    objective = parse_objective(question.slo)
    requests = traffic.Traffic(
        spec=workload,
        n_requests=question.probe_requests,
        requests_cap=question.workload.requests,
    )
    check_prompts(
        workload,
        traffic.plan_at(workload, _start(workload), requests.most_requests),
        deployment.config.max_model_len,
    )
    limit = TimeLimit(question.time_limit)
    search = _Search(
        _with_rules(servers, workload, gate_of(question.gate)),
        requests,
        objective,
        question.resolution,
        limit,
    )
    alone = search.alone()
    levels = _levels(search, alone, workload, question.where)
    found = levels[0].capacity
    answer = CapacityAnswer(
        model_id=deployment.model.model_id,
        workload_name=workload.name,
        objective=objective.text,
        unit=_UNITS[search.traffic.kind],
        is_resolved=found.is_resolved,
        is_located=found.is_located,
        levels=levels,
        engine=deployment.config.engine,
        n_replicas=servers.n_replicas,
        router=servers.rules.router if servers.n_replicas > 1 else None,
        step_times_from=deployment.step_times.origin,
        next_step=_next_step(found, alone),
    )
    decision_pages.write_capacity_page(answer, question.report)
    return answer


def _levels(
    search: "_Search",
    alone: lone_request.LoneRequest | None,
    workload: types.WorkloadSpec,
    where: executors.Executor,
) -> tuple[PacedCapacity, ...]:
    """The capacity at likely step times, then at both ends of them, or in draws."""
    if alone is not None and alone.margin_ratio > 1:
        return (paced("likely", _nowhere(search.traffic.kind, alone)),)
    talk(
        f"looking for the capacity under {search.objective.text} (the engine's rules are compiled"
        " once)"
    )
    with executors.opened(where, "searches") as executor:
        first, *others = search.deployment.cases
        (likely,) = executor.map(search.at, [_Asked(first, _start(workload))])
        start = likely.capacity.located_load or _start(workload)
        return (likely, *executor.map(search.at, [_Asked(case, start) for case in others]))


def _nowhere(kind: searches.LoadKind, alone: lone_request.LoneRequest) -> searches.Capacity:
    """What is known without a search where an idle replica misses the SLO."""
    return searches.Capacity(
        kind=kind,
        located_load=None,
        kept_load=None,
        broken_load=None,
        is_located=False,
        is_resolved=False,
        why=f"even a lone request misses the SLO: {alone.why}",
        probes=(),
    )


def meets_nowhere(found: CapacityRow) -> bool:
    """Is the SLO missed at the lowest load, too?"""
    is_shown_nowhere = found.kept_load is None and found.located_load is None
    return (
        is_shown_nowhere
        and found.why != searches.TIME_LIMIT
        and not any(probe.verdict == "met" for probe in found.probes)
    )


def _next_step(found: CapacityRow, alone: lone_request.LoneRequest | None) -> str | None:
    """What would answer more, or meet an SLO that no load meets."""
    if alone is not None and alone.margin_ratio > 1:
        return what_serves_one(alone)
    if meets_nowhere(found):
        return (
            "longer limits, more devices (--tp), less bursty traffic (--burstiness 1), or shorter"
            " prompts (--workload FILE)"
        )
    return (
        None
        if found.is_resolved
        else "a longer --time-limit, or a larger --requests, narrows the interval"
    )


class _Asked(NamedTuple):
    case: Case
    start_load: float


class _Gated(NamedTuple):
    """The servers, and the rules of the gate before them."""

    servers: Servers
    gate: GateConfig | None


def _with_rules(servers: Servers, workload: types.WorkloadSpec, gate: GateSpec | None) -> _Gated:
    """The servers with the replicas of each class, and the gate, for the workload's classes."""
    rules = servers.rules
    servers = servers._replace(seed=workload.seed)
    if gate is None and not rules.class_replicas:
        return _Gated(servers, None)
    drawn = replay.draw_workload(traffic.at_load(workload, _start(workload), _FIRST_REQUESTS))
    servers = servers._replace(class_replicas=rules.replicas_of(drawn.class_names))
    if gate is None:
        return _Gated(servers, None)
    pace = gate_rules.first_token_pace(servers.deployment.step_times.likely)
    return _Gated(servers, gate_rules.gate_rules(gate, drawn, pace, where="--gate"))


class _Search(NamedTuple):
    """The question to each server that may be the one."""

    asked: _Gated
    traffic: traffic.Traffic
    objective: ObjectiveSpec
    resolution_ratio: float
    limit: TimeLimit

    @property
    def deployment(self) -> Deployment:
        """The replica that generates answers."""
        return self.asked.servers.deployment

    def alone(self) -> lone_request.LoneRequest | None:
        """The least that a request takes at likely step times; None where others compute its prompt."""
        if self.asked.servers.prefill is not None:
            return None
        plan = traffic.plan_at(self.traffic.spec, 1.0, self.traffic.n_requests)
        return lone_request.lone_request(
            self.deployment, self.deployment.step_times.likely, plan, self.objective
        )

    def at(self, asked: "_Asked") -> PacedCapacity:
        """The capacity of this server, looked for from this load on; only the likely one is located closely."""
        case, start_load = asked
        is_likely, n_others = case == "likely", len(self.deployment.cases) - 1
        self._probe(case).run_of(
            start_load, _FIRST_REQUESTS
        )  # compiles what is not in the cache, before the time begins
        question = searches.CapacityQuestion(
            kind=self.traffic.kind,
            start_load=start_load,
            lowest_load=1.0 if self.traffic.kind == "users" else start_load / _SPAN_RATIO,
            highest_load=start_load * _SPAN_RATIO,
            resolution_ratio=(
                self.resolution_ratio
                if is_likely
                else max(self.resolution_ratio, _ROUGH_RESOLUTION_RATIO)
            ),
            proof_effort=2 if is_likely else 0,
            most_effort=_MOST_EFFORT if is_likely else 1,
            time_left_s=self.limit.share(
                _LIKELY_FRACTION if is_likely else (1 - _LIKELY_FRACTION) / n_others
            )(),
        )
        return paced(
            case if isinstance(case, str) else "draw",
            searches.find_capacity(self._probe(case), question),
        )

    def _probe(self, case: Case) -> probing.ReplicaProbe | probing.FleetProbe:
        servers = self.asked.servers.at(case)
        is_plain = servers.prefill is None and self.asked.gate is None and not servers.in_lockstep
        if is_plain and servers.rules == RouterRules(router=servers.rules.router):
            return probing.ReplicaProbe(
                deployment=servers.deployment,
                step_times=servers.deployment.step_times.likely,
                traffic=self.traffic,
                objective=self.objective,
                n_replicas=servers.n_replicas,
                router=servers.rules.router,
            )
        return probing.FleetProbe(
            fleet=servers.fleet(self.asked.gate),
            n_replicas=servers.n_in_all,
            traffic=self.traffic,
            objective=self.objective,
        )


def _start(workload: types.WorkloadSpec) -> float:
    arrivals = workload.arrivals
    if isinstance(arrivals, types.ClosedArrivals):
        return float(arrivals.concurrency)
    return arrivals.rate_per_s if isinstance(arrivals, types.OpenArrivals) else 1.0
