"""What is the highest load at which the SLO is met, at each case of the step times? Simulated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from inferometer.api import compute, missed as misses, progress
from inferometer.api.cluster import Servers
from inferometer.api.decision_pages import CapacityAnswer, CapacityRow, PacedCapacity, paced
from inferometer.api.fleet import (
    FleetOptions,
    Fleets,
    fleets_of,
    servers_described,
    slo_of,
    start_load_of,
    with_dense_ranks,
)
from inferometer.api.groups import GROUPS_OPTION
from inferometer.api.question import Option, option
from inferometer.api.server import Server, check_some_are_taken, kinds_cautions
from inferometer.api.sizing_cautions import check_prompts, longer_probes, without_end
from inferometer.api.workload import Workload, users_in_step, workload_of
from inferometer.decide import capacity as searches, lone_request, probing, traffic
from inferometer.inputs.objectives import ClassObjective, ObjectiveSpec
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import reading, types
from inferometer.perfmodel.types import least_share, weakest_basis
from inferometer.simulate.deployment import Case, Deployment

_SPAN_RATIO: Final = 1e4
"""Factor between the start of the search and its ends, up and down."""
_MOST_EFFORT: Final = 6
"""Probes get longer until verdicts are decided, the traffic's limit is reached, or the time is
over."""
_FIRST_REQUESTS: Final = 40
_LIKELY_FRACTION: Final = 0.5
"""Share of the time limit for likely step times; the other cases divide the rest."""
_LAST_FRACTION: Final = 1.2
"""Share of a case's time after which a running simulation is stopped."""
_PAIRED_LENGTH_RATIO: Final = 4
"""Requests of a probe of a paired search over those of the shortest probe."""
_PAIRED_RESOLUTION_RATIO: Final = 0.2
"""Between the loads of a paired search; the crossing is interpolated between them."""


class CaseLoad(NamedTuple):
    """One plausible server, and the load at which its search begins."""

    case: Case
    start_load: float
    steepness_ratio: float | None = None
    """From the search at likely step times."""


