"""What is shown of a load test beside its requests?"""

from inferometer.api.request_chart_views import requests_of
from inferometer.api.server_device import ServerDevice, use_of
from inferometer.errors import RecordError
from inferometer.records import run_series, server_summaries, tool_views
from inferometer.records.exchange_errors import error_counts
from inferometer.records.latencies import end_ns
from inferometer.records.request_summaries import (
    RequestSummary,
    inter_token_summary,
    summarise_steady,
)
from inferometer.records.steady_state import steady_state
from inferometer.records.types import Run
from inferometer.records.validity import validity_of
from inferometer.report.request_views import OnlineView


def online_view(run: Run, device: ServerDevice | None = None) -> OnlineView | None:
    """All that is shown of a load test beside its requests; None for a run that is none."""
    validity = run.manifest.validity or validity_of(run)
    if validity is None or run.exchanges is None or run.chunks is None:
        return None
    requests = requests_of(run)
    server = _server(run)
    return OnlineView(
        validity=validity,
        steady=steady_state(run),
        inter_token=inter_token_summary(run),
        errors=error_counts(run.exchanges),
        tools=tool_views.tool_views(run),
        in_flight=run_series.in_flight(requests, run.exchanges, at_ns=end_ns(run)),
        lateness=run_series.lateness(requests, run.lags),
        server=server,
        server_use=use_of(server, device),
        # No cause is named from numbers that are not the server's.
        ttft_parts=(
            None
            if server is None or validity.verdict == "INVALID"
            else server_summaries.ttft_parts(requests, server)
        ),
    )


def _server(run: Run) -> server_summaries.ServerSummary | None:
    """What the server said of the whole run; None where it was not asked, or not twice."""
    if run.server is None:
        return None
    try:
        return server_summaries.summarise_server(run.server)
    except RecordError:
        return None


def steady_summaries(run: Run, online: OnlineView | None) -> tuple[RequestSummary, ...]:
    """The steady state's own numbers; none where nothing is cut, so that the whole run says it all."""
    steady = None if online is None else online.steady
    return (
        (summarise_steady(run, steady),)
        if steady is not None and (steady.n_warm_up or steady.n_drain)
        else ()
    )
