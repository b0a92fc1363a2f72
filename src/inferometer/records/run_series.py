"""How did queue, batch, KV cache and latency change while the run went on? Binned, so that a million steps draw as fast as a hundred.

Letters of shapes: W windows of time.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.records import tables
from inferometer.records.latencies import LatencySamples
from inferometer.records.types import ABSENT, F64, I64, RequestTable, StepTable
from inferometer.units import NS_PER_S

N_WINDOWS: Final = 240
MIN_OF_A_WINDOW: Final = 20
"""With fewer requests a window has no percentiles."""


class StepSeries(NamedTuple):
    """W windows of equal length; means are over time while steps ran, NaN where none ran."""

    start_s: F64
    width_s: float
    n_running_mean: F64
    n_running_max: F64
    n_waiting_mean: F64
    n_waiting_max: F64
    kv_blocks_mean: F64
    """NaN where nobody could tell."""
    kv_blocks_max: F64
    n_preempted: F64
    n_steps: I64


class LatencyWindows(NamedTuple):
    """W windows of time by intended send; percentiles of what was sent in each, NaN where it holds too few."""

    start_s: F64
    width_s: float
    n_samples: I64
    n_bounded_below_only: I64
    p50_s: F64
    p90_s: F64
    p99_s: F64
    """NaN also where n is too small for it: 100."""


def step_series(steps: StepTable, *, n_windows: int = N_WINDOWS) -> StepSeries:
    """How did the steps change over the time of the run? Of all replicas together; their highest values need not be of one instant."""
    windows = _windows(steps, n_windows)
    each = [_replica_series(tables.select(steps, steps.replica == replica), windows) for replica in np.unique(steps.replica).tolist()]
    first = each[0]
    if len(each) == 1:
        return first
    summed: dict[str, Any] = {name: _sum([getattr(one, name) for one in each]) for name in StepSeries._fields[2:-1]}
    return first._replace(**summed, n_steps=np.sum([one.n_steps for one in each], axis=0))


class ValueSeries(NamedTuple):
    """One value of the steps in W windows: its mean over time and its most, NaN where no step ran or nobody could tell."""

    mean: F64
    most: F64


def value_series(steps: StepTable, column: I64, *, n_windows: int = N_WINDOWS) -> ValueSeries:
    """How did this column (S) of the steps change, in the windows of ``step_series``? Of several replicas the sum."""
    windows = _windows(steps, n_windows)
    known = np.where(column == ABSENT, np.nan, column.astype(np.float64))
    rows = [steps.replica == replica for replica in np.unique(steps.replica).tolist()]
    each = [_value_series(tables.select(steps, own), known[own], windows) for own in rows]
    return ValueSeries(_sum([one.mean for one in each]), _sum([one.most for one in each]))


class _Windows(NamedTuple):
    start_ns: int
    width_ns: float
    n_windows: int


def _windows(steps: StepTable, n_windows: int) -> _Windows:
    start_ns, end_ns = int(steps.start_ns.min()), int((steps.start_ns + steps.duration_ns).max())
    n_windows = max(1, min(n_windows, len(steps.start_ns)))
    return _Windows(start_ns, max((end_ns - start_ns) / n_windows, 1.0), n_windows)


def _value_series(steps: StepTable, values: F64, windows: _Windows) -> ValueSeries:
    start_ns, width_ns, n_windows = windows
    window = np.minimum(((steps.start_ns - start_ns) / width_ns).astype(np.intp), n_windows - 1)
    weights = np.maximum(steps.duration_ns, 1).astype(np.float64)
    total = np.bincount(window, weights, n_windows)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(window, weights * values, n_windows) / np.where(total > 0, total, np.nan)
    return ValueSeries(mean, _largest(window, values, n_windows))


def _replica_series(steps: StepTable, windows: _Windows) -> StepSeries:
    start_ns, width_ns, n_windows = windows
    window = np.minimum(((steps.start_ns - start_ns) / width_ns).astype(np.intp), n_windows - 1)
    running = (steps.n_prefill_requests + steps.n_decode_requests).astype(np.float64)
    waiting = steps.n_waiting_requests.astype(np.float64)
    blocks = np.where(steps.kv_blocks_used == ABSENT, np.nan, steps.kv_blocks_used.astype(np.float64))

    running_series, waiting_series, blocks_series = (_value_series(steps, values, windows) for values in (running, waiting, blocks))
    return StepSeries(
        start_s=(start_ns + width_ns * np.arange(n_windows)) / NS_PER_S,
        width_s=width_ns / NS_PER_S,
        n_running_mean=running_series.mean,
        n_running_max=running_series.most,
        n_waiting_mean=waiting_series.mean,
        n_waiting_max=waiting_series.most,
        kv_blocks_mean=blocks_series.mean,
        kv_blocks_max=blocks_series.most,
        n_preempted=np.bincount(window, steps.n_preempted_requests.astype(np.float64), n_windows).astype(np.float64),
        n_steps=np.bincount(window, minlength=n_windows).astype(np.int64),
    )


def _sum(columns: list[F64]) -> F64:
    """Window by window; a replica without steps there adds nothing, a window without any stays NaN."""
    stacked = np.array(columns)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))


def latency_windows(requests: RequestTable, samples: LatencySamples, *, n_windows: int = 60) -> LatencyWindows:
    """How did a latency change over the time of the run? Lower bounds count with what is known of them."""
    sent_ns = requests.intended_send_ns[samples.rows]
    n_windows = max(1, min(n_windows, len(sent_ns) // (2 * MIN_OF_A_WINDOW)))  # bursts leave others empty
    start_ns, width_ns = 0, 1.0
    if len(sent_ns):
        start_ns = int(sent_ns.min())
        width_ns = max((int(sent_ns.max()) + 1 - start_ns) / n_windows, 1.0)
    window = np.minimum(((sent_ns - start_ns) / width_ns).astype(np.intp), n_windows - 1)
    order = np.argsort(window, kind="stable")
    groups = np.split(samples.lower_s[order], np.searchsorted(window[order], np.arange(1, n_windows)))
    return LatencyWindows(
        start_s=(start_ns + width_ns * np.arange(n_windows)) / NS_PER_S,
        width_s=width_ns / NS_PER_S,
        n_samples=np.array([len(group) for group in groups], np.int64),
        n_bounded_below_only=np.bincount(window[np.isinf(samples.upper_s)], minlength=n_windows).astype(np.int64),
        p50_s=_percentiles(groups, 0.5, MIN_OF_A_WINDOW),
        p90_s=_percentiles(groups, 0.9, MIN_OF_A_WINDOW),
        p99_s=_percentiles(groups, 0.99, 100),
    )


def _percentiles(groups: list[F64], fraction: float, n_needed: int) -> F64:
    return np.array([np.quantile(group, fraction, method="inverted_cdf") if len(group) >= n_needed else np.nan for group in groups])


def _largest(window: NDArray[np.intp], values: F64, n_windows: int) -> F64:
    found = np.full(n_windows, -np.inf)
    np.maximum.at(found, window, np.where(np.isnan(values), -np.inf, values))
    return np.where(np.isinf(found), np.nan, found)


__all__ = ["MIN_OF_A_WINDOW", "N_WINDOWS", "LatencyWindows", "StepSeries", "ValueSeries", "latency_windows", "step_series", "value_series"]
