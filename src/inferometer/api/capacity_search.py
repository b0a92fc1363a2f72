"""How is the highest load of a fleet searched, at each case of its step times?"""

from typing import Final, NamedTuple

from inferometer.api.capacity_page import PacedCapacity, paced
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
_LIKELY_FRACTION: Final = 0.7
"""Of the time limit, for the capacity at likely step times; the other cases share the rest."""
_LAST_FRACTION: Final = 1.2
"""Of its share of the time: when a simulation that still runs is given up."""
_ROUGH_RESOLUTION_RATIO: Final = 0.1
"""Of the capacities at fast and slow step times."""


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

    def at(self, one: CaseLoad) -> PacedCapacity:
        """The capacity of this server, looked for from this load on; only the likely one is located closely."""
        case, start_load = one
        is_likely, n_others = case == "likely", len(self.deployment.cases) - 1
        self._probe(case).run_of(
            start_load, _FIRST_REQUESTS
        )  # compiles what is not in the cache, before the time begins
        phases = time_limits.Phases(
            self.limit.share(_LIKELY_FRACTION if is_likely else (1 - _LIKELY_FRACTION) / n_others)()
        )
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
            time_left_s=phases.time_left_s,
        )
        with phases.until(_LAST_FRACTION):
            found = searches.find_capacity(self._probe(case), question)
        return paced(case if isinstance(case, str) else "draw", found)

    def _probe(self, case: Case) -> probing.FleetProbe:
        n_replicas = self.fleets.n_replicas or 1
        return probing.FleetProbe(
            fleet=self.fleets.fleet(self.deployment, case, n_replicas),
            traffic=self.traffic,
            objective=self.objective,
        )
