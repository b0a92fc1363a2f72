"""How does an emulated server serve?

It gives requests to the engine and tokens to the clients, on the wall clock.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import psutil

from inferometer.inputs import spans as names
from inferometer.inputs.spans import Span, TraceParent
from inferometer.measure.load.schedule import Agenda
from inferometer.measure.otlp import SpanStream
from inferometer.serve import (
    emission_log,
    emulator_exchange,
    emulator_metrics,
    emulator_pages,
    emulator_plan,
    emulator_requests,
)
from inferometer.serve.emulator_pages import GENERATION_PATHS, Pages
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.http_line import HttpRequest, Line
from inferometer.simulate import live, outcome
from inferometer.units import s_from_ns

_ENDS: Final = {
    outcome.Status.STOPPED: "stop",
    outcome.Status.LENGTH: "length",
    outcome.Status.ABORTED: "abort",
    outcome.Status.REJECTED: "error",
}
_TRACED: Final = (outcome.Status.STOPPED, outcome.Status.LENGTH)
_WORST_FIRST: Final = ("error", "abort", "unfinished", "length", "stop")
_N_LATENESS: Final = 100_000
_MASK: Final = 2**64 - 1


class ServedCounts(NamedTuple):
    """Numbers of requests and tokens served."""

    n_requests: int
    n_tokens: int
    lateness_ns: tuple[int, ...]
    """Delay of each of the latest chunks after its due time."""


class EmulatorServer:
    """One emulated fleet with its HTTP connections."""

    def __init__(self, plan: EmulatorPlan, log: emission_log.EmissionWriter) -> None:
        self._plan = plan
        self._log = log
        self._desk = emulator_exchange.Desk(plan)
        self._pages = Pages(self._desk.limits, self._desk.tokenizer, plan.config.engine)
        self._engine = live.LiveFleet(plan.wall_fleet, self)
        # replicas that share experts are the engines of one server, as vLLM's ranks
        n_engines = plan.fleet.n_replicas if plan.fleet.replicas.in_lockstep else 1
        self._metrics = [
            emulator_metrics.metrics_of(plan.model_name, plan.config, rank)
            for rank in range(n_engines)
        ]
        self._accounts = emulator_metrics.Accounts(
            self._metrics, has_prefix_cache=plan.config.enable_prefix_caching
        )
        self._exchanges: dict[int, emulator_exchange.Exchange] = {}
        """Those without their last token, by number."""
        self._choices: dict[int, tuple[emulator_exchange.Exchange, emulator_exchange.Choice]] = {}
        """By index of the engine's request."""
        self._on_line: dict[Line, emulator_exchange.Exchange] = {}
        self._lines: set[Line] = set()
        self._n_requests = 0
        self._lateness_ns: deque[int] = deque(maxlen=_N_LATENESS)
        self._agenda = Agenda(asyncio.get_running_loop())
        self._wake_ns = outcome.FAR_NS
        self._started_s = psutil.Process().create_time()
        self._is_over = False
        endpoint = plan.otlp_endpoint
        self._spans = None if endpoint is None else ServerSpans(endpoint)

    def new_line(self) -> Line:
        """Make the protocol of a new connection."""
        line = Line(self._on_request, self._on_lost)
        self._lines.add(line)
        return line

    def hang_up(self) -> None:
        """Close all connections, and log unfinished requests."""
        self._is_over = True
        self._agenda.close()
        for line in tuple(self._lines):
            line.cut()
        for exchange in self._exchanges.values():
            self._log.ended(_logged(exchange.served))
        if self._spans is not None:
            self._spans.close()

    def counts(self) -> ServedCounts:
        """Numbers served so far."""
        n_tokens = sum(engine.counters["generation_tokens"] for engine in self._metrics)
        return ServedCounts(self._n_requests, n_tokens, tuple(self._lateness_ns))

    # what the engine calls

    def on_scheduled(
        self, admitted: Sequence[live.LiveRequest], n_preempted: int, replica: int
    ) -> None:
        """Count the requests of which the first prompt tokens were scheduled."""
        self._accounts.scheduled(admitted, n_preempted, replica)

    def on_step(self, deliveries: Sequence[live.Delivery], now_ns: int) -> None:
        """Send the tokens of a step that has ended."""
        for request, n_tokens in deliveries:
            exchange, choice = self._choices.get(request.index, (None, None))
            if exchange is None or choice is None:
                continue
            exchange.deliver(choice, n_tokens, now_ns)
            if self._spans is not None and request.status in _TRACED:
                self._spans.answered(exchange.served, choice)
            if exchange.is_answered:
                self._forget(exchange)
            elif exchange.is_over:  # a fault has ended the reply
                self._abort(exchange)
        self._accounts.count_step(deliveries, now_ns)

    def on_dropped(self, request: live.LiveRequest, now_ns: int) -> None:
        """Fail the reply of a request that the engine dropped."""
        self._accounts.ended(request, now_ns)
        exchange, _ = self._choices.get(request.index, (None, None))
        if exchange is not None:
            exchange.fail(
                "the engine refused the request: it waited too long, or the queue is full",
                503,
                now_ns,
            )
            self._abort(exchange)
            self._forget(exchange)

    # what a connection calls

    def _on_request(self, line: Line, request: HttpRequest) -> None:
        try:
            emulator_requests.check_head(request, self._plan.host)
            if request.method == "POST" and request.path in GENERATION_PATHS:
                self._generate(line, request)
            elif request.path == "/metrics":
                page = emulator_metrics.page_of(self._metrics, self._now())
                line.reply(200, page, content_type=emulator_metrics.CONTENT_TYPE)
            elif request.path in {"/health", "/ping"}:
                line.reply(200, b"")
            else:
                line.reply(200, self._pages.page(request))
        except emulator_requests.Refusal as refusal:
            line.reply(refusal.status, refusal.body())

    def _on_lost(self, line: Line) -> None:
        self._lines.discard(line)
        exchange = self._on_line.pop(line, None)
        if exchange is not None and not exchange.is_answered and not self._is_over:
            exchange.is_over = True
            self._abort(exchange)
            self._advance()

    def _abort(self, exchange: emulator_exchange.Exchange) -> None:
        """Abort the exchange's requests in the engine."""
        for choice in exchange.served.choices:
            if not choice.request.status.is_finished:
                leaves_ns = max(time.perf_counter_ns(), choice.request.arrival_ns)
                self._engine.abort(choice.request, leaves_ns)

    def _generate(self, line: Line, request: HttpRequest) -> None:
        number = self._n_requests
        self._n_requests += 1
        faults = emulator_plan.draw_faults(self._plan.faults, self._plan.seed, number)
        if faults.strike is not None and emulator_pages.refuse_by_fault(
            faults.strike, line, request
        ):
            self._log.ended(_refused(number, request, faults))
            return
        try:
            served = self._desk.take(request, number, faults)
        except emulator_requests.Refusal:
            self._log.ended(_refused(number, request, emulator_plan.Faults(None)))
            raise
        exchange = emulator_exchange.Exchange(served, line, self._emitted)
        self._exchanges[number] = self._on_line[line] = exchange
        exchange.open(served.accepted_ns)
        for choice in served.choices:
            self._choices[choice.request.index] = (exchange, choice)
            self._accounts.arrived(choice.request)
            self._engine.submit(choice.request)
        self._advance()

    def _emitted(
        self,
        number: int,
        kind: emission_log.EmissionKind,
        n_tokens: int,
        due_ns: int,
        written_ns: int,
    ) -> None:
        if kind is emission_log.EmissionKind.TOKENS:
            self._lateness_ns.append(written_ns - due_ns)
        self._log.emitted(number, kind, n_tokens, due_ns, written_ns)

    def _forget(self, exchange: emulator_exchange.Exchange) -> None:
        served = exchange.served
        del self._exchanges[served.number]
        for choice in served.choices:
            del self._choices[choice.request.index]
        if self._on_line.get(exchange.line) is exchange:
            del self._on_line[exchange.line]
        self._log.ended(_logged(served))

    def _now(self) -> list[emulator_metrics.Now]:
        """The gauges of each engine; the first one has what waits at a gate."""
        engine, started_s = self._engine, self._started_s
        if len(self._metrics) == 1:
            load = (engine.n_running, engine.n_waiting, engine.kv_used_fraction)
            return [emulator_metrics.Now(*load, started_s)]
        loads = [engine.load_of(rank) for rank in range(len(self._metrics))]
        n_at_gate = engine.n_waiting - sum(load.n_waiting for load in loads)
        loads[0] = loads[0]._replace(n_waiting=loads[0].n_waiting + n_at_gate)
        return [emulator_metrics.Now(*load, started_s) for load in loads]

    # the clock

    def _advance(self) -> None:
        """Process due events, and schedule the next call."""
        next_ns = self._engine.advance(time.perf_counter_ns())
        if next_ns not in {self._wake_ns, outcome.FAR_NS}:
            self._agenda.add(next_ns, self._wake)
        self._wake_ns = next_ns

    def _wake(self, due_ns: int) -> None:
        if due_ns == self._wake_ns:
            self._wake_ns = outcome.FAR_NS
            self._advance()


