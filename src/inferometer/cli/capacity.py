"""inferometer capacity: what is the highest load at which a promise is kept?"""

import sys
from typing import Any, Final, NamedTuple

import click

from inferometer.cli import answer, capacity_live, decision_pages, executor_options
from inferometer.cli.capacity_text import CapacityAnswer, PacedCapacity, capacity_text, paced
from inferometer.cli.deployment import takes_deployment
from inferometer.cli.workload_options import takes_workload
from inferometer.decide import probing, traffic
from inferometer.decide.capacity import CapacityQuestion, find_capacity
from inferometer.simulate.deployment import Deployment, Pace
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
""",
)
@takes_deployment
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
    """How many requests per second, or users (with --concurrency), does one replica of MODEL carry before the promise breaks?

    Simulated; a URL in place of MODEL is measured: `inferometer capacity http://HOST --help`.

    The load that is given is where the search begins. Exit 0 resolved, 11 unresolved (the bracket is printed).
    """
    objective = parse_objective(slo)
    asked = traffic.Traffic(spec=workload, n_requests=flags["probe_requests"])
    answer.talk(f"looking for the capacity under {objective.text} (the engine's rules are compiled once)")
    search = _Search(deployment, asked, objective, flags["resolution"])
    with executor_options.opened(where, "searches") as executor:
        (likely,) = executor.map(search.at, [_Asked("likely", _start(workload))])
        start = likely.capacity.located_load or _start(workload)
        levels = (likely, *executor.map(search.at, [_Asked("fast", start), _Asked("slow", start)]))
    said = CapacityAnswer(
        model_id=deployment.model.model_id,
        workload_name=workload.name,
        objective=objective.text,
        unit=_UNITS[asked.kind],
        is_resolved=levels[0].capacity.is_resolved,
        levels=levels,
        engine=deployment.config.engine,
        step_times_from=deployment.step_times.origin,
    )
    decision_pages.write_capacity_page(said, flags["report"])
    answer.give(said, as_json=as_json, show=capacity_text)
    sys.exit(0 if said.is_resolved else 11)


class _Search(NamedTuple):
    """What is asked at each pace of the steps."""

    deployment: Deployment
    traffic: traffic.Traffic
    objective: ObjectiveSpec
    resolution_ratio: float

    def at(self, asked: "_Asked") -> PacedCapacity:
        """The capacity at this pace, looked for from this load on; only likely step times are asked closely."""
        pace, start_load = asked
        question = CapacityQuestion(
            kind=self.traffic.kind,
            start_load=start_load,
            lowest_load=1.0 if self.traffic.kind == "users" else start_load / _SPAN_RATIO,
            highest_load=start_load * _SPAN_RATIO,
            resolution_ratio=self.resolution_ratio,
            proof_effort=2 if pace == "likely" else None,
        )
        server = self.deployment.at(pace)
        probe = probing.ReplicaProbe(
            deployment=server, step_times=getattr(server.step_times, pace), traffic=self.traffic, objective=self.objective
        )
        return paced(pace, find_capacity(probe, question))


class _Asked(NamedTuple):
    pace: Pace
    start_load: float


def _start(workload: types.WorkloadSpec) -> float:
    arrivals = workload.arrivals
    if isinstance(arrivals, types.ClosedArrivals):
        return float(arrivals.concurrency)
    return arrivals.rate_per_s if isinstance(arrivals, types.OpenArrivals) else 1.0


__all__ = ["ANSWER", "OfAModelOrServer", "command"]
