"""Data of reports; nothing is computed here.

Every number is an Estimate or None; None is shown as absent, never as 0. Units are in the names;
charts and tables choose the display unit. The same view gives the same bytes in every surface.

Those of decisions: what devices trade, what an SLO costs, how replicas follow traffic, where a capacity lies?
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from inferometer import __version__
from inferometer.inputs.types import Caution, DType
from inferometer.records import latencies, run_series
from inferometer.records.columns import F64, Bools
from inferometer.records.exchange_errors import ErrorCount
from inferometer.records.kv_pools import KvPoolView
from inferometer.records.latencies import HandoverSummary
from inferometer.records.request_summaries import (
    InterTokenSummary,
    Judgement,
    Percentile,
    RequestSummary,
)
from inferometer.records.run_series import (
    HoleSeries,
    InFlight,
    LatencyWindows,
    Lateness,
    StepMemorySummary,
    StepSeries,
    ValueSeries,
)
from inferometer.records.server_summaries import ServerSummary, TtftParts
from inferometer.records.slot_timeline import SlotTimeline
from inferometer.records.steady_state import SteadyState
from inferometer.records.summaries import StepShares
from inferometer.records.tool_views import ToolView
from inferometer.records.types import Validity, ValidityVerdict
from inferometer.stats.estimate import Estimate, Verdict

PhaseName: TypeAlias = Literal["prefill", "decode"]
CeilingKind: TypeAlias = Literal["read", "copy", "matmul"]
Support: TypeAlias = Literal["supported", "undecided", "single number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FiveLines:
    """The answer in five lines of plain text; ``report`` names the files."""

    answer: str
    limit: str
    next: str
    trust: str
    report: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """One measured point: a prompt length at a batch size, of one run."""

    run_label: str
    prompt_tokens: int
    batch_size: int
    gen_tokens: int
    status: Literal["ok", "out_of_memory", "failed"]
    n_reps: int
    ttft_s: Estimate | None
    """First token of the whole static batch: its prefill."""
    tpot_s: Estimate | None
    """Decode time / decode steps: each step of the static batch yields one token of each
    sequence."""
    decode_step_s: Estimate | None
    """The median decode step, which a single stall does not move: predictions of a step are
    compared with it."""
    prefill_tokens_per_s: Estimate | None
    decode_tokens_per_s: Estimate | None
    """Output tokens per second of the whole batch, while it decodes."""
    output_tokens_per_s: Estimate | None
    """Output tokens per second of prefill and decode together."""
    total_tokens_per_s: Estimate | None
    """Input and output tokens per second."""
    reserved_bytes: Estimate | None
    allocated_bytes: Estimate | None
    device_fraction: Estimate | None
    cpu_fraction: Estimate | None
    energy_joule: Estimate | None
    power_watt: Estimate | None
    minor_faults: Estimate | None
    major_faults: Estimate | None
    unused_reserved_fraction: Estimate | None
    energy_joule_per_token: Estimate | None
    mbu_fraction: Estimate | None
    """MBU of decode, against the bandwidth measured around this point."""
    mfu_fraction: Estimate | None
    """MFU of prefill, against the matmul rate measured around this point."""
    mbu_datasheet_fraction: Estimate | None
    mfu_datasheet_fraction: Estimate | None
    predicted_decode_step_s: Estimate | None
    """By a model fitted without this point, where there is one."""
    predicted_ttft_s: Estimate | None
    decode_limited_by: str | None
    prefill_limited_by: str | None
    flags: tuple[str, ...]
    """Such as COLLAPSE_PREFILL(x3.4), OUT_OF_MEMORY, NOISY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One point of a fitted curve."""

    prompt_tokens: int
    batch_size: int
    duration_s: Estimate
    is_inside_box: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Predictions of the fitted model between and beyond the points.

    A phase over prompts at one batch, or over batches at one prompt.
    """

    run_label: str
    phase: PhaseName
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofCeiling:
    """A roof: a bandwidth and a peak that belong together."""

    label: str
    kind: Literal["measured", "datasheet"]
    read_bytes_per_s: float
    peak_flop_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """Achieved FLOP/s and intensity of a phase of a point."""

    run_label: str
    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    intensity_flop_per_byte: float
    achieved_flop_per_s: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineView:
    """Measured points under measured and nominal roofs."""

    ceilings: tuple[RoofCeiling, ...]
    points: tuple[RooflinePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """Predicted and measured time of a point."""

    run_label: str
    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    measured_s: Estimate
    predicted_s: Estimate
    is_held_out: bool
    """The model that predicted it had not seen it."""
    is_judged: bool = True
    """Do its repetitions agree well enough to judge a model by it?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """A part of a step's time.

    Launch, weights, kv, matmul, attention, logits, per_sequence, communication, unexplained.
    """

    name: str
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Parts of the time of one phase of one point.

    The parts sum to what was measured, ``unexplained`` may be negative.
    """

    run_label: str
    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    measured_s: Estimate
    parts: tuple[TimePart, ...]
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingMoment:
    """The machine's ceilings at one moment of the run."""

    run_label: str
    elapsed_s: float
    kind: CeilingKind
    value_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A finding in words, and whether the data support it."""

    sentence: str
    support: Support


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRow:
    """A fitted parameter: name, value with interval, and what informed it."""

    name: str
    value: str
    interval: str
    informed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRow:
    """Error of the model on held-out points, for those whose repetitions agree."""

    run_label: str
    phase: PhaseName
    n_points: int
    median_fraction: float
    p95_fraction: float
    coverage_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FactGroup:
    """A titled list of labelled facts: model card, machine, engine, software, command."""

    title: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReportView:
    """Everything that a report on sweeps shows; runs stand side by side by ``run_label``."""

    title: str
    subtitle: str
    five_lines: FiveLines
    points: tuple[PointRow, ...]
    curves: tuple[Curve, ...] = ()
    roofline: RooflineView | None = None
    predictions: tuple[PredictedPoint, ...] = ()
    explained: tuple[Explained, ...] = ()
    ceilings: tuple[CeilingMoment, ...] = ()
    statements: tuple[Statement, ...] = ()
    cautions: tuple[Caution, ...] = ()
    parameters: tuple[ParameterRow, ...] = ()
    step_shares: StepShares | None = None
    """Parts of a decode step of one sequence, by steps of two widths."""
    held_out: tuple[HeldOutRow, ...] = ()
    fact_groups: tuple[FactGroup, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """(what, path)."""
    rerun_command: str = ""
    tool_version: str = ""


# What is there to show of a run of requests?
#
# Its summaries, verdict, tails, series and timeline, ready to be drawn.


# What is there to show of a load test beside its requests.
# The verdict, tokens one by one, errors, other tools' numbers, the client?


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUse:
    """Share of the datasheet's peaks that one accelerator uses, by the server's estimate.

    None: it does not estimate it.
    """

    device: str
    dtype: DType
    flop_utilisation_fraction: float | None
    """MFU"""
    bandwidth_utilisation_fraction: float | None
    """MBU"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineView:
    """Data of a report on a load test that other runs of requests do not have."""

    validity: Validity
    steady: SteadyState | None
    """None where the run has too few requests to tell."""
    inter_token: InterTokenSummary
    errors: tuple[ErrorCount, ...]
    tools: tuple[ToolView, ...]
    in_flight: InFlight | None = None
    lateness: Lateness | None = None
    server: ServerSummary | None = None
    """None where its metrics were not scraped, or too seldom."""
    server_use: ServerUse | None = None
    """None where its device is not known."""
    ttft_parts: TtftParts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTail:
    """The tail of one latency."""

    latency: latencies.Latency
    n_samples: int
    tail: latencies.Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyHistory:
    """One latency over time: percentiles of windows, and some single requests."""

    latency: latencies.Latency
    windows: LatencyWindows
    n_requests: int
    sent_s: F64
    """Send times of the requests that are drawn singly, evenly picked from all."""
    lower_s: F64
    is_bounded_below_only: Bools
    steady_s: tuple[float, float] | None = None
    """Start and end of the steady state, where known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassJudgement:
    """Verdict on the SLO of one class of requests."""

    name: str
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReportView:
    """Data of a report on a run of requests.

    ``summaries`` are those of all requests, of the steady state, then of each class.
    """

    title: str
    subtitle: str
    five_lines: FiveLines
    summaries: tuple[RequestSummary, ...]
    judgement: Judgement | None = None
    class_judgements: tuple[ClassJudgement, ...] = ()
    """Verdicts of classes with an ``slo`` of their own, for load tests."""
    handovers: HandoverSummary | None = None
    """Times of KV transfers, where there were any."""
    tails: tuple[LatencyTail, ...] = ()
    history: LatencyHistory | None = None
    tpot_history: LatencyHistory | None = None
    """For load tests."""
    load: StepSeries | None = None
    memory: StepMemorySummary | None = None
    kv_pools: tuple[KvPoolView, ...] = ()
    """For divided KV caches."""
    holes: HoleSeries | None = None
    """For contiguous KV caches."""
    swapped_blocks: ValueSeries | None = None
    """For servers that swap."""
    online: OnlineView | None = None
    """For load tests."""
    gaps: run_series.GapMap | None = None
    """For runs with recorded tokens."""
    ttft_parts: TtftParts | None = None
    concurrency: int | None = None
    """Users of a closed loop."""
    class_users: Mapping[str, int] = field(default_factory=dict)
    """Users of each class of a closed loop, where classes have their own."""
    """Where the engine or the server's metrics report it."""
    n_kv_blocks: int | None = None
    """KV blocks of the engine, where known."""
    timeline: SlotTimeline | None = None
    lead_cautions: tuple[Caution, ...] = ()
    """Cautions that put the answer itself in question, such as overload."""
    cautions: tuple[Caution, ...] = ()
    statements: tuple[Statement, ...] = ()
    fact_groups: tuple[FactGroup, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    rerun_command: str = ""
    tool_version: str = ""


# What is there to show of several runs of requests side by side, one for each rate or number of
# users?


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """One run."""

    label: str
    concurrency: int | None
    """Users of a closed loop; None in an open loop."""
    offered_requests_per_s: float | None
    """None of a closed loop, which offers what the server takes."""
    ttft_p50: Percentile | None
    ttft_p95: Percentile | None
    tpot_p50: Percentile | None
    tpot_p95: Percentile | None
    output_tokens_per_s: Estimate | None
    completed_requests_per_s: Estimate | None
    good_requests_per_s: float | None
    """None where no objective was given."""
    ttft_parts: TtftParts | None
    """Parts of its mean TTFT; None where unknown."""
    verdict: ValidityVerdict | None
    """None for runs that are no load tests."""
    beyond: str = ""
    """For a measured point beside a curve: why its traffic is not the curve's."""
    server: str = ""
    """Which of several servers answered; '' where all runs are of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """Data of a report on several runs of requests."""

    title: str
    subtitle: str
    answer: str
    objective: str
    """'' where none was given."""
    points: tuple[RatePoint, ...]
    """Sorted by offered rate, or by concurrency."""
    capacity_per_s: float | None = None
    traffic_per_s: float | None = None
    """The user's own."""
    measured: tuple[RatePoint, ...] = ()
    """Load tests beside simulated points."""
    interval: str = "95 % interval"
    """Meaning of bars and bands."""
    files: tuple[tuple[str, str], ...]
    tool_version: str = __version__
    cautions: tuple[Caution, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Are all runs closed loops, so that the x-axis is the concurrency?"""
        return all(point.concurrency is not None for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class TradePoint:
    """The replicas of one device at one load."""

    device: str
    offered_requests_per_s: float
    tokens_per_s_per_user: Estimate
    device_tokens_per_s: Estimate
    """Output, per device."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCost:
    """Cost of the traffic on one device under limits of this strictness."""

    device: str
    limit_ratio: float
    objective: str
    n_replicas: int
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCourse:
    """The replicas of one policy over time."""

    name: str
    n_replicas: tuple[int, ...]
    """Ready in each window."""
    usd: float | None
    slo_met_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseView:
    """Varying traffic, and the policies that follow it."""

    window_s: float
    rates_per_s: tuple[float, ...]
    policies: tuple[PolicyCourse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One load that a search for a capacity tried, in order."""

    offered_load: float
    effort: int
    n_requests: int
    took_s: float
    """Simulated or measured."""
    verdict: Verdict
    margin_ratio: float | None
    """Nearest latency / its limit; None where the server cannot keep up, or refuses requests."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """Data of a decision's charts; empty where there are none."""

    trades: tuple[TradePoint, ...] = ()
    limit_costs: tuple[LimitCost, ...] = ()
    rates: tuple[RatePoint, ...] = ()
    """Points of the pick."""
    objective: str = ""
    course: CourseView | None = None
    probes: tuple[ProbeRow, ...] = ()
    unit: str = "requests/s"
    """Unit of the probes' loads."""
    met_load: float | None = None
    missed_load: float | None = None
    traffic_per_s: float | None = None
    """The user's own, where loads are rates."""
