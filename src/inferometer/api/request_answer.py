"""What do show and report answer for runs of requests, and which numbers are the server's own?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferometer.api.answer import row_of
from inferometer.api.request_view import RequestQuestion, request_view
from inferometer.errors import SpecError
from inferometer.inputs.types import Caution
from inferometer.records import (
    exchange_errors,
    latencies,
    request_summaries,
    run_series,
    server_summaries,
    steady_state,
    tool_views,
    types,
)
from inferometer.records.kv_pools import KvPoolView
from inferometer.records.server_summaries import Level, ServerSummary, ServerTime
from inferometer.records.types import Run
from inferometer.report.views import (
    ClassJudgement,
    FiveLines,
    OnlineView,
    RequestReportView,
    ServerUse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsLevel:
    """Number of requests over the run."""

    mean_load: float
    highest_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLevel:
    """A share over the run."""

    mean_fraction: float
    highest_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeRow:
    """A latency by the server; its 95th percentile is between two edges of its histogram."""

    name: str
    n: int
    mean_s: float
    p95_low_s: float | None
    p95_high_s: float | None
    """None in the last bucket, which has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The server's own metrics of the run; None: not reported."""

    kind: str
    n_scrapes: int
    n_failed_scrapes: int
    n_restarts: int
    running: RequestsLevel | None
    waiting: RequestsLevel | None
    kv_usage: ShareLevel | None
    n_preemptions: int | None
    n_rejected: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    prefix_hit_fraction: float | None
    flop_per_s: float | None
    """Per accelerator, as the server estimates."""
    moved_bytes_per_s: float | None
    use: ServerUse | None
    """Shares of the device's peaks, where somebody named it (--server-hardware)."""
    times: tuple[ServerTimeRow, ...]


def server_answer(server: ServerSummary, use: ServerUse | None) -> ServerAnswer:
    """The summary as an answer holds it."""
    return row_of(
        ServerAnswer,
        server,
        running=_requests(server.running),
        waiting=_requests(server.waiting),
        kv_usage=_share(server.kv_usage),
        use=use,
        times=tuple(_time(time) for time in server.times),
    )


def _requests(level: Level | None) -> RequestsLevel | None:
    return (
        None if level is None else RequestsLevel(mean_load=level.mean, highest_load=level.highest)
    )


def _share(level: Level | None) -> ShareLevel | None:
    return (
        None
        if level is None
        else ShareLevel(mean_fraction=level.mean, highest_fraction=level.highest)
    )


def _time(time: ServerTime) -> ServerTimeRow:
    p95 = next((one for one in time.percentiles if one.percentile_fraction == 0.95), None)
    return ServerTimeRow(
        name=time.name,
        n=time.n,
        mean_s=time.mean_s,
        p95_low_s=None if p95 is None else p95.low_s,
        p95_high_s=None if p95 is None or math.isinf(p95.high_s) else p95.high_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineAnswer:
    """Results of a load test besides its requests."""

    validity: types.Validity
    steady: steady_state.SteadyState | None
    inter_token: request_summaries.InterTokenSummary
    errors: tuple[exchange_errors.ErrorCount, ...]
    tools: tuple[tool_views.ToolView, ...]
    server: ServerAnswer | None
    """The server's metrics, where they were scraped."""
    ttft_parts: server_summaries.TtftParts | None


def online_answer(online: OnlineView) -> OnlineAnswer:
    """The view without chart data."""
    return row_of(
        OnlineAnswer,
        online,
        server=(None if online.server is None else server_answer(online.server, online.server_use)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRunAnswer:
    """Results of a run of requests: of all, then of each class."""

    title: str
    five_lines: FiveLines
    summaries: tuple[request_summaries.RequestSummary, ...]
    judgement: request_summaries.Judgement | None
    class_judgements: tuple[ClassJudgement, ...]
    """Verdicts of classes with an ``slo`` of their own, for load tests."""
    handovers: latencies.HandoverSummary | None
    """Times of KV transfers, where there were any."""
    memory: run_series.StepMemorySummary | None
    """Use of the KV cache, its holes and swapping, where the run has steps."""
    kv_pools: tuple[KvPoolView, ...]
    """KV pools of a simulated run."""
    cautions: tuple[Caution, ...]
    online: OnlineAnswer | None
    """Results of load tests."""


def are_of_requests(runs: Sequence[Run]) -> bool:
    """Are these runs of requests (not sweeps)?

    Raises
    ------
    SpecError
        Some are runs of requests and some are sweeps.
    """
    kinds = {run.sweep is None and run.requests is not None for run in runs}
    if len(kinds) > 1:
        raise SpecError(
            "some runs are sweeps and some are of requests",
            where="RUN...",
            allowed="runs of one kind",
            try_="one command for each",
        )
    return kinds == {True}


def views_of(
    runs: Sequence[Run],
    paths: Sequence[Path],
    question: RequestQuestion,
    report_path: Path | None = None,
) -> tuple[RequestReportView, ...]:
    """The data to show of each run."""
    return tuple(
        request_view(run, question, path=path, report_path=report_path)
        for run, path in zip(runs, paths, strict=True)
    )


def answer_of(view: RequestReportView) -> RequestRunAnswer:
    """The view without chart data."""
    return row_of(
        RequestRunAnswer,
        view,
        cautions=(*view.lead_cautions, *view.cautions),
        online=None if view.online is None else online_answer(view.online),
    )
