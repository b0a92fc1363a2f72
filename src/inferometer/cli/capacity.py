"""inferometer capacity: what is the highest load at which a promise is kept?"""

import sys
from typing import Any, Final, NamedTuple

import click

from inferometer.cli import (
    answer,
    capacity_live,
    cluster_options,
    decision_pages,
    executor_options,
    sizing_question,
    terminal,
    time_limit,
)
from inferometer.cli.capacity_text import (
    CapacityAnswer,
    CapacityRow,
    PacedCapacity,
    capacity_text,
    paced,
)
from inferometer.cli.deployment import takes_deployment
from inferometer.cli.missed import what_serves_one
from inferometer.cli.sizing_cautions import check_prompts
from inferometer.cli.workload_options import requests_cap, takes_workload
from inferometer.decide import capacity, lone_request, probing, traffic
from inferometer.simulate.cluster_config import Router
from inferometer.simulate.deployment import Case, Deployment
from inferometer.spec.objectives import ObjectiveSpec, parse_objective
from inferometer.spec.workload import types

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

ANSWER = CapacityAnswer


class OfAModelOrServer(click.Command):
    """The same question of a model, which is simulated, and of a URL, which is measured: each has its own flags."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the flags of the one that is asked."""
        if any(word.startswith(("http://", "https://")) for word in args):
            return capacity_live.command.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "capacity",
    cls=OfAModelOrServer,
    short_help="What is the highest load at which a promise is kept?",
    epilog="""\b
Examples:
  inferometer capacity llama-3.1-8b --hardware h100_sxm --workload chat --slo 'ttft:p95<1s, tpot:p95<100ms'
  inferometer capacity llama-3.1-8b --hardware h100_sxm --concurrency 16 --slo 'tpot:p95<30ms' --resolution 0.1
  inferometer capacity llama-3.1-8b --hardware l40s --replicas 4 --slo 'ttft:p95<1s' --probe-requests 200
""",
)
@takes_deployment
@cluster_options.replicas_option
@sizing_question.router_option
@takes_workload
@click.option(
    "--slo",
    required=True,
    metavar="TEXT",
    help="The SLO: 'ttft:p95<500ms, tpot:p95<50ms', or mlperf:NAME.",
)
@click.option(
    "--resolution",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.03,
    show_default=True,
    help="How closely to locate the capacity.",
)
@click.option(
    "--probe-requests",
    type=click.IntRange(min=100),
    default=1000,
    show_default=True,
    help="Of the shortest probe; --requests caps the longest.",
)
@time_limit.time_limit_option("7s")
@decision_pages.report_option
@executor_options.takes_executor("inline")
@answer.json_option
def command(
    deployment: Deployment,
    workload: types.WorkloadSpec,
    where: executor_options.ExecutorChoice,
    *,
    slo: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """How many requests per second, or users (with --concurrency), do replicas of MODEL carry together within the SLO?

    Simulated; a URL in place of MODEL is measured: `inferometer capacity http://HOST --help`.

    The load that is given is where the search begins. Exit 0 located, 10 no load meets the SLO, 11
    not located.
    """
    objective = parse_objective(slo)
    limit: time_limit.TimeLimit = flags["time_limit"]
    requests = traffic.Traffic(
        spec=workload, n_requests=flags["probe_requests"], requests_cap=requests_cap()
    )
    check_prompts(
        workload,
        traffic.plan_at(workload, _start(workload), requests.most_requests),
        deployment.config.max_model_len,
    )
    n_replicas, router = flags["replicas"], flags["router"]
    search = _Search(
        deployment, requests, objective, flags["resolution"], n_replicas, router, limit
    )
    alone = search.alone()
    if alone is None or alone.margin_ratio <= 1:
        terminal.talk(
            f"looking for the capacity under {objective.text} (the engine's rules are compiled"
            " once)"
        )
        with executor_options.opened(where, "searches") as executor:
            first, *others = deployment.cases
            (likely,) = executor.map(search.at, [_Asked(first, _start(workload))])
            start = likely.capacity.located_load or _start(workload)
            levels = (likely, *executor.map(search.at, [_Asked(case, start) for case in others]))
    else:
        levels = (paced("likely", _nowhere(search.traffic.kind, alone)),)
    found = levels[0].capacity
    said = CapacityAnswer(
        model_id=deployment.model.model_id,
        workload_name=workload.name,
        objective=objective.text,
        unit=_UNITS[search.traffic.kind],
        is_resolved=found.is_resolved,
        is_located=found.is_located,
        levels=levels,
        engine=deployment.config.engine,
        n_replicas=n_replicas,
        router=router if n_replicas > 1 else None,
        step_times_from=deployment.step_times.origin,
        next_step=_next_step(found, alone),
    )
    decision_pages.write_capacity_page(said, flags["report"])
    answer.give(said, as_json=as_json, show=capacity_text)
    sys.exit(0 if said.is_located else 10 if _meets_nowhere(found) else 11)


def _nowhere(kind: capacity.LoadKind, alone: lone_request.LoneRequest) -> capacity.Capacity:
    """What is known without a search where an idle replica misses the SLO."""
    return capacity.Capacity(
        kind=kind,
        located_load=None,
        kept_load=None,
        broken_load=None,
        is_located=False,
        is_resolved=False,
        why=f"even a lone request misses the SLO: {alone.why}",
        probes=(),
    )


def _meets_nowhere(found: CapacityRow) -> bool:
    """Is the SLO missed at the lowest load, too?"""
    is_shown_nowhere = found.kept_load is None and found.located_load is None
    return (
        is_shown_nowhere
        and found.why != capacity.TIME_LIMIT
        and not any(probe.verdict == "met" for probe in found.probes)
    )


def _next_step(found: CapacityRow, alone: lone_request.LoneRequest | None) -> str | None:
    """What would answer more, or meet an SLO that no load meets."""
    if alone is not None and alone.margin_ratio > 1:
        return what_serves_one(alone)
    if _meets_nowhere(found):
        return (
            "longer limits, more devices (--tp), less bursty traffic (--burstiness 1), or shorter"
            " prompts (--workload FILE)"
        )
    return (
        None
        if found.is_resolved
        else "a longer --time-limit, or a larger --requests, narrows the interval"
    )


class _Search(NamedTuple):
    """The question to each server that may be the one."""

    deployment: Deployment
    traffic: traffic.Traffic
    objective: ObjectiveSpec
    resolution_ratio: float
    n_replicas: int
    router: Router
    limit: time_limit.TimeLimit

    def alone(self) -> lone_request.LoneRequest | None:
        """The least that a request takes at likely step times."""
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
        question = capacity.CapacityQuestion(
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
            capacity.find_capacity(self._probe(case), question),
        )

    def _probe(self, case: Case) -> probing.ReplicaProbe:
        server = self.deployment.at(case)
        return probing.ReplicaProbe(
            deployment=server,
            step_times=server.step_times.likely,
            traffic=self.traffic,
            objective=self.objective,
            n_replicas=self.n_replicas,
            router=self.router,
        )


class _Asked(NamedTuple):
    case: Case
    start_load: float


def _start(workload: types.WorkloadSpec) -> float:
    arrivals = workload.arrivals
    if isinstance(arrivals, types.ClosedArrivals):
        return float(arrivals.concurrency)
    return arrivals.rate_per_s if isinstance(arrivals, types.OpenArrivals) else 1.0
