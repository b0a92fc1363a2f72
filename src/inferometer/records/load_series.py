"""How did a load test develop: requests in flight, client lateness, gaps between chunks?

Letters of shapes: W windows of time, C cells.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import F64, I64
from inferometer.records.load_types import ExchangeTable, LagTable
from inferometer.records.tokens import DeliveryGaps
from inferometer.records.types import ABSENT, RequestTable
from inferometer.units import NS_PER_S

N_WINDOWS: Final = 160
N_COLUMNS: Final = 80
N_ROWS: Final = 40


class InFlight(NamedTuple):
    """Requests between sending and the last byte, in W windows of equal length."""

    start_s: F64
    width_s: float
    mean: F64
    most: F64


class Lateness(NamedTuple):
    """The largest lag of each of W windows of equal length; NaN where nothing was due."""

    start_s: F64
    width_s: float
    send_s: F64
    loop_s: F64


class GapMap(NamedTuple):
    """Mean gap between chunks of neighbouring requests in windows of time (C cells that have any)."""

    time_s: F64
    """Where the cell's window begins."""
    width_s: float
    request: I64
    """The first request of the cell's row, in order of sending."""
    n_requests_of_row: int
    gap_s: F64
    n_gaps: I64


def in_flight(
    requests: RequestTable, exchanges: ExchangeTable, *, at_ns: int, n_windows: int = N_WINDOWS
) -> InFlight | None:
    """How many requests were in flight?

    Those without an end until ``at_ns``; None where none was sent.
    """
    was_sent = requests.sent_ns != ABSENT
    if not bool(was_sent.any()):
        return None
    left_ns = np.maximum(exchanges.last_byte_ns, requests.finished_ns)[was_sent]
    left_ns = np.where(left_ns == ABSENT, at_ns, left_ns)
    instants = np.concatenate([requests.sent_ns[was_sent], left_ns])
    order = np.argsort(instants, kind="stable")
    times = instants[order].astype(np.float64)
    count = np.cumsum(np.repeat([1.0, -1.0], int(was_sent.sum()))[order])
    edges = np.linspace(times[0], max(times[-1], times[0] + 1), n_windows + 1)
    area = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(times))])
    in_force = count[np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)]
    most = np.array(in_force)
    window = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, n_windows - 1)
    np.maximum.at(most, window, count)
    width_ns = float(edges[1] - edges[0])
    return InFlight(
        edges[:-1] / NS_PER_S,
        width_ns / NS_PER_S,
        np.diff(np.interp(edges, times, area)) / width_ns,
        most,
    )


def lateness(
    requests: RequestTable, lags: LagTable | None, *, n_windows: int = N_WINDOWS
) -> Lateness | None:
    """How late was the client, at most, in each window? None where no request was sent."""
    was_sent = requests.sent_ns != ABSENT
    if not bool(was_sent.any()):
        return None
    due_ns, late_ns = (
        requests.intended_send_ns[was_sent],
        (requests.sent_ns - requests.intended_send_ns)[was_sent],
    )
    probes_ns, lag_ns = (due_ns[:0], late_ns[:0]) if lags is None else (lags.due_ns, lags.lag_ns)
    both = np.concatenate([due_ns, probes_ns])
    edges = np.linspace(float(both.min()), float(both.max()) + 1, n_windows + 1)
    send_s, loop_s = _largest(due_ns, late_ns, edges), _largest(probes_ns, lag_ns, edges)
    return Lateness(edges[:-1] / NS_PER_S, float(edges[1] - edges[0]) / NS_PER_S, send_s, loop_s)


def gap_map(
    requests: RequestTable, gaps: DeliveryGaps, *, n_columns: int = N_COLUMNS, n_rows: int = N_ROWS
) -> GapMap | None:
    """Which requests waited when? None without gaps."""
    if not len(gaps.gap_ns):
        return None
    n = len(requests.request_index)
    order = np.zeros(int(requests.request_index.max()) + 1, np.int64)
    order[requests.request_index] = np.arange(n)
    n_of_row = max(1, -(-n // n_rows))
    first_ns, last_ns = int(gaps.time_ns.min()), int(gaps.time_ns.max())
    width_ns = max((last_ns - first_ns + 1) / n_columns, 1.0)
    column = ((gaps.time_ns - first_ns) / width_ns).astype(np.int64)
    row = order[gaps.request_index] // n_of_row
    cells, place, counts = np.unique(
        row * n_columns + column, return_inverse=True, return_counts=True
    )
    sums = np.bincount(place, gaps.gap_ns.astype(np.float64))
    return GapMap(
        time_s=(first_ns + cells % n_columns * width_ns) / NS_PER_S,
        width_s=width_ns / NS_PER_S,
        request=cells // n_columns * n_of_row,
        n_requests_of_row=n_of_row,
        gap_s=sums / counts / NS_PER_S,
        n_gaps=counts.astype(np.int64),
    )


def _largest(instants_ns: I64, values_ns: I64, edges_ns: F64) -> F64:
    found = np.full(len(edges_ns) - 1, -np.inf)
    window = np.clip(np.searchsorted(edges_ns, instants_ns, side="right") - 1, 0, len(found) - 1)
    np.maximum.at(found, window, values_ns / NS_PER_S)
    return np.where(np.isinf(found), np.nan, found)
