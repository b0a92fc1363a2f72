"""Are spans read as the collector writes them, and broken lines named?"""

import json

import pytest

from inferometer.errors import RecordError
from inferometer.inputs import spans as names
from inferometer.inputs.spans import Span, SpanEvent, SpanTree, is_spans_file, read_spans

TRACE, CLIENT, SERVER = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174", "eee19b7ec3c1b173"


def attribute(key, kind, value):
    return {"key": key, "value": {f"{kind}Value": value}}


def line(*spans):
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": list(spans)}]}]})


def span(**changes):
    return {
        "traceId": TRACE,
        "spanId": CLIENT,
        "name": "chat m",
        "kind": 3,
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": "1544712661000000000",
    } | changes


def test_a_span_is_read_with_numbers_as_texts_and_ids_in_hexadecimal(tmp_path):
    path = tmp_path / "spans.jsonl"
    full = span(
        parentSpanId=SERVER,
        attributes=[
            attribute(names.INPUT_TOKENS, "int", "12"),
            attribute(names.OUTPUT_TOKENS, "int", 3),
            attribute(names.IN_QUEUE, "double", 0.25),
            attribute(names.E2E, "double", "NaN"),
            attribute(names.REQUEST_MODEL, "string", "m"),
            attribute(names.IS_STREAMING, "bool", True),
            attribute("list", "array", {"values": [{"stringValue": "stop"}]}),
            attribute("table", "kvlist", {"values": []}),
        ],
        events=[{"name": "first_token", "timeUnixNano": "1544712660500000000", "attributes": []}],
        status={"code": 2, "message": "reset"},
        droppedAttributesCount=1,
    )
    path.write_text(line(full) + "\n" + line(span(kind="SPAN_KIND_SERVER")) + "\n")
    assert is_spans_file(path)
    first, second = read_spans(path)
    assert first == Span(
        trace_id=int(TRACE, 16),
        span_id=int(CLIENT, 16),
        parent_id=int(SERVER, 16),
        name="chat m",
        kind="client",
        start_ns=1544712660000000000,
        end_ns=1544712661000000000,
        attributes={
            names.INPUT_TOKENS: 12,
            names.OUTPUT_TOKENS: 3,
            names.IN_QUEUE: 0.25,
            names.REQUEST_MODEL: "m",
            names.IS_STREAMING: True,
            "list": ("stop",),
        },
        events=(SpanEvent("first_token", 1544712660500000000),),
        error="reset",
    )
    assert (second.kind, second.parent_id, second.error) == ("server", None, None)


@pytest.mark.parametrize(
    "broken",
    [
        '{"resourceSpans": 1}',
        '{"resourceSpans": [',
        line(span(traceId="xyz")),
        line(span(startTimeUnixNano="soon")),
        line(span(attributes=[attribute("n", "int", "many")])),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path, broken):
    path = tmp_path / "spans.jsonl"
    path.write_text(line(span()) + "\n" + broken + "\n")
    with pytest.raises(RecordError, match="spans") as caught:
        read_spans(path)
    assert "line 2" in str(caught.value)


def test_other_files_hold_no_spans(tmp_path):
    other = tmp_path / "trace.json"
    other.write_text('{"traceEvents": []}')
    assert not is_spans_file(other)
    assert not is_spans_file(tmp_path)
    assert not is_spans_file(tmp_path / "missing")


def test_parents_that_form_a_ring_are_passed_once(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_text(
        line(span(parentSpanId=SERVER), span(spanId=SERVER, parentSpanId=CLIENT)) + "\n"
    )
    spans = read_spans(path)
    tree = SpanTree(spans)
    assert [one.span_id for one in tree.above(spans[0])] == [int(SERVER, 16)]


def test_an_export_on_several_lines_and_what_jaeger_gives_are_the_same_spans(tmp_path):
    otlp = {
        "traceId": "ab", "spanId": "cd", "parentSpanId": "ef", "name": "llm_request", "kind": 2,
        "startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000000900000000",
        "attributes": [
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "20"}},
            {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 0.9}},
        ],
        "events": [{"name": "first_token", "timeUnixNano": "1700000000100000000"}],
    }  # fmt: skip
    jaeger = {
        "traceID": "ab", "spanID": "cd", "operationName": "llm_request",
        "references": [{"refType": "CHILD_OF", "traceID": "ab", "spanID": "ef"}],
        "startTime": 1_700_000_000_000_000, "duration": 900_000,
        "tags": [
            {"key": "span.kind", "type": "string", "value": "server"},
            {"key": "gen_ai.usage.completion_tokens", "type": "int64", "value": 20},
            {"key": "gen_ai.latency.e2e", "type": "float64", "value": 0.9},
        ],
        "logs": [{"timestamp": 1_700_000_000_100_000,
                  "fields": [{"key": "event", "type": "string", "value": "first_token"}]}],
    }  # fmt: skip
    export = {"resourceSpans": [{"scopeSpans": [{"spans": [otlp]}]}]}
    pages = {"line.jsonl": json.dumps(export), "indented.json": json.dumps(export, indent=2),
             "jaeger.json": json.dumps({"data": [{"traceID": "ab", "spans": [jaeger]}]})}  # fmt: skip
    found = []
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
        assert is_spans_file(tmp_path / name)
        (span,) = read_spans(tmp_path / name)
        attributes = {key: value for key, value in span.attributes.items() if key != "span.kind"}
        found.append(span._replace(attributes=attributes))
    assert found[0] == found[1] == found[2]
    assert found[0].parent_id == 0xEF


@pytest.mark.parametrize(
    "text", ['{"data":[{"spans":[{"traceID":"x"}]}]}', '{\n"resourceSpans": 3}']
)
def test_damaged_exports_on_several_lines_are_refused(text, tmp_path):
    (tmp_path / "spans.json").write_text(text)
    with pytest.raises(RecordError):
        read_spans(tmp_path / "spans.json")
