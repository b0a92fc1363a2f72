"""OpenTelemetry spans of a load test: the run, its phases, and each traced request.

They are made after the run, from its tables: during the run the client only sends ids.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs import spans as names
from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.spans import (
    HistogramPoint,
    Span,
    SpanEvent,
    SpanIds,
    SpanTree,
    Value,
    is_generation,
)
from inferometer.records.columns import F64, I64
from inferometer.records.raw_log import SessionFrame
from inferometer.records.server_names import Histogram
from inferometer.records.server_series import histogram_growth, server_record
from inferometer.records.steady_state import steady_state
from inferometer.records.types import (
    ABSENT,
    UNKNOWN_COUNT,
    ChunkTable,
    ExchangeTable,
    RequestTable,
    Run,
    ServerSampleTable,
)
from inferometer.stats.autocorrelated import (
    run_mean_estimate,
    run_quantile_estimate,
    run_quantile_estimates,
)
from inferometer.stats.estimate import Estimate
from inferometer.units import NS_PER_S, s_from_ns

_PORTS: Final = {"http": 80, "https": 443}


class _Phase(NamedTuple):
    name: str
    rows: I64
    span_id: int


class WallClock:
    """Conversion of a run's instants to the wall clock, by session."""

    def __init__(self, sessions: Sequence[SessionFrame]) -> None:
        origins = sorted({(one.begins_ns, one.origin_unix_ns) for one in sessions})
        self._begins_ns = np.array([begins for begins, _ in origins], np.int64)
        self._origins_ns = np.array([origin for _, origin in origins], np.int64)

    def origins_ns(self, instants_ns: I64) -> I64:
        """Wall-clock time at the start of the run, by the session in which each time lies."""
        place = np.searchsorted(self._begins_ns, instants_ns, side="right") - 1
        found: I64 = self._origins_ns[np.maximum(place, 0)]
        return found


def request_spans(run: Run, sessions: Sequence[SessionFrame], ids: SpanIds) -> Iterator[Span]:
    """The spans of a load test, parents before their children.

    A request's span begins at its intended send, and ends with its last token or its failure.
    """
    requests, exchanges, load = run.requests, run.exchanges, run.manifest.load
    if requests is None or exchanges is None or load is None or not len(requests.sent_ns):
        return
    origins_ns = WallClock(sessions).origins_ns(requests.intended_send_ns)
    starts_ns = requests.intended_send_ns + origins_ns
    ends_ns = np.maximum(last_instants_ns(requests, exchanges) + origins_ns, starts_ns)
    run_id = ids.of_part(names.RUN)
    yield Span(
        ids.trace_id,
        run_id,
        None,
        names.RUN,
        "internal",
        int(starts_ns.min()),
        int(ends_ns.max()),
        {names.RUN_ID: run.manifest.run_id, **_server(load)},
    )
    for phase in _phases(run, requests, ids):
        yield Span(
            ids.trace_id,
            phase.span_id,
            run_id,
            f"{names.PHASE} {phase.name}",
            "internal",
            int(starts_ns[phase.rows].min()),
            int(ends_ns[phase.rows].max()),
            {names.PHASE: phase.name},
        )
        for row in phase.rows.tolist():
            if ids.is_sampled(int(requests.request_index[row])):
                yield from _of_request(
                    run, ids, phase, row, int(ends_ns[row]), int(origins_ns[row])
                )


def _phases(run: Run, requests: RequestTable, ids: SpanIds) -> Iterator[_Phase]:
    """Warm-up, steady state and drain; a single phase if there are too few requests to tell."""
    steady, due_ns = steady_state(run), requests.intended_send_ns
    parts = (
        (("all", np.ones(len(due_ns), np.bool_)),)
        if steady is None
        else (
            ("warm-up", due_ns < steady.start_ns),
            ("steady", steady.holds(requests)),
            ("drain", due_ns > steady.end_ns),
        )
    )
    for name, is_in in parts:
        if is_in.any():
            yield _Phase(name, np.flatnonzero(is_in), ids.of_part(f"{names.PHASE} {name}"))


def last_instants_ns(requests: RequestTable, exchanges: ExchangeTable) -> I64:
    """Last token or failure of each request; else the last byte, else the send."""
    latest: I64 = requests.intended_send_ns.copy()
    for instants_ns in (requests.sent_ns, exchanges.last_byte_ns, requests.finished_ns):
        is_there = instants_ns != ABSENT
        latest[is_there] = instants_ns[is_there]
    return latest


