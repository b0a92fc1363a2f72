"""Latencies of requests, and lower bounds for those that never finished.

Latencies start at ``intended_send_ns``. A request that was unfinished at the end, or whose client
disconnected, took at least its time so far: it is a censored sample (a lower bound), never left
out. Letters of shapes: N requests, K samples. Hand-over times are those from a request's prefill
replica to its decode replica.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import RecordError
from inferometer.inputs.objectives import Metric, ObjectiveSpec
from inferometer.inputs.workload.plan import NONE, RequestPlan, sent_by_server
from inferometer.records.columns import F64, I32, I64, Bools
from inferometer.records.tables import select
from inferometer.records.types import (
    ABSENT,
    ChunkTable,
    ExchangeTable,
    RequestStatus,
    RequestTable,
    Run,
    VisitTable,
)
from inferometer.stats.autocorrelated import run_quantile_estimates
from inferometer.stats.estimate import Estimate
from inferometer.units import NS_PER_S

Latency: TypeAlias = Literal["ttft", "ttft_uncorrected", Metric]

OF_REQUESTS: Final[tuple[Latency, ...]] = tuple(
    name for name in get_args(Latency) if name != "workflow"
)
"""Latencies of one request; a workflow has several requests."""
COMPLETED: Final = (RequestStatus.STOPPED, RequestStatus.LENGTH)
NOT_SERVED: Final = (RequestStatus.REJECTED, RequestStatus.FAILED)
"""Statuses of requests without a latency, which are only counted."""
FRACTIONS: Final = (0.5, 0.95, 0.99)


class LatencySamples(NamedTuple):
    """One latency of K requests, in order of sending."""

    rows: NDArray[np.intp]
    """Rows of the requests in the table."""
    lower_s: F64
    upper_s: F64
    """Equal to ``lower_s``, or infinite where the request had not reached this event when last
    seen."""

    @property
    def n_bounded_below_only(self) -> int:
        """The number of samples that are lower bounds only (censored)."""
        return int(np.isinf(self.upper_s).sum())


def end_ns(run: Run) -> int:
    """Last known instant of the run, in nanoseconds since its start; 0 for an empty run."""
    ends = [0]
    if run.requests is not None and len(run.requests.status):
        ends += [
            int(column.max())
            for column in (
                run.requests.intended_send_ns,
                run.requests.first_token_ns,
                run.requests.finished_ns,
            )
        ]
        if run.chunks is not None and len(run.chunks.arrived_ns):
            ends.append(int(run.chunks.arrived_ns.max()))
        ends.append(_last_waited_for_ns(run, run.requests))
    if run.steps is not None and len(run.steps.start_ns):
        ends.append(int((run.steps.start_ns + np.maximum(run.steps.duration_ns, 0)).max()))
    return max(ends)


def _last_waited_for_ns(run: Run, requests: RequestTable) -> int:
    """Last instant at which unfinished requests were seen open; 0 without such requests."""
    if run.lags is None or not is_one_of(requests, (RequestStatus.UNFINISHED,)).any():
        return 0
    return int(run.lags.due_ns[run.lags.n_in_flight > 0].max(initial=0))


def latency_samples(requests: RequestTable, latency: Latency, *, at_ns: int) -> LatencySamples:
    """One of the latencies ``OF_REQUESTS``; ``at_ns``: when unfinished requests were last seen.

    TPOT has samples of completed answers of two tokens or more only: aborted answers, and those
    that were not streamed, do not show it. Answers that were not streamed have no TTFT either.
    """
    if latency == "tpot":
        return _tpot(requests)
    came_ns = requests.intended_send_ns if latency in {"ttft", "e2e"} else requests.sent_ns
    is_served = ~is_one_of(requests, NOT_SERVED) & (came_ns != ABSENT)
    if latency == "e2e":
        done_ns = np.where(is_one_of(requests, COMPLETED), requests.finished_ns, ABSENT)
    else:
        done_ns = requests.admitted_ns if latency == "queue" else requests.first_token_ns
    if latency == "queue" and _nobody_saw_admissions(requests):
        is_served = np.zeros_like(is_served)
    is_served &= ~is_one_of(requests, COMPLETED) | (done_ns != ABSENT)
    rows = np.flatnonzero(is_served)
    done_ns, came_ns = done_ns[rows], came_ns[rows]
    is_known = done_ns != ABSENT
    left_ns = np.where(requests.finished_ns[rows] == ABSENT, at_ns, requests.finished_ns[rows])
    lower_s = (np.where(is_known, done_ns, left_ns) - came_ns) / NS_PER_S
    return LatencySamples(rows, lower_s, np.where(is_known, lower_s, np.inf))


def samples_of(
    run: Run, names: Iterable[Latency], rows: Bools | None = None
) -> dict[Latency, LatencySamples]:
    """Several latencies of a run; ``rows``: of N requests only these, as in a table of them alone.

    A workflow counts if its planner is in ``rows``, even if its other requests are not.
    """
    if run.requests is None:
        return {}
    chosen = run.requests if rows is None else select(run.requests, rows)
    found, at_ns = dict[Latency, LatencySamples](), end_ns(run)
    for name in names:
        if name != "workflow":
            found[name] = latency_samples(chosen, name, at_ns=at_ns)
            continue
        own = LatencySamples(np.zeros(0, np.intp), np.zeros(0), np.zeros(0))
        if run.drawn is not None:
            own = workflow_samples(run.requests, run.drawn, at_ns=at_ns)
        if rows is not None:
            place, is_own = np.cumsum(rows) - 1, rows[own.rows]
            own = LatencySamples(place[own.rows[is_own]], own.lower_s[is_own], own.upper_s[is_own])
        found[name] = own
    return found


def has_planners(run: Run, rows: Bools | None = None) -> bool:
    """Does a workflow begin with one of the run's requests (of ``rows``, where given)?"""
    if run.drawn is None or run.requests is None:
        return False
    begins = np.unique(_workflows(run.drawn)[1])
    index = run.requests.request_index if rows is None else run.requests.request_index[rows]
    return bool(np.isin(run.drawn.follows[begins], index).any())