class Search(NamedTuple):
    """A search for the capacity, on each plausible server."""

    fleets: Fleets
    deployment: Deployment
    """The replica that generates answers."""
    traffic: traffic.Traffic
    objective: ObjectiveSpec
    resolution_ratio: float
    limit: compute.TimeLimit
    groups: Servers | None = None
    """Replicas of different kinds, in place of all others."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """Plausible servers to simulate, the likely one first."""
        return self.deployment.cases if self.groups is None else self.groups.cases

    @property
    def n_replicas(self) -> int:
        """Replicas of one kind; for groups, the number in their file."""
        return self.fleets.n_replicas or 1

    @property
    def n_simulated(self) -> int:
        """Replicas to simulate with their share of the load: fewer than all if each got one burst."""
        if self.groups is not None:
            return self.n_replicas
        return probing.n_simulated(self.fleets, self.n_replicas)

    def alone(self) -> lone_request.LoneRequest | None:
        """The least that a request takes at likely step times; None where others compute its prompt, or of groups."""
        if self.fleets.n_prefill or self.groups is not None:
            return None
        plan = traffic.plan_at(self.traffic.spec, 1.0, self.traffic.n_requests)
        return lone_request.lone_request(self.deployment, plan, self.objective)

    def likely(self, start_load: float) -> searches.Capacity:
        """The capacity at likely step times, looked for from this load on, by longer and longer probes."""
        return self._found(
            CaseLoad("likely", start_load),
            self.limit.share(_LIKELY_FRACTION),
            resolution_ratio=self.resolution_ratio,
            proof_effort=2,
            most_effort=_MOST_EFFORT,
        )

    def located_of(self, spec: types.WorkloadSpec, start_load: float) -> float | None:
        """The capacity for other traffic, as far as it is located, at likely step times."""
        return (
            self._replace(traffic=replace(self.traffic, spec=spec)).likely(start_load).located_load
        )

    def paired(self, one: CaseLoad) -> searches.Capacity:
        """The capacity at these step times, by probes of one length, the same for each case.

        Short probes do not show how a queue grows, so that they put each capacity too high; their
        ratio to that of likely step times, by the same requests, hardly depends on the length.
        """
        n_cases = len(self.cases)
        return self._found(
            one,
            self.limit.share((1 - _LIKELY_FRACTION) / n_cases),
            resolution_ratio=max(self.resolution_ratio, _PAIRED_RESOLUTION_RATIO),
            proof_effort=None,
        )

    def _found(
        self,
        one: CaseLoad,
        limit: compute.TimeLimit,
        *,
        resolution_ratio: float,
        proof_effort: int | None,
        most_effort: int | None = None,
    ) -> searches.Capacity:
        case, start_load, steepness_ratio = one
        probe = self._probe(case, is_paired=proof_effort is None)
        # Compiles what is not in the cache, before the time begins.
        probe.run_of(start_load, _FIRST_REQUESTS)
        phases = searches.Phases(limit())
        question = searches.CapacityQuestion(
            kind=self.traffic.kind,
            start_load=start_load,
            lowest_load=1.0 if self.traffic.kind == "users" else start_load / _SPAN_RATIO,
            highest_load=start_load * _SPAN_RATIO,
            resolution_ratio=resolution_ratio,
            proof_effort=proof_effort,
            most_effort=most_effort,
            time_left_s=phases.time_left_s,
            steepness_ratio=steepness_ratio,
        )
        with phases.until(_LAST_FRACTION):
            return searches.find_capacity(probe, question)

    def _probe(self, case: Case, *, is_paired: bool) -> probing.FleetProbe:
        n_requests = self.traffic.n_requests * (_PAIRED_LENGTH_RATIO if is_paired else 1)
        return probing.FleetProbe(
            fleet=(
                self.fleets.fleet(self.deployment, case, self.n_simulated)
                if self.groups is None
                else self.groups.at(case).fleet()
            ),
            n_replicas=self.n_replicas if self.n_simulated < self.n_replicas else None,
            traffic=replace(self.traffic, n_requests=n_requests),
            objective=self.objective,
            class_objectives=self.class_objectives,
        )

    @property
    def words(self) -> str:
        """The SLO of all requests, and the classes' own, in words."""
        if self.groups is not None:
            return self.objective.text + " in each class" * bool(self.class_objectives)
        return objective_words(self.objective, self.class_objectives)

    @property
    def class_objectives(self) -> tuple[ClassObjective, ...]:
        """Own SLOs of classes; in groups of replicas else that of all requests."""
        if self.groups is None:
            return self.traffic.spec.class_objectives
        return probing.class_objectives_of(self.fleets.drawn, self.objective)


def objective_words(objective: ObjectiveSpec, class_objectives: tuple[ClassObjective, ...]) -> str:
    """The SLO of all requests, and the classes' own, in words."""
    own = (f"{name}: {slo.text}" for name, slo, _ in class_objectives)
    return "; ".join((objective.text, *own))


_UNITS: Final = {"requests_per_s": "requests/s", "users": "users"}