def _of_request(
    run: Run, ids: SpanIds, phase: _Phase, row: int, end_ns: int, origin_ns: int
) -> Iterator[Span]:
    requests, exchanges, load = run.requests, run.exchanges, run.manifest.load
    if requests is None or exchanges is None or load is None:
        return
    index = int(requests.request_index[row])
    span_id = ids.of_request(index)
    due_ns, sent_ns, first_ns = (
        int(column[row])
        for column in (requests.intended_send_ns, requests.sent_ns, requests.first_token_ns)
    )
    error = str(exchanges.error[row]) or None
    events = list[SpanEvent]()
    if first_ns != ABSENT:
        events.append(SpanEvent(names.FIRST_TOKEN, first_ns + origin_ns))
        if error is None:
            events.append(SpanEvent(names.LAST_TOKEN, end_ns))
    attributes = _attributes(requests, exchanges, load, row)
    if ABSENT not in {first_ns, sent_ns}:
        attributes[names.TIME_TO_FIRST_CHUNK] = s_from_ns(first_ns - sent_ns)
    yield Span(
        ids.trace_id,
        span_id,
        phase.span_id,
        f"{_operation(load)} {load.served_model}",
        "client",
        due_ns + origin_ns,
        end_ns,
        attributes,
        tuple(events),
        error,
    )
    if sent_ns != ABSENT:
        yield Span(
            ids.trace_id,
            ids.of_part(names.SCHEDULE_DELAY, of=span_id),
            span_id,
            names.SCHEDULE_DELAY,
            "internal",
            due_ns + origin_ns,
            sent_ns + origin_ns,
            {},
        )


def _attributes(
    requests: RequestTable, exchanges: ExchangeTable, load: LoadPlan, row: int
) -> dict[str, Value]:
    found: dict[str, Value] = {
        **who_asks_whom(load),
        names.IS_STREAMING: load.is_streaming,
        names.REQUEST_INDEX: int(requests.request_index[row]),
        names.INPUT_TOKENS: int(requests.prompt_tokens[row]),
        names.OUTPUT_TOKENS: int(requests.output_tokens[row]),
    }
    most = int(exchanges.asked_output_tokens[row])
    if most > 0:
        found[names.MAX_TOKENS] = most
    if int(requests.cached_tokens[row]) != UNKNOWN_COUNT:
        found[names.CACHED_TOKENS] = int(requests.cached_tokens[row])
    if exchanges.finish_reason[row]:
        found[names.FINISH_REASONS] = (str(exchanges.finish_reason[row]),)
    if exchanges.error[row]:
        found[names.ERROR_TYPE] = str(exchanges.error[row])
    return found


def who_asks_whom(load: LoadPlan) -> dict[str, Value]:
    """The attributes that all requests of a test have in common."""
    return {
        names.OPERATION: _operation(load),
        names.PROVIDER: names.OPENAI,
        names.REQUEST_MODEL: load.served_model,
        **_server(load),
    }


def _operation(load: LoadPlan) -> str:
    return names.CHAT if load.endpoint == "chat" else names.TEXT_COMPLETION


def _server(load: LoadPlan) -> dict[str, Value]:
    url = urlsplit(load.url)
    return {
        names.SERVER_ADDRESS: url.hostname or "",
        names.SERVER_PORT: url.port or _PORTS.get(url.scheme, 80),
    }


# A load test as metrics of the GenAI conventions: the client's and the server's.
#
# The client's count all requests, traced or not, in the buckets of the conventions. The server's
# are the growth of its own histograms on `/metrics` during the test, in the server's own buckets.


_OF_SERVER: Final[tuple[tuple[names.Instrument, Histogram], ...]] = (
    (names.SERVER_DURATION, "e2e"),
    (names.SERVER_FIRST_TOKEN, "ttft"),
    (names.SERVER_PER_TOKEN, "tpot"),
)


