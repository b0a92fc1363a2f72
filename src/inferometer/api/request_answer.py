"""What do show and report say of runs of requests, simulated or measured?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferometer.api import server_answer
from inferometer.api.request_view import RequestQuestion, request_view
from inferometer.errors import SpecError
from inferometer.records import (
    exchange_errors,
    latencies,
    request_summaries,
    run_series,
    server_summaries,
    slo_verdicts,
    steady_state,
    tool_views,
    types,
)
from inferometer.records.types import Caution, Run
from inferometer.report.request_views import OnlineView, RequestReportView
from inferometer.report.views import FiveLines


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineAnswer:
    """What a load test says beside its requests."""

    validity: types.Validity
    steady: steady_state.SteadyState | None
    inter_token: request_summaries.InterTokenSummary
    errors: tuple[exchange_errors.ErrorCount, ...]
    tools: tuple[tool_views.ToolView, ...]
    server: server_answer.ServerAnswer | None
    """Where its metrics were scraped."""
    ttft_parts: server_summaries.TtftParts | None


def online_answer(online: OnlineView) -> OnlineAnswer:
    """The view without what is only drawn."""
    return OnlineAnswer(
        validity=online.validity,
        steady=online.steady,
        inter_token=online.inter_token,
        errors=online.errors,
        tools=online.tools,
        server=(
            None
            if online.server is None
            else server_answer.server_answer(online.server, online.server_use)
        ),
        ttft_parts=online.ttft_parts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRunAnswer:
    """What a run of requests says: of all requests, then of each class."""

    title: str
    five_lines: FiveLines
    summaries: tuple[request_summaries.RequestSummary, ...]
    judgement: slo_verdicts.Judgement | None
    handovers: latencies.HandoverSummary | None
    """Where requests went from one server to another: the time between."""
    memory: run_series.StepMemorySummary | None
    """Where the run has steps: what was used of the KV cache, which holes it had, what was
    swapped."""
    cautions: tuple[Caution, ...]
    online: OnlineAnswer | None
    """Of load tests."""


def are_of_requests(runs: Sequence[Run]) -> bool:
    """Are these runs of requests, rather than sweeps?

    Raises
    ------
    SpecError
        Some are and some are not.
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
    """All that is to be shown of each run."""
    return tuple(
        request_view(run, question, path=path, report_path=report_path)
        for run, path in zip(runs, paths, strict=True)
    )


def answer_of(view: RequestReportView) -> RequestRunAnswer:
    """The view without what is only drawn."""
    return RequestRunAnswer(
        title=view.title,
        five_lines=view.five_lines,
        summaries=view.summaries,
        judgement=view.judgement,
        handovers=view.handovers,
        memory=view.memory,
        cautions=(*view.lead_cautions, *view.cautions),
        online=None if view.online is None else online_answer(view.online),
    )
