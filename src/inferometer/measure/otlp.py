"""How do spans and metrics get to an OpenTelemetry collector, through OpenTelemetry's own SDK?

The SDK is the extra ``otel``: it is imported when something is to be sent, and nothing else needs
it.
"""

import logging
import os
import uuid
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from inferometer import __version__
from inferometer.errors import MeasureError, SpecError
from inferometer.inputs import spans
from inferometer.inputs.spans import HistogramPoint, Span, span_ids

LOAD_SERVICE: Final = "inferometer load"
METRICS_EXPORTER: Final = "OTEL_METRICS_EXPORTER"
_WHERE: Final = "--otlp-endpoint"
_PATH: Final = "/v1/traces"
_METRICS_PATH: Final = "/v1/metrics"
_PER_EXPORT: Final = 512
_MOST_WAITING: Final = 2**20
"""Spans of a server that wait for the exporter; beyond it the SDK drops the oldest."""
_SDK: Final = "opentelemetry.sdk.trace"
_HTTP: Final = "opentelemetry.exporter.otlp.proto.http"
_EXPORTER: Final = f"{_HTTP}.trace_exporter"


def traces_url(endpoint: str) -> str:
    """URL to which spans are posted; an endpoint without a path gets the protocol's.

    Raises
    ------
    SpecError
        The URL is invalid.

    Example
    -------
    >>> traces_url("http://127.0.0.1:4318"), traces_url("http://host/in/v1/traces")
    ('http://127.0.0.1:4318/v1/traces', 'http://host/in/v1/traces')
    """
    try:
        url = urlsplit(endpoint)
        is_url = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise SpecError(
            f"{endpoint!r} is no URL of a collector",
            where=_WHERE,
            allowed="OTLP over HTTP: http://HOST:PORT, or a whole URL that ends in /v1/traces",
            try_=f"{_WHERE} http://127.0.0.1:4318",
        )
    return endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH


def untraced() -> str:
    """The header ``traceparent`` of a request that the server shall not trace."""
    return span_ids(uuid.uuid4().hex, sample_fraction=0.0).traceparent(0)


