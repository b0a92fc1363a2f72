"""What do the checks of a load test look at, and how is a number graded against its limits?"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inferometer.records.columns import F64, I64
from inferometer.records.load_types import (
    ChunkTable,
    ExchangeTable,
    HostClock,
    LagTable,
    ValidityReason,
    ValidityVerdict,
)
from inferometer.records.steady_state import SteadyState
from inferometer.records.types import ABSENT, RequestTable
from inferometer.spec.load_plan import LoadPlan, most_in_flight
from inferometer.spec.workload.plan import RequestPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEvidence:
    """A load test, as far as it is recorded; requests and exchanges have the same rows."""

    requests: RequestTable
    exchanges: ExchangeTable
    chunks: ChunkTable
    lags: LagTable | None
    load: LoadPlan | None
    plan: RequestPlan | None
    """The workload's requests, where they are at hand."""
    steady: SteadyState | None
    percentiles: tuple[float, ...]
    """Those that somebody asked for."""
    clocks: tuple[HostClock, ...] = ()
    """Of the hosts that sent, where they are not the driver's."""

    @property
    def sent(self) -> tuple[I64, I64]:
        """Intended and actual instants of those requests that were sent."""
        was_sent = self.requests.sent_ns != ABSENT
        return self.requests.intended_send_ns[was_sent], self.requests.sent_ns[was_sent]


def own_lateness_ns(evidence: LoadEvidence) -> I64:
    """How much later than it could each request (N) was sent, in nanoseconds; 0 of those that were not sent.

    Where ``--max-concurrency`` holds requests back, a request can be sent from the end on that
    brings its process below the cap.
    """
    requests, load = evidence.requests, evidence.load
    was_sent = requests.sent_ns != ABSENT
    may_go_ns = requests.intended_send_ns.copy()
    if load is not None and load.max_concurrency is not None:
        ended_ns = np.maximum(requests.finished_ns, evidence.exchanges.last_byte_ns)
        for process in np.unique(evidence.exchanges.process_index).tolist():
            most = most_in_flight(load, load.n_processes, process)
            rows = np.flatnonzero(was_sent & (evidence.exchanges.process_index == process))
            may_go_ns[rows] = _slot_free_ns(
                requests.sent_ns[rows], ended_ns[rows], may_go_ns[rows], most or len(rows)
            )
    return np.where(was_sent, requests.sent_ns - may_go_ns, 0)


def _slot_free_ns(sent_ns: I64, ended_ns: I64, intended_ns: I64, most: int) -> I64:
    """From when on could each of these be sent, if at most ``most`` are in flight?"""
    sends, ends = np.sort(sent_ns), np.sort(ended_ns[ended_ns != ABSENT])
    n_ended = np.searchsorted(ends, sent_ns, side="right")
    is_at_cap = np.searchsorted(sends, sent_ns, side="right") - n_ended >= most
    last_end_ns = np.append(ends, intended_ns.min(initial=0))[n_ended - 1]
    return np.where(is_at_cap & (n_ended > 0), np.maximum(intended_ns, last_end_ns), intended_ns)


class Limits(NamedTuple):
    """From where on is a number doubtful, and from where on worthless?"""

    suspect: float
    invalid: float

    def verdict(self, value: float) -> ValidityVerdict:
        """The verdict on a number, of which less is better."""
        return "INVALID" if value > self.invalid else "SUSPECT" if value > self.suspect else "VALID"


def reason(check: str, verdict: ValidityVerdict, text: str, remedy: str) -> ValidityReason:
    """One check's finding; what is fine needs no remedy."""
    return ValidityReason(
        check=check, verdict=verdict, text=text, remedy="" if verdict == "VALID" else remedy
    )


def percentile_of(values: F64 | I64, fraction: float) -> float:
    """That quantile of at least one value, none of which is absent."""
    return float(np.quantile(values, fraction, method="inverted_cdf"))
