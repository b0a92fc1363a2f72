"""OpenTelemetry spans: ids of a load test, names of ours and of servers, and their reader.

Each line of such a file is one OTLP export as JSON: resources, which contain scopes, which contain
spans. One export may also take several lines. What Jaeger's page and its API give is read, too:
traces, which contain spans with times in microseconds.

Source
------
opentelemetry-proto 1.9, "JSON Protobuf Encoding": ids are hexadecimal, 64-bit integers may be
texts. Jaeger 1.76, internal/uimodel/model.go.

Ids are computed from the run's name and the request's number, so the client stores nothing, and
the spans that are made after the run have the same ids.

Source
------
W3C Trace Context, level 2, "traceparent"; Knuth, TAOCP 6.4: multiples of the golden ratio.

All names of OpenTelemetry's GenAI conventions that this program writes or reads are here: the
conventions are in development, so that a renaming needs a change in this file only.

Source
------
open-telemetry/semantic-conventions-genai, docs/gen-ai and model/manifest.yaml, all in development:
the names of the schema below, which are also those of opentelemetry-semantic-conventions 0.66b2
(semconv 1.44). The first release of their own, v0.1.0, renames the client's metrics to
``gen_ai.client.inference.*``; no package has it yet. vLLM 0.32.0, vllm/tracing/utils.py, whose
names for token counts are older ones.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door, shortened

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-|$)"
)


class TraceParent(NamedTuple):
    """Content of a client's ``traceparent`` header."""

    trace_id: int
    span_id: int
    is_sampled: bool


def traceparent_of(header: str | None) -> TraceParent | None:
    """Parse this header; None where it is missing or invalid.

    Example
    -------
    >>> traceparent_of("00-000000000000000000000000000000ab-00000000000000cd-01")
    TraceParent(trace_id=171, span_id=205, is_sampled=True)
    """
    found = _TRACEPARENT.match(header or "")
    if found is None:
        return None
    trace_id, span_id, flags = (int(text, 16) for text in found.groups())
    return TraceParent(trace_id, span_id, bool(flags & 1)) if trace_id and span_id else None


class SpanIds(NamedTuple):
    """The ids of one run's spans."""

    trace_id: int
    key: int
    sampled_below: int
    """Of 2^64: requests whose multiple of the golden ratio is below it are traced."""

    def is_sampled(self, row: int) -> bool:
        """Is this request traced? Traced ones are spread evenly over the run.

        Example
        -------
        >>> ids = span_ids("run", sample_fraction=0.1)
        >>> sum(ids.is_sampled(row) for row in range(10_000))
        1000
        """
        return (row + 1) * _GOLDEN & _MASK < self.sampled_below

    def of_request(self, row: int) -> int:
        """The id of this request's span; different requests have different ones."""
        return (self.key + (row + 1) * _GOLDEN & _MASK) or self.key

    def of_part(self, name: str, of: int = 0) -> int:
        """The id of the span with this name, below the span ``of``."""
        return _digest(f"{self.trace_id:x} {of:x} {name}", 8)

    def traceparent(self, row: int) -> str:
        """The header that a request carries; its last digit tells the server whether it is traced.

        Example
        -------
        >>> span_ids("run", sample_fraction=1.0).traceparent(0)
        '00-079225af853f5315621cde342416f015-7834d48091acad04-01'
        """
        flags = "01" if self.is_sampled(row) else "00"
        return f"00-{self.trace_id:032x}-{self.of_request(row):016x}-{flags}"


def span_ids(run_name: str, *, sample_fraction: float) -> SpanIds:
    """The ids of the run with this name, of whose requests this share is traced."""
    return SpanIds(
        trace_id=_digest(f"trace {run_name}", 16),
        key=_digest(f"spans {run_name}", 8),
        sampled_below=round(sample_fraction * 2**64),
    )


def _digest(text: str, n_bytes: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:n_bytes], "big") or 1


SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
"""Version of the conventions whose names the load client writes."""

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
IS_STREAMING: Final = "gen_ai.request.stream"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
GENERATIONS: Final = frozenset({CHAT, TEXT_COMPLETION, "generate_content"})
"""Operations that ask a model for tokens; agents and tools contain such spans."""
OPENAI: Final = "openai"
"""Name of the interface as the client sees it, for any server."""


