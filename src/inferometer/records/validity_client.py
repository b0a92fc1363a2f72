"""Was the client the bottleneck: woke late, sent late, sent too little, or irregularly?

The limits hold for the error that the client puts into TTFT at p99: below 20 ms it is within what a
good client on a shared machine adds (15 ms), above 50 ms TTFT is no longer the server's; INVALID
begins below that, because the lag that probes see is itself a sample.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.plans import LoadPlan, most_in_flight
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.types import AtOnce, ClosedArrivals, WorkloadSpec
from inferometer.records.columns import F64, I64, Bools
from inferometer.records.server_summaries import TtftParts
from inferometer.records.steady_state import SteadyState
from inferometer.records.types import (
    ABSENT,
    ChunkTable,
    ExchangeTable,
    HostClock,
    LagTable,
    RequestTable,
    ValidityReason,
    ValidityVerdict,
)
from inferometer.units import NS_PER_S, format_duration, format_fraction, format_number

# What do the checks of a load test look at, and how is a number graded against its limits?


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEvidence:
    """A recorded load test; requests and exchanges have the same rows."""

    requests: RequestTable
    exchanges: ExchangeTable
    chunks: ChunkTable
    lags: LagTable | None
    load: LoadPlan | None
    plan: RequestPlan | None
    """The workload's requests, where they are at hand."""
    steady: SteadyState | None
    percentiles: tuple[float, ...]
    """Percentiles that were requested."""
    clocks: tuple[HostClock, ...] = ()
    """Clocks of sending hosts other than the driver."""
    parts: TtftParts | None = None
    """Parts of TTFT by the server's metrics, where they show them."""

    @property
    def sent(self) -> tuple[I64, I64]:
        """Intended and actual instants of those requests that were sent."""
        was_sent = self.requests.sent_ns != ABSENT
        return self.requests.intended_send_ns[was_sent], self.requests.sent_ns[was_sent]


def own_lateness_ns(evidence: LoadEvidence) -> I64:
    """Send lateness of each request (N) in ns; 0 for requests not sent.

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
    """Earliest send of each request if at most ``most`` may be in flight."""
    sends, ends = np.sort(sent_ns), np.sort(ended_ns[ended_ns != ABSENT])
    n_ended = np.searchsorted(ends, sent_ns, side="right")
    is_at_cap = np.searchsorted(sends, sent_ns, side="right") - n_ended >= most
    last_end_ns = np.append(ends, intended_ns.min(initial=0))[n_ended - 1]
    return np.where(is_at_cap & (n_ended > 0), np.maximum(intended_ns, last_end_ns), intended_ns)


class Limits(NamedTuple):
    """Limits beyond which a number is SUSPECT, and INVALID."""

    suspect: float
    invalid: float

    def verdict(self, value: float) -> ValidityVerdict:
        """Verdict on a number of which less is better."""
        return "INVALID" if value > self.invalid else "SUSPECT" if value > self.suspect else "VALID"


def reason(check: str, verdict: ValidityVerdict, text: str, remedy: str) -> ValidityReason:
    """Result of one check; a VALID one needs no remedy."""
    return ValidityReason(
        check=check, verdict=verdict, text=text, remedy="" if verdict == "VALID" else remedy
    )


def percentile_of(values: F64 | I64, fraction: float) -> float:
    """A quantile of at least one value, none of them absent."""
    return float(np.quantile(values, fraction, method="inverted_cdf"))


_LATE_S: Final = Limits(suspect=0.020, invalid=0.040)
_MEDIAN_LATE_S: Final = 0.002
_MEDIAN_LATE_RATIO: Final = 0.1
_NEAR_NS: Final = 10_000_000
"""A stalled loop serves its sockets and its timers in one turn, so the probe of a stall fires
beside the reads that it delayed."""
_MISSING_RATE: Final = Limits(suspect=0.01, invalid=0.05)
"""A rate that is 1 % lower moves latency by less than its interval; near capacity 5 % moves it
by half."""
_DISPERSION: Final = Limits(suspect=0.2, invalid=0.5)
"""Queues grow with the variance of arrivals (Kingman): a fifth more or less is a fifth of the
waiting time."""
_MIN_WINDOWS: Final = 10
_GAPS_OF_A_WINDOW: Final = 10
_HANDSHAKES: Final = Limits(suspect=0.01, invalid=math.inf)
"""Of TTFT. A handshake is real for users who come once: never INVALID."""
_FEWER: Final = "more --processes, a lower rate, or a client machine that does nothing else"


def loop_lag(evidence: LoadEvidence) -> ValidityReason | None:
    """Delay of the client's own timer."""
    lags = evidence.lags
    if lags is None or not len(lags.lag_ns):
        return reason(
            "loop lag",
            "SUSPECT",
            "how late the client itself was is not recorded",
            "a client that records it",
        )
    late_s = percentile_of(lags.lag_ns, 0.99) / NS_PER_S
    worst_s = float(lags.lag_ns.max()) / NS_PER_S
    text = (
        f"the client's timer was late by {_ms(late_s)} at p99, {_ms(worst_s)} at most, of"
        f" {_LATE_S.invalid * 1e3:.0f} ms allowed"
    )
    return reason("loop lag", _LATE_S.verdict(late_s), text, _FEWER)