def workflow_samples(requests: RequestTable, plan: RequestPlan, *, at_ns: int) -> LatencySamples:
    """Duration of each workflow: from its planner's intended send to the end of the synthesis.

    For a beam search: from the intended send of its first request to the end of its last one.
    ``rows`` are these first requests. Without a sample if a last request was refused or failed.
    """
    members, begun_by = _workflows(plan)
    begins, of = np.unique(begun_by, return_inverse=True)
    place = np.full(plan.n_requests, NONE)
    place[requests.request_index] = np.arange(len(requests.request_index))
    planner, last = place[plan.follows[begins]], place[members]
    has_come = last != NONE
    ended_ns = np.where(has_come, requests.finished_ns[last], ABSENT)

    def counted(those: Bools) -> I64:
        return np.bincount(of[those], minlength=len(begins))

    is_open = counted(ended_ns == ABSENT) > 0
    is_done = counted(has_come & is_one_of(requests, COMPLETED)[last]) == counted(of >= 0)
    is_left_out = counted(has_come & is_one_of(requests, NOT_SERVED)[last]) > 0
    left_ns = np.full(len(begins), NONE, np.int64)
    np.maximum.at(left_ns, of, ended_ns)
    left_ns[is_open] = at_ns
    rows = np.flatnonzero((planner != NONE) & ~is_left_out)
    rows = rows[np.argsort(requests.intended_send_ns[planner[rows]], kind="stable")]
    lower_s = (left_ns[rows] - requests.intended_send_ns[planner[rows]]) / NS_PER_S
    return LatencySamples(planner[rows], lower_s, np.where(is_done[rows], lower_s, np.inf))


def _workflows(plan: RequestPlan) -> tuple[I64, I64]:
    """Last request of each workflow, and the one that follows its planner.

    A synthesis is both. In a beam search the requests of a step are sent together: the first of
    each step follows the first of the step before, back to the search's first request.
    """
    row, is_companion = np.arange(plan.n_requests), plan.accompanies != NONE
    ends = sent_by_server(plan.accompanies)
    is_lead = ends & ~is_companion
    begun_by = np.where(is_lead & is_lead[plan.follows], plan.follows, row)
    while (begun_by[begun_by] != begun_by).any():
        begun_by = begun_by[begun_by]
    begun_by = np.where(is_companion, begun_by[plan.accompanies], begun_by)
    ends[plan.joins[(plan.joins != NONE) & ~is_companion]] = True
    return row[ends], begun_by[ends]