def _logged(served: emulator_exchange.Served) -> emission_log.LoggedRequest:
    strike, usage = served.faults.strike, served.usage
    ends = {_ENDS.get(choice.request.status, "unfinished") for choice in served.choices}
    return emission_log.LoggedRequest(
        number=served.number,
        client_id=served.client_id,
        path=served.path,
        is_streaming=served.parsed.is_streaming,
        accepted_ns=served.accepted_ns,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=sum(choice.request.num_output_tokens for choice in served.choices),
        end=next(end for end in _WORST_FIRST if end in ends),
        fault=None if strike is None else strike.kind,
    )


def _refused(
    number: int, request: HttpRequest, faults: emulator_plan.Faults
) -> emission_log.LoggedRequest:
    return emission_log.LoggedRequest(
        number=number,
        client_id=request.headers.get("x-request-id", ""),
        path=request.path,
        is_streaming=False,
        accepted_ns=request.accepted_ns,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        end="refused",
        fault=None if faults.strike is None else faults.strike.kind,
    )


# Which spans does it send of its requests? Those of vLLM: one for each answer that came to its
# end. A client that does not want its request traced is obeyed.
# Source: vLLM 0.32.0, v1/engine/output_processor.py, ``do_tracing``.


class ServerSpans:
    """Sends a span of each answer that has ended.

    Raises
    ------
    SpecError
        OpenTelemetry's SDK is not installed, or the endpoint is no URL.
    """

    def __init__(self, endpoint: str) -> None:
        self._stream = SpanStream(endpoint, "inferometer emulate")
        self._wall_ns = time.time_ns() - time.perf_counter_ns()
        """What the wall clock shows where the engine's clock shows 0."""

    def answered(self, served: emulator_exchange.Served, choice: emulator_exchange.Choice) -> None:
        """Send the span of an answer that has its last token."""
        parent = served.traced_by
        if parent is None:
            parent = TraceParent(uuid.uuid4().int, 0, is_sampled=True)
        if parent.is_sampled:
            self._stream.add(server_span(served, choice, parent, wall_ns=self._wall_ns))

    def close(self) -> None:
        """Send the remaining spans."""
        self._stream.close()


