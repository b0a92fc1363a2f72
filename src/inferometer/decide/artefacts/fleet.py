"""What is to run, and what was predicted of it?

All that the files of a deployment are made of: their plan.
"""

from dataclasses import dataclass

from inferometer.decide.candidates import NODE_DEVICES
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.perfmodel.communication import ParallelPlan
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.steptime_levels import Basis
from inferometer.perfmodel.work import kv_dtype
from inferometer.records.types import Caution
from inferometer.simulate.deployment import Pace
from inferometer.simulate.fleet import Router
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.stats.estimate import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One replica of a fleet that was simulated whole, under its part of a load."""

    step_times: Pace
    requests_per_s: float
    in_flight_load: float
    """Requests that wait or run, in the mean over time: their time in the system / the time
    (Little)."""
    n_waiting_high: int
    """Below it for 99 % of the time."""
    kv_used_mean_fraction: float
    kv_used_high_fraction: float
    """Below it for 99 % of the time."""
    preemptions_per_request_ratio: float
    ttft_mean_s: float | None
    tpot_mean_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One threshold, and what the likely step times give."""

    text: str
    verdict: Verdict
    seen_s: float | None
    low_s: float | None
    high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What a sizing decided, as far as deploying, watching and checking it goes.

    The rates of operating points are those of one replica.
    """

    model: ModelSpec
    hardware: HardwareSpec
    engine: EngineSpec
    scheduler: SchedulerConfig
    utilization_fraction: float
    """``gpu_memory_utilization``"""
    n_replicas: int
    n_replicas_if_one_fails: int
    workload: WorkloadSpec
    rate_per_s: float
    """Of the whole traffic; of users who wait: what they make."""
    objective: ObjectiveSpec
    router: Router
    sized_for: Pace
    """The step times at which the promise is to be kept; what follows is at these."""
    verdict: Verdict
    promises: tuple[Promise, ...]
    weakest: str | None
    breaks_first: str | None
    prompt_mean_tokens: float
    output_mean_tokens: float
    e2e_high_s: float | None
    """The 99th percentile."""
    kept_requests_per_s: float | None
    """The highest rate of one replica that was shown to keep the promise, or located."""
    broken_requests_per_s: float | None
    """The lowest rate of one replica that was shown to break it."""
    planned: tuple[OperatingPoint, ...]
    """Under its part of the traffic, at likely, fast and slow step times."""
    fullest: OperatingPoint
    """At the highest rate that keeps the promise; under its part of the traffic where none is
    known."""
    step_times_basis: Basis
    step_times_from: str
    has_stated_links: bool
    """What joins the devices, or how long an all-reduce takes, was stated."""
    kv_origin: str
    usd_per_hour: float | None
    price_from: str | None
    """None: nobody says what it costs."""
    cautions: tuple[Caution, ...]
    tool_version: str
    users: int | None = None
    """Who each wait for an answer before the next request; None: requests come at the rate."""
    gate: GateSpec | None = None
    """What the router does of a gate: who waits there, and who goes first."""

    @property
    def has_priorities(self) -> bool:
        """Do classes of requests differ in urgency, and does engine or router heed it?"""
        is_heeded = self.scheduler.policy == "priority" or (
            self.gate is not None and self.gate.order == "priority"
        )
        return is_heeded and len({one.priority for one in self.workload.classes}) > 1

    @property
    def likely(self) -> OperatingPoint:
        """A replica under its part of the traffic at likely step times."""
        return next(point for point in self.planned if point.step_times == "likely")

    @property
    def kv_bytes(self) -> int:
        """Of the KV cache of a replica, on all its devices."""
        token_bytes = kv_bytes_per_token(self.model, kv_dtype(self.engine))
        return self.scheduler.n_kv_blocks * self.scheduler.block_size * token_bytes

    @property
    def n_devices(self) -> int:
        """To a replica."""
        return ParallelPlan(
            n_tensor=self.engine.tensor_parallel_size,
            n_pipeline=self.scheduler.pipeline_parallel_size,
        ).n_devices

    @property
    def n_nodes(self) -> int:
        """To a replica, of machines as they are sold.

        As few as hold it with an equal part on each, and no tensor-parallel group cut.
        """
        n_devices, tp = self.n_devices, self.engine.tensor_parallel_size
        counts = (
            n for n in range(-(-n_devices // NODE_DEVICES), n_devices + 1) if n_devices % n == 0
        )
        return next(n for n in counts if (each := n_devices // n) % tp == 0 or tp % each == 0)