def send_lag(evidence: LoadEvidence) -> ValidityReason | None:
    """Delay of sends after their intended instants."""
    late_ns = own_lateness_ns(evidence)[evidence.requests.sent_ns != ABSENT]
    if not len(late_ns):
        return reason(
            "send lag", "INVALID", "no request was sent", "check the URL, and that the server runs"
        )
    late_s = percentile_of(late_ns, 0.99) / NS_PER_S
    middle_s = percentile_of(late_ns, 0.5) / NS_PER_S
    text = (
        f"requests were sent {_ms(middle_s)} late at p50, {_ms(late_s)} at p99, of"
        f" {_LATE_S.invalid * 1e3:.0f} ms allowed"
    )
    return reason("send lag", _LATE_S.verdict(late_s), text, _FEWER)


def host_clocks(evidence: LoadEvidence) -> ValidityReason | None:
    """Largest error in due times by the clocks of several hosts.

    Latencies count on one clock each.
    """
    clocks = evidence.clocks
    if not clocks:
        return None
    error_s = max(clock.error_s for clock in clocks)
    n_gone = sum(clock.after is None for clock in clocks)
    gone = f"; {n_gone} were not repeated after the run" if n_gone else ""
    text = (
        f"the clocks of the hosts of {len(clocks)} processes may be off by {_ms(error_s)}, of"
        f" {_LATE_S.suspect * 1e3:.0f} ms allowed{gone}"
    )
    verdict: ValidityVerdict = "SUSPECT" if error_s > _LATE_S.suspect or n_gone else "VALID"
    return reason(
        "host clocks",
        verdict,
        text,
        "hosts whose clocks are disciplined (NTP), nearer to each other, that stay until the end",
    )


def client_delay(evidence: LoadEvidence) -> ValidityReason | None:
    """The part of TTFT that may be the client's delay.

    Late sending, and late reading where its loop stood still beside a first token?

    At p99 that is the larger of two: the delay of the hundredth that had most of it, and by how
    much TTFT's p99 were less without any. Fewer than a hundredth that are delayed push others
    beyond p99 instead of lying there themselves.
    """
    delays_s = client_delays_s(evidence)
    if not len(delays_s):
        return None
    ttft_s = _ttft_s(evidence.requests)
    moved_s = percentile_of(ttft_s, 0.99) - percentile_of(np.maximum(ttft_s - delays_s, 0.0), 0.99)
    late_s, middle_s = max(percentile_of(delays_s, 0.99), moved_s), percentile_of(delays_s, 0.5)
    verdict = _LATE_S.verdict(late_s)
    if verdict == "VALID" and middle_s > max(
        _MEDIAN_LATE_S, _MEDIAN_LATE_RATIO * percentile_of(ttft_s, 0.5)
    ):
        verdict = "SUSPECT"
    text = (
        f"of TTFT, up to {_ms(middle_s)} at p50 and {_ms(late_s)} at p99 are the client's own, of"
        f" {_LATE_S.invalid * 1e3:.0f} ms allowed"
    )
    return reason("client delay", verdict, text, _FEWER)