class Instrument(NamedTuple):
    """A histogram of the conventions."""

    name: str
    unit: str
    edges: tuple[float, ...]
    """Upper edges of its buckets, except the last bucket, which has none."""
    says: str


_OPERATION_EDGES_S: Final = tuple(0.01 * 2**power for power in range(14))
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105
TOKEN_USAGE: Final = Instrument(
    "gen_ai.client.token.usage",
    "{token}",
    tuple(float(4**power) for power in range(14)),
    "Number of input and output tokens used.",
)
CLIENT_DURATION: Final = Instrument(
    "gen_ai.client.operation.duration", "s", _OPERATION_EDGES_S, "GenAI operation duration."
)
CLIENT_FIRST_CHUNK: Final = Instrument(
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    _OPERATION_EDGES_S,
    "From the request to the first chunk of its answer.",
)
CLIENT_PER_CHUNK: Final = Instrument(
    "gen_ai.client.operation.time_per_output_chunk",
    "s",
    _OPERATION_EDGES_S,
    "From one chunk of an answer to the next.",
)
SERVER_DURATION: Final = Instrument(
    "gen_ai.server.request.duration",
    "s",
    _OPERATION_EDGES_S,
    "From the request's arrival at the server to its last token.",
)
SERVER_PER_TOKEN: Final = Instrument(
    "gen_ai.server.time_per_output_token",
    "s",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    "Time per output token after the first, of successful answers.",
)
SERVER_FIRST_TOKEN: Final = Instrument(
    "gen_ai.server.time_to_first_token",
    "s",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    "From the request's arrival at the server to the first token, of successful answers.",
)

# vLLM's server, which the emulator writes too.
LLM_REQUEST: Final = "llm_request"
PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
REQUEST_ID: Final = "gen_ai.request.id"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
N_ANSWERS: Final = "gen_ai.request.n"
IN_QUEUE: Final = "gen_ai.latency.time_in_queue"
TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105
E2E: Final = "gen_ai.latency.e2e"
IN_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
IN_DECODE: Final = "gen_ai.latency.time_in_model_decode"
IN_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"

# Own names, where the conventions have none.
RUN: Final = "inferometer.run"
RUN_ID: Final = "inferometer.run.id"
PHASE: Final = "inferometer.phase"
REQUEST_INDEX: Final = "inferometer.request.index"
SCHEDULE_DELAY: Final = "inferometer.schedule_delay"
FIRST_TOKEN: Final = "first_token"  # noqa: S105
LAST_TOKEN: Final = "last_token"  # noqa: S105


Value: TypeAlias = str | int | float | bool | tuple[str, ...]
Kind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]
_KINDS: Final[tuple[Kind, ...]] = ("internal", "server", "client", "producer", "consumer")
_LATEST_NS: Final = 2**62
_LARGEST: Final = 1e15
"""Larger numbers cannot be measurements, and their sums would overflow."""
_ERROR: Final = (2, "STATUS_CODE_ERROR")

DOOR: Final = Door(
    noun="file of spans",
    allowed="OTLP as JSON, as the OpenTelemetry collector's file exporter writes it, or Jaeger's"
    " JSON",
    refusal=RecordError,
)


class SpanEvent(NamedTuple):
    """An event at a time within a span."""

    name: str
    at_ns: int


class Span(NamedTuple):
    """A named interval of one trace, instants in nanoseconds since 1970."""

    trace_id: int
    span_id: int
    parent_id: int | None
    """None for a trace's root span."""
    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None
    """Error message; None without an error."""

    def number(self, name: str) -> float | None:
        """The number with this name; None where the span has none."""
        value = self.attributes.get(name)
        return None if value is None or isinstance(value, str | tuple) else float(value)

    def text(self, name: str) -> str | None:
        """The text with this name; None where the span has none."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else None

    def instant_ns(self, name: str) -> int | None:
        """Time of the first event with this name; None without one."""
        return next((event.at_ns for event in self.events if event.name == name), None)


class HistogramPoint(NamedTuple):
    """One run's histogram of an instrument, for one set of attributes."""

    instrument: Instrument
    attributes: dict[str, Value]
    start_ns: int
    """Since 1970, as ``end_ns``."""
    end_ns: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than the edges: the last counts values above the last edge."""
    total: float
    least: float | None
    """Smallest value; None (also ``most``): unknown."""
    most: float | None


class SpanTree:
    """Spans and their parents, of all traces of a file."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = {(span.trace_id, span.span_id): span for span in spans}

    def parent(self, span: Span) -> Span | None:
        """Parent of the span; None where it is not in the file."""
        return None if span.parent_id is None else self._spans.get((span.trace_id, span.parent_id))

    def above(self, span: Span) -> Iterator[Span]:
        """The parent, its parent, and so on."""
        seen, one = {span.span_id}, self.parent(span)
        while one is not None and one.span_id not in seen:
            yield one
            seen.add(one.span_id)
            one = self.parent(one)

    def ancestor(self, span: Span, is_wanted: Callable[[Span], bool]) -> Span | None:
        """The nearest ancestor that is wanted."""
        return next((one for one in self.above(span) if is_wanted(one)), None)


