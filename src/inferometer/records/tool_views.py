"""What would other load testers have reported of the same answers?

The same word means different things in each of them: one row of ``_TOOLS`` holds a tool's
definitions, which are applied to our record. Where a tool starts its clock before it connects, a
request on a new connection counts from its intended send; what a tool's own slowness would add is
not in the row.

Throughput differs because tools divide by different stretches of time. Most begin theirs when
their schedule begins, an interval before its first request; ours begins at the first intended
send. Over ten seconds at 3 requests/s that alone is 3 %.

Source: AIPerf 0.13.0, GuideLLM 0.8.1, inference-perf 0.7.0, vLLM 0.33.0 ``bench``, SGLang 0.5.23,
MLCommons endpoints (2026-08) and MLPerf LoadGen, read in their source.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from inferometer.inputs.workload.types import OpenArrivals
from inferometer.records.columns import F64, I64
from inferometer.records.latencies import (
    COMPLETED,
    deliveries,
    delivery_gaps,
    end_ns,
    is_one_of,
    token_gaps,
    token_times,
)
from inferometer.records.types import ABSENT, Run
from inferometer.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRates:
    """A tool's throughput; None where it has no such number."""

    requests_per_s: float | None
    """Rate of completed requests."""
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    """Input and output."""
    span_s: float
    """Duration by which the tool divides."""
    span: str
    """Start and end of that duration, in words."""
    source: str
    """Where the tool defines its rates."""


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
    """ITL as the tool defines it: of chunks, of tokens, or a mean per request."""
    e2e: Spread | None
    definitions: str
    """Differences from our definitions, in a few words."""
    rates: ToolRates | None = None
    """Throughput; None where no time passed."""


class _Answers(NamedTuple):
    """Completed answers with a token (N), and gaps of all of them; times in seconds."""

    intended_s: F64
    sent_s: F64
    before_connect_s: F64
    first_s: F64
    last_s: F64
    end_s: F64
    """End of the stream."""
    n_tokens: F64
    n_after_first: F64
    n_after_first_chunk: F64
    chunk_gaps_s: F64
    even_gaps_s: F64
    """Gap of each token: its equal share of its chunk's gap."""
    bunched_gaps_s: F64
    """Gap of each token if a chunk's tokens share one time: 0 s for all but the first."""


class _Course(NamedTuple):
    """Start and end of a load test as the tools define them, and the work between."""

    intended_ns: int
    """First intended send."""
    scheduled_ns: int
    """A mean gap of the schedule before it; closed loops and traces begin with a request."""
    sent_ns: int
    """First actual send."""
    end_ns: int
    """End of the last stream, failed requests included."""
    last_sent_end_ns: int
    """End of the stream of the request that was due last."""
    own_end_ns: int
    """The last thing known, as our rates end."""
    is_poisson: bool
    n_completed: int
    input_tokens: int
    output_tokens: int
    """Tokens of completed requests."""
    read_tokens: int
    """Prompts of all requests that got a first token."""
    delivered_tokens: int
    """Tokens of all requests, unfinished and failed ones included."""


class _Tool(NamedTuple):
    """A tool's definitions, as names of columns of ``_Answers`` and of instants of ``_Course``."""

    name: str
    start: Literal["intended_s", "before_connect_s", "sent_s"]
    """Instant at which TTFT and E2E start."""
    e2e_end: Literal["last_s", "end_s"]
    definitions: str
    tpot: tuple[str, str, str] = ("first_s", "last_s", "n_after_first")
    """Start, end, and divisor."""
    itl: Literal["even_gaps_s", "chunk_gaps_s", "bunched_gaps_s", "per request"] | None = (
        "chunk_gaps_s"
    )
    has_ttft_of_one_token: bool = True
    begin: Literal["scheduled_ns", "intended_ns", "sent_ns"] = "scheduled_ns"
    """Start of the duration by which throughput is divided."""
    ends_with_last_sent: Literal["never", "poisson", "always"] = "never"
    """Under which arrivals that time ends with the request that was sent last, as LoadGen's does,
    and not with the one that ended last."""
    has_total_tokens: bool = True
    source: str = ""
    """Where the tool defines its throughput."""


