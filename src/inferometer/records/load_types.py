"""What does a load test record beside its requests.

Chunks, exchanges, how late the client itself was, and the server's own numbers?

Instants are nanoseconds of a monotonic clock since the start of the run. Letters of shapes: N
requests, K chunks, L probes, M samples.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from inferometer.records.columns import F64, I8, I32, I64, Bools, Texts
from inferometer.units import NS_PER_S

ValidityVerdict: TypeAlias = Literal["VALID", "SUSPECT", "INVALID"]


class ChunkKind(IntEnum):
    """What did a chunk of an answer carry?"""

    CONTENT = 0
    REASONING = 1
    TOOL_CALL = 2


class ChunkTable(NamedTuple):
    """One row per event with tokens (K rows), by request and then by arrival.

    Events without any (a role, usage alone, keep-alive, ``[DONE]``) are none.
    """

    request_index: I32
    """``RequestTable.request_index``"""
    arrived_ns: I64
    """When the read ended that completed the event."""
    n_tokens: I64
    """ABSENT where nobody could tell how the answer's tokens are spread over its chunks."""
    n_characters: I32
    kind: I8
    """A ``ChunkKind``."""


class ExchangeTable(NamedTuple):
    """What went over the wire for each request sent (N rows, in ``RequestTable`` order)."""

    request_index: I32
    process_index: I32
    """Which of the client's processes sent it."""
    connection_index: I32
    """Which of that process's connections, in order of opening; -1 where none could be opened."""
    is_reused: Bools
    """The connection had carried a request before."""
    connected_ns: I64
    """When the new connection stood; ABSENT where it was reused or never did."""
    head_ns: I64
    """When the response's head was there; ABSENT where none came."""
    last_byte_ns: I64
    """ABSENT where no byte came."""
    http_status: I64
    """ABSENT where none came."""
    error: Texts
    """'' or what went wrong, as a short stable code (``records.exchange_errors``)."""
    finish_reason: Texts
    """As the server says; '' where it does not."""
    asked_output_tokens: I32
    """``max_tokens`` of the request."""
    sent_bytes: I64
    received_bytes: I64
    """Of the body."""
    n_chunks: I32
    n_coalesced_chunks: I32
    """Chunks that arrived in one read with an earlier chunk of the same answer."""
    usage_prompt_tokens: I64
    """As the server counted; ABSENT where it did not say."""
    usage_cached_tokens: I64
    usage_output_tokens: I64
    token_source: Texts
    """Who counted the output tokens of the request: usage, tokenizer or chunks; '' where there
    are none."""
    retry_after_s: F64
    """As the server asked; NaN where it did not."""


class LagTable(NamedTuple):
    """How late was the client itself (L rows)?

    A timer that should fire every few milliseconds says by how much it was late.
    """

    process_index: I32
    due_ns: I64
    lag_ns: I64
    n_in_flight: I32


class ServerSampleTable(NamedTuple):
    """The server's own numbers (M rows), as scraped; names and labels are the server's."""

    scraped_ns: I64
    """When the answer to the scrape was there."""
    name: Texts
    labels: Texts
    """As in the exposition format, sorted by name: ``engine="0",le="0.5"``."""
    value: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """What another host's clock showed beside the driver's, asked again and again around one instant."""

    at_ns: int
    """Instant of the run, by the driver's clock."""
    offset_ns: int
    """The host's CLOCK_MONOTONIC minus the driver's."""
    doubt_ns: int
    """The offset is that far off at most, whichever way the messages took longer."""
    n_exchanges: int

    def since(self, origin_ns: int) -> "ClockReading":
        """The same reading, its instant counted from ``origin_ns``."""
        return replace(self, at_ns=self.at_ns - origin_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """The clock by which one process of the client sent, where it ran on another host than the driver."""

    process_index: int
    host_hash: str
    before: ClockReading
    """Its schedule began by this one."""
    after: ClockReading | None
    """None: the host was gone."""

    def read_again(self, after: ClockReading | None) -> "HostClock":
        """The same clock, read after the run too."""
        return replace(self, after=after)

    @property
    def drift_ratio(self) -> float:
        """By how much faster than the driver's did it run?

        0 where that was not measured, or lies within the doubt of the readings.
        """
        after = self.after
        if after is None or after.at_ns <= self.before.at_ns:
            return 0.0
        moved_ns = after.offset_ns - self.before.offset_ns
        is_seen = abs(moved_ns) > after.doubt_ns + self.before.doubt_ns
        return moved_ns / (after.at_ns - self.before.at_ns) if is_seen else 0.0

    @property
    def error_s(self) -> float:
        """How far off the instant that was asked may a request have been due.

        What the clock moved by, and what is not known of it.
        """
        after = self.after or self.before
        return (
            abs(after.offset_ns - self.before.offset_ns) + max(after.doubt_ns, self.before.doubt_ns)
        ) / NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityReason:
    """One check of a load test, and what it found."""

    check: str
    verdict: ValidityVerdict
    text: str
    """What was seen, against what is allowed, in a sentence."""
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """May a load test's numbers be trusted? The worst of its checks decides."""

    verdict: ValidityVerdict
    reasons: tuple[ValidityReason, ...]
    """Every check that was made, the worst first."""