def is_generation(span: Span) -> bool:
    """Is this the span of a request to a model, seen by its client or its server?

    Spans of agents and tools do not count: they contain such spans.
    """
    operation = span.text(OPERATION)
    if operation is not None:
        return operation in GENERATIONS
    return output_tokens_of(span) is not None


def input_tokens_of(span: Span) -> float | None:
    """Prompt tokens, under the present or the older name."""
    found = span.number(INPUT_TOKENS)
    return span.number(PROMPT_TOKENS) if found is None else found


def output_tokens_of(span: Span) -> float | None:
    """Output tokens, under the present or the older name."""
    found = span.number(OUTPUT_TOKENS)
    return span.number(COMPLETION_TOKENS) if found is None else found


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None
    array_value: "_Array | None" = None


class _Array(msgspec.Struct, frozen=True):
    values: list[_Value] = []


class _Attribute(msgspec.Struct, frozen=True):
    key: str
    value: _Value = _Value()


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    time_unix_nano: int | str = 0
    name: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int | str = 0
    message: str = ""


class _Span(msgspec.Struct, frozen=True, rename="camel"):
    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str
    parent_span_id: str = ""
    name: str = ""
    kind: int | str = 1
    attributes: list[_Attribute] = []
    events: list[_Event] = []
    status: _Status = _Status()


class _ScopeSpans(msgspec.Struct, frozen=True):
    spans: list[_Span] = []


class _ResourceSpans(msgspec.Struct, frozen=True, rename="camel"):
    scope_spans: list[_ScopeSpans] = []


class SpanExport(msgspec.Struct, frozen=True, rename="camel"):
    """A line of the file."""

    resource_spans: list[_ResourceSpans]


class _JaegerTag(msgspec.Struct, frozen=True):
    key: str
    value: str | int | float | bool = ""


class _JaegerLog(msgspec.Struct, frozen=True):
    timestamp: int = 0
    fields: list[_JaegerTag] = []


class _JaegerReference(msgspec.Struct, frozen=True):
    ref_type: str = msgspec.field(name="refType", default="")
    span_id: str = msgspec.field(name="spanID", default="0")


class _JaegerSpan(msgspec.Struct, frozen=True):
    trace_id: str = msgspec.field(name="traceID")
    span_id: str = msgspec.field(name="spanID")
    start_time: int = msgspec.field(name="startTime")
    duration: int
    operation_name: str = msgspec.field(name="operationName", default="")
    references: list[_JaegerReference] = []
    tags: list[_JaegerTag] = []
    logs: list[_JaegerLog] = []


class _JaegerTrace(msgspec.Struct, frozen=True):
    spans: list[_JaegerSpan] = []


class _JaegerTraces(msgspec.Struct, frozen=True):
    data: list[_JaegerTrace]


_OTLP: Final = re.compile(rb'\s*\{\s*"resourceSpans"')
_JAEGER: Final = re.compile(rb'\s*\{\s*"data"\s*:\s*\[')
_NS_PER_US: Final = 1000


def is_spans_file(path: Path) -> bool:
    """Does this file begin like one of spans?"""
    if not path.is_file():
        return False
    try:
        start = DOOR.start_of(path)
        return _OTLP.match(start) is not None or _is_jaeger(start)
    except RecordError:
        return False


