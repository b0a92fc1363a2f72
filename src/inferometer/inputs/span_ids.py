"""Ids of a load test's spans, and which requests are traced.

All are computed from the run's name and the request's number, so the client stores nothing, and
the spans that are made after the run have the same ids.

Source
------
W3C Trace Context, level 2, "traceparent"; Knuth, TAOCP 6.4: multiples of the golden ratio.
"""

import hashlib
import re
from typing import Final, NamedTuple

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-|$)"
)


class TraceParent(NamedTuple):
    """Content of a client's ``traceparent`` header."""

    trace_id: int
    span_id: int
    is_sampled: bool


def traceparent_of(header: str | None) -> TraceParent | None:
    """Parse this header; None where it is missing or invalid.

    Example
    -------
    >>> traceparent_of("00-000000000000000000000000000000ab-00000000000000cd-01")
    TraceParent(trace_id=171, span_id=205, is_sampled=True)
    """
    found = _TRACEPARENT.match(header or "")
    if found is None:
        return None
    trace_id, span_id, flags = (int(text, 16) for text in found.groups())
    return TraceParent(trace_id, span_id, bool(flags & 1)) if trace_id and span_id else None


class SpanIds(NamedTuple):
    """The ids of one run's spans."""

    trace_id: int
    key: int
    sampled_below: int
    """Of 2^64: requests whose multiple of the golden ratio is below it are traced."""

    def is_sampled(self, row: int) -> bool:
        """Is this request traced? Traced ones are spread evenly over the run.

        Example
        -------
        >>> ids = span_ids("run", sample_fraction=0.1)
        >>> sum(ids.is_sampled(row) for row in range(10_000))
        1000
        """
        return (row + 1) * _GOLDEN & _MASK < self.sampled_below

    def of_request(self, row: int) -> int:
        """The id of this request's span; different requests have different ones."""
        return (self.key + (row + 1) * _GOLDEN & _MASK) or self.key

    def of_part(self, name: str, of: int = 0) -> int:
        """The id of the span with this name, below the span ``of``."""
        return _digest(f"{self.trace_id:x} {of:x} {name}", 8)

    def traceparent(self, row: int) -> str:
        """The header that a request carries; its last digit tells the server whether it is traced.

        Example
        -------
        >>> span_ids("run", sample_fraction=1.0).traceparent(0)
        '00-079225af853f5315621cde342416f015-7834d48091acad04-01'
        """
        flags = "01" if self.is_sampled(row) else "00"
        return f"00-{self.trace_id:032x}-{self.of_request(row):016x}-{flags}"


def span_ids(run_name: str, *, sample_fraction: float) -> SpanIds:
    """The ids of the run with this name, of whose requests this share is traced."""
    return SpanIds(
        trace_id=_digest(f"trace {run_name}", 16),
        key=_digest(f"spans {run_name}", 8),
        sampled_below=round(sample_fraction * 2**64),
    )


def _digest(text: str, n_bytes: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:n_bytes], "big") or 1
