"""What would happen if this server got this traffic?"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from inferometer.api import compute, memory_check, missed
from inferometer.api.cluster import Servers, gate_of
from inferometer.api.fleet import FleetOptions, servers_described
from inferometer.api.groups import GROUPS_OPTION
from inferometer.api.model_options import SLO_OPTION
from inferometer.api.progress import talk
from inferometer.api.question import duration_option, option
from inferometer.api.server import Server
from inferometer.api.simulation import (
    SimulateAnswer,
    Simulated,
    Simulator,
    simulate_workload,
    store,
)
from inferometer.api.workload import N_REQUESTS, Workload, check_answers, workload_of
from inferometer.decide.traffic import Traffic
from inferometer.inputs import gate as gates, objectives
from inferometer.inputs.workload import reading, replay, types
from inferometer.inputs.workload.plan import DrawnWorkload, RequestPlan, has_workflows, is_in_step
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.units import NS_PER_S, format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulate:
    """The simulation to run."""

    server: Server
    workload: Workload = field(default_factory=Workload)
    fleet: FleetOptions = field(default_factory=FleetOptions)
    groups: Annotated[Path | None, GROUPS_OPTION] = None
    slo: Annotated[str | None, SLO_OPTION] = None
    until: float | None = duration_option(
        None, "End the simulation at this time; requests not done by then are unfinished.", "Limits"
    )
    network: float | None = duration_option(
        None,
        "Network round trip between client and server, added to each latency. [none]",
        "Cluster",
    )
    post: float | None = duration_option(
        None,
        "Time to detokenise and send a request's tokens; inferometer catalog workloads FILE"
        " --tokenizer MODEL measures it. [none]",
        "Cluster",
    )
    parts: bool = option(
        False,
        "Record each request's tokens in each step: for timelines and times of single tokens.",
    )
    out: Path | None = option(None, "Folder to store the run in.", is_common=True)
    where: compute.Executor = field(default_factory=compute.Executor)
    given: frozenset[str] = frozenset()


def simulate(question: Simulate) -> SimulateAnswer:
    """Throughput, TTFT, TPOT, E2E of this traffic on this server, and the verdict on the SLO.

    The scheduler is the engine's own, step by step; step times are those of a fit, of published
    rows or of a datasheet. The same requests are simulated on 19 draws of what a fit or published
    rows leave open; of a datasheet at both ends.

    Raises
    ------
    SpecError, ModelError
        The question is impossible.
    """
    workload = workload_of(question.workload)
    objective = (
        None
        if question.slo is None
        else objectives.parse_objective(question.slo, has_workflows=True)
    )
    until_ns = None if question.until is None else round(question.until * NS_PER_S)
    servers = servers_described(question.groups, question.server, question.fleet)
    gate = gate_of(question.fleet.gate)
    memory_check.check_before_drawing(workload)
    is_open = objective is not None and until_ns is None and may_go_on(question.workload)
    has_steps = question.out is not None
    simulator = simulator_of(
        workload, servers, objective, until_ns, gate, record_steps=has_steps or question.parts
    )
    simulator = replace(simulator, network_s=question.network, post_s=question.post)
    simulated = _simulated(question, simulator, workload, is_open=is_open, has_steps=has_steps)
    if question.out is not None:
        simulated = store(simulated, question.out)
    if objective is None or servers.groups is not None:
        return simulated.answer
    of_run = replace(simulator.workload, plan=simulated.plan)
    simulator = replace(simulator, workload=of_run)
    return replace(simulated.answer, next_step=_next_step(question, simulator, simulated.answer))


def _next_step(question: Simulate, simulator: Simulator, answer: SimulateAnswer) -> str | None:
    """A command that would meet the missed SLO: of all requests first, then of classes."""
    slo = next((one for one in answer.every_slo if one.verdict == "missed"), None)
    if slo is None:
        return None
    workload, objective = simulator.workload, slo.likely.objective
    requests = workload.plan
    if slo.name:
        own = requests.class_index == workload.class_names.index(slo.name)
        requests = RequestPlan._make(column[own] for column in requests)
    return missed.next_of_simulation(
        question, question.server.model, simulator.servers.deployment, requests, objective
    )


def simulator_of(
    workload: WorkloadSpec,
    servers: Servers,
    objective: objectives.ObjectiveSpec | None,
    until_ns: int | None,
    gate: gates.GateSpec | None,
    *,
    record_steps: bool,
) -> Simulator:
    """The servers with the requests drawn, which must fit into memory."""
    for_s, arrivals = workload.duration_s, workload.arrivals
    question = _Question(servers, objective, until_ns, gate, record_steps)
    if for_s is None or not isinstance(arrivals, types.ClosedArrivals):
        simulator = _with_requests(workload, question)
        what = f"{simulator.workload.plan.n_requests:,} requests"
    else:
        simulator = _sending_for(workload, for_s, question)
        what = f"what {arrivals.concurrency:,} users send in {format_duration(for_s)}"
    known = simulator.servers
    engine = known.deployment.config.engine
    whose = engine if known.n_in_all == 1 else f"{known.n_in_all} x {engine}"
    talk(
        f"simulating {what} of {simulator.workload.name} on {whose},"
        f" {len(known.cases)} times (its rules are compiled once)"
    )
    return simulator


class _Question(NamedTuple):
    servers: Servers
    objective: objectives.ObjectiveSpec | None
    until_ns: int | None
    gate: gates.GateSpec | None
    record_steps: bool


def _with_requests(workload: WorkloadSpec, question: _Question) -> Simulator:
    drawn = replay.draw_workload(workload, has_beams=True)
    if question.objective is not None:
        objectives.check_workflows(question.objective, has_workflows=has_workflows(drawn.plan))
    check_answers(question.objective, drawn)
    servers = question.servers.known(drawn).seeded(workload.seed)
    memory_check.check_drawn(
        drawn.plan,
        servers.cluster,
        record_steps=question.record_steps,
        n_replicas=servers.n_in_all,
    )
    return Simulator(
        servers=servers,
        workload=drawn,
        objective=question.objective,
        until_ns=question.until_ns,
        gate=question.gate,
        are_lengths_known=not is_in_step(drawn),
    )


_MOST_REQUESTS: Final = 500_000
_SPARE_RATIO: Final = 2
"""Step times twice as fast as the likely ones send at most twice as many requests."""
_GROWN_RATIO: Final = 3


def _sending_for(workload: WorkloadSpec, for_s: float, question: _Question) -> Simulator:
    """Users who send for a duration: with as many requests as any plausible server lets them send.

    How many these are depends on the server, so more are drawn until enough are left.
    """
    most = min(_MOST_REQUESTS, workload.n_requests or _MOST_REQUESTS)
    n_requests = N_REQUESTS
    while True:
        n_requests = min(n_requests, most)
        bounded = msgspec.structs.replace(workload, duration_s=None, n_requests=n_requests)
        simulator = replace(
            _with_requests(bounded, question), sent_until_ns=round(for_s * NS_PER_S)
        )
        n_sent = simulator.sent_at(simulator.servers).plan.n_requests
        if n_requests == most or _SPARE_RATIO * n_sent <= n_requests:
            return simulator
        n_requests = _GROWN_RATIO * n_sent


def _simulated(
    question: Simulate,
    simulator: Simulator,
    workload: WorkloadSpec,
    *,
    is_open: bool,
    has_steps: bool,
) -> Simulated:
    """The run, of more requests where noise alone leaves the verdict undecided."""
    with compute.opened(question.where, "step times") as executor:
        while True:
            simulated = simulate_workload(
                simulator, executor, record_steps=has_steps, record_parts=question.parts
            )
            longer = (
                longer_workload(workload, simulator.workload, simulator.servers)
                if is_open and is_noise(simulated.answer)
                else None
            )
            if longer is None:
                return simulated
            talk(f"noise leaves it undecided: {longer.plan.n_requests:,} requests instead")
            simulator = replace(simulator, workload=longer)


_LONGER_RATIO: Final = 4


def may_go_on(options: Workload) -> bool:
    """Is the number of requests free, given by neither an option nor the workload's file?

    Those of a trace end with it.
    """
    workload = reading.resolve_workload(options.workload)
    return (
        not options.has_end
        and workload.replay is None
        and workload.duration_s is None
        and workload.n_requests is None
        and all(one.beams is None for one in workload.classes)
    )


def is_noise(answer: SimulateAnswer) -> bool:
    """Would more requests decide the verdict, at likely step times or over all servers?"""
    return answer.verdict == "undecided" and any(
        one.verdict == "undecided"
        and (one.likely.verdict == "undecided" or not one.hangs_on_step_times)
        for one in answer.every_slo
    )


def longer_workload(
    workload: types.WorkloadSpec, drawn: DrawnWorkload, servers: Servers
) -> DrawnWorkload | None:
    """The same traffic for longer; None where computing would take too long."""
    most = Traffic(spec=workload).most_requests // max(1, len(servers.cases) - 2)
    n_requests = min(_LONGER_RATIO * drawn.plan.n_requests, most)
    if n_requests <= drawn.plan.n_requests:
        return None
    return replay.draw_workload(msgspec.structs.replace(workload, n_requests=n_requests))
