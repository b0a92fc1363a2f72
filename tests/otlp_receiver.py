"""A receiver of OTLP over HTTP that writes what the OpenTelemetry collector's file exporter writes.

It decodes with OpenTelemetry's own protobuf classes, so that what a client sends is really OTLP.
"""

import base64
import gzip
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_IDS = ("traceId", "spanId", "parentSpanId")


@dataclass
class Receiver:
    url: str
    path: Path
    requests: list = field(default_factory=list)
    """Each export of spans, and the headers that it came with."""
    resource_metrics: list = field(default_factory=list)
    takes_metrics: bool = True

    @property
    def resource_spans(self):
        return [one for request, _ in self.requests for one in request.resource_spans]

    @property
    def spans(self):
        scopes = [scope for one in self.resource_spans for scope in one.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    @property
    def metrics(self):
        scopes = [scope for one in self.resource_metrics for scope in one.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@contextmanager
def receiver(path: Path, *, status: int = 200) -> Generator[Receiver]:
    """Receive until the context ends, spans into this file of JSON lines."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/metrics":
                if not found.takes_metrics:
                    return self._answer(404, b"")
                request = ExportMetricsServiceRequest.FromString(body)
                with lock:
                    found.resource_metrics.extend(request.resource_metrics)
                return self._answer(status, ExportMetricsServiceResponse().SerializeToString())
            assert self.path == "/v1/traces", self.path
            request = ExportTraceServiceRequest.FromString(body)
            with lock:
                found.requests.append((request, dict(self.headers)))
                if request.resource_spans:
                    with path.open("a") as file:
                        file.write(json_line(request) + "\n")
            return self._answer(status, ExportTraceServiceResponse().SerializeToString())

        def _answer(self, status, answer):
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Receiver(f"http://127.0.0.1:{server.server_port}", path)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def json_line(request: ExportTraceServiceRequest) -> str:
    """The export as JSON with hexadecimal ids, as the protocol has it."""
    document = MessageToDict(request, use_integers_for_enums=True)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in _IDS:
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    return json.dumps(document, separators=(",", ":"))
