"""How does an OpenTelemetry collector get what there is of a load test: spans and metrics?"""

import os
from pathlib import Path
from typing import Final

from inferometer.api.load_sending import Traced
from inferometer.api.progress import talk
from inferometer.errors import MeasureError
from inferometer.inputs import span_ids
from inferometer.measure import otlp
from inferometer.records import raw_log, request_metrics, request_spans, types

_METRICS_EXPORTER: Final = "OTEL_METRICS_EXPORTER"
"""The variable by which OpenTelemetry's SDKs are told that nobody wants metrics."""


def send_telemetry(traced: Traced, run: types.Run, folder: Path) -> None:
    """Send the spans of a run that is stored, and its metrics where the collector takes any.

    The same command sends the same ones again.

    Raises
    ------
    MeasureError
        The collector does not take the spans.
    RecordError
        A raw log cannot be read.
    """
    ids = span_ids.span_ids(run.manifest.run_id, sample_fraction=traced.sample_fraction)
    sessions = raw_log.session_frames(folder)
    n_sent = traced.sender.send(request_spans.request_spans(run, sessions, ids))
    traced.sender.close()
    talk(f"{n_sent:,} spans, trace {ids.trace_id:032x}")
    if os.environ.get(_METRICS_EXPORTER) == "none":
        return
    points = request_metrics.request_metrics(run, sessions)
    try:
        n_metrics = otlp.send_metrics(traced.endpoint, otlp.LOAD_SERVICE, points)
    except MeasureError as problem:  # there are collectors for traces alone
        talk(f"without metrics: {problem.what} ({_METRICS_EXPORTER}=none: they are not sent)")
    else:
        talk(f"{n_metrics} metrics of the GenAI conventions")
