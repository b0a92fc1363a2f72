"""Where is the time of each request, by the spans of its client and of its server?

A server's span belongs to the client's span above it. What lies between the two (a router, a proxy)
is apart from the network where it sends spans of its own. Letters of shapes: N requests, K parts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.inputs import span_names as names
from inferometer.inputs.otlp_spans import Span, SpanTree, is_generation
from inferometer.records.columns import F64
from inferometer.stats.autocorrelated import run_mean_estimate, run_quantile_estimate
from inferometer.stats.estimate import Estimate
from inferometer.units import s_from_ns

SeenBy: TypeAlias = Literal["client and server", "server", "client"]
_TAIL_FRACTION: Final = 0.95
_SERVER_PARTS: Final = ("queue", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPart:
    """One part of the requests' time."""

    name: str
    mean_s: Estimate
    share_fraction: Estimate
    """Of the mean time of all requests."""
    p50_s: Estimate
    p95_s: Estimate
    slowest_share_fraction: Estimate
    """Of the mean time of the slowest 5 % of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTimes:
    """The parts of the requests' time, in the order in which a request passes them."""

    seen_by: SeenBy
    n_requests: int
    n_slowest: int
    n_failed: int
    """Requests that failed; they are in no part."""
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
    """The parts of the time of all requests; None where no span is one of a request.

    Client and server where both are seen of at least one request; else the server, else the client.
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
            _Request(one.start_ns, _s(one.number(names.E2E), _length_s(one)), _of_server(one))
            for one in servers
        ], "server"
    return [
        request for one in good if (request := _of_client(one, delays.get(_key(one)))) is not None
    ], "client"


def _served(servers: Iterable[Span], tree: SpanTree) -> dict[tuple[int, int], Span]:
    """The server's span of each client's; of several answers to it, the one that ends last."""
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
    of_server_s = _of_server(server)
    e2e_s = sum(of_server_s.values())
    if router is None:
        parts_s["network and router"] = outside_s - e2e_s
    else:
        parts_s["network"] = outside_s - _length_s(router)
        parts_s["router"] = _length_s(router) - e2e_s
    return _Request(client.start_ns, total_s, parts_s | of_server_s)


def _delay(schedule_delay_s: float | None) -> dict[str, float]:
    """The client's own delay; nothing where no span has it."""
    return {} if schedule_delay_s is None else {"schedule delay": schedule_delay_s}


def _of_server(server: Span) -> dict[str, float]:
    """What the server says; the rest of its time is its front end's (tokenizer, HTTP)."""
    known = {
        part: server.number(name)
        for part, name in zip(
            _SERVER_PARTS, (names.IN_QUEUE, names.IN_PREFILL, names.IN_DECODE), strict=True
        )
    }
    known_s = {part: value_s for part, value_s in known.items() if value_s is not None}
    e2e_s = _s(server.number(names.E2E), _length_s(server))
    front_end_s = round(e2e_s - sum(known_s.values()), 9)  # the clocks count nanoseconds
    return {"server's front end": front_end_s} | known_s


def _of_client(client: Span, schedule_delay_s: float | None) -> _Request | None:
    first_ns = client.instant_ns(names.FIRST_TOKEN)
    if first_ns is None:
        return None
    parts_s = _delay(schedule_delay_s)
    parts_s["until the first token"] = s_from_ns(first_ns - client.start_ns) - sum(parts_s.values())
    parts_s["from the first to the last token"] = s_from_ns(client.end_ns - first_ns)
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
    p50_s, p95_s = (
        run_quantile_estimate(present_s, fraction) for fraction in (0.5, _TAIL_FRACTION)
    )
    slowest = is_slow & has_part
    if p50_s is None or p95_s is None or not total_s[slowest].any():
        return None
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
    """Its interval without the values that a duration or a share cannot have."""
    is_below = estimate.low is not None and estimate.low < 0
    return replace(estimate, low=0.0) if is_below else estimate
