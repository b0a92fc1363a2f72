"""What would other load testers have reported of the same answers?

The same word means different things in each of them.

Each row applies a tool's own definitions to our record. Where a tool starts its clock before it
connects, a request on a new connection counts from its intended send; what a tool's own slowness
would add is not in the row.

Throughput is in ``records.tool_rates``.

Source: AIPerf 0.13.0, GuideLLM 0.8.1, inference-perf 0.7.0, vLLM 0.33.0 ``bench``, SGLang 0.5.23,
MLCommons endpoints (2026-08) and MLPerf LoadGen, read in their source.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.records import tool_rates
from inferometer.records.columns import F64, I64
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.tokens import deliveries, delivery_gaps, token_gaps, token_times
from inferometer.records.tool_rates import ToolRates
from inferometer.records.types import ABSENT, Run
from inferometer.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One number of a tool over the requests or gaps that it counts."""

    mean_s: float
    median_s: float
    p99_s: float
    n_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolView:
    """What a tool would have reported; None where it has no such number."""

    tool: str
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    """What the tool calls so: of chunks, of tokens, or a mean per request."""
    e2e: Spread | None
    definitions: str
    """Where it differs from ours, in a few words."""
    rates: ToolRates | None = None
    """Throughput; None where no time passed."""


class _Seen(NamedTuple):
    """Completed answers with a token (N), and gaps of all of them; times in seconds."""

    intended_s: F64
    sent_s: F64
    before_connect_s: F64
    first_s: F64
    last_s: F64
    end_s: F64
    """When the stream was over."""
    n_tokens: F64
    n_after_first_chunk: F64
    chunk_gaps_s: F64
    even_gaps_s: F64
    """Of each token, its share of its chunk's gap."""
    bunched_gaps_s: F64
    """Of each token, where a chunk's tokens share one time: all but the first of a chunk waited
    for 0 s."""


_View: TypeAlias = Callable[[_Seen], ToolView]
_Rates: TypeAlias = Callable[[tool_rates.Course], ToolRates | None]


def tool_views(run: Run) -> tuple[ToolView, ...]:
    """What each tool would have reported of this run, ours first.

    Empty for a run that is no load test or has no completed answer.
    """
    seen, course = _seen(run), tool_rates.course_of(run)
    if seen is None or course is None:
        return ()
    return tuple(replace(view(seen), rates=rates(course)) for view, rates in _VIEWS)


def _seen(run: Run) -> _Seen | None:
    requests, exchanges, chunks = run.requests, run.exchanges, run.chunks
    if requests is None or exchanges is None or chunks is None:
        return None
    has_it = (
        is_one_of(requests, COMPLETED)
        & (requests.first_token_ns != ABSENT)
        & (requests.sent_ns != ABSENT)
    )
    if not bool(has_it.any()):
        return None
    end_ns = np.where(
        exchanges.last_byte_ns == ABSENT, requests.finished_ns, exchanges.last_byte_ns
    )
    given = deliveries(run)
    first_row = np.full(
        int(max(given.request_index.max(), requests.request_index.max())) + 1, -1, np.int64
    )
    first_row[given.request_index[::-1]] = np.arange(len(given.request_index))[::-1]
    of_first = given.n_tokens[first_row[requests.request_index[has_it]]]
    gaps = delivery_gaps(given)
    n_tokens = requests.output_tokens[has_it].astype(np.float64)
    return _Seen(
        intended_s=_seconds(requests.intended_send_ns[has_it]),
        sent_s=_seconds(requests.sent_ns[has_it]),
        before_connect_s=_seconds(
            np.where(exchanges.is_reused, requests.sent_ns, requests.intended_send_ns)[has_it]
        ),
        first_s=_seconds(requests.first_token_ns[has_it]),
        last_s=_seconds(requests.finished_ns[has_it]),
        end_s=_seconds(end_ns[has_it]),
        n_tokens=n_tokens,
        n_after_first_chunk=n_tokens - of_first,
        chunk_gaps_s=_seconds(gaps.gap_ns),
        even_gaps_s=gaps.per_token_s(),
        bunched_gaps_s=_seconds(token_gaps(token_times(run)).gap_ns),
    )


def _ours(seen: _Seen) -> ToolView:
    return ToolView(
        tool="inferometer",
        ttft=_spread(seen.first_s - seen.intended_s),
        tpot=_per(seen.last_s - seen.first_s, seen.n_tokens - 1),
        itl=_spread(seen.even_gaps_s),
        e2e=_spread(seen.last_s - seen.intended_s),
        definitions=(
            "from the intended send; ITL is of each token, which takes its share of its chunk's gap"
        ),
    )


