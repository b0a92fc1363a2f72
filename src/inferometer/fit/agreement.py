"""How far are a simulation's latencies from those that were measured, statistic by statistic?

Letters of shapes: N requests.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.replay import Latencies
from inferometer.records.columns import F64, I64, Bools
from inferometer.records.types import StepTable

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
    """Mean and percentiles of TTFT, TPOT and E2E of the requests that ``keep`` (N) names and that both have."""
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


def noticed_ns(steps: StepTable, arrival_ns: I64) -> I64:
    """(N) When did the scheduler take in each request: at once while nothing was computed, else at the end of the step?

    vLLM's log calls it queued. With batches in flight the engine looks for arrivals once a step,
    when the oldest is done.
    """
    start_ns, end_ns = steps.start_ns, steps.start_ns + steps.duration_ns
    step = np.minimum(np.searchsorted(end_ns, arrival_ns), len(end_ns) - 1)
    return np.where(start_ns[step] < arrival_ns, np.maximum(end_ns[step], arrival_ns), arrival_ns)