class SpanSender:
    """Sends spans to one collector, as the spans of one service.

    Raises
    ------
    SpecError
        The SDK is not installed, or the endpoint is no URL.
    """

    def __init__(self, endpoint: str, service_name: str) -> None:
        self._url = traces_url(endpoint)
        sdk = _imported(_SDK)
        self._exporter = _imported(_EXPORTER).OTLPSpanExporter(endpoint=self._url)
        self._why = _LastWarning()
        self._readable = _converter(sdk, service_name)

    def check(self) -> None:
        """Send an export without spans to check that the collector accepts it.

        Raises
        ------
        MeasureError
            The collector does not accept it.
        """
        self._export([])

    def send(self, spans: Iterable[Span]) -> int:
        """Send all these spans, and wait until each export was taken; their number.

        Raises
        ------
        MeasureError
            The collector does not accept a span.
        """
        n_sent, left = 0, iter(spans)
        while batch := list(islice(left, _PER_EXPORT)):
            self._export(batch)
            n_sent += len(batch)
        return n_sent

    def _export(self, batch: list[Span]) -> None:
        with self._why:
            result = self._exporter.export([self._readable(span) for span in batch])
        _check_taken("spans", result, self._why, self._url)

    def close(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()


class SpanStream:
    """Sends a server's spans in a thread of the SDK.

    Raises
    ------
    SpecError
        The SDK is not installed, or the endpoint is no URL.
    """

    def __init__(self, endpoint: str, service_name: str) -> None:
        sender = _imported(_EXPORTER).OTLPSpanExporter(endpoint=traces_url(endpoint))
        self._processor = _imported(f"{_SDK}.export").BatchSpanProcessor(
            sender, max_queue_size=_MOST_WAITING
        )
        self._readable = _converter(_imported(_SDK), service_name)

    def add(self, span: Span) -> None:
        """Send this one soon."""
        self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Send the remaining spans."""
        self._processor.shutdown()


def send_metrics(endpoint: str, service_name: str, points: Iterable[HistogramPoint]) -> int:
    """Send the metrics of a run that is over, once; how many there were.

    Returns 0 where ``OTEL_METRICS_EXPORTER`` is ``none``.

    Raises
    ------
    SpecError
        The SDK is not installed, or the endpoint is no URL.
    MeasureError
        The collector does not take them.
    """
    if os.environ.get(METRICS_EXPORTER) == "none":
        return 0
    url = traces_url(endpoint).removesuffix(_PATH) + _METRICS_PATH
    sdk = _imported("opentelemetry.sdk.metrics.export")
    exporter = _imported(f"{_HTTP}.metric_exporter").OTLPMetricExporter(endpoint=url)
    resource, scope = _sender(service_name)
    by_instrument: dict[spans.Instrument, list[Any]] = {}
    for point in points:
        by_instrument.setdefault(point.instrument, []).append(_data_point(sdk, point))
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    metrics = [
        sdk.Metric(one.name, one.says, one.unit, sdk.Histogram(found, cumulative))
        for one, found in by_instrument.items()
    ]
    of_scope = sdk.ScopeMetrics(scope, metrics, spans.SCHEMA_URL)
    of_resource = sdk.ResourceMetrics(resource, [of_scope], spans.SCHEMA_URL)
    with _LastWarning() as why:
        result = exporter.export(sdk.MetricsData([of_resource]))
    exporter.shutdown()
    _check_taken("metrics", result, why, url)
    return len(metrics)


def _data_point(sdk: ModuleType, point: HistogramPoint) -> Any:  # noqa: ANN401
    return sdk.HistogramDataPoint(
        attributes=point.attributes,
        start_time_unix_nano=point.start_ns,
        time_unix_nano=point.end_ns,
        count=sum(point.counts),
        sum=point.total,
        bucket_counts=point.counts,
        explicit_bounds=point.edges,
        min=point.least,
        max=point.most,
    )


def _check_taken(what: str, result: Any, why: "_LastWarning", url: str) -> None:  # noqa: ANN401
    if result.name != "SUCCESS":
        raise MeasureError(
            f"the collector does not take {what}: {why.text or 'it gives no reason'}",
            where=url,
            allowed="a receiver of OTLP over HTTP",
            try_="the collector's otlp receiver with http, and the same command again",
        )


def _sender(service_name: str) -> tuple[Any, Any]:
    """The sending service, and this program as the scope."""
    resource = _imported("opentelemetry.sdk.resources").Resource.create(
        {"service.name": service_name, "service.version": __version__}
    )
    scope = _imported("opentelemetry.sdk.util.instrumentation").InstrumentationScope(
        "inferometer", __version__, spans.SCHEMA_URL
    )
    return resource, scope


def _converter(sdk: ModuleType, service_name: str) -> Callable[[Span], Any]:
    """Makes the SDK's spans of ours."""
    api = _imported("opentelemetry.trace")
    resource, scope = _sender(service_name)
    sampled = api.TraceFlags(api.TraceFlags.SAMPLED)

    def context(trace_id: int, span_id: int) -> Any:  # noqa: ANN401 - the SDK is no dependency
        return api.SpanContext(trace_id, span_id, is_remote=False, trace_flags=sampled)

    def readable(span: Span) -> Any:  # noqa: ANN401
        failed = span.error is not None
        return sdk.ReadableSpan(
            name=span.name,
            context=context(span.trace_id, span.span_id),
            parent=None if span.parent_id is None else context(span.trace_id, span.parent_id),
            resource=resource,
            attributes=span.attributes,
            events=[sdk.Event(event.name, timestamp=event.at_ns) for event in span.events],
            kind=api.SpanKind[span.kind.upper()],
            status=api.Status(api.StatusCode.ERROR if failed else api.StatusCode.UNSET, span.error),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )

    return readable


class _LastWarning(logging.Handler):
    """The SDK exporter's last warning, which it only logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self._logger = logging.getLogger("opentelemetry")

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()

    def __enter__(self) -> "_LastWarning":
        self._logger.addHandler(self)
        self._propagated, self._logger.propagate = self._logger.propagate, False
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise SpecError(
            "OpenTelemetry's SDK is not installed in this Python",
            where=_WHERE,
            try_="pip install 'inferometer[otel]'",
        ) from error