def client_delays_s(evidence: LoadEvidence) -> F64:
    """Upper bound of the client's part in each TTFT (seconds), for requests with a first token."""
    requests, lags = evidence.requests, evidence.lags
    rows = _rows_with_first(requests)
    delays_ns = np.maximum(own_lateness_ns(evidence)[rows], 0)
    if lags is None or not len(lags.lag_ns):
        return np.asarray(delays_ns / NS_PER_S, dtype=np.float64)
    process = evidence.exchanges.process_index[rows]
    for one in np.unique(process).tolist():
        mine, probes = process == one, lags.process_index == one
        delays_ns[mine] += _lag_beside(
            requests.first_token_ns[rows[mine]], lags.due_ns[probes], lags.lag_ns[probes]
        )
    return np.asarray(delays_ns / NS_PER_S, dtype=np.float64)


def _rows_with_first(requests: RequestTable) -> NDArray[np.intp]:
    return np.flatnonzero((requests.first_token_ns != ABSENT) & (requests.sent_ns != ABSENT))


def _ttft_s(requests: RequestTable) -> F64:
    """TTFT of the same requests, in the same order."""
    rows = _rows_with_first(requests)
    return np.asarray(
        (requests.first_token_ns[rows] - requests.intended_send_ns[rows]) / NS_PER_S,
        dtype=np.float64,
    )


def rate(evidence: LoadEvidence) -> ValidityReason | None:
    """Was the offered load the requested load?

    Of open arrivals; closed ones offer what the server takes.
    """
    if not _is_open(evidence):
        return None
    intended_ns, sent_ns = evidence.sent
    planned_ns = evidence.requests.intended_send_ns
    if len(sent_ns) < 2:
        return None
    asked_per_s = _per_s(planned_ns)
    achieved_per_s = _per_s(np.sort(sent_ns)) * min(1.0, len(sent_ns) / len(planned_ns))
    if asked_per_s <= 0:
        return None
    missing = 1 - achieved_per_s / asked_per_s
    cap = None if evidence.load is None else evidence.load.max_concurrency
    n_unsent = len(planned_ns) - len(intended_ns)
    unsent = f"; {n_unsent} were never sent" if n_unsent else ""
    text = (
        f"{format_number(achieved_per_s)} requests/s were sent of {format_number(asked_per_s)} that"
        f" were due{unsent}"
    )
    if cap is not None and missing > 0:
        if _waits_grow(evidence) and _MISSING_RATE.verdict(missing) != "VALID":
            held = f"{text}; --max-concurrency {cap} holds the others back, longer and longer"
            return reason("rate", "SUSPECT", held, _CAPPED)
        return reason(
            "rate", "VALID", f"{text}; --max-concurrency {cap} may hold requests back", ""
        )
    return reason("rate", _MISSING_RATE.verdict(missing), text, _FEWER)


_CAPPED: Final = "a higher --max-concurrency, or none, or a lower --rate: TTFT counts that wait"


def _waits_grow(evidence: LoadEvidence) -> bool:
    """Is TTFT longer at the end than at the beginning, even of the steady state?"""
    trends = () if evidence.steady is None else evidence.steady.drifting
    return any(one.latency == "ttft" and one.trend.ratio > 1 for one in trends)


def dispersion(evidence: LoadEvidence) -> ValidityReason | None:
    """Are requests sent with the planned spacing?

    Variance / mean of counts in windows, of sent against planned instants.
    """
    intended_ns, sent_ns = evidence.sent
    is_capped = evidence.load is not None and evidence.load.max_concurrency is not None
    if is_capped or not _is_open(evidence) or len(sent_ns) < _MIN_WINDOWS * _GAPS_OF_A_WINDOW:
        return None
    edges = np.linspace(
        intended_ns.min(), intended_ns.max() + 1, len(intended_ns) // _GAPS_OF_A_WINDOW + 1
    )
    planned_ratio = _dispersion_ratio(intended_ns, edges)
    sent_ratio = _dispersion_ratio(np.minimum(sent_ns, intended_ns.max()), edges)
    apart = abs(sent_ratio - planned_ratio) / max(planned_ratio, 1.0)
    text = (
        f"index of dispersion of arrivals: {sent_ratio:.2f} as sent, {planned_ratio:.2f} as planned"
        " (Poisson: 1)"
    )
    return reason("arrivals", _DISPERSION.verdict(apart), text, _FEWER)


