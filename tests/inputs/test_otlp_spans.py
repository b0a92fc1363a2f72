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
