"""inferometer capacity: what is the highest load at which a promise is kept?"""

import sys
from typing import Any, Final, NamedTuple

import click

from inferometer.cli import answer, capacity_live, cluster_options, decision_pages, executor_options, sizing_question
from inferometer.cli.capacity_text import CapacityAnswer, PacedCapacity, capacity_text, paced
from inferometer.cli.deployment import takes_deployment
from inferometer.cli.workload_options import takes_workload
from inferometer.decide import capacity, probing, traffic
from inferometer.simulate.cluster_config import Router
from inferometer.simulate.deployment import Case, Deployment
from inferometer.spec.objectives import ObjectiveSpec, parse_objective
from inferometer.spec.workload import types

_UNITS: Final = {"requests_per_s": "requests/s", "users": "users"}
_SPAN_RATIO: Final = 1e4
"""From the start of the search, up and down."""


ANSWER = CapacityAnswer


class OfAModelOrServer(click.Command):
    """The same question of a model, which is simulated, and of a URL, which is measured: each has its own flags."""

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
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
@click.option("--slo", required=True, metavar="TEXT", help="What is promised: 'ttft:p95<500ms, tpot:p95<50ms', or mlperf:NAME.")
@click.option(
    "--resolution", type=click.FloatRange(0, 1, min_open=True), default=0.05, show_default=True, help="How closely the load is looked for."
)
@click.option("--probe-requests", type=click.IntRange(min=100), default=1000, show_default=True, help="Of a short probe; long: 16 times.")
@decision_pages.report_option
@executor_options.takes_executor("inline")
@answer.json_option
def command(
    deployment: Deployment, workload: types.WorkloadSpec, where: executor_options.ExecutorChoice, *, slo: str, as_json: bool, **flags: Any
) -> None:
    """How many requests per second, or users (with --concurrency), do replicas of MODEL carry together before the promise breaks?

    Simulated; a URL in place of MODEL is measured: `inferometer capacity http://HOST --help`.

    The load that is given is where the search begins. Exit 0 resolved, 11 unresolved (the bracket is printed).
    """
    objective = parse_objective(slo)
    asked = traffic.Traffic(spec=workload, n_requests=flags["probe_requests"])
    answer.talk(f"looking for the capacity under {objective.text} (the engine's rules are compiled once)")
    n_replicas, router = flags["replicas"], flags["router"]
    search = _Search(deployment, asked, objective, flags["resolution"], n_replicas, router)
    with executor_options.opened(where, "searches") as executor:
        first, *others = deployment.cases
        (likely,) = executor.map(search.at, [_Asked(first, _start(workload))])
        start = likely.capacity.located_load or _start(workload)
        levels = (likely, *executor.map(search.at, [_Asked(case, start) for case in others]))
    said = CapacityAnswer(
        model_id=deployment.model.model_id,
        workload_name=workload.name,
        objective=objective.text,
        unit=_UNITS[asked.kind],
        is_resolved=levels[0].capacity.is_resolved,
        levels=levels,
        engine=deployment.config.engine,
        n_replicas=n_replicas,
        router=router if n_replicas > 1 else None,
        step_times_from=deployment.step_times.origin,
    )
    decision_pages.write_capacity_page(said, flags["report"])
    answer.give(said, as_json=as_json, show=capacity_text)
    sys.exit(0 if said.is_resolved else 11)


class _Search(NamedTuple):
    """What is asked of each server that may be the one."""

    deployment: Deployment
    traffic: traffic.Traffic
    objective: ObjectiveSpec
    resolution_ratio: float
    n_replicas: int
    router: Router

    def at(self, asked: "_Asked") -> PacedCapacity:
        """The capacity of this server, looked for from this load on; only the likely one is asked closely."""
        case, start_load = asked
        question = capacity.CapacityQuestion(
            kind=self.traffic.kind,
            start_load=start_load,
            lowest_load=1.0 if self.traffic.kind == "users" else start_load / _SPAN_RATIO,
            highest_load=start_load * _SPAN_RATIO,
            resolution_ratio=self.resolution_ratio,
            proof_effort=2 if case == "likely" else None,
        )
        server = self.deployment.at(case)
        probe = probing.ReplicaProbe(
            deployment=server,
            step_times=server.step_times.likely,
            traffic=self.traffic,
            objective=self.objective,
            n_replicas=self.n_replicas,
            router=self.router,
        )
        return paced(case if isinstance(case, str) else "draw", capacity.find_capacity(probe, question))


class _Asked(NamedTuple):
    case: Case
    start_load: float


def _start(workload: types.WorkloadSpec) -> float:
    arrivals = workload.arrivals
    if isinstance(arrivals, types.ClosedArrivals):
        return float(arrivals.concurrency)
    return arrivals.rate_per_s if isinstance(arrivals, types.OpenArrivals) else 1.0


__all__ = ["ANSWER", "OfAModelOrServer", "command"]
