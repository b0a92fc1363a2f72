"""What do the charts of a run of requests draw: tails, and latency over time?"""

from typing import Final

import numpy as np

from inferometer.records import latencies, run_series, tokens
from inferometer.records.server_summaries import TtftParts, engine_ttft_parts
from inferometer.records.steady_state import SteadyState
from inferometer.records.types import RequestTable, Run
from inferometer.report.request_views import LatencyHistory, LatencyTail, OnlineView
from inferometer.units import NS_PER_S

MAX_DOTS: Final = 600
"""More requests one by one tell nothing more and make pages heavy."""
TAILS: Final[tuple[latencies.Latency, ...]] = ("ttft", "tpot", "e2e")


def tails(run: Run) -> tuple[LatencyTail, ...]:
    """The tails of TTFT, TPOT and E2E, those that the run has."""
    at_ns = latencies.end_ns(run)
    found: list[LatencyTail] = []
    for latency in TAILS:
        samples = latencies.latency_samples(requests_of(run), latency, at_ns=at_ns)
        tail = latencies.tail_of(samples)
        if tail is not None:
            found.append(LatencyTail(latency=latency, n_samples=len(samples.rows), tail=tail))
    return tuple(found)


def history(
    run: Run, latency: latencies.Latency = "ttft", *, steady: SteadyState | None = None
) -> LatencyHistory | None:
    """A latency over the time of the run; None where no request has it."""
    requests = requests_of(run)
    samples = latencies.latency_samples(requests, latency, at_ns=latencies.end_ns(run))
    if not len(samples.rows):
        return None
    picked = np.unique(np.linspace(0, len(samples.rows) - 1, MAX_DOTS).astype(np.intp))
    return LatencyHistory(
        latency=latency,
        windows=run_series.latency_windows(requests, samples),
        n_requests=len(samples.rows),
        sent_s=requests.intended_send_ns[samples.rows[picked]] / NS_PER_S,
        lower_s=samples.lower_s[picked],
        is_bounded_below_only=np.isinf(samples.upper_s[picked]),
        steady_s=None if steady is None else (steady.start_ns / NS_PER_S, steady.end_ns / NS_PER_S),
    )


def gaps(run: Run) -> run_series.GapMap | None:
    """Which requests waited for their next token when; None where the run does not say who got what when."""
    if run.chunks is None and (run.steps is None or run.parts is None):
        return None
    return run_series.gap_map(requests_of(run), tokens.delivery_gaps(tokens.deliveries(run)))


def first_token_parts(run: Run, online: OnlineView | None) -> TtftParts | None:
    """Where the time to the first token goes.

    As the server's metrics say of a load test, as the engine recorded of another run.
    """
    return engine_ttft_parts(requests_of(run)) if online is None else online.ttft_parts


def requests_of(run: Run) -> RequestTable:
    """The table of requests, which the run has."""
    if run.requests is None:
        raise ValueError("a run of requests has requests")
    return run.requests
