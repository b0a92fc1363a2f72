"""What does the server itself report of a run, and where does the time to first token go?

Means are growth of sums / growth of counts between two scrapes; percentiles are intervals, the
bucket in which they lie, because a histogram says no more (vLLM's queue, prefill and end-to-end
buckets begin at 0.3 s). Most histograms count a request when it ends, the first token when it
comes: in a short window they are not of the same requests.

Parts of TTFT: client = sent - intended send · network = the client's first token - sent - the server's own TTFT
(connecting, proxies, the way there and back, and text that a parser of tool calls or thoughts holds
back) · queue and prefill as the server says · hand-over = the server's TTFT - queue - prefill
(reading the request, tokenising, handing the first step's token out). Means add up; percentiles
would not. Of a simulated run the engine itself says who was first scheduled when: queue ends and
prefill begins there, what a preemption before the first token takes included.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, get_args

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.server_names import Counter, Gauge, Histogram, ServerKind
from inferometer.records.server_series import (
    Growth,
    ServerRecord,
    counter_series,
    gauge_series,
    histogram_growth,
    n_restarts,
    server_record,
)
from inferometer.records.types import ABSENT, RequestTable, ServerSampleTable
from inferometer.units import NS_PER_S

PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99)


class Level(NamedTuple):
    """A gauge over a window: requests, or a share from 0 to 1."""

    mean: float
    highest: float
    n_scrapes: int


class BucketPercentile(NamedTuple):
    """Edges of the bucket that holds a percentile."""

    percentile_fraction: float
    low_s: float
    high_s: float
    """Infinite in the last bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTime:
    """One of the server's own latencies."""

    name: Histogram
    n: int
    """Requests; of ``itl`` tokens."""
    mean_s: float
    percentiles: tuple[BucketPercentile, ...]
    """Empty where the server has no buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSummary:
    """The server's own metrics; None: not reported."""

    kind: ServerKind
    start_s: float
    """The first scrape, since the start of the run."""
    end_s: float
    n_scrapes: int
    n_failed_scrapes: int
    n_restarts: int
    """A run over a restart is two."""
    waiting: Level | None
    running: Level | None
    kv_usage: Level | None
    kv_block_tokens: int | None
    n_kv_blocks: int | None
    n_preemptions: int | None
    n_finished: int | None
    n_rejected: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    prefix_queries_tokens: int | None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits_tokens: int | None
    times: tuple[ServerTime, ...]
    """Latencies with at least one observation."""
    flop_per_s: float | None
    """Per accelerator, as the server estimates; None where it does not."""
    moved_bytes_per_s: float | None
    """Read and written, per accelerator, as the server estimates."""

    @property
    def prefix_hit_fraction(self) -> float | None:
        """Share of prompt tokens found in the prefix cache; None where nothing was looked up."""
        if self.prefix_hits_tokens is None or not self.prefix_queries_tokens:
            return None
        return self.prefix_hits_tokens / self.prefix_queries_tokens

    def time(self, name: Histogram) -> ServerTime | None:
        """The latency of this name; None where the server does not report it."""
        return next((one for one in self.times if one.name == name), None)

    def flop_utilisation_fraction(self, peak_flop_per_s: float) -> float | None:
        """MFU: estimated FLOP / what the accelerator could do at its peak."""
        return None if self.flop_per_s is None else self.flop_per_s / peak_flop_per_s

    def bandwidth_utilisation_fraction(self, peak_bytes_per_s: float) -> float | None:
        """MBU: estimated bytes / what the accelerator's memory could move."""
        return None if self.moved_bytes_per_s is None else self.moved_bytes_per_s / peak_bytes_per_s


def summarise_server(samples: ServerSampleTable) -> ServerSummary:
    """Summarise metrics from the first scrape to the last.

    Raises
    ------
    RecordError
        There is no sample, none of a known server, or fewer than two scrapes.
    """
    record = server_record(samples)
    instants_ns = record.scraped_ns
    if len(instants_ns) < 2:
        raise RecordError(
            f"{len(instants_ns)} scrapes of the server in the window",
            where=f"{len(instants_ns)} in the record",
            allowed="at least two: counters are read as differences",
        )
    took_s = (int(instants_ns[-1]) - int(instants_ns[0])) / NS_PER_S
    output_tokens = _count(record, "output_tokens")
    block_tokens, blocks = _level(record, "block_tokens"), _level(record, "n_blocks")
    flop, read, written = (
        _estimated(record, counter, output_tokens)
        for counter in ("flop", "read_bytes", "write_bytes")
    )
    return ServerSummary(
        kind=record.names.kind,
        start_s=int(instants_ns[0]) / NS_PER_S,
        end_s=int(instants_ns[-1]) / NS_PER_S,
        n_scrapes=len(instants_ns),
        n_failed_scrapes=record.n_failed_scrapes,
        n_restarts=n_restarts(record),
        waiting=_level(record, "waiting"),
        running=_level(record, "running"),
        kv_usage=_level(record, "kv_usage"),
        kv_block_tokens=None if block_tokens is None else round(block_tokens.highest),
        n_kv_blocks=None if blocks is None else round(blocks.highest),
        n_preemptions=_count(record, "preemptions"),
        n_finished=_count(record, "finished"),
        n_rejected=_count(record, "rejected"),
        prompt_tokens=_count(record, "prompt_tokens"),
        output_tokens=output_tokens,
        prefix_queries_tokens=_count(record, "prefix_queries_tokens"),
        prefix_hits_tokens=_count(record, "prefix_hits_tokens"),
        times=_times(record),
        flop_per_s=None if flop is None else flop / took_s,
        moved_bytes_per_s=None if read is None or written is None else (read + written) / took_s,
    )


