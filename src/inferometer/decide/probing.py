"""Does this replica keep this promise at this load? A probe that simulates, with the same requests at every load."""

from dataclasses import dataclass, replace
from typing import Final

from inferometer.decide.capacity import LoadKind, Reading
from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.records.promises import Judgement, judge_objective
from inferometer.records.types import Run
from inferometer.simulate import kernel, simulated_run, workload_demand
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.spec.objectives import ObjectiveSpec
from inferometer.spec.workload import reading, replay, types
from inferometer.units import NS_PER_S

N_REQUESTS: Final = 1000
"""Of a probe at the lowest effort: enough for an interval of a 95th percentile of requests that hardly depend on one another."""
EFFORT_RATIO: Final = 4
_BREAKING: Final = ("overload", "stuck", "livelock", "rejected", "refused")
"""Cautions of a simulated run under which no promise is kept, whatever its percentiles say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A workload whose load can be turned: the same seed draws the same requests, faster or slower."""

    spec: types.WorkloadSpec
    n_requests: int = N_REQUESTS
    """At effort 0; each effort has four times as many as the one below."""

    @property
    def kind(self) -> LoadKind:
        """Is the load requests per second, or users?"""
        return "users" if isinstance(self.spec.arrivals, types.ClosedArrivals) else "requests_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProbe:
    """Asks one simulated replica: ``probe(load, effort)``."""

    deployment: Deployment
    step_times: StepTimeArrays
    traffic: Traffic
    objective: ObjectiveSpec

    def __call__(self, load: float, effort: int) -> Reading:
        """What the replica says at this load."""
        run = self.run(load, effort)
        return reading_of(run, judge_objective(run, self.objective))

    def run(self, load: float, effort: int) -> Run:
        """The simulated run behind it."""
        return self.run_of(load, self.traffic.n_requests * EFFORT_RATIO**effort)

    def run_of(self, load: float, n_requests: int) -> Run:
        """The same with so many requests."""
        plan = replay.draw_workload(at_load(self.traffic.spec, load, n_requests)).plan
        config = self.deployment.config
        if isinstance(config, SchedulerConfig) and not plan.prefix_tokens.any():
            config = replace(config, enable_prefix_caching=False)  # nothing to find: the same steps, sooner
        requests = workload_demand.demand_of(plan, config.block_size, has_contents=config.enable_prefix_caching)
        simulation = kernel.simulate(requests, config, self.step_times, record_steps=False)
        return simulated_run.simulated_run(simulation, config, run_id="probe", created_utc="", command=(), tool_version="")


def at_load(spec: types.WorkloadSpec, load: float, n_requests: int) -> types.WorkloadSpec:
    """The workload with this many requests per second, or users, and requests in all.

    Raises
    ------
    SpecError
        A replayed trace comes at its own instants, and has no load to turn.
    """
    arrivals = spec.arrivals
    if isinstance(arrivals, types.ClosedArrivals):
        changes: dict[str, object] = {"concurrency": round(load)}
    elif isinstance(arrivals, types.OpenArrivals):
        changes = {"rate_per_s": load}
    else:
        changes = {"kind": "open", "rate_per_s": load}
    return reading.with_changes(spec, {"arrivals": changes, "n_requests": n_requests, "duration_s": None}, where="the capacity search")


def reading_of(run: Run, judgement: Judgement) -> Reading:
    """What a simulated run says of a promise. Overload, and requests that are refused, break it whatever the percentiles say."""
    breaking = next((caution for caution in run.manifest.cautions if caution.code in _BREAKING), None)
    weakest = judgement.weakest
    margin, why = float("inf"), "nothing was promised of a percentile"
    if weakest is not None:
        why = f"{weakest.threshold.text}: {weakest.why}"
        margin = margin if weakest.seen is None else weakest.seen.seconds.value / weakest.threshold.limit_s
    if breaking is not None:
        margin, why = float("inf"), breaking.text
    n_requests = 0 if run.requests is None else len(run.requests.status)
    return Reading(
        verdict=judgement.verdict if breaking is None else "missed",
        margin_ratio=margin,
        why=why,
        n_requests=n_requests,
        took_s=_span_s(run),
    )


def _span_s(run: Run) -> float:
    requests = run.requests
    if requests is None or not len(requests.status):
        return 0.0
    return max(int(requests.finished_ns.max()) - int(requests.intended_send_ns.min()), 0) / NS_PER_S


__all__ = ["EFFORT_RATIO", "N_REQUESTS", "ReplicaProbe", "Traffic", "at_load", "reading_of"]
