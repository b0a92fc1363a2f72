"""What is tuned: a server as it is, its variants, its traffic, and what is better?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from inferometer import suggestions
from inferometer.api.fleet import FleetOptions, Fleets, fleets_of, start_load_of, with_dense_ranks
from inferometer.api.server import Server, deployment_of, server_with
from inferometer.api.workload import Workload, objective_for, workload_of
from inferometer.decide.traffic import Traffic
from inferometer.decide.tuning.engine_steps import EngineStep
from inferometer.decide.tuning.playbook import Now, Step, Variant
from inferometer.decide.tuning.trials import Aim, Built, Goal, Trials
from inferometer.errors import SpecError
from inferometer.fit.loads.load_tests import MIN_REQUESTS
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import ClosedArrivals, WorkloadSpec
from inferometer.simulate.deployment import Case
from inferometer.simulate.fleet import Fleet

_N_REQUESTS: Final = 1000
_LEAST_REQUESTS: Final = 200
_SHARE_OF_MOST: Final = 20
"""Share of the longest simulation that a search may run: tuning runs hundreds."""
_WAVES: Final = 4
"""Requests of each user of a closed loop, at least."""
_OF_CLUSTER: Final = frozenset({"replicas", "router"})


AStep = TypeVar("AStep", Step, EngineStep)


class Wanted(NamedTuple):
    """Goal of tuning."""

    goal: Goal
    slo: str | None
    least_gain_fraction: float

    @property
    def required_slo(self) -> str:
        """The SLO; SpecError without one."""
        if self.slo is None:
            raise SpecError(
                "nothing says which latencies are good enough",
                where="--slo",
                try_="--slo 'ttft:p95<500ms, tpot:p95<50ms'",
            )
        return self.slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The server to tune, and the goal."""

    server: Server
    policy: str
    aim: Aim
    trials: Trials
    fleets: Fleets
    workload: Workload
    """Options as given."""
    least_gain_fraction: float

    @property
    def is_closed(self) -> bool:
        """Is the traffic a closed loop?"""
        return isinstance(self.aim.spec.arrivals, ClosedArrivals)

    @property
    def score_words(self) -> str:
        """Name of the quantity that gains refer to."""
        if self.aim.goal == "interactive":
            return "headroom: the limit of the weakest latency over that latency"
        rate = "requests/s within the SLO"
        if self.aim.is_capacity:
            rate = "the highest rate that meets the SLO"
        return rate if self.aim.goal == "throughput" else f"{rate}, for each device"


def subject_of(
    wanted: Wanted, server: Server, workload: Workload, fleet: FleetOptions, policy: str
) -> Subject:
    """The server, traffic and goal of a question.

    Raises
    ------
    SpecError
        There is no SLO, or the workload cannot be read.
    """
    slo = wanted.required_slo
    spec = workload_of(workload)
    objective = objective_for(slo, spec)
    fleets = fleets_of(with_dense_ranks(fleet, server), spec, policy)
    aim = Aim(
        goal=wanted.goal,
        objective=objective,
        spec=spec,
        load=start_load_of(spec),
        n_requests=_n_requests(workload, spec),
    )
    trials = Trials(lambda variant: _built(server, fleets, variant), aim)
    return Subject(
        server=server,
        policy=policy,
        aim=aim,
        trials=trials,
        fleets=fleets,
        workload=workload,
        least_gain_fraction=wanted.least_gain_fraction,
    )


def _n_requests(workload: Workload, spec: WorkloadSpec) -> int:
    """Requests of one simulation: enough for a 95th percentile, fewer of long ones."""
    if workload.requests is not None:
        return workload.requests
    most = Traffic(spec=spec, n_requests=_LEAST_REQUESTS).most_requests // _SHARE_OF_MOST
    n_users = spec.arrivals.concurrency if isinstance(spec.arrivals, ClosedArrivals) else 0
    return max(min(_N_REQUESTS, most), _LEAST_REQUESTS, _WAVES * n_users)


def _built(as_it_is: Server, fleets: Fleets, variant: Variant) -> Built:
    """The fleet with these settings, by the same way as the flags of the command line."""
    values = dict(variant)
    options = fleets.options
    of_cluster: dict[str, Any] = {name: values[name] for name in _OF_CLUSTER & values.keys()}
    cluster = replace(options.cluster, **of_cluster)
    changed = replace(fleets, options=replace(options, cluster=cluster))
    own = {name: value for name, value in values.items() if name not in _OF_CLUSTER}
    server = server_with(as_it_is, own)
    n_sharing = options.cluster.data_parallel_size
    deployment = deployment_of(server, n_sharing=n_sharing)
    prepared = changed.prepared(deployment)
    n_replicas = changed.n_replicas or 1

    def fleet(case: Case) -> Fleet:
        return changed.fleet(prepared.deployment, case, n_replicas)

    return Built(
        deployment=prepared.deployment,
        fleet=fleet,
        n_devices=prepared.deployment.n_devices * n_replicas + prepared.n_devices_beside,
        n_replicas=n_replicas,
        router=changed.router,
    )


def chosen_steps(names: str | None, known: Sequence[AStep], try_: str) -> tuple[AStep, ...]:
    """Steps that ``--steps`` names, in the playbook's order; all without it.

    Raises
    ------
    SpecError
        A step is unknown.
    """
    if names is None:
        return tuple(known)
    wanted = [name.strip() for name in names.split(",")]
    called = [str(one.name) for one in known]
    unknown = [name for name in wanted if name not in called]
    if unknown:
        raise SpecError(
            f"there is no step {unknown[0]!r}",
            where="--steps",
            allowed=", ".join(called),
            try_=try_,
        )
    return tuple(one for one in known if one.name in wanted)


def now_of(subject: Subject, variant: Variant) -> Now:
    """The server as it is, for the playbook's steps."""
    built = subject.trials.built(variant)
    return Now(
        deployment=built.deployment,
        plan=subject.trials.plan(subject.aim.spec.seed),
        n_replicas=built.n_replicas,
        router=built.router,
        is_plain=subject.fleets.is_plain,
        has_fewer_devices=subject.aim.goal == "cost",
    )


def check_fittable(spec: WorkloadSpec) -> None:
    """Refuse load tests of too few requests before the first server is started."""
    if isinstance(spec.arrivals, ClosedArrivals) and spec.n_requests is None:
        return  # as many as the server answers
    n_requests = draw_workload(spec).plan.n_requests
    if n_requests < MIN_REQUESTS:
        raise SpecError(
            f"{n_requests} requests in a load test",
            where="--for, --requests, --rate",
            allowed=f"{MIN_REQUESTS} or more that end: a model of the server is fitted to them",
            try_=suggestions.flags("--requests", 2 * MIN_REQUESTS),
        )