SLO_OF_ALL: Final = Option(
    "The SLO: 'ttft:p95<500ms, tpot:p95<50ms', or mlperf:NAME."
    " [that of the classes of --workload, where each has one]",
    heading="Limits",
    is_common=True,
    metavar="TEXT",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The server, traffic and SLO of a search for the capacity."""

    server: Server
    workload: Workload = field(default_factory=Workload)
    slo: Annotated[str | None, SLO_OF_ALL] = None
    fleet: FleetOptions = field(default_factory=FleetOptions)
    groups: Annotated[Path | None, GROUPS_OPTION] = None
    resolution: float = option(
        0.03, "How closely to locate the capacity.", "Limits", least=0, most=1, is_open=True
    )
    probe_requests: int = option(
        1000,
        "Requests of the shortest probe; --requests caps the longest, unless that few would be one burst.",
        "Limits",
        least=100,
    )
    time_limit: Annotated[float, compute.time_limit_field("7s")] = 7.0
    where: compute.Executor = field(default_factory=compute.Executor)
    given: frozenset[str] = frozenset()


def capacity(question: Capacity) -> CapacityAnswer:
    """The highest rate, or number of users, that is served within the SLO.

    The load that is given is where the search begins.

    Raises
    ------
    SpecError, ModelError
        The question is impossible.
    """
    workload = workload_of(question.workload)
    fleet = with_dense_ranks(question.fleet, question.server)
    fleets = fleets_of(fleet, workload)
    servers = servers_described(question.groups, question.server, fleet).known(fleets.drawn)
    objective = slo_of(question.slo, workload, fleets)
    requests = _traffic(question, workload, servers)
    search = Search(
        fleets,
        servers.deployment,
        requests,
        objective,
        question.resolution,
        compute.TimeLimit(question.time_limit),
        None if servers.groups is None else servers,
    )
    alone = search.alone()
    levels = _levels(search, alone, workload, question.where)
    found = levels[0].capacity
    blocks = _kv_blocks(servers)
    return CapacityAnswer(
        model_id=servers.words,
        workload_name=workload.name,
        objective=search.words,
        unit=_UNITS[search.traffic.kind],
        is_resolved=found.is_resolved,
        is_located=found.is_located,
        levels=levels,
        engine=servers.deployment.config.engine,
        n_replicas=servers.n_replicas,
        n_devices=servers.n_devices,
        assumptions=(*servers.assumptions, *reading.prefix_words(workload.name)),
        n_simulated=search.n_simulated if search.n_simulated < search.n_replicas else None,
        router=servers.rules.router if servers.n_replicas > 1 and servers.groups is None else None,
        step_times_basis=weakest_basis(one.step_times.basis for one in servers.kinds),
        step_times_from="; ".join(dict.fromkeys(one.step_times.origin for one in servers.kinds)),
        cautions=_cautions(question, servers, search, found),
        n_kv_blocks_low=None if blocks is None else blocks[0],
        n_kv_blocks_high=None if blocks is None else blocks[1],
        machine_share_fraction=least_share(
            one.step_times.machine_share_fraction for one in servers.kinds
        ),
        next_step=_what_takes_prompts(servers, requests, is_resolved=found.is_resolved)
        or next_step_of(
            *(levels, alone),
            has_fit=(question.server.fit or question.groups) is not None,
            is_trace=requests.is_trace,
            has_blocks=blocks is not None,
        ),
    )


def _cautions(
    question: Capacity, servers: Servers, search: Search, found: CapacityRow
) -> tuple[Caution, ...]:
    return (
        *kinds_cautions(servers.kinds),
        *longer_probes(question.workload.requests, found.probes),
        *without_end(question.workload.duration),
        *users_in_step(question.workload, found.located_load, search.located_of),
    )


def _traffic(question: Capacity, workload: types.WorkloadSpec, servers: Servers) -> traffic.Traffic:
    """The requests of the probes, none of whose prompts is too long for every server."""
    requests = traffic.Traffic(
        spec=workload, n_requests=question.probe_requests, requests_cap=question.workload.requests
    )
    plan = traffic.plan_at(workload, start_load_of(workload), requests.most_requests)
    check_prompts(
        workload,
        plan,
        max(one.config.max_model_len for one in servers.kinds),
    )
    check_some_are_taken(servers.kinds, plan)
    return requests


def _what_takes_prompts(
    servers: Servers, requests: traffic.Traffic, *, is_resolved: bool
) -> str | None:
    """A remedy where the SLO is missed as the servers refuse prompts longer than a step."""
    if is_resolved:
        return None
    plan = traffic.plan_at(requests.spec, start_load_of(requests.spec), requests.most_requests)
    remedies = (misses.what_takes_prompts(one, plan) for one in servers.kinds)
    return next((remedy for remedy in remedies if remedy is not None), None)


def _kv_blocks(servers: Servers) -> tuple[int, int] | None:
    """The fewest and the most KV blocks of the plausible servers; None if they are known."""
    fewest, most = servers.deployment.kv_block_ends
    return (fewest, most) if servers.groups is None and fewest < most else None


def _levels(
    search: Search,
    alone: lone_request.LoneRequest | None,
    workload: types.WorkloadSpec,
    where: compute.Executor,
) -> tuple[PacedCapacity, ...]:
    """The capacity at likely step times, then at both ends of them, or in draws."""
    if alone is not None and alone.margin_ratio > 1:
        return (paced("likely", _missed_by_a_lone_request(search.traffic.kind, alone)),)
    progress.talk(
        f"looking for the capacity under {search.words} (the engine's rules are compiled once)"
    )
    with compute.opened(where, "searches") as executor:
        (likely,) = executor.map(search.likely, [start_load_of(workload)])
        if likely.n_needed is not None:  # of the other servers it is as open
            return (paced("likely", likely),)
        cases = search.cases
        start = likely.located_load or start_load_of(workload)
        found = executor.map(
            search.paired, [CaseLoad(case, start, likely.steepness_ratio) for case in cases]
        )
    return (
        paced("likely", likely),
        *(
            paced(case if isinstance(case, str) else "draw", one)
            for case, one in zip(cases[1:], lengthened(likely, found), strict=True)
        ),
    )


def lengthened(
    likely: searches.Capacity, short: Sequence[searches.Capacity]
) -> list[searches.Capacity]:
    """Results of short probes, corrected to the length of the likely step times' probes.

    The first of them is at likely step times; the others are returned. Users are made whole here,
    once: of loads that were whole before, another user would be lost.
    """
    ratio = 1.0
    crossing = short[0].crossing_load
    if likely.crossing_load is not None and crossing is not None:
        ratio = likely.crossing_load / crossing
    found = list[searches.Capacity]()
    for one in short[1:]:
        load = one.guessed_load if one.crossing_load is None else one.crossing_load
        scaled = None if load is None else searches.whole_load(one.kind, load * ratio)
        found.append(replace(one, located_load=scaled))
    return found


def _missed_by_a_lone_request(
    kind: searches.LoadKind, alone: lone_request.LoneRequest
) -> searches.Capacity:
    """Capacity without a search: a request alone on a replica misses the SLO at any load."""
    return searches.Capacity(
        kind=kind,
        located_load=None,
        met_load=None,
        missed_load=None,
        is_located=False,
        is_resolved=False,
        why=f"even a lone request misses the SLO: {alone.why}",
        probes=(),
    )


def next_step_of(
    levels: tuple[PacedCapacity, ...],
    alone: lone_request.LoneRequest | None,
    *,
    has_fit: bool,
    is_trace: bool = False,
    has_blocks: bool = False,
) -> str | None:
    """What would narrow the answer, or meet an SLO that no load meets.

    More requests do not narrow an interval that is that of the step times.
    """
    found = levels[0].capacity
    if alone is not None and alone.margin_ratio > 1:
        return misses.what_serves_one(alone)
    if found.meets_nowhere:
        return (
            "longer limits, more devices (--tp), less bursty traffic (--burstiness 1), or shorter"
            " prompts (--workload FILE)"
        )
    if found.is_resolved:
        return None
    if found.n_needed is not None:
        return misses.what_goes_on(max(found.n_needed, traffic.N_REQUESTS), is_trace=is_trace)
    known = [one for one in (level.capacity.located_load for level in levels) if one is not None]
    met, missed = found.met_load, found.missed_load
    noise = math.inf if met is None or missed is None else missed - met
    if len(known) > 1 and max(known) - min(known) > noise:
        return (
            f"the interval is that of the step times{' and KV blocks' * has_blocks}: "
            + ("a fit of more measurements" if has_fit else "--fit FILE, of measured ones,")
            + " or --num-blocks of the server's log" * has_blocks
            + " narrows it"
        )
    return "a longer --time-limit, or a larger --requests, narrows the interval"