def server_span(
    served: emulator_exchange.Served,
    choice: emulator_exchange.Choice,
    parent: TraceParent,
    *,
    wall_ns: int,
) -> Span:
    """The span of an answer, its end that of its last token.

    As in vLLM, attributes of value 0 are left out, and each of several answers to one prompt has
    a span of its own.
    """
    request, parsed = choice.request, served.parsed
    sampling = {names.TEMPERATURE: parsed.temperature_ratio, names.TOP_P: parsed.top_p_fraction}
    instants_ns = (request.arrival_ns, request.admitted_ns, choice.first_ns, choice.last_ns)
    arrival_ns, admitted_ns, first_ns, last_ns = instants_ns
    return Span(
        trace_id=parent.trace_id,
        span_id=(uuid.uuid4().int & _MASK) or 1,
        parent_id=parent.span_id or None,
        name=names.LLM_REQUEST,
        kind="server",
        start_ns=arrival_ns + wall_ns,
        end_ns=last_ns + wall_ns,
        attributes={
            names.TO_FIRST_TOKEN: s_from_ns(first_ns - arrival_ns),
            names.E2E: s_from_ns(last_ns - arrival_ns),
            names.IN_QUEUE: s_from_ns(admitted_ns - arrival_ns),
            names.IN_PREFILL: s_from_ns(first_ns - admitted_ns),
            names.IN_DECODE: s_from_ns(last_ns - first_ns),
            names.IN_INFERENCE: s_from_ns(last_ns - admitted_ns),
            names.PROMPT_TOKENS: request.num_prompt_tokens,
            names.COMPLETION_TOKENS: request.num_output_tokens,
            names.MAX_TOKENS: request.max_tokens,
            names.REQUEST_ID: served.reply_id,
            names.N_ANSWERS: 1,
            **{name: value for name, value in sampling.items() if value},
        },
    )
