"""Do spans come out of OpenTelemetry's own exporter as they went in, and is what fails said?"""

import pytest

import otlp_receiver
from inferometer.errors import MeasureError, SpecError
from inferometer.inputs import spans as names
from inferometer.inputs.spans import HistogramPoint, Span, SpanEvent, read_spans
from inferometer.measure import otlp

T0 = 1_795_540_200_000_000_000
SPANS = (
    Span(2**127 + 5, 2**63 + 1, None, "inferometer.run", "internal", T0, T0 + 900, {"n": 3}),
    Span(
        2**127 + 5,
        7,
        2**63 + 1,
        "chat m",
        "client",
        T0 + 1,
        T0 + 899,
        {"gen_ai.request.model": "m", "is": True, "s": 0.25, "reasons": ("stop",)},
        (SpanEvent("first_token", T0 + 20),),
    ),
    Span(2**127 + 5, 8, 7, "llm_request", "server", T0, T0 + 5, {}, error="reset"),
)


def test_what_is_sent_is_what_the_collector_writes(tmp_path):
    with otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector:
        sender = otlp.SpanSender(collector.url, "a service")
        sender.check()
        assert sender.send(SPANS) == 3
        sender.close()
        resource = collector.resource_spans[0].resource
    assert read_spans(collector.path) == SPANS
    told = {one.key: one.value.string_value for one in resource.attributes}
    assert told["service.name"] == "a service"
    assert collector.resource_spans[0].scope_spans[0].schema_url.startswith("https://opentele")


def test_metrics_arrive_as_they_were_counted(tmp_path, monkeypatch):
    points = [
        HistogramPoint(
            *(names.CLIENT_DURATION, attributes, T0, T0 + 900, names.CLIENT_DURATION.edges),
            *(tuple(range(15)), 12.5, 0.002, 90.0),
        )
        for attributes in ({"gen_ai.operation.name": "chat"}, {"error.type": "timeout"})
    ]
    points.append(HistogramPoint(names.SERVER_DURATION, {}, T0, T0 + 9, (), (3,), 1.5, None, None))
    with otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector:
        assert otlp.send_metrics(f"{collector.url}/v1/traces", "a service", points) == 2
        duration, of_server = collector.metrics.values()
        collector.takes_metrics = False
        with pytest.raises(MeasureError, match=r"does not take metrics.*404"):
            otlp.send_metrics(collector.url, "a service", points)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        assert otlp.send_metrics(collector.url, "a service", points) == 0
    assert (duration.name, duration.unit) == ("gen_ai.client.operation.duration", "s")
    fine, failed = duration.histogram.data_points
    assert fine.attributes[0].value.string_value == "chat"
    assert failed.attributes[0].key == "error.type"
    assert list(fine.bucket_counts) == list(range(15))
    assert tuple(fine.explicit_bounds) == names.CLIENT_DURATION.edges
    assert (fine.count, fine.sum, fine.min, fine.max) == (105, 12.5, 0.002, 90.0)
    assert (fine.start_time_unix_nano, fine.time_unix_nano) == (T0, T0 + 900)
    (whole,) = of_server.histogram.data_points
    assert (whole.count, whole.sum) == (3, 1.5)
    assert not whole.HasField("min")
    scope = collector.resource_metrics[0].scope_metrics[0]
    assert scope.schema_url == names.SCHEMA_URL


def test_the_buckets_are_those_of_the_conventions():
    seconds = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48)
    assert names.CLIENT_DURATION.edges == (*seconds, 40.96, 81.92)
    assert names.TOKEN_USAGE.edges[:4] == (1, 4, 16, 64)
    assert names.TOKEN_USAGE.edges[-1] == 67_108_864


def test_a_stream_loses_none_of_many(tmp_path):
    with otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector:
        stream = otlp.SpanStream(collector.url, "server")
        for number in range(1, 3001):
            stream.add(SPANS[1]._replace(span_id=number))
        stream.close()
    spans = read_spans(collector.path)
    assert sorted(span.span_id for span in spans) == list(range(1, 3001))


def test_a_collector_that_refuses_or_is_not_there_is_an_error_with_its_reason(tmp_path):
    with otlp_receiver.receiver(tmp_path / "spans.jsonl", status=400) as collector:
        sender = otlp.SpanSender(collector.url, "x")
        with pytest.raises(MeasureError, match="does not take spans") as refused:
            sender.send(SPANS)
    assert "400" in str(refused.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://host", "http://", "http://a:b"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint):
    with pytest.raises(SpecError, match="no URL of a collector"):
        otlp.traces_url(endpoint)


def test_without_the_extra_the_error_names_how_to_get_it(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(otlp, "import_module", missing)
    with pytest.raises(SpecError) as caught:
        otlp.SpanSender("http://127.0.0.1:4318", "x")
    assert "pip install 'inferometer[otel]'" in str(caught.value)


def test_the_names_are_those_of_the_conventions_package():
    attributes = vars(
        pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    ).values()
    metrics = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    known = {one for one in attributes if isinstance(one, str)}
    vllms_own = {names.REQUEST_ID, names.N_ANSWERS}
    ours = {
        one
        for one in vars(names).values()
        if isinstance(one, str) and one.startswith(("gen_ai.request.", "gen_ai.usage.",
        "gen_ai.response.", "gen_ai.token.", "gen_ai.operation.", "gen_ai.provider."))
    }  # fmt: skip
    assert ours - vllms_own <= known
    instruments = [one for one in vars(names).values() if isinstance(one, names.Instrument)]
    told = {one for one in vars(metrics).values() if isinstance(one, str)}
    assert len(instruments) == 7
    assert {one.name for one in instruments} <= told
