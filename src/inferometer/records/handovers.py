"""How long was each request on its way from one server to the next.

From where its prompt is computed to where its answer is?
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import F64, I64
from inferometer.records.latencies import end_ns
from inferometer.records.types import ABSENT, RequestTable, Run, VisitTable
from inferometer.stats.autocorrelated import run_quantile_estimate
from inferometer.stats.estimate import Estimate
from inferometer.units import NS_PER_S

FRACTIONS: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverPercentile:
    """One percentile of the time between two servers."""

    percentile_fraction: float
    seconds: Estimate
    """Where requests never arrived it is a lower bound, as they took at least as long as they
    were seen to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverSummary:
    """The time from leaving one server to arriving at the next, with all that it waited for."""

    n_requests: int
    n_never_arrived: int
    """Of them: still on their way at the end, or their client had gone."""
    percentiles: tuple[HandoverPercentile, ...]


class _Gaps(NamedTuple):
    left_ns: I64
    lower_s: F64
    upper_s: F64


def summarise_handovers(run: Run) -> HandoverSummary | None:
    """How long were the requests on their way? None where none went from one server to another.

    Example
    ------- A run on prefill and decode replicas (``inferometer simulate --prefill-replicas``) has
    such requests.
    """
    if run.visits is None or run.requests is None:
        return None
    gaps = _gaps(run.visits, run.requests, end_ns(run))
    order = np.argsort(gaps.left_ns, kind="stable")
    lower_s, upper_s = gaps.lower_s[order], gaps.upper_s[order]
    if not lower_s.size:
        return None
    estimates = [
        (fraction, run_quantile_estimate(lower_s, fraction, upper=upper_s))
        for fraction in FRACTIONS
    ]
    return HandoverSummary(
        n_requests=len(lower_s),
        n_never_arrived=int(np.isinf(upper_s).sum()),
        percentiles=tuple(
            HandoverPercentile(percentile_fraction=fraction, seconds=estimate)
            for fraction, estimate in estimates
            if estimate is not None
        ),
    )


def _gaps(visits: VisitTable, requests: RequestTable, at_ns: int) -> _Gaps:
    """The time from each stay of a request to its next, or to when it was last seen."""
    n_rows = len(visits.request_index)
    is_last = np.ones(n_rows, np.bool_)
    is_last[:-1] = visits.request_index[1:] != visits.request_index[:-1]
    arrived = np.flatnonzero(~is_last)
    row_of = np.full(
        int(max(requests.request_index.max(initial=-1), visits.request_index.max(initial=-1))) + 1,
        -1,
    )
    row_of[requests.request_index] = np.arange(len(requests.request_index))
    finished_ns = np.where(
        row_of[visits.request_index] >= 0,
        requests.finished_ns[row_of[visits.request_index]],
        ABSENT,
    )
    on_way = np.flatnonzero(is_last & (visits.left_ns != ABSENT) & (visits.left_ns != finished_ns))
    seen_ns = np.where(finished_ns[on_way] == ABSENT, at_ns, finished_ns[on_way])
    until_ns = np.concatenate([visits.arrived_ns[arrived + 1], seen_ns])
    rows = np.concatenate([arrived, on_way])
    lower_s = (until_ns - visits.left_ns[rows]) / NS_PER_S
    upper_s = np.concatenate([lower_s[: len(arrived)], np.full(len(on_way), np.inf)])
    return _Gaps(visits.left_ns[rows], lower_s, upper_s)
