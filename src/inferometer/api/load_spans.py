"""How do the spans of a load test that is over get to the collector?"""

from pathlib import Path

from inferometer.api.load_sending import Traced
from inferometer.api.progress import talk
from inferometer.inputs.span_ids import span_ids
from inferometer.records.raw_log import session_frames
from inferometer.records.request_spans import request_spans
from inferometer.records.types import Run


def send_spans(traced: Traced, run: Run, folder: Path) -> None:
    """Send the spans of a run that is stored; the same command sends the same ones again.

    Raises
    ------
    MeasureError
        The collector does not take them.
    RecordError
        A raw log cannot be read.
    """
    ids = span_ids(run.manifest.run_id, sample_fraction=traced.sample_fraction)
    n_sent = traced.sender.send(request_spans(run, session_frames(folder), ids))
    traced.sender.close()
    talk(f"{n_sent:,} spans, trace {ids.trace_id:032x}")