def bucket_percentile(growth: Growth, fraction: float) -> BucketPercentile | None:
    """Between which two edges lies the percentile? None without buckets or observations.

    Example
    -------
    >>> bucket_percentile(Growth(10, 3.0, np.array([0.1, 0.5, np.inf]), np.array([6.0, 4.0, 0.0])), 0.9)
    BucketPercentile(percentile_fraction=0.9, low_s=0.1, high_s=0.5)
    """
    total = float(growth.counts.sum())
    if total <= 0:
        return None
    rank = max(1.0, math.ceil(fraction * total - 1e-9))
    bucket = int(np.searchsorted(np.cumsum(growth.counts), rank))
    low_s = 0.0 if bucket == 0 else float(growth.edges[bucket - 1])
    return BucketPercentile(fraction, low_s, float(growth.edges[bucket]))


def _level(record: ServerRecord, gauge: Gauge) -> Level | None:
    series = gauge_series(record, gauge)
    if series is None:
        return None
    known = series.value[np.isfinite(series.value)]
    return Level(float(known.mean()), float(known.max()), len(known)) if known.size else None


def _increase(record: ServerRecord, counter: Counter) -> float | None:
    series = counter_series(record, counter)
    return None if series is None else float(series.value[-1])


def _count(record: ServerRecord, counter: Counter) -> int | None:
    grown = _increase(record, counter)
    return None if grown is None else round(grown)


def _estimated(record: ServerRecord, counter: Counter, output_tokens: int | None) -> float | None:
    """Servers that do not estimate their work may show its counters at 0 all the same."""
    grown = _increase(record, counter)
    return None if grown == 0 and output_tokens != 0 else grown


def _times(record: ServerRecord) -> tuple[ServerTime, ...]:
    times: list[ServerTime] = []
    for name in get_args(Histogram):
        growth = histogram_growth(record, name)
        if growth is not None and growth.n > 0:
            found = (bucket_percentile(growth, fraction) for fraction in PERCENTILES)
            percentiles = tuple(one for one in found if one is not None)
            times.append(
                ServerTime(
                    name=name, n=growth.n, mean_s=growth.total / growth.n, percentiles=percentiles
                )
            )
    return tuple(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftParts:
    """Mean parts of TTFT; None: unknown.

    A difference can be slightly negative: client and server do not count quite the same requests at
    a window's ends.
    """

    n_requests: int
    """The client's requests with a first token in the window."""
    n_server_requests: int | None
    total_s: float
    """Mean time from the intended send to the first token."""
    client_s: float
    network_s: float | None
    queue_s: float | None
    prefill_s: float | None
    handover_s: float | None

    @property
    def has_others(self) -> bool:
        """Did the server answer more requests than this client's, beyond the window's edges?

        Then its times are those of all, and no parts of the client's.
        """
        return (self.n_server_requests or 0) > _MOST_RATIO * self.n_requests + _N_AT_ENDS


_MOST_RATIO: Final = 1.1
_N_AT_ENDS: Final = 2
"""A first token that is counted before an end of the window and arrives after it."""
_NS_DIGITS: Final = 9
"""A difference of means is no finer than the clock: what is left beyond is rounding."""


def ttft_parts(requests: RequestTable, server: ServerSummary) -> TtftParts | None:
    """The mean parts over the summary's window; None where no first token came in it."""
    first_ns = requests.first_token_ns
    is_within = (
        (first_ns != ABSENT)
        & (first_ns >= server.start_s * NS_PER_S)
        & (first_ns <= server.end_s * NS_PER_S)
    )
    rows = np.flatnonzero(is_within)
    if not rows.size:
        return None
    client_s = float((requests.sent_ns[rows] - requests.intended_send_ns[rows]).mean()) / NS_PER_S
    from_sent_s = float((first_ns[rows] - requests.sent_ns[rows]).mean()) / NS_PER_S
    ttft_s, queue_s, prefill_s = (_mean_s(server, name) for name in ("ttft", "queue", "prefill"))
    handover_s = (
        None
        if ttft_s is None or queue_s is None or prefill_s is None
        else round(ttft_s - queue_s - prefill_s, _NS_DIGITS)
    )
    ttft = server.time("ttft")
    return TtftParts(
        n_requests=len(rows),
        n_server_requests=None if ttft is None else ttft.n,
        total_s=client_s + from_sent_s,
        client_s=client_s,
        network_s=None if ttft_s is None else from_sent_s - ttft_s,
        queue_s=queue_s,
        prefill_s=prefill_s,
        handover_s=handover_s,
    )


def engine_ttft_parts(requests: RequestTable) -> TtftParts | None:
    """Mean TTFT parts from the engine's own request records; None without them."""
    rows = np.flatnonzero(
        (requests.first_token_ns != ABSENT)
        & (requests.admitted_ns != ABSENT)
        & (requests.sent_ns != ABSENT)
    )
    if not rows.size:
        return None
    instants = (
        requests.intended_send_ns,
        requests.sent_ns,
        requests.admitted_ns,
        requests.first_token_ns,
    )
    client_s, queue_s, prefill_s = (
        float((later[rows] - earlier[rows]).mean()) / NS_PER_S
        for earlier, later in pairwise(instants)
    )
    return TtftParts(
        n_requests=len(rows),
        n_server_requests=None,
        total_s=client_s + queue_s + prefill_s,
        client_s=client_s,
        network_s=None,
        queue_s=queue_s,
        prefill_s=prefill_s,
        handover_s=None,
    )


def _mean_s(server: ServerSummary, name: Histogram) -> float | None:
    time = server.time(name)
    return None if time is None else time.mean_s