def request_metrics(run: Run, sessions: Sequence[SessionFrame]) -> Iterator[HistogramPoint]:
    """The metric points of a load test; none without observations.

    A request's duration is that of its span, from the intended send. The time to the first chunk
    starts at the actual send, as the conventions define it.
    """
    requests, exchanges, load = run.requests, run.exchanges, run.manifest.load
    if requests is None or exchanges is None or load is None or not len(requests.sent_ns):
        return
    due_ns, last_ns = requests.intended_send_ns, last_instants_ns(requests, exchanges)
    origins_ns = WallClock(sessions).origins_ns(due_ns)
    window_ns = (int((due_ns + origins_ns).min()), int((last_ns + origins_ns).max()))
    common = who_asks_whom(load)
    for error in sorted(set(exchanges.error.tolist())):
        took_s = np.maximum(last_ns - due_ns, 0)[exchanges.error == error] / NS_PER_S
        attributes = common | ({names.ERROR_TYPE: error} if error else {})
        yield from _point(names.CLIENT_DURATION, attributes, window_ns, took_s)
    is_done = exchanges.error == ""
    for kind, counts in (("input", requests.prompt_tokens), ("output", requests.output_tokens)):
        known = counts[is_done & (counts >= 0)].astype(np.float64)
        yield from _point(names.TOKEN_USAGE, common | {names.TOKEN_TYPE: kind}, window_ns, known)
    if load.is_streaming:
        has_first = (requests.first_token_ns != ABSENT) & (requests.sent_ns != ABSENT)
        first_s = (requests.first_token_ns - requests.sent_ns)[has_first] / NS_PER_S
        yield from _point(names.CLIENT_FIRST_CHUNK, common, window_ns, first_s)
        if run.chunks is not None:
            gaps_s = _gaps_ns(run.chunks) / NS_PER_S
            yield from _point(names.CLIENT_PER_CHUNK, common, window_ns, gaps_s)
    if run.server is not None:
        yield from _of_server(run.server, common, window_ns)


def _gaps_ns(chunks: ChunkTable) -> I64:
    """Between chunks of the same answer."""
    is_same = chunks.request_index[1:] == chunks.request_index[:-1]
    gaps_ns: I64 = np.diff(chunks.arrived_ns)[is_same]
    return gaps_ns


def _point(
    instrument: names.Instrument,
    attributes: dict[str, Value],
    window_ns: tuple[int, int],
    values: F64,
) -> Iterator[HistogramPoint]:
    if not len(values):
        return
    buckets = np.searchsorted(np.array(instrument.edges), values)
    counts = np.bincount(buckets, minlength=len(instrument.edges) + 1)
    yield HistogramPoint(
        *(instrument, attributes, *window_ns, instrument.edges, tuple(counts.tolist())),
        total=float(values.sum()),
        least=float(values.min()),
        most=float(values.max()),
    )


def _of_server(
    samples: ServerSampleTable, common: dict[str, Value], window_ns: tuple[int, int]
) -> Iterator[HistogramPoint]:
    try:
        record = server_record(samples)
    except RecordError:  # the metrics are not those of a known server
        return
    for instrument, histogram in _OF_SERVER:
        growth = histogram_growth(record, histogram)
        if growth is None or not growth.n:
            continue
        counts = np.round(growth.counts).astype(np.int64)
        yield HistogramPoint(
            *(instrument, common, *window_ns),
            edges=tuple(growth.edges[:-1].tolist()),
            counts=tuple(counts.tolist()) or (growth.n,),
            total=growth.total,
            least=None,
            most=None,
        )


# Parts of each request's time, by the spans of its client and of its server.
#
# A server's span belongs to its ancestor span of the client. Time in between (a router, a proxy)
# is separate from the network's if the router or proxy sends spans. Letters of shapes: N requests,
# K parts.


SeenBy: TypeAlias = Literal["client and server", "server", "client"]
_TAIL_FRACTION: Final = 0.95
_SERVER_PARTS: Final = ("queue", "prefill", "decode")
_UNTIL_FIRST: Final = "until the first token"
_FROM_FIRST: Final = "from the first to the last token"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPart:
    """One part of the requests' time."""

    name: str
    mean_s: Estimate
    share_fraction: Estimate
    """Share of the mean time of all requests."""
    p50_s: Estimate
    p95_s: Estimate
    slowest_share_fraction: Estimate
    """Share of the mean time of the slowest 5 % of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTimes:
    """The parts of the requests' time, in the order in which a request passes them."""

    seen_by: SeenBy
    n_requests: int
    n_slowest: int
    n_failed: int
    """Number of failed requests, which no part includes."""
    n_client_only: int
    """Requests of the client without a span of the server."""
    n_server_only: int
    """Answers of the server without a span of the client."""
    total_s: Estimate
    total_p95_s: Estimate
    parts: tuple[SpanPart, ...]