def is_one_of(requests: RequestTable, statuses: tuple[RequestStatus, ...]) -> Bools:
    """(N) Did the request end in one of these ways?"""
    status = requests.status
    is_one: Bools = status == statuses[0]
    for other in statuses[1:]:  # ``np.isin`` sorts and searches: ten times as long for so few
        is_one |= status == other
    return is_one


def began_to_answer_ns(requests: RequestTable) -> I64:
    """(N) Arrival of each answer's first token, or of the whole answer if it was not streamed.

    ABSENT where no token arrived.
    """
    was_whole = is_one_of(requests, COMPLETED) & (requests.first_token_ns == ABSENT)
    return np.where(was_whole, requests.finished_ns, requests.first_token_ns)


def are_beyond(
    requests: RequestTable, objective: ObjectiveSpec, samples: Mapping[Latency, LatencySamples]
) -> Bools:
    """(N) Is the request known to exceed one of the limits?

    A request without the latency exceeds none; a workflow counts once, as its planner.
    """
    is_beyond = np.zeros(len(requests.status), np.bool_)
    for threshold in objective.thresholds:
        own = samples[threshold.metric]
        is_beyond[own.rows[own.lower_s > threshold.limit_s]] = True
    return is_beyond


def may_be_beyond(requests: RequestTable, objective: ObjectiveSpec) -> Bools:
    """(N) Was the answer sent whole, and too late to show that its TTFT was within the limit?"""
    was_whole = is_one_of(requests, COMPLETED) & (requests.first_token_ns == ABSENT)
    took_s = (requests.finished_ns - requests.intended_send_ns) / NS_PER_S
    n_gaps = requests.output_tokens - 1
    most_s = {"ttft": took_s, "tpot": np.where(n_gaps > 0, took_s / np.maximum(n_gaps, 1), 0.0)}
    is_unknown = np.zeros(len(requests.status), np.bool_)
    for threshold in objective.thresholds:
        if threshold.metric in most_s:
            is_unknown |= was_whole & (most_s[threshold.metric] > threshold.limit_s)
    return is_unknown


def delivered_tokens(requests: RequestTable, instants_ns: I64, *, at_ns: int) -> F64:
    """Output tokens of all requests delivered by each instant.

    Spread evenly from an answer's first to its last token; all at the end if not streamed.
    """
    began_ns = began_to_answer_ns(requests)
    has_any = np.flatnonzero((began_ns != ABSENT) & (requests.output_tokens > 0))
    last_ns = np.where(
        requests.finished_ns[has_any] == ABSENT, at_ns, requests.finished_ns[has_any]
    )
    first_ns = np.minimum(began_ns[has_any], last_ns - 1)  # tokens at one time
    took_ns = last_ns - first_ns
    tokens = requests.output_tokens[has_any].astype(np.float64)
    return np.array(
        [
            float((tokens * np.minimum(np.maximum((instant - first_ns) / took_ns, 0.0), 1.0)).sum())
            for instant in instants_ns.tolist()
        ]
    )


def _nobody_saw_admissions(requests: RequestTable) -> bool:
    """Are there answers without a known admission time, as in a client's record?"""
    return bool(
        (requests.admitted_ns == ABSENT).all() and (began_to_answer_ns(requests) != ABSENT).any()
    )


def _tpot(requests: RequestTable) -> LatencySamples:
    is_streamed = (requests.first_token_ns != ABSENT) & (
        requests.finished_ns > requests.first_token_ns
    )
    has_it = is_one_of(requests, COMPLETED) & (requests.output_tokens > 1) & is_streamed
    rows = np.flatnonzero(has_it)
    took_ns = requests.finished_ns[rows] - requests.first_token_ns[rows]
    tpot_s = took_ns / (requests.output_tokens[rows] - 1) / NS_PER_S
    return LatencySamples(rows, tpot_s, tpot_s)


# The tail of a latency: the share of requests that took longer than a value.
# With an interval at each height.


N_HEIGHTS: Final = 32
NAMED_SHARES: Final = (0.5, 0.1, 0.05, 0.01, 0.001)
"""Heights that every tail includes, so that its p95 equals that of the tables."""