def connections(evidence: LoadEvidence) -> ValidityReason | None:
    """Were connections reused, or is the time to open them small beside TTFT?

    A request on a new connection is sent once that stands: how late it was sent bounds its
    handshake.
    """
    exchanges, requests = evidence.exchanges, evidence.requests
    n = int((exchanges.connection_index >= 0).sum())
    if not n:
        return None
    is_new = ~exchanges.is_reused & (exchanges.connection_index >= 0)
    n_needed = _peak_in_flight(requests.sent_ns, exchanges.last_byte_ns)
    n_new = int(is_new.sum())
    share = (
        max(n_new - n_needed, 0)
        / max(n_new, 1)
        * _late_share(requests, own_lateness_ns(evidence), is_new)
    )
    text = (
        f"{n_new} connections for {n} requests, of which at most {n_needed} were in flight at once"
    )
    text += (
        f"; those that need not have been opened took up to {format_fraction(share)} of the time to"
        " the first token"
        if share > 0
        else ""
    )
    verdict = _HANDSHAKES.verdict(share)
    return reason(
        "connections",
        verdict,
        text,
        "let the server keep connections alive: their handshakes are in TTFT",
    )


def _late_share(requests: RequestTable, late_ns: I64, is_new: Bools) -> float:
    """Share of all TTFT that passed before requests on new connections were sent."""
    has_token = (requests.first_token_ns != ABSENT) & (requests.sent_ns != ABSENT)
    late_ns = np.where(has_token, np.maximum(late_ns, 0), 0)[is_new]
    ttft_ns = (requests.first_token_ns - requests.intended_send_ns)[has_token]
    return float(late_ns.sum() / ttft_ns.sum()) if ttft_ns.sum() > 0 else 0.0


def _lag_beside(instants_ns: I64, due_ns: I64, lag_ns: I64) -> I64:
    """The largest lag of the probes that fired beside each instant; 0 where none did."""
    if not len(due_ns):
        return np.zeros(len(instants_ns), np.int64)
    fired_ns = due_ns + lag_ns
    order = np.argsort(fired_ns, kind="stable")
    fired_ns, padded_ns = fired_ns[order], np.append(np.maximum(lag_ns[order], 0), 0)
    first = np.searchsorted(fired_ns, instants_ns - _NEAR_NS)
    last = np.searchsorted(fired_ns, instants_ns + _NEAR_NS, side="right")
    largest = np.maximum.reduceat(padded_ns, np.column_stack([first, last]).ravel())[::2]
    return np.where(last > first, largest, 0)


def _is_open(evidence: LoadEvidence) -> bool:
    workload: WorkloadSpec | None = None if evidence.load is None else evidence.load.workload
    return workload is None or not isinstance(workload.arrivals, AtOnce | ClosedArrivals)


def _per_s(instants_ns: I64) -> float:
    span_ns = int(instants_ns[-1]) - int(instants_ns[0])
    return (len(instants_ns) - 1) / span_ns * NS_PER_S if span_ns > 0 else 0.0


def _dispersion_ratio(instants_ns: I64, edges_ns: F64) -> float:
    counts = np.histogram(instants_ns.astype(np.float64), bins=edges_ns)[0]
    return float(counts.var(ddof=1) / counts.mean())


def _peak_in_flight(sent_ns: I64, last_byte_ns: I64) -> int:
    """Largest number of requests in flight."""
    was_there = (sent_ns != ABSENT) & (last_byte_ns != ABSENT)
    instants = np.concatenate([sent_ns[was_there], last_byte_ns[was_there]])
    steps = np.repeat([1, -1], int(was_there.sum()))
    return int(np.cumsum(steps[np.lexsort((-steps, instants))]).max(initial=0))


def _ms(duration_s: float) -> str:
    return format_duration(max(duration_s, 0.0))


def share_text(n: int, of: int) -> str:
    """``3 of 200 (1.5 %)``."""
    return f"{n:,} of {of:,} ({format_fraction(n / of)})" if of else "0"