class _Request(NamedTuple):
    start_ns: int
    total_s: float
    parts_s: dict[str, float]


def span_times(spans: Iterable[Span]) -> SpanTimes | None:
    """The parts of the time of all requests; None without spans of requests.

    By spans of both sides if a request has both; else the server's, else the client's.
    """
    every = tuple(spans)
    tree = SpanTree(every)
    clients = [span for span in every if span.kind == "client" and is_generation(span)]
    servers = [span for span in every if span.number(names.IN_QUEUE) is not None]
    good = [span for span in clients if span.error is None]
    served = _served(servers, tree)
    delays = {
        (span.trace_id, span.parent_id): s_from_ns(span.end_ns - span.start_ns)
        for span in every
        if span.name == names.SCHEDULE_DELAY
    }
    joined = [one for one in good if _key(one) in served]
    alone = [span for span in servers if tree.ancestor(span, _is_client) is None]
    requests, seen_by = _requests(joined, good, servers, served, delays, tree)
    if not requests:
        return None
    return _times(
        sorted(requests, key=lambda one: one.start_ns),
        seen_by,
        n_failed=len(clients) - len(good),
        n_client_only=len(good) - len(joined),
        n_server_only=len(alone),
    )


def _requests(
    joined: Sequence[Span],
    good: Sequence[Span],
    servers: Sequence[Span],
    served: dict[tuple[int, int], Span],
    delays: dict[tuple[int, int | None], float],
    tree: SpanTree,
) -> tuple[list[_Request], SeenBy]:
    if joined:
        pairs = [(span, served[_key(span)]) for span in joined]
        between = [_between(server, client, tree) for client, server in pairs]
        has_router = all(one is not None for one in between)
        return [
            _joined(client, server, router if has_router else None, delays.get(_key(client)))
            for (client, server), router in zip(pairs, between, strict=True)
        ], "client and server"
    if servers:
        return [
            _Request(one.start_ns, _s(one.number(names.E2E), _length_s(one)), _server_latency(one))
            for one in servers
        ], "server"
    return [
        request for one in good if (request := _of_client(one, delays.get(_key(one)))) is not None
    ], "client"


def _served(servers: Iterable[Span], tree: SpanTree) -> dict[tuple[int, int], Span]:
    """The server's span of each client span; of several, the one that ends last."""
    found = dict[tuple[int, int], Span]()
    for span in servers:
        client = tree.ancestor(span, _is_client)
        if client is None:
            continue
        known = found.get(_key(client))
        if known is None or span.end_ns > known.end_ns:
            found[_key(client)] = span
    return found


def _is_client(span: Span) -> bool:
    return span.kind == "client" and is_generation(span)


def _key(span: Span) -> tuple[int, int]:
    return span.trace_id, span.span_id


def _between(server: Span, client: Span, tree: SpanTree) -> Span | None:
    """The outermost span between the two: a router's or a proxy's."""
    found = None
    for one in tree.above(server):
        if one.span_id == client.span_id:
            break
        found = one
    return found


def _joined(
    client: Span, server: Span, router: Span | None, schedule_delay_s: float | None
) -> _Request:
    total_s = _length_s(client)
    parts_s = _delay(schedule_delay_s)
    outside_s = total_s - (schedule_delay_s or 0.0)
    of_server_s = _server_latency(server)
    e2e_s = sum(of_server_s.values())
    if router is None:
        parts_s["network and router"] = outside_s - e2e_s
    else:
        parts_s["network"] = outside_s - _length_s(router)
        parts_s["router"] = _length_s(router) - e2e_s
    return _Request(client.start_ns, total_s, parts_s | of_server_s)


def _delay(schedule_delay_s: float | None) -> dict[str, float]:
    """The part for the client's own delay; none if no span has it."""
    return {} if schedule_delay_s is None else {"schedule delay": schedule_delay_s}