class Tail(NamedTuple):
    """H heights, from all requests down to the slowest.

    NaN in ``low_s`` and ``high_s`` where n is too small for an interval.
    """

    share_fraction: F64
    """1 - F: share of requests that took longer."""
    value_s: F64
    low_s: F64
    high_s: F64
    """Infinite where requests that were not done are among the slowest."""
    is_lower_bound: F64
    """1 where requests that were not done may lie above the value, else 0."""


def tail_of(samples: LatencySamples) -> Tail | None:
    """Tail of a latency at log-spaced heights; None below two samples."""
    n = len(samples.lower_s)
    if n < 2:
        return None
    named = [share for share in NAMED_SHARES if share > 0.5 / n]
    shares = np.unique(
        np.concatenate([np.geomspace(0.5 / n, 0.5, N_HEIGHTS), named, [0.75, 0.9, 1 - 0.5 / n]])
    )[::-1]
    fractions = (1 - shares).tolist()
    of_all = run_quantile_estimates(samples.lower_s, fractions, upper=samples.upper_s)
    quoted = [1 - share for share in named]
    of_tables = run_quantile_estimates(samples.lower_s, quoted, upper=samples.upper_s)
    estimates = list(
        (
            dict(zip(fractions, of_all, strict=True)) | dict(zip(quoted, of_tables, strict=True))
        ).values()
    )
    values_s, low_s, high_s = np.array(
        [(one.value, one.low, one.high) for one in estimates], np.float64
    ).T
    has_none = np.isnan(low_s)
    # An upper bound of a higher quantile bounds this one too, as does a lower bound of a lower one.
    low_s = np.where(has_none, np.nan, np.fmax.accumulate(low_s))
    high_s = np.where(has_none, np.nan, np.fmin.accumulate(high_s[::-1])[::-1])
    ranks = np.clip(np.ceil(np.array(fractions) * n).astype(np.int64) - 1, 0, n - 1)
    is_bound = (np.sort(samples.upper_s)[ranks] > values_s).astype(np.float64)
    return Tail(shares, values_s, low_s, high_s, is_bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverPercentile:
    """One percentile of the time between two servers."""

    percentile_fraction: float
    seconds: Estimate
    """A lower bound where some requests never arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverSummary:
    """The time from leaving one server to arriving at the next, waits included."""

    n_requests: int
    n_never_arrived: int
    """Requests still under way at the end, or whose client had gone."""
    percentiles: tuple[HandoverPercentile, ...]


class _Gaps(NamedTuple):
    left_ns: I64
    lower_s: F64
    upper_s: F64


def summarise_handovers(run: Run) -> HandoverSummary | None:
    """Time between prefill and decode replicas; None without KV transfers.

    Example
    ------- A run on prefill and decode replicas (``inferometer simulate --prefill-replicas``) has
    such requests.
    """
    if run.visits is None or run.requests is None:
        return None
    gaps = _gaps(run.visits, run.requests, end_ns(run))
    order = np.argsort(gaps.left_ns, kind="stable")
    lower_s, upper_s = gaps.lower_s[order], gaps.upper_s[order]
    if not lower_s.size:
        return None
    estimates = run_quantile_estimates(lower_s, FRACTIONS, upper=upper_s)
    return HandoverSummary(
        n_requests=len(lower_s),
        n_never_arrived=int(np.isinf(upper_s).sum()),
        percentiles=tuple(
            HandoverPercentile(percentile_fraction=fraction, seconds=estimate)
            for fraction, estimate in zip(FRACTIONS, estimates, strict=True)
        ),
    )


def _gaps(visits: VisitTable, requests: RequestTable, at_ns: int) -> _Gaps:
    """The time from each visit of a request to its next one, or until it was last seen."""
    n_rows = len(visits.request_index)
    is_last = np.ones(n_rows, np.bool_)
    is_last[:-1] = visits.request_index[1:] != visits.request_index[:-1]
    arrived = np.flatnonzero(~is_last)
    row_of = np.full(
        int(max(requests.request_index.max(initial=-1), visits.request_index.max(initial=-1))) + 1,
        -1,
    )
    row_of[requests.request_index] = np.arange(len(requests.request_index))
    finished_ns = np.where(
        row_of[visits.request_index] >= 0,
        requests.finished_ns[row_of[visits.request_index]],
        ABSENT,
    )
    on_way = np.flatnonzero(is_last & (visits.left_ns != ABSENT) & (visits.left_ns != finished_ns))
    seen_ns = np.where(finished_ns[on_way] == ABSENT, at_ns, finished_ns[on_way])
    until_ns = np.concatenate([visits.arrived_ns[arrived + 1], seen_ns])
    rows = np.concatenate([arrived, on_way])
    lower_s = (until_ns - visits.left_ns[rows]) / NS_PER_S
    upper_s = np.concatenate([lower_s[: len(arrived)], np.full(len(on_way), np.inf)])
    return _Gaps(visits.left_ns[rows], lower_s, upper_s)


# Arrival of each token, and the gaps between tokens.
#
# Tokens come in deliveries: chunks of a measured answer, rows of a simulated step. A delivery of k
# tokens is one gap with k tokens, so that both views are there: per delivery, where the gap counts
# once, and per token, where each of the k took a k-th of it. Letters of shapes: D deliveries, T
# delivered tokens, G gaps.


_MOST_IN_ALL: Final = 200_000_000
"""Delivered tokens of a run that are expanded one by one: 1.6 GB."""


class Deliveries(NamedTuple):
    """One row per delivery (D rows), in order of time."""

    request_index: I32
    """``RequestTable.request_index``"""
    time_ns: I64
    """Since the start of the run."""
    n_tokens: I64
    is_assumed: Bools
    """Is the spread of tokens over the answer unknown, and assumed to be even?"""


class TokenTable(NamedTuple):
    """One row per delivered token (T rows), in order of time and, at one instant, of the batch."""

    request_index: I32
    """``RequestTable.request_index``"""
    time_ns: I64
    """Since the start of the run."""


class TokenGaps(NamedTuple):
    """One row per token but each request's first (G rows), by request and time: inter-token latencies."""

    request_index: I32
    gap_ns: I64
    """0 between tokens that were delivered together."""


class DeliveryGaps(NamedTuple):
    """One row per delivery but each request's first (G rows), in order of time."""

    request_index: I32
    time_ns: I64
    """End of the gap."""
    gap_ns: I64
    n_tokens: I64
    is_assumed: Bools

    def per_token_s(self) -> F64:
        """Time per token, in order of time: a delivery of k tokens counts k times 1/k of its gap."""
        return np.asarray(
            np.repeat(self.gap_ns / np.maximum(self.n_tokens, 1), self.n_tokens) / NS_PER_S,
            dtype=np.float64,
        )


def deliveries(run: Run) -> Deliveries:
    """Time and request of each delivery; chunks without a token do not count.

    Raises
    ------
    RecordError
        The run has no times of tokens.
    """
    if run.steps is None or run.parts is None:
        if run.chunks is not None and run.requests is not None:
            return _of_chunks(run.chunks, run.requests, _most_tokens(run.requests, run.exchanges))
        allowed = "a load test, or a simulated run with them"
        raise RecordError(
            "the run has no parts of steps",
            where=run.manifest.run_id,
            allowed=allowed,
            try_="record_parts=True",
        )
    end_ns = run.steps.start_ns + run.steps.duration_ns
    has_any = run.parts.n_delivered_tokens > 0
    return Deliveries(
        request_index=run.parts.request_index[has_any],
        time_ns=end_ns[run.parts.step_index[has_any]],
        n_tokens=run.parts.n_delivered_tokens[has_any].astype(np.int64),
        is_assumed=np.zeros(int(has_any.sum()), np.bool_),
    )


def token_times(run: Run) -> TokenTable:
    """Time and request of each token.

    Raises
    ------
    RecordError
        The run has no times of tokens.
    """
    given = deliveries(run)
    return TokenTable(
        request_index=np.repeat(given.request_index, given.n_tokens),
        time_ns=np.repeat(given.time_ns, given.n_tokens),
    )


def token_gaps(tokens: TokenTable) -> TokenGaps:
    """Time from each token to the one before of the same request."""
    by_request = np.argsort(tokens.request_index, kind="stable")
    request, time_ns = tokens.request_index[by_request], tokens.time_ns[by_request]
    has_predecessor = request[1:] == request[:-1]
    return TokenGaps(
        request_index=request[1:][has_predecessor], gap_ns=np.diff(time_ns)[has_predecessor]
    )


def delivery_gaps(given: Deliveries) -> DeliveryGaps:
    """Time from each delivery to the one before of the same request."""
    by_request = np.argsort(given.request_index, kind="stable")
    request, time_ns = given.request_index[by_request], given.time_ns[by_request]
    has_predecessor = np.flatnonzero(request[1:] == request[:-1]) + 1
    gap_ns = np.zeros(len(request), np.int64)
    gap_ns[has_predecessor] = time_ns[has_predecessor] - time_ns[has_predecessor - 1]
    in_time = has_predecessor[np.argsort(time_ns[has_predecessor], kind="stable")]
    rows = by_request[in_time]
    return DeliveryGaps(
        request_index=given.request_index[rows],
        time_ns=given.time_ns[rows],
        gap_ns=gap_ns[in_time],
        n_tokens=given.n_tokens[rows],
        is_assumed=given.is_assumed[rows],
    )


def _most_tokens(requests: RequestTable, exchanges: ExchangeTable | None) -> I64:
    """(N) Upper bound of each request's tokens: its ``max_tokens``, or one per byte received.

    The server's own count may be false, and expanding it token by token takes memory.
    """
    if exchanges is None or not np.array_equal(exchanges.request_index, requests.request_index):
        return np.full(len(requests.request_index), _MOST_IN_ALL)
    return np.minimum(exchanges.asked_output_tokens, exchanges.received_bytes).astype(np.int64)


def _of_chunks(chunks: ChunkTable, requests: RequestTable, most_tokens: I64) -> Deliveries:
    """The chunks with tokens in order of time.

    Where that is unknown, an answer's tokens are spread evenly over its chunks.
    """
    n_rows = 1 + max(
        int(requests.request_index.max(initial=-1)), int(chunks.request_index.max(initial=-1))
    )
    most, output_tokens = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    most[requests.request_index] = most_tokens
    output_tokens[requests.request_index] = np.minimum(requests.output_tokens, most_tokens)
    is_assumed = chunks.n_tokens == ABSENT
    n_tokens = np.where(is_assumed, _evenly(chunks, output_tokens), _within(chunks, most))
    n_in_all = float(n_tokens.sum(dtype=np.float64))
    if n_in_all > _MOST_IN_ALL:
        raise RecordError(
            f"the answers have {n_in_all:.3g} tokens",
            where="chunks.parquet",
            allowed=f"{_MOST_IN_ALL:,} in a run",
        )
    rows = np.flatnonzero(n_tokens > 0)
    rows = rows[np.argsort(chunks.arrived_ns[rows], kind="stable")]
    return Deliveries(
        chunks.request_index[rows], chunks.arrived_ns[rows], n_tokens[rows], is_assumed[rows]
    )


def _within(chunks: ChunkTable, most: I64) -> I64:
    """Stored tokens of each chunk (K), cut where an answer has more than ``most``."""
    order = np.argsort(chunks.request_index, kind="stable")
    request = chunks.request_index[order]
    so_far = np.cumsum(np.clip(chunks.n_tokens[order], 0, most[request]))
    is_first = np.diff(request, prepend=-1) != 0
    before = np.maximum.accumulate(np.where(is_first, np.concatenate([[0], so_far[:-1]]), 0))
    within = np.minimum(so_far - before, most[request])
    cut = np.empty(len(request), np.int64)
    cut[order] = np.where(is_first, within, np.diff(within, prepend=0))
    return cut


def _evenly(chunks: ChunkTable, output_tokens: I64) -> I64:
    """Tokens of each chunk (K) if its answer's tokens are spread as evenly as possible."""
    n_chunks = np.bincount(chunks.request_index, minlength=len(output_tokens))
    starts = np.cumsum(n_chunks) - n_chunks
    order = np.argsort(chunks.request_index, kind="stable")
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - starts[chunks.request_index[order]]
    total, n = output_tokens[chunks.request_index], n_chunks[chunks.request_index]
    return (nth + 1) * total // np.maximum(n, 1) - nth * total // np.maximum(n, 1)
