"""Reader of spans in files of the OpenTelemetry collector's file exporter.

Each line is one OTLP export as JSON: resources, which contain scopes, which contain spans.

Source
------
opentelemetry-proto 1.9, "JSON Protobuf Encoding": ids are hexadecimal, 64-bit integers may be
texts.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from inferometer.errors import RecordError
from inferometer.inputs import span_names as names
from inferometer.inputs.foreign_bytes import Door, shortened

Value: TypeAlias = str | int | float | bool | tuple[str, ...]
Kind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]
_KINDS: Final[tuple[Kind, ...]] = ("internal", "server", "client", "producer", "consumer")
_LATEST_NS: Final = 2**62
_LARGEST: Final = 1e15
"""Larger numbers cannot be measurements, and their sums would overflow."""
_ERROR: Final = (2, "STATUS_CODE_ERROR")

DOOR: Final = Door(
    noun="file of spans",
    allowed="OTLP as JSON lines, as the OpenTelemetry collector's file exporter writes",
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

    instrument: names.Instrument
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
    operation = span.text(names.OPERATION)
    if operation is not None:
        return operation in names.GENERATIONS
    return output_tokens_of(span) is not None


def input_tokens_of(span: Span) -> float | None:
    """Prompt tokens, under the present or the older name."""
    found = span.number(names.INPUT_TOKENS)
    return span.number(names.PROMPT_TOKENS) if found is None else found


def output_tokens_of(span: Span) -> float | None:
    """Output tokens, under the present or the older name."""
    found = span.number(names.OUTPUT_TOKENS)
    return span.number(names.COMPLETION_TOKENS) if found is None else found


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


def is_spans_file(path: Path) -> bool:
    """Does this file begin like one of spans?"""
    if not path.is_file():
        return False
    try:
        return DOOR.start_of(path).lstrip().startswith(b'{"resourceSpans"')
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
    for number, line in DOOR.lines_of(path):
        where = f"{path}, line {number}"
        export = DOOR.json(line, SpanExport, where=where)
        with DOOR.refusing(where):
            found += spans_of(export)
    return tuple(found)


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