def read_spans(path: Path) -> tuple[Span, ...]:
    """All spans of a file, in its order.

    Raises
    ------
    RecordError
        The file cannot be read, or a line is not an export of spans.
    """
    found = list[Span]()
    start = DOOR.start_of(path)
    if _is_jaeger(start):
        traces = DOOR.json(DOOR.bytes_of(path), _JaegerTraces, where=str(path))
        with DOOR.refusing(str(path)):
            return tuple(_of_jaeger(one) for trace in traces.data for one in trace.spans)
    if is_one_document(path):  # one export on several lines
        export = DOOR.json(DOOR.bytes_of(path), SpanExport, where=str(path))
        with DOOR.refusing(str(path)):
            return tuple(spans_of(export))
    for number, line in DOOR.lines_of(path):
        where = f"{path}, line {number}"
        export = DOOR.json(line, SpanExport, where=where)
        with DOOR.refusing(where):
            found += spans_of(export)
    return tuple(found)


def is_one_document(path: Path) -> bool:
    """Is the file one JSON value (Jaeger's, or an indented export), not one a line?"""
    start = DOOR.start_of(path)
    first, newline, _ = start.partition(b"\n")
    return _is_jaeger(start) or (bool(newline) and not first.rstrip().endswith(b"}"))


def _is_jaeger(start: bytes) -> bool:
    return _JAEGER.match(start) is not None and b'"traceID"' in start


def _of_jaeger(raw: _JaegerSpan) -> Span:
    tags = {one.key: one.value for one in raw.tags}
    start_ns = _instant_ns(raw.start_time * _NS_PER_US)
    parents = [one for one in raw.references if one.ref_type == "CHILD_OF"]
    has_failed = tags.get("error") in (True, "true") or tags.get("otel.status_code") == "ERROR"
    return Span(
        trace_id=int(raw.trace_id, 16),
        span_id=int(raw.span_id, 16),
        parent_id=int(parents[0].span_id, 16) if parents else None,
        name=raw.operation_name,
        kind=_kind(f"SPAN_KIND_{tags.get('span.kind')}".upper()),
        start_ns=start_ns,
        end_ns=_instant_ns(start_ns + raw.duration * _NS_PER_US),
        attributes={
            name: value
            for name, value in tags.items()
            if isinstance(value, str) or abs(value) < _LARGEST
        },
        events=tuple(
            SpanEvent(field.value, _instant_ns(log.timestamp * _NS_PER_US))
            for log in raw.logs
            for field in log.fields
            if field.key == "event" and isinstance(field.value, str)
        ),
        error=str(tags.get("otel.status_description") or "error") if has_failed else None,
    )


def spans_of(export: SpanExport) -> Iterator[Span]:
    """The spans of one line.

    Raises
    ------
    ValueError
        An id or a time is not a number.
    """
    for resource in export.resource_spans:
        for scope in resource.scope_spans:
            for raw in scope.spans:
                yield _span(raw)


def _span(raw: _Span) -> Span:
    return Span(
        trace_id=int(raw.trace_id, 16),
        span_id=int(raw.span_id, 16),
        parent_id=int(raw.parent_span_id, 16) or None if raw.parent_span_id else None,
        name=raw.name,
        kind=_kind(raw.kind),
        start_ns=_instant_ns(raw.start_time_unix_nano),
        end_ns=_instant_ns(raw.end_time_unix_nano),
        attributes={
            one.key: value for one in raw.attributes if (value := _value(one.value)) is not None
        },
        events=tuple(SpanEvent(one.name, _instant_ns(one.time_unix_nano)) for one in raw.events),
        error=(raw.status.message or "error") if raw.status.code in _ERROR else None,
    )


def _instant_ns(value: int | str) -> int:
    found_ns = int(value)
    if not 0 <= found_ns < _LATEST_NS:
        raise ValueError(f"{shortened(value)} is no instant in nanoseconds since 1970")
    return found_ns


def _kind(kind: int | str) -> Kind:
    if isinstance(kind, str):
        by_name: dict[str, Kind] = {f"SPAN_KIND_{known.upper()}": known for known in _KINDS}
        return by_name.get(kind, "internal")
    return _KINDS[kind - 1] if 1 <= kind <= len(_KINDS) else "internal"


def _value(value: _Value) -> Value | None:
    """The value; None for kinds that are not used here."""
    if value.int_value is not None:
        whole = int(value.int_value)
        return whole if abs(whole) < _LATEST_NS else None
    if value.array_value is not None:
        return tuple(one.string_value for one in value.array_value.values if one.string_value)
    number = value.double_value
    if isinstance(number, float):
        return number if abs(number) < _LARGEST else None
    return value.string_value if value.bool_value is None else value.bool_value
