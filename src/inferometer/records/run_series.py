"""Queue, batch, KV cache, latency and client lag over the time of a run.

Binned, so that a million steps draw as fast as a hundred. For a KV cache of pieces or with swapping
also its holes and swapped blocks. Letters of shapes: W windows of time, C cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.records import tables
from inferometer.records.columns import F64, I32, I64, Bools
from inferometer.records.latencies import DeliveryGaps, LatencySamples
from inferometer.records.types import (
    ABSENT,
    ExchangeTable,
    LagTable,
    RequestTable,
    Run,
    StepMemoryTable,
    StepTable,
)
from inferometer.units import NS_PER_S

N_WINDOWS: Final = 240
MIN_OF_A_WINDOW: Final = 20
_N_LATENCY_WINDOWS: Final = 60
"""Most windows; with more, each would have too few requests for percentiles."""
N_LOAD_WINDOWS: Final = 160
N_COLUMNS: Final = 80
N_ROWS: Final = 40


class StepSeries(NamedTuple):
    """W equal windows: means over the time in which a replica ran steps; NaN without steps.

    A step's numbers hold while it runs, and until the replica's next step if that one continues
    its requests. An idle replica counts 0 running, waiting and cached.
    """

    start_s: F64
    width_s: float
    n_running_mean: F64
    n_running_max: F64
    n_waiting_mean: F64
    n_waiting_max: F64
    kv_blocks_mean: F64
    """NaN: unknown."""
    kv_blocks_max: F64
    n_preempted: F64
    n_steps: I64


class LatencyWindows(NamedTuple):
    """W windows by intended send; percentiles of each, NaN where it has too few requests."""

    start_s: F64
    width_s: float
    n_samples: I64
    n_bounded_below_only: I64
    p50_s: F64
    p90_s: F64
    p99_s: F64
    """NaN also where n is too small for it: 100."""


def step_series(steps: StepTable, *, n_windows: int = N_WINDOWS) -> StepSeries:
    """Mean batch, queue and KV cache over the time of the run.

    Sums over all replicas; their maxima need not be simultaneous.
    """
    start_ns, width_ns, n_windows = windows = _windows(steps, n_windows)
    running, waiting, blocks = (
        value_series(steps, column, n_windows=n_windows)
        for column in (
            steps.n_prefill_requests + steps.n_decode_requests,
            steps.n_waiting_requests,
            steps.kv_blocks_used,
        )
    )
    window = _clipped((steps.start_ns - windows.start_ns) / windows.width_ns, windows.n_windows)
    return StepSeries(
        start_s=(start_ns + width_ns * np.arange(n_windows)) / NS_PER_S,
        width_s=width_ns / NS_PER_S,
        n_running_mean=running.mean,
        n_running_max=running.most,
        n_waiting_mean=waiting.mean,
        n_waiting_max=waiting.most,
        kv_blocks_mean=blocks.mean,
        kv_blocks_max=blocks.most,
        n_preempted=np.bincount(
            window, steps.n_preempted_requests.astype(np.float64), n_windows
        ).astype(np.float64),
        n_steps=np.bincount(window, minlength=n_windows).astype(np.int64),
    )


class ValueSeries(NamedTuple):
    """A step value's mean and maximum in W windows; NaN where no step ran or it is unknown."""

    mean: F64
    most: F64


def value_series(steps: StepTable, column: I32 | I64, *, n_windows: int = N_WINDOWS) -> ValueSeries:
    """A column (S) of the steps over time, in the windows of ``step_series``.

    Summed over replicas.
    """
    windows = _windows(steps, n_windows)
    rows = [
        (steps.replica == replica) & (column != ABSENT)
        for replica in np.unique(steps.replica).tolist()
    ]
    each = [
        _held(tables.select(steps, own), column[own].astype(np.float64), windows)
        for own in rows
        if own.any()
    ]
    if not each:
        absent = np.full(windows.n_windows, np.nan)
        return ValueSeries(absent, absent)
    # A window's weight is the longest time that a replica ran in it: while all are idle
    # nothing changes.
    ran = np.max([one.ran_fraction for one in each], axis=0)
    total = np.sum([one.mean * one.ran_fraction for one in each], axis=0)
    is_known = ran > 0
    mean = np.where(is_known, total / np.where(is_known, ran, 1.0), np.nan)
    return ValueSeries(mean, np.where(is_known, np.sum([one.most for one in each], axis=0), np.nan))


class _Windows(NamedTuple):
    start_ns: int
    width_ns: float
    n_windows: int


