"""Which spans tell a load test: the run, its phases, and each traced request?

They are made after the run, from its tables: the client's own path sends ids and nothing else.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from inferometer.inputs import span_names as names
from inferometer.inputs.load_plan import LoadPlan
from inferometer.inputs.otlp_spans import Span, SpanEvent, Value
from inferometer.inputs.span_ids import SpanIds
from inferometer.records.columns import I64
from inferometer.records.raw_log import SessionFrame
from inferometer.records.steady_state import steady_state
from inferometer.records.types import ABSENT, UNKNOWN_COUNT, ExchangeTable, RequestTable, Run
from inferometer.units import s_from_ns

_PORTS: Final = {"http": 80, "https": 443}


class _Phase(NamedTuple):
    name: str
    rows: I64
    span_id: int


class WallClock:
    """Instants of a run as those of the wall clock, which each session tells anew."""

    def __init__(self, sessions: Sequence[SessionFrame]) -> None:
        origins = sorted({(one.begins_ns, one.origin_unix_ns) for one in sessions})
        self._begins_ns = np.array([begins for begins, _ in origins], np.int64)
        self._origins_ns = np.array([origin for _, origin in origins], np.int64)

    def origins_ns(self, instants_ns: I64) -> I64:
        """What the wall clock shows at instant 0, for requests that were due at these instants."""
        place = np.searchsorted(self._begins_ns, instants_ns, side="right") - 1
        found: I64 = self._origins_ns[np.maximum(place, 0)]
        return found


def request_spans(run: Run, sessions: Sequence[SessionFrame], ids: SpanIds) -> Iterator[Span]:
    """The spans of a load test, parents before their children.

    A request's span begins when it was due, and ends with its last token or its failure.
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
    """Warm-up, steady state and drain; one phase where there are too few requests to tell."""
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
    """The last token or the end of the failure; else the last byte, else the send."""
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