def _aiperf(seen: _Seen) -> ToolView:
    per_request = _per(seen.last_s - seen.first_s, seen.n_tokens - 1)
    return ToolView(
        tool="AIPerf",
        ttft=_spread(seen.first_s - seen.before_connect_s),
        tpot=per_request,
        itl=per_request,
        e2e=_spread(seen.last_s - seen.before_connect_s),
        definitions="from before the connect; its ITL is our TPOT, its ICL is of chunks",
    )


def _guidellm(seen: _Seen) -> ToolView:
    return ToolView(
        tool="GuideLLM",
        ttft=_spread(seen.first_s - seen.sent_s),
        tpot=_per(seen.last_s - seen.sent_s, seen.n_tokens),
        itl=_per(seen.last_s - seen.first_s, seen.n_tokens - 1),
        e2e=_spread(seen.end_s - seen.sent_s),
        definitions="from the header's write; TPOT holds TTFT; E2E ends with the stream",
    )


def _inference_perf(seen: _Seen) -> ToolView:
    has_several = seen.n_tokens > 1
    return ToolView(
        tool="inference-perf",
        ttft=_spread((seen.first_s - seen.sent_s)[has_several]),
        tpot=_per(seen.last_s - seen.first_s, seen.n_tokens - 1),
        itl=_spread(seen.bunched_gaps_s),
        e2e=_spread(seen.end_s - seen.sent_s),
        definitions=(
            "answers of one token have no TTFT; a chunk's tokens share one time, so that their gaps"
            " are 0"
        ),
    )


def _vllm(seen: _Seen) -> ToolView:
    return ToolView(
        tool="vLLM bench",
        ttft=_spread(seen.first_s - seen.before_connect_s),
        tpot=_per(seen.last_s - seen.first_s, seen.n_tokens - 1),
        itl=_spread(seen.chunk_gaps_s),
        e2e=_spread(seen.last_s - seen.before_connect_s),
        definitions="from before the connect; ITL is of chunks",
    )


def _sglang(seen: _Seen) -> ToolView:
    return ToolView(
        tool="SGLang bench",
        ttft=_spread(seen.first_s - seen.before_connect_s),
        tpot=_per(seen.end_s - seen.first_s, seen.n_tokens - 1),
        itl=_spread(seen.chunk_gaps_s),
        e2e=_spread(seen.end_s - seen.before_connect_s),
        definitions=(
            "a new connection for each request (its cost is not in this row); E2E ends with [DONE];"
            " ITL is of chunks"
        ),
    )


def _mlc_endpoints(seen: _Seen) -> ToolView:
    return ToolView(
        tool="MLC endpoints",
        ttft=_spread(seen.first_s - seen.sent_s),
        tpot=_per(seen.end_s - seen.first_s, seen.n_after_first_chunk),
        itl=_spread(seen.chunk_gaps_s),
        e2e=_spread(seen.end_s - seen.sent_s),
        definitions="from the actual issue; TPOT divides by the tokens after the first chunk",
    )


def _loadgen(seen: _Seen) -> ToolView:
    return ToolView(
        tool="MLPerf LoadGen",
        ttft=_spread(seen.first_s - seen.intended_s),
        tpot=_per(seen.end_s - seen.first_s, seen.n_tokens - 1),
        itl=None,
        e2e=_spread(seen.end_s - seen.intended_s),
        definitions="from the scheduled send, as ours; E2E ends when the answer is complete",
    )


_VIEWS: Final[tuple[tuple[_View, _Rates], ...]] = (
    (_ours, tool_rates.ours),
    (_aiperf, tool_rates.aiperf),
    (_guidellm, tool_rates.guidellm),
    (_inference_perf, tool_rates.inference_perf),
    (_vllm, tool_rates.vllm),
    (_sglang, tool_rates.sglang),
    (_mlc_endpoints, tool_rates.mlc_endpoints),
    (_loadgen, tool_rates.loadgen),
)


def _per(took_s: F64, n_tokens: F64) -> Spread | None:
    """Seconds per token of the answers that have that many."""
    has_any = n_tokens > 0
    return _spread(took_s[has_any] / n_tokens[has_any])


def _spread(samples_s: F64) -> Spread | None:
    if not len(samples_s):
        return None
    median_s, p99_s = np.quantile(samples_s, [0.5, 0.99], method="inverted_cdf").tolist()
    return Spread(
        mean_s=float(samples_s.mean()), median_s=median_s, p99_s=p99_s, n_samples=len(samples_s)
    )


def _seconds(instants_ns: I64) -> F64:
    return np.asarray(instants_ns / NS_PER_S, dtype=np.float64)