def _windows(steps: StepTable, n_windows: int) -> _Windows:
    start_ns, end_ns = int(steps.start_ns.min()), int((steps.start_ns + steps.duration_ns).max())
    n_windows = max(1, min(n_windows, len(steps.start_ns)))
    return _Windows(start_ns, max((end_ns - start_ns) / n_windows, 1.0), n_windows)


class _Held(NamedTuple):
    """One replica: busy share of each window, and a value's mean and maximum while busy."""

    ran_fraction: F64
    mean: F64
    most: F64


def _held(steps: StepTable, values: F64, windows: _Windows) -> _Held:
    start_ns, width_ns, n_windows = windows
    order = np.argsort(steps.start_ns, kind="stable")
    steps, values = tables.select(steps, order), values[order]
    begins = (steps.start_ns - start_ns) / width_ns
    ends = (_held_until_ns(steps) - start_ns) / width_ns
    covered = _overlaps(begins, ends, np.ones_like(values), n_windows)
    total = _overlaps(begins, ends, values, n_windows)
    # Batches of a pipeline overlap: the mean is then over batches, and the busy share at most 1.
    mean = np.where(covered > 0, total / np.where(covered > 0, covered, 1.0), 0.0)
    return _Held(np.minimum(covered, 1.0), mean, _largest(begins, ends, values, n_windows))


def _held_until_ns(steps: StepTable) -> I64:
    """(S) Time until which the numbers of each step hold, in order.

    The next step's begin if that step continues its requests, else its own end.
    """
    ends = steps.start_ns + np.maximum(steps.duration_ns, 1)
    goes_on = (steps.n_decode_requests[1:] > 0) | (steps.n_waiting_requests[:-1] > 0)
    ends[:-1] = np.where(goes_on, np.maximum(ends[:-1], steps.start_ns[1:]), ends[:-1])
    return ends


def _overlaps(begins: F64, ends: F64, weights: F64, n_windows: int) -> F64:
    """Sum over intervals of weight times overlap with each window (all in windows)."""
    first, last = _clipped(begins, n_windows), _clipped(ends, n_windows)
    sums = np.zeros(n_windows + 1)
    # Whole windows, less the parts before the begin and after the end.
    np.add.at(sums, first, weights)
    np.add.at(sums, last + 1, -weights)
    sums = np.cumsum(sums)[:n_windows]
    np.add.at(sums, first, -weights * (begins - first))
    np.add.at(sums, last, -weights * (last + 1 - ends))
    return np.asarray(np.maximum(sums, 0.0))


def _largest(begins: F64, ends: F64, values: F64, n_windows: int) -> F64:
    """Largest value in each window, 0 where it is empty."""
    first, last = _clipped(begins, n_windows), _clipped(np.nextafter(ends, -np.inf), n_windows)
    most = np.zeros(n_windows)
    np.maximum.at(most, first, values)
    np.maximum.at(most, last, values)
    for row in np.flatnonzero(last > first + 1).tolist():
        between = most[first[row] + 1 : last[row]]
        np.maximum(between, values[row], out=between)
    return most


def _clipped(places: F64, n_windows: int) -> NDArray[np.intp]:
    return np.clip(places.astype(np.intp), 0, n_windows - 1)


