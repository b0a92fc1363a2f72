"""Simulate measured requests again, as they were sent, and compare the latencies.

Letters of shapes: N requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.perfmodel.steptime import StepTimeModel, arrays_of
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import F64, Bools
from inferometer.records.types import RequestStatus, RequestTable
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.fleet import ClusterConfig, Fleet, Router
from inferometer.simulate.outcome import Simulation
from inferometer.simulate.run import simulate_fleet
from inferometer.simulate.scheduler_config import SchedulerConfig

Pricing: TypeAlias = Callable[[StepTimeModel], StepTimeArrays]
"""Turns a model's step times into a simulator's: ``arrays_of``, or ``lockstep_arrays`` where
replicas step together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An engine's scheduler, the prefix blocks that prompts share, and how a step is priced."""

    config: SchedulerConfig
    shared: SharedBlocks | None = None
    pricing: Pricing = arrays_of
    n_replicas: int = 1
    """Several replicas take each step together, behind this router."""
    router: Router = "least-loaded"

    def simulated(
        self, requests: RequestTable, model: StepTimeModel, front_end_s: float
    ) -> Simulation:
        """Simulate requests sent at the same times; the rows keep their order."""
        arrival_ns = requests.sent_ns + round(front_end_s * 1e9)
        asked = demand(arrival_ns, requests.prompt_tokens, requests.output_tokens)
        if self.config.enable_prefix_caching:
            asked = with_contents(asked, self.config.block_size, self.shared)
        group = ClusterConfig(
            engine=self.config,
            n_replicas=self.n_replicas,
            in_lockstep=self.n_replicas > 1,
            router=self.router,
        )
        return simulate_fleet(Fleet(replicas=group, step_times=self.pricing(model)), asked)


class Latencies(NamedTuple):
    """Latencies of N requests from their send; NaN where there is none."""

    ttft_s: F64
    tpot_s: F64
    e2e_s: F64


def latencies(asked: RequestTable, found: RequestTable) -> Latencies:
    """Latencies of ``found``, from the sends of the same requests in ``asked``."""
    n_found = len(found.sent_ns)
    sent_ns = asked.sent_ns[:n_found]
    first_s = np.where(found.first_token_ns >= 0, (found.first_token_ns - sent_ns) / 1e9, np.nan)
    is_done = np.isin(found.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    last_s = np.where(is_done, (found.finished_ns - sent_ns) / 1e9, np.nan)
    n_gaps = np.where(found.output_tokens > 1, found.output_tokens - 1.0, np.nan)
    lost = np.full(len(asked.sent_ns) - n_found, np.nan)
    return Latencies(
        *(
            np.concatenate([column, lost])
            for column in (first_s, (last_s - first_s) / n_gaps, last_s)
        )
    )


STATISTICS: Final = ("mean", "p50", "p90", "p99")


class Agreement(NamedTuple):
    """One statistic of one latency, measured and simulated."""

    metric: str
    statistic: str
    measured_s: float
    simulated_s: float

    @property
    def error_fraction(self) -> float:
        """Signed, relative to what was measured."""
        return self.simulated_s / self.measured_s - 1


def agreements(
    measured: Latencies, simulated: Latencies, keep: Bools | None = None
) -> tuple[Agreement, ...]:
    """Mean and percentiles of TTFT, TPOT and E2E, of the requests in ``keep`` (N)."""
    found: list[Agreement] = []
    for name in Latencies._fields:
        seen, made = getattr(measured, name), getattr(simulated, name)
        both = ~np.isnan(seen) & ~np.isnan(made) & (True if keep is None else keep)
        for statistic in STATISTICS:
            values = statistic_of(seen[both], statistic), statistic_of(made[both], statistic)
            found.append(Agreement(name.removesuffix("_s"), statistic, *values))
    return tuple(found)


def statistic_of(values: F64, statistic: str) -> float:
    """The mean or a percentile, linear between ranks."""
    return (
        float(np.mean(values))
        if statistic == "mean"
        else float(np.percentile(values, float(statistic[1:])))
    )
