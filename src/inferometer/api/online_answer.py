"""What does an answer hold of a load test beside its requests?"""

from dataclasses import dataclass

from inferometer.api import server_answer
from inferometer.records import (
    exchange_errors,
    load_types,
    request_summaries,
    steady_state,
    tool_views,
    ttft_parts,
)
from inferometer.report.request_views import OnlineView


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineAnswer:
    """What a load test says beside its requests."""

    validity: load_types.Validity
    steady: steady_state.SteadyState | None
    inter_token: request_summaries.InterTokenSummary
    errors: tuple[exchange_errors.ErrorCount, ...]
    tools: tuple[tool_views.ToolView, ...]
    server: server_answer.ServerAnswer | None
    """Where its metrics were scraped."""
    ttft_parts: ttft_parts.TtftParts | None


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