def latency_windows(requests: RequestTable, samples: LatencySamples) -> LatencyWindows:
    """A latency over the time of the run; censored samples count with their lower bounds."""
    sent_ns = requests.intended_send_ns[samples.rows]
    n_windows = max(
        1, min(_N_LATENCY_WINDOWS, len(sent_ns) // (2 * MIN_OF_A_WINDOW))
    )  # bursts leave other windows empty
    start_ns, width_ns = 0, 1.0
    if len(sent_ns):
        start_ns = int(sent_ns.min())
        width_ns = max((int(sent_ns.max()) + 1 - start_ns) / n_windows, 1.0)
    window = np.minimum(((sent_ns - start_ns) / width_ns).astype(np.intp), n_windows - 1)
    order = np.argsort(window, kind="stable")
    groups = np.split(
        samples.lower_s[order], np.searchsorted(window[order], np.arange(1, n_windows))
    )
    return LatencyWindows(
        start_s=(start_ns + width_ns * np.arange(n_windows)) / NS_PER_S,
        width_s=width_ns / NS_PER_S,
        n_samples=np.array([len(group) for group in groups], np.int64),
        n_bounded_below_only=np.bincount(
            window[np.isinf(samples.upper_s)], minlength=n_windows
        ).astype(np.int64),
        p50_s=_percentiles(groups, 0.5, MIN_OF_A_WINDOW),
        p90_s=_percentiles(groups, 0.9, MIN_OF_A_WINDOW),
        p99_s=_percentiles(groups, 0.99, 100),
    )


def _percentiles(groups: list[F64], fraction: float, n_needed: int) -> F64:
    return np.array(
        [
            (
                np.quantile(group, fraction, method="inverted_cdf")
                if len(group) >= n_needed
                else np.nan
            )
            for group in groups
        ]
    )


class InFlight(NamedTuple):
    """Number of requests between send and last byte, in W windows of equal length."""

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
    """Start of the cell's window."""
    width_s: float
    request: I64
    """The first request of the cell's row, in order of sending."""
    n_requests_of_row: int
    gap_s: F64
    n_gaps: I64


def in_flight(requests: RequestTable, exchanges: ExchangeTable, *, at_ns: int) -> InFlight | None:
    """Requests in flight over time.

    Unfinished requests count until ``at_ns``; None if none was sent.
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
    edges = np.linspace(times[0], max(times[-1], times[0] + 1), N_LOAD_WINDOWS + 1)
    area = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(times))])
    in_force = count[np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)]
    most = np.array(in_force)
    window = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, N_LOAD_WINDOWS - 1)
    np.maximum.at(most, window, count)
    width_ns = float(edges[1] - edges[0])
    return InFlight(
        edges[:-1] / NS_PER_S,
        width_ns / NS_PER_S,
        np.diff(np.interp(edges, times, area)) / width_ns,
        most,
    )


def lateness(requests: RequestTable, lags: LagTable | None) -> Lateness | None:
    """Largest delay of the client in each window; None where no request was sent."""
    was_sent = requests.sent_ns != ABSENT
    if not bool(was_sent.any()):
        return None
    due_ns = requests.intended_send_ns[was_sent]
    late_ns = (requests.sent_ns - requests.intended_send_ns)[was_sent]
    probes_ns, lag_ns = (due_ns[:0], late_ns[:0]) if lags is None else (lags.due_ns, lags.lag_ns)
    both = np.concatenate([due_ns, probes_ns])
    edges = np.linspace(float(both.min()), float(both.max()) + 1, N_LOAD_WINDOWS + 1)
    send_s = _largest_in_windows(due_ns, late_ns, edges)
    loop_s = _largest_in_windows(probes_ns, lag_ns, edges)
    return Lateness(edges[:-1] / NS_PER_S, float(edges[1] - edges[0]) / NS_PER_S, send_s, loop_s)


def gap_map(requests: RequestTable, gaps: DeliveryGaps) -> GapMap | None:
    """Longest gap between tokens, by request and time; None without gaps."""
    if not len(gaps.gap_ns):
        return None
    n = len(requests.request_index)
    order = np.zeros(int(requests.request_index.max()) + 1, np.int64)
    order[requests.request_index] = np.arange(n)
    n_of_row = max(1, -(-n // N_ROWS))
    first_ns, last_ns = int(gaps.time_ns.min()), int(gaps.time_ns.max())
    width_ns = max((last_ns - first_ns + 1) / N_COLUMNS, 1.0)
    column = ((gaps.time_ns - first_ns) / width_ns).astype(np.int64)
    row = order[gaps.request_index] // n_of_row
    cells, place, counts = np.unique(
        row * N_COLUMNS + column, return_inverse=True, return_counts=True
    )
    sums = np.bincount(place, gaps.gap_ns.astype(np.float64))
    return GapMap(
        time_s=(first_ns + cells % N_COLUMNS * width_ns) / NS_PER_S,
        width_s=width_ns / NS_PER_S,
        request=cells // N_COLUMNS * n_of_row,
        n_requests_of_row=n_of_row,
        gap_s=sums / counts / NS_PER_S,
        n_gaps=counts.astype(np.int64),
    )


def _largest_in_windows(instants_ns: I64, values_ns: I64, edges_ns: F64) -> F64:
    found = np.full(len(edges_ns) - 1, -np.inf)
    window = np.clip(np.searchsorted(edges_ns, instants_ns, side="right") - 1, 0, len(found) - 1)
    np.maximum.at(found, window, values_ns / NS_PER_S)
    return np.where(np.isinf(found), np.nan, found)


class HoleSeries(NamedTuple):
    """Free memory, its largest piece, and the moves that the largest waiting request needs."""

    free: ValueSeries
    largest: ValueSeries
    debt: ValueSeries
    n_moved: int | None
    """Blocks, over the whole run; None where nothing moves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemorySummary:
    """Memory over a run's steps, as means over their time; of one run, so no interval."""

    mean_used_blocks: int
    peak_used_blocks: int
    mean_fragmented_fraction: float | None
    """Share of the free blocks outside the largest hole; None (like the next two): paged cache."""
    peak_compaction_debt_blocks: int | None
    waits_for_compaction_fraction: float | None
    """Share of the time in which a request waited although enough scattered blocks were free."""
    swapped_blocks: int | None
    """Blocks swapped to the host and back; None without swapping."""
    moved_blocks: int | None
    """Blocks moved together in the background; None without compaction."""


def summarise_memory(run: Run) -> StepMemorySummary | None:
    """Use of the KV cache; None where the run has no steps, or no counts of used blocks."""
    steps, memory = run.steps, run.step_memory
    if steps is None or not len(steps.start_ns) or bool(np.all(steps.kv_blocks_used == ABSENT)):
        return None
    weights = np.maximum(steps.duration_ns, 1).astype(np.float64)
    has_holes = memory is not None and bool(np.any(memory.free_blocks != ABSENT))
    has_swaps = memory is not None and bool(np.any(memory.swapped_blocks != ABSENT))
    return StepMemorySummary(
        mean_used_blocks=round(_mean(steps.kv_blocks_used.astype(np.float64), weights)),
        peak_used_blocks=int(steps.kv_blocks_used.max()),
        mean_fragmented_fraction=(
            _fragmented_fraction(memory.free_blocks, memory.largest_hole_blocks, weights)
            if memory is not None and has_holes
            else None
        ),
        peak_compaction_debt_blocks=(
            int(memory.compaction_debt_blocks.max()) if memory is not None and has_holes else None
        ),
        waits_for_compaction_fraction=(
            _mean((memory.compaction_debt_blocks > 0).astype(np.float64), weights)
            if memory is not None and has_holes
            else None
        ),
        swapped_blocks=(
            int(np.maximum(memory.swapped_blocks, 0).sum())
            if memory is not None and has_swaps
            else None
        ),
        moved_blocks=None if memory is None else _n_moved(memory),
    )


def hole_series(run: Run) -> HoleSeries | None:
    """Holes of a contiguous KV cache over the run; None where the cache is paged."""
    steps, memory = run.steps, run.step_memory
    if steps is None or memory is None or bool(np.all(memory.free_blocks == ABSENT)):
        return None
    debt = np.maximum(memory.compaction_debt_blocks, 0)
    return HoleSeries(
        value_series(steps, memory.free_blocks),
        value_series(steps, memory.largest_hole_blocks),
        value_series(steps, debt),
        _n_moved(memory),
    )


def _n_moved(memory: StepMemoryTable) -> int | None:
    moved = memory.moved_blocks
    return None if bool(np.all(moved == ABSENT)) else int(np.maximum(moved, 0).sum())


def swap_series(run: Run) -> ValueSeries | None:
    """Blocks swapped before a step, over the run; None without swapping."""
    steps, memory = run.steps, run.step_memory
    if steps is None or memory is None or bool(np.all(memory.swapped_blocks == ABSENT)):
        return None
    return value_series(steps, memory.swapped_blocks)


def _fragmented_fraction(free: I64, largest: I64, weights: F64) -> float | None:
    has_free = free > 0
    return (
        _mean(1 - largest[has_free] / free[has_free], weights[has_free]) if has_free.any() else None
    )


def _mean(values: F64, weights: F64) -> float:
    return float((values * weights).sum() / weights.sum())


# Parts of a request's time: means over finished requests, which add up to their mean E2E.
# The window is the wait until the window of the request's class opens; before a server that runs
# whole batches, the wait while the server is idle.


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Constant times of each request outside the scheduler; None: unknown, and not part of E2E."""

    front_end_s: float | None = None
    network_s: float | None = None
    """Network time of request and response."""
    post_s: float | None = None
    """Time for detokenising and output."""
    is_added: Bools | None = None
    """(N of the plan) Requests to which the times are added; None: to all."""

    @property
    def added_s(self) -> float:
        """Seconds added to each latency."""
        return (self.front_end_s or 0.0) + (self.network_s or 0.0) + (self.post_s or 0.0)

    def share_fraction(self, request_index: I32) -> float:
        """Share of these requests to which the times are added."""
        return 1.0 if self.is_added is None else float(self.is_added[request_index].mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class E2eParts:
    """Mean parts of E2E, in the order in which they happen but ``post_s``. None: not known."""

    n_requests: int
    total_s: float
    network_s: float | None
    front_end_s: float | None
    queue_s: float
    window_s: float | None
    """Wait for the window; None without windows, or inseparable from the queue."""
    prefill_s: float
    handover_s: float | None
    """Transfer of the KV cache to the decode replica; None without disaggregation."""
    decode_s: float
    post_s: float | None


_FIRST: Final = ("network", "front_end", "queue", "window")
PART_NAMES: Final = (*_FIRST, "prefill", "handover", "decode", "post")


def e2e_parts(
    requests: RequestTable,
    around: Around,
    window_ns: F64 | None = None,
    on_way_ns: tuple[I64, I64] | None = None,
) -> E2eParts | None:
    """Mean time parts of the finished requests; None without any.

    ``window_ns`` (N): how much of each wait was the window (``idle_ns``, ``gathered_ns``).
    ``on_way_ns`` (N each): begin and end of the transfer of its KV cache between replicas.
    """
    rows = np.flatnonzero(
        (requests.finished_ns != ABSENT)
        & (requests.first_token_ns != ABSENT)
        & (requests.admitted_ns != ABSENT)
    )
    if not rows.size:
        return None
    waited_ns = requests.admitted_ns[rows] - arrived_ns(requests, around)[rows]
    window_s = None if window_ns is None else _seconds(np.minimum(window_ns[rows], waited_ns))
    share = around.share_fraction(requests.request_index[rows])
    left_ns, came_ns = on_way_ns or (requests.first_token_ns, requests.first_token_ns)
    return E2eParts(
        n_requests=len(rows),
        total_s=_seconds(requests.finished_ns[rows] - requests.intended_send_ns[rows]),
        network_s=around.network_s and around.network_s * share,
        front_end_s=around.front_end_s and around.front_end_s * share,
        queue_s=_seconds(waited_ns) - (window_s or 0.0),
        window_s=window_s,
        prefill_s=_seconds(left_ns[rows] - requests.admitted_ns[rows]),
        handover_s=None if on_way_ns is None else _seconds((came_ns - left_ns)[rows]),
        decode_s=_seconds(requests.finished_ns[rows] - came_ns[rows]),
        post_s=around.post_s and around.post_s * share,
    )


def arrived_ns(requests: RequestTable, around: Around) -> I64:
    """Arrival of each request at the gate or the scheduler."""
    is_added = True if around.is_added is None else around.is_added[requests.request_index]
    added_ns = round(around.added_s * NS_PER_S) * np.asarray(is_added, dtype=np.int64)
    return np.asarray(requests.intended_send_ns + added_ns, dtype=np.int64)


def idle_ns(requests: RequestTable, around: Around, steps: StepTable) -> F64:
    """Part of each wait outside the steps of the only replica; 0 for requests never admitted."""
    ends_ns = (steps.start_ns + steps.duration_ns).astype(np.float64)
    instants_ns = np.column_stack([steps.start_ns.astype(np.float64), ends_ns]).ravel()
    total_ns = np.cumsum(steps.duration_ns)
    busy_ns = np.column_stack([total_ns - steps.duration_ns, total_ns]).ravel()
    since_ns = arrived_ns(requests, around)
    until_ns = np.maximum(requests.admitted_ns, since_ns)
    before, after = (
        np.interp(at.astype(np.float64), instants_ns, busy_ns) for at in (since_ns, until_ns)
    )
    return np.asarray((until_ns - since_ns) - (after - before), dtype=np.float64)


def gathered_ns(since_ns: I64, class_index: I32, windows: Sequence[tuple[int, int]]) -> F64:
    """Wait of each request until the window of its class opens.

    ``windows``: of each class, how long (ns) and how many requests it gathers at most; 0: no window,
    any number.
    """
    found = np.zeros(len(since_ns), dtype=np.float64)
    for i_class, (window_ns, size) in enumerate(windows):
        rows = np.flatnonzero(class_index == i_class)
        rows = rows[np.argsort(since_ns[rows], kind="stable")]
        while window_ns and rows.size:
            last_ns = since_ns[rows[0]] + window_ns
            n_in = int(np.searchsorted(since_ns[rows], last_ns, side="right"))
            if size and n_in >= size:
                n_in, last_ns = size, since_ns[rows[size - 1]]
            found[rows[:n_in]] = last_ns - since_ns[rows[:n_in]]
            rows = rows[n_in:]
    return found


def _seconds(durations_ns: I64 | F64) -> float:
    return float(durations_ns.mean()) / NS_PER_S