_OURS: Final = _Tool(
    name="inferometer",
    start="intended_s",
    e2e_end="last_s",
    itl="even_gaps_s",
    definitions=(
        "from the intended send; ITL is of each token, which takes its share of its chunk's gap"
    ),
    source="records.request_summaries",
)
_TOOLS: Final = (
    _Tool(
        name="AIPerf",
        start="before_connect_s",
        e2e_end="last_s",
        itl="per request",
        definitions="from before the connect; its ITL is our TPOT, its ICL is of chunks",
        # Not the benchmark_duration that it reports beside them.
        source=(
            "AIPerf 0.13.0: metrics/metric_dicts.py, observation_duration;"
            " timing/strategies/request_rate.py waits before it sends"
        ),
    ),
    _Tool(
        name="GuideLLM",
        start="sent_s",
        e2e_end="end_s",
        tpot=("sent_s", "last_s", "n_tokens"),
        itl="per request",
        definitions="from the header's write; TPOT holds TTFT; E2E ends with the stream",
        # Its warm-up and cool-down are off unless requested.
        source=(
            "GuideLLM 0.8.1: schemas/base/statistics.py, rate_distribution_from_timings;"
            " scheduler/strategies.py numbers requests from 1"
        ),
    ),
    _Tool(
        name="inference-perf",
        start="sent_s",
        e2e_end="end_s",
        itl="bunched_gaps_s",
        has_ttft_of_one_token=False,
        definitions=(
            "answers of one token have no TTFT; a chunk's tokens share one time, so that their gaps"
            " are 0"
        ),
        # Failed requests count for the time, not for the numbers.
        begin="sent_ns",
        source="inference-perf: reportgen/base.py, summarize_requests",
    ),
    _Tool(
        name="vLLM bench",
        start="before_connect_s",
        e2e_end="last_s",
        definitions="from before the connect; ITL is of chunks",
        source=(
            "vLLM 0.32.0: benchmarks/serve.py, calculate_metrics; get_request waits before it sends"
        ),
    ),
    _Tool(
        name="SGLang bench",
        start="before_connect_s",
        e2e_end="end_s",
        tpot=("first_s", "end_s", "n_after_first"),
        definitions=(
            "a new connection for each request (its cost is not in this row); E2E ends with [DONE];"
            " ITL is of chunks"
        ),
        begin="intended_ns",
        source="SGLang 0.5.23: benchmark/serving.py, calculate_metrics and get_request",
    ),
    _Tool(
        name="MLC endpoints",
        start="sent_s",
        e2e_end="end_s",
        tpot=("first_s", "end_s", "n_after_first_chunk"),
        definitions="from the actual issue; TPOT divides by the tokens after the first chunk",
        begin="sent_ns",
        ends_with_last_sent="poisson",
        has_total_tokens=False,
        source="MLCommons endpoints (2026-08): metrics/report.py, Report.from_snapshot",
    ),
    _Tool(
        name="MLPerf LoadGen",
        start="intended_s",
        e2e_end="end_s",
        tpot=("first_s", "end_s", "n_after_first"),
        itl=None,
        definitions="from the scheduled send, as ours; E2E ends when the answer is complete",
        begin="intended_ns",
        ends_with_last_sent="always",  # of its Server scenario
        has_total_tokens=False,
        source="MLPerf LoadGen: results.cc, qps_as_completed and tps_as_completed",
    ),
)
_SPANS: Final = {
    "scheduled_ns": (
        "from a mean interval before the first request, where requests come at a rate, to the end"
        " of the last"
    ),
    "intended_ns": "from the first request to the end of the last",
    "sent_ns": "from the first actual send to the end of the last",
}
_SENDS: Final = {"intended_ns": "scheduled send", "sent_ns": "actual send"}


def tool_views(run: Run) -> tuple[ToolView, ...]:
    """Results that each tool would have reported for this run, ours first.

    Empty for a run that is no load test or has no completed answer.
    """
    answers, course = _answers(run), _course(run)
    if answers is None or course is None:
        return ()
    ours = _view(_OURS, answers, _our_rates(course))
    return (ours, *(_view(tool, answers, _rates(tool, course)) for tool in _TOOLS))


def _view(tool: _Tool, answers: _Answers, rates: ToolRates | None) -> ToolView:
    def column(name: str) -> F64:
        found: F64 = getattr(answers, name)
        return found

    start_s = column(tool.start)
    begin, end, divisor = tool.tpot
    per_request = _per(answers.last_s - answers.first_s, answers.n_after_first)
    has_ttft = tool.has_ttft_of_one_token | (answers.n_tokens > 1)
    return ToolView(
        tool=tool.name,
        ttft=_spread((answers.first_s - start_s)[has_ttft]),
        tpot=_per(column(end) - column(begin), column(divisor)),
        itl=(
            per_request
            if tool.itl == "per request"
            else None
            if tool.itl is None
            else _spread(column(tool.itl))
        ),
        e2e=_spread(column(tool.e2e_end) - start_s),
        definitions=tool.definitions,
        rates=rates,
    )


