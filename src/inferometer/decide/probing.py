"""Do these replicas keep this promise at this load?

A probe that simulates, with the same requests at every load.
"""

from dataclasses import dataclass, replace
from typing import Final

from inferometer.decide.capacity import Reading
from inferometer.decide.traffic import Traffic, plan_at
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.records.promises import Judgement, judge_objective
from inferometer.records.types import Run
from inferometer.simulate import (
    cluster_config,
    engine_config,
    fleet,
    run,
    scheduler_config,
    simulated_run,
)
from inferometer.simulate.deployment import Deployment
from inferometer.units import NS_PER_S

EFFORT_RATIO: Final = 4
_MOST_SHARES: Final = 4
"""A cluster is asked with as many requests as so many replicas would be one by one: its
percentiles are those of all requests."""
_BREAKING: Final = ("overload", "stuck", "livelock", "rejected", "refused")
"""Cautions of a simulated run under which no promise is kept, whatever its percentiles say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProbe:
    """Asks one simulated replica, or several behind a router: ``probe(load, effort)``.

    The load is that of all together.
    """

    deployment: Deployment
    step_times: StepTimeArrays
    traffic: Traffic
    objective: ObjectiveSpec
    n_replicas: int = 1
    most_together: int | None = None
    """Of more replicas only this number is simulated, with its part of the load; None: all of
    them."""
    router: cluster_config.Router = "least-loaded"

    def __call__(self, load: float, effort: int) -> Reading:
        """The verdict and the margin at this load."""
        run = self.run(load, effort)
        return reading_of(run, judge_objective(run, self.objective))

    def run(self, load: float, effort: int) -> Run:
        """The simulated run behind it.

        The more replicas, the more requests, up to the limits of this probe and of the traffic.
        """
        n_requests = (
            self.traffic.n_requests * min(self.n_together, _MOST_SHARES) * EFFORT_RATIO**effort
        )
        return self.run_of(load, min(n_requests, self.traffic.most_requests))

    def run_of(self, load: float, n_requests: int, *, record_steps: bool = False) -> Run:
        """The same with this number of requests."""
        plan = plan_at(self.traffic.spec, load * self.n_together / self.n_replicas, n_requests)
        return replace(self, n_replicas=self.n_together).run_plan(plan, record_steps=record_steps)

    @property
    def n_together(self) -> int:
        """The replicas that are simulated."""
        return (
            self.n_replicas
            if self.most_together is None
            else min(self.n_replicas, self.most_together)
        )

    def run_plan(
        self,
        plan: RequestPlan,
        class_replicas: tuple[tuple[int, ...], ...] = (),
        *,
        record_steps: bool = False,
    ) -> Run:
        """What becomes of these requests; ``class_replicas`` are those of each class for a class-aware router."""
        servers = fleet.Fleet(
            replicas=cluster_config.ClusterConfig(
                engine=self._config(plan),
                n_replicas=self.n_replicas,
                # The router of one replica is never asked, and may be one that its engine refuses.
                router=self.router if self.n_replicas > 1 else "round-robin",
                class_replicas=class_replicas,
            ),
            step_times=self.step_times,
            front_end_s=self.deployment.front_end_s,
        )
        return _probe_run(servers, plan, record_steps=record_steps)

    def _config(self, plan: RequestPlan) -> engine_config.EngineConfig:
        """Without a prefix cache where there is nothing to find: the same steps, sooner."""
        config = self.deployment.config
        is_of_use = self.router == "prefix-affine" or bool(plan.prefix_tokens.any())
        if is_of_use or not isinstance(config, scheduler_config.SchedulerConfig):
            return config
        return replace(config, enable_prefix_caching=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProbe:
    """Asks a whole fleet: a gate, prefill replicas, a router, replicas that share experts.

    The load is that of all together; ``n_replicas`` are all of them.
    """

    fleet: fleet.Fleet
    n_replicas: int
    traffic: Traffic
    objective: ObjectiveSpec

    def __call__(self, load: float, effort: int) -> Reading:
        """The verdict and the margin at this load; the more replicas, the more requests."""
        n_requests = (
            self.traffic.n_requests * min(self.n_replicas, _MOST_SHARES) * EFFORT_RATIO**effort
        )
        run = self.run_of(load, min(n_requests, self.traffic.most_requests))
        return reading_of(run, judge_objective(run, self.objective))

    def run_of(self, load: float, n_requests: int) -> Run:
        """The simulated run of this number of requests at this load."""
        plan = plan_at(self.traffic.spec, load, n_requests)
        return _probe_run(self.fleet, plan, record_steps=False)


def _probe_run(servers: fleet.Fleet, plan: RequestPlan, *, record_steps: bool) -> Run:
    return simulated_run.simulated_run(
        run.run(servers, plan, record_steps=record_steps),
        servers.rules,
        run_id="probe",
        created_utc="",
        command=(),
        tool_version="",
    )


def reading_of(run: Run, judgement: Judgement) -> Reading:
    """What a simulated run says of a promise.

    Overload, and requests that are refused, break it whatever the percentiles say.
    """
    breaking = next(
        (caution for caution in run.manifest.cautions if caution.code in _BREAKING), None
    )
    weakest = judgement.weakest
    margin, ends, why = float("inf"), None, "the SLO has no percentile"
    if weakest is not None:
        why = f"{weakest.threshold.text}: {weakest.why}"
        seen = (
            None
            if weakest.seen is None
            else weakest.seen.seconds.scaled(1 / weakest.threshold.limit_s)
        )
        margin = margin if seen is None else seen.value
        ends = (
            None if seen is None or seen.low is None or seen.high is None else (seen.low, seen.high)
        )
    if breaking is not None:
        margin, ends, why = float("inf"), None, breaking.text
    n_requests = 0 if run.requests is None else len(run.requests.status)
    return Reading(
        verdict=judgement.verdict if breaking is None else "missed",
        margin_ratio=margin,
        why=why,
        n_requests=n_requests,
        took_s=_span_s(run),
        margin_interval=ends,
    )


def _span_s(run: Run) -> float:
    requests = run.requests
    if requests is None or not len(requests.status):
        return 0.0
    return max(int(requests.finished_ns.max()) - int(requests.intended_send_ns.min()), 0) / NS_PER_S
