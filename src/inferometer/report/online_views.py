"""What is there to show of a load test beside its requests.

The verdict, tokens one by one, errors, other tools' numbers, the client?
"""

from dataclasses import dataclass

from inferometer.records.inter_token import InterTokenSummary
from inferometer.records.load_errors import ErrorCount
from inferometer.records.load_series import InFlight, Lateness
from inferometer.records.load_types import Validity
from inferometer.records.server_summaries import ServerSummary
from inferometer.records.steady_state import SteadyState
from inferometer.records.tool_views import ToolView
from inferometer.records.ttft_parts import TtftParts
from inferometer.spec.types import DType


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
    """None where nobody said what it runs on."""
    ttft_parts: TtftParts | None = None
