"""How is the highest load of a fleet searched, at each case of its step times?"""

from dataclasses import replace
from typing import Final, NamedTuple

from inferometer.api.fleet import Fleets
from inferometer.api.time_limit import TimeLimit
from inferometer.decide import capacity as searches, lone_request, probing, time_limits, traffic
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.simulate.deployment import Case, Deployment

_SPAN_RATIO: Final = 1e4
"""From the start of the search, up and down."""
_MOST_EFFORT: Final = 6
"""Probes get longer until verdicts are decided, the traffic's limit is reached, or the time is
over."""
_FIRST_REQUESTS: Final = 40
_LIKELY_FRACTION: Final = 0.5
"""Of the time limit, for the capacity at likely step times; the other cases share the rest."""
_LAST_FRACTION: Final = 1.2
"""Of its share of the time: when a simulation that still runs is given up."""
_PAIRED_LENGTH_RATIO: Final = 4
"""Requests of a probe of a paired search over those of the shortest probe."""
_PAIRED_RESOLUTION_RATIO: Final = 0.2
"""Between the loads of a paired search; the crossing is interpolated between them."""


class CaseLoad(NamedTuple):
    """One case of the step times, and the load from which its capacity is looked for."""

    case: Case
    start_load: float


class Search(NamedTuple):
    """The question to each server that may be the one."""

    fleets: Fleets
    deployment: Deployment
    """The replica that generates answers."""
    traffic: traffic.Traffic
    objective: ObjectiveSpec
    resolution_ratio: float
    limit: TimeLimit

    def alone(self) -> lone_request.LoneRequest | None:
        """The least that a request takes at likely step times; None where others compute its prompt."""
        if self.fleets.n_prefill:
            return None
        plan = traffic.plan_at(self.traffic.spec, 1.0, self.traffic.n_requests)
        return lone_request.lone_request(
            self.deployment, self.deployment.step_times.likely, plan, self.objective
        )

    def likely(self, start_load: float) -> searches.Capacity:
        """The capacity at likely step times, looked for from this load on, by longer and longer probes."""
        return self._found(
            CaseLoad("likely", start_load),
            self.limit.share(_LIKELY_FRACTION),
            resolution_ratio=self.resolution_ratio,
            proof_effort=2,
            most_effort=_MOST_EFFORT,
        )

    def paired(self, one: CaseLoad) -> searches.Capacity:
        """The capacity at these step times, by probes of one length, the same for each case.

        Short probes do not show how a queue grows, so that they put each capacity too high; their
        ratio to that of likely step times, by the same requests, hardly depends on the length.
        """
        n_cases = len(self.deployment.cases)
        return self._found(
            one,
            self.limit.share((1 - _LIKELY_FRACTION) / n_cases),
            resolution_ratio=max(self.resolution_ratio, _PAIRED_RESOLUTION_RATIO),
            proof_effort=None,
        )

    def _found(
        self,
        one: CaseLoad,
        limit: TimeLimit,
        *,
        resolution_ratio: float,
        proof_effort: int | None,
        most_effort: int | None = None,
    ) -> searches.Capacity:
        case, start_load = one
        probe = self._probe(case, is_paired=proof_effort is None)
        # Compiles what is not in the cache, before the time begins.
        probe.run_of(start_load, _FIRST_REQUESTS)
        phases = time_limits.Phases(limit())
        question = searches.CapacityQuestion(
            kind=self.traffic.kind,
            start_load=start_load,
            lowest_load=1.0 if self.traffic.kind == "users" else start_load / _SPAN_RATIO,
            highest_load=start_load * _SPAN_RATIO,
            resolution_ratio=resolution_ratio,
            proof_effort=proof_effort,
            most_effort=most_effort,
            time_left_s=phases.time_left_s,
        )
        with phases.until(_LAST_FRACTION):
            return searches.find_capacity(probe, question)

    def _probe(self, case: Case, *, is_paired: bool) -> probing.FleetProbe:
        n_replicas = self.fleets.n_replicas or 1
        n_requests = self.traffic.n_requests * (_PAIRED_LENGTH_RATIO if is_paired else 1)
        return probing.FleetProbe(
            fleet=self.fleets.fleet(self.deployment, case, n_replicas),
            traffic=replace(self.traffic, n_requests=n_requests),
            objective=self.objective,
        )