def _our_rates(course: _Course) -> ToolRates | None:
    """Our own definition: tokens of unfinished and failed requests count too."""
    span_s = (course.own_end_ns - course.intended_ns) / NS_PER_S
    if span_s <= 0:
        return None
    return ToolRates(
        requests_per_s=course.n_completed / span_s,
        output_tokens_per_s=course.delivered_tokens / span_s,
        total_tokens_per_s=(course.delivered_tokens + course.read_tokens) / span_s,
        span_s=span_s,
        span=(
            "from the first intended send to the last thing known; tokens of unfinished answers"
            " count"
        ),
        source=_OURS.source,
    )


def _rates(tool: _Tool, course: _Course) -> ToolRates | None:
    """The tool's throughput.

    Where its time ends with the request that was sent last, it counts one request less than were
    done.
    """
    is_cut = tool.ends_with_last_sent == "always" or (
        tool.ends_with_last_sent == "poisson" and course.is_poisson
    )
    begin_ns: int = getattr(course, tool.begin)
    span_s = ((course.last_sent_end_ns if is_cut else course.end_ns) - begin_ns) / NS_PER_S
    if span_s <= 0:
        return None
    n_counted = course.n_completed - is_cut
    return ToolRates(
        requests_per_s=n_counted / span_s if n_counted or not is_cut else None,
        output_tokens_per_s=course.output_tokens / span_s,
        total_tokens_per_s=(
            (course.input_tokens + course.output_tokens) / span_s if tool.has_total_tokens else None
        ),
        span_s=span_s,
        span=(
            f"from the first {_SENDS[tool.begin]} to the end of the request that was sent last;"
            " one request less"
            if is_cut
            else _SPANS[tool.begin]
        ),
        source=tool.source,
    )


def _answers(run: Run) -> _Answers | None:
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
    return _Answers(
        intended_s=_seconds(requests.intended_send_ns[has_it]),
        sent_s=_seconds(requests.sent_ns[has_it]),
        before_connect_s=_seconds(
            np.where(exchanges.is_reused, requests.sent_ns, requests.intended_send_ns)[has_it]
        ),
        first_s=_seconds(requests.first_token_ns[has_it]),
        last_s=_seconds(requests.finished_ns[has_it]),
        end_s=_seconds(end_ns[has_it]),
        n_tokens=n_tokens,
        n_after_first=n_tokens - 1,
        n_after_first_chunk=n_tokens - of_first,
        chunk_gaps_s=_seconds(gaps.gap_ns),
        even_gaps_s=gaps.per_token_s(),
        bunched_gaps_s=_seconds(token_gaps(token_times(run)).gap_ns),
    )


def _course(run: Run) -> _Course | None:
    requests, exchanges = run.requests, run.exchanges
    if requests is None or exchanges is None or not bool((requests.sent_ns != ABSENT).any()):
        return None
    arrivals = None if run.manifest.load is None else run.manifest.load.workload.arrivals
    rate = arrivals if isinstance(arrivals, OpenArrivals) else None
    done, has_first = is_one_of(requests, COMPLETED), requests.first_token_ns != ABSENT
    intended_ns = int(requests.intended_send_ns.min())
    over_ns = np.maximum(requests.finished_ns, exchanges.last_byte_ns)
    return _Course(
        intended_ns=intended_ns,
        scheduled_ns=intended_ns - (0 if rate is None else round(NS_PER_S / rate.rate_per_s)),
        sent_ns=int(requests.sent_ns[requests.sent_ns != ABSENT].min()),
        end_ns=int(over_ns.max()),
        last_sent_end_ns=int(over_ns[int(np.argmax(requests.intended_send_ns))]),
        own_end_ns=end_ns(run),
        is_poisson=rate is not None and rate.process == "poisson",
        n_completed=int(done.sum()),
        input_tokens=int(requests.prompt_tokens[done].sum(dtype=np.int64)),
        output_tokens=int(requests.output_tokens[done].sum(dtype=np.int64)),
        read_tokens=int(requests.prompt_tokens[has_first].sum(dtype=np.int64)),
        delivered_tokens=int(requests.output_tokens[has_first].sum(dtype=np.int64)),
    )


def _per(took_s: F64, n_tokens: F64) -> Spread | None:
    """Seconds per token of the answers of at least this number of tokens."""
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