def _server_latency(server: Span) -> dict[str, float]:
    """Parts from latencies that the server reports; the rest of its time is its front end's.

    Without times in the model the rest may be the model's: vLLM 0 reports TTFT, others nothing.
    """
    known = {
        part: server.number(name)
        for part, name in zip(
            _SERVER_PARTS, (names.IN_QUEUE, names.IN_PREFILL, names.IN_DECODE), strict=True
        )
    }
    known_s = {part: value_s for part, value_s in known.items() if value_s is not None}
    e2e_s = _s(server.number(names.E2E), _length_s(server))
    if not known_s.keys() & {"prefill", "decode"}:
        first_s = server.number(names.TO_FIRST_TOKEN)
        queue_s = known_s.get("queue", 0.0)
        if first_s is None:
            return known_s | {"server": e2e_s - queue_s}
        return known_s | {_UNTIL_FIRST: first_s - queue_s, _FROM_FIRST: e2e_s - first_s}
    front_end_s = round(e2e_s - sum(known_s.values()), 9)  # the clocks count nanoseconds
    return {"server's front end": front_end_s} | known_s


def _of_client(client: Span, schedule_delay_s: float | None) -> _Request | None:
    first_ns = client.instant_ns(names.FIRST_TOKEN)
    if first_ns is None:
        return None
    parts_s = _delay(schedule_delay_s)
    parts_s[_UNTIL_FIRST] = s_from_ns(first_ns - client.start_ns) - sum(parts_s.values())
    parts_s[_FROM_FIRST] = s_from_ns(client.end_ns - first_ns)
    return _Request(client.start_ns, _length_s(client), parts_s)


def _s(value_s: float | None, otherwise_s: float) -> float:
    return otherwise_s if value_s is None else value_s


def _length_s(span: Span) -> float:
    return s_from_ns(span.end_ns - span.start_ns)


def _times(
    requests: Sequence[_Request],
    seen_by: SeenBy,
    *,
    n_failed: int,
    n_client_only: int,
    n_server_only: int,
) -> SpanTimes | None:
    order = list(dict.fromkeys(name for one in requests for name in one.parts_s))
    parts_s = np.array([[one.parts_s.get(name, np.nan) for name in order] for one in requests])
    total_s = np.array([one.total_s for one in requests])
    p95_s = run_quantile_estimate(total_s, _TAIL_FRACTION)
    if p95_s is None:
        return None
    is_slow = total_s >= p95_s.value
    parts = tuple(
        part
        for place, name in enumerate(order)
        if (part := _part(name, parts_s[:, place], total_s, is_slow)) is not None
    )
    return SpanTimes(
        seen_by=seen_by,
        n_requests=len(requests),
        n_slowest=int(is_slow.sum()),
        n_failed=n_failed,
        n_client_only=n_client_only,
        n_server_only=n_server_only,
        total_s=run_mean_estimate(total_s, float(total_s.mean()), name="mean of requests"),
        total_p95_s=p95_s,
        parts=parts,
    )


def _part(name: str, part_s: F64, total_s: F64, is_slow: np.ndarray) -> SpanPart | None:
    has_part = ~np.isnan(part_s)
    present_s = part_s[has_part]
    slowest = is_slow & has_part
    if not total_s[slowest].any():
        return None
    p50_s, p95_s = run_quantile_estimates(present_s, (0.5, _TAIL_FRACTION))
    mean_s = run_mean_estimate(present_s, float(present_s.mean()), name="mean of requests")
    return SpanPart(
        name=name,
        mean_s=_not_negative(mean_s),
        share_fraction=_share(present_s, total_s[has_part]),
        p50_s=p50_s,
        p95_s=p95_s,
        slowest_share_fraction=_share(part_s[slowest], total_s[slowest]),
    )


def _share(part_s: F64, total_s: F64) -> Estimate:
    """The ratio of two means of one run, linearised about its value (Cochran 1977, eq. 2.46)."""
    mean_s = float(total_s.mean())
    share = float(part_s.mean()) / mean_s
    return _not_negative(
        run_mean_estimate(
            (part_s - share * total_s) / mean_s + share, share, name="ratio of means of requests"
        )
    )


def _not_negative(estimate: Estimate) -> Estimate:
    """The estimate, with its interval cut off at 0."""
    is_below = estimate.low is not None and estimate.low < 0
    return replace(estimate, low=0.0) if is_below else estimate
