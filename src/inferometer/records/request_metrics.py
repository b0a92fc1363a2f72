"""Which metrics of the GenAI conventions tell a load test: the client's of its requests, the server's?

The client's are of all requests, traced or not, in the buckets of the conventions. The server's are
what its own histograms on ``/metrics`` gained while they were scraped, in the server's own buckets.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs import span_names as names
from inferometer.inputs.otlp_spans import HistogramPoint, Value
from inferometer.records.columns import F64, I64
from inferometer.records.raw_log import SessionFrame
from inferometer.records.request_spans import WallClock, last_instants_ns, who_asks_whom
from inferometer.records.server_names import Histogram
from inferometer.records.server_series import histogram_growth, server_record
from inferometer.records.types import ABSENT, ChunkTable, Run, ServerSampleTable
from inferometer.units import NS_PER_S

_OF_SERVER: Final[tuple[tuple[names.Instrument, Histogram], ...]] = (
    (names.SERVER_DURATION, "e2e"),
    (names.SERVER_FIRST_TOKEN, "ttft"),
    (names.SERVER_PER_TOKEN, "tpot"),
)


def request_metrics(run: Run, sessions: Sequence[SessionFrame]) -> Iterator[HistogramPoint]:
    """The points of a load test, none without observations.

    The duration is that of the request's span: from when it was due. The first chunk counts from
    the send, as the conventions say.
    """
    requests, exchanges, load = run.requests, run.exchanges, run.manifest.load
    if requests is None or exchanges is None or load is None or not len(requests.sent_ns):
        return
    due_ns, last_ns = requests.intended_send_ns, last_instants_ns(requests, exchanges)
    origins_ns = WallClock(sessions).origins_ns(due_ns)
    window_ns = (int((due_ns + origins_ns).min()), int((last_ns + origins_ns).max()))
    common = who_asks_whom(load)
    for error in sorted(set(exchanges.error.tolist())):
        took_s = np.maximum(last_ns - due_ns, 0)[exchanges.error == error] / NS_PER_S
        attributes = common | ({names.ERROR_TYPE: error} if error else {})
        yield from _point(names.CLIENT_DURATION, attributes, window_ns, took_s)
    is_done = exchanges.error == ""
    for kind, counts in (("input", requests.prompt_tokens), ("output", requests.output_tokens)):
        known = counts[is_done & (counts >= 0)].astype(np.float64)
        yield from _point(names.TOKEN_USAGE, common | {names.TOKEN_TYPE: kind}, window_ns, known)
    if load.is_streaming:
        has_first = (requests.first_token_ns != ABSENT) & (requests.sent_ns != ABSENT)
        first_s = (requests.first_token_ns - requests.sent_ns)[has_first] / NS_PER_S
        yield from _point(names.CLIENT_FIRST_CHUNK, common, window_ns, first_s)
        if run.chunks is not None:
            gaps_s = _gaps_ns(run.chunks) / NS_PER_S
            yield from _point(names.CLIENT_PER_CHUNK, common, window_ns, gaps_s)
    if run.server is not None:
        yield from _of_server(run.server, common, window_ns)


def _gaps_ns(chunks: ChunkTable) -> I64:
    """Between chunks of the same answer."""
    is_same = chunks.request_index[1:] == chunks.request_index[:-1]
    gaps_ns: I64 = np.diff(chunks.arrived_ns)[is_same]
    return gaps_ns


def _point(
    instrument: names.Instrument,
    attributes: dict[str, Value],
    window_ns: tuple[int, int],
    values: F64,
) -> Iterator[HistogramPoint]:
    if not len(values):
        return
    buckets = np.searchsorted(np.array(instrument.edges), values)  # an edge is in its bucket
    counts = np.bincount(buckets, minlength=len(instrument.edges) + 1)
    yield HistogramPoint(
        *(instrument, attributes, *window_ns, instrument.edges, tuple(counts.tolist())),
        total=float(values.sum()),
        least=float(values.min()),
        most=float(values.max()),
    )


def _of_server(
    samples: ServerSampleTable, common: dict[str, Value], window_ns: tuple[int, int]
) -> Iterator[HistogramPoint]:
    try:
        record = server_record(samples)
    except RecordError:  # its metrics are of no server that is known
        return
    for instrument, histogram in _OF_SERVER:
        growth = histogram_growth(record, histogram, slice(None))
        if growth is None or not growth.n:
            continue
        counts = np.round(growth.counts).astype(np.int64)
        yield HistogramPoint(
            *(instrument, common, *window_ns),
            edges=tuple(growth.edges[:-1].tolist()),
            counts=tuple(counts.tolist()) or (growth.n,),
            total=growth.total,
            least=None,
            most=None,
        )
