"""What is there to show of a run of requests?

Its summaries, verdict, tails, series and timeline, ready to be drawn.
"""

from dataclasses import dataclass

from inferometer.inputs.types import DType
from inferometer.records import latencies, run_series
from inferometer.records.columns import F64, Bools
from inferometer.records.exchange_errors import ErrorCount
from inferometer.records.latencies import HandoverSummary
from inferometer.records.request_summaries import InterTokenSummary, RequestSummary
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
from inferometer.records.slo_verdicts import Judgement
from inferometer.records.slot_timeline import SlotTimeline
from inferometer.records.steady_state import SteadyState
from inferometer.records.tool_views import ToolView
from inferometer.records.types import Caution, Validity
from inferometer.report.views import FactGroup, FiveLines, Statement

# What is there to show of a load test beside its requests.
# The verdict, tokens one by one, errors, other tools' numbers, the client?


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUse:
    """How much of one accelerator the server says that it uses, of the datasheet's peaks.

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
    """All that a report on a load test shows beside what every run of requests has."""

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
    """One latency over the time of the run: percentiles of windows, and some of the requests one by one."""

    latency: latencies.Latency
    windows: LatencyWindows
    n_requests: int
    sent_s: F64
    """Of the requests that are drawn one by one, evenly picked from all."""
    lower_s: F64
    is_bounded_below_only: Bools
    steady_s: tuple[float, float] | None = None
    """From when to when the run was steady, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReportView:
    """All that a report on a run of requests shows.

    ``summaries`` are those of all requests, of the steady state, then of each class.
    """

    title: str
    subtitle: str
    five_lines: FiveLines
    summaries: tuple[RequestSummary, ...]
    judgement: Judgement | None = None
    handovers: HandoverSummary | None = None
    """Where requests went from one server to another."""
    tails: tuple[LatencyTail, ...] = ()
    history: LatencyHistory | None = None
    tpot_history: LatencyHistory | None = None
    """Of load tests."""
    load: StepSeries | None = None
    memory: StepMemorySummary | None = None
    holes: HoleSeries | None = None
    """Where each request has one piece of the KV cache."""
    swapped_blocks: ValueSeries | None = None
    """Where blocks are swapped."""
    online: OnlineView | None = None
    """Of load tests."""
    gaps: run_series.GapMap | None = None
    """Where the run says who got which token when."""
    ttft_parts: TtftParts | None = None
    concurrency: int | None = None
    """Of a closed loop."""
    """Where the engine or the server's metrics report it."""
    n_kv_blocks: int | None = None
    """Of the engine, where it is known."""
    timeline: SlotTimeline | None = None
    lead_cautions: tuple[Caution, ...] = ()
    """What makes the answer itself doubtful, such as overload."""
    cautions: tuple[Caution, ...] = ()
    statements: tuple[Statement, ...] = ()
    fact_groups: tuple[FactGroup, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    rerun_command: str = ""
    tool_version: str = ""
