"""When did each token come, and how long did each wait for its predecessor?

Tokens come in deliveries: chunks of a measured answer, rows of a simulated step. A delivery of k
tokens is one gap with k tokens, so that both views are there: per delivery, where the gap counts
once, and per token, where each of the k took a k-th of it. Letters of shapes: D deliveries, T
delivered tokens, G gaps.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.columns import F64, I32, I64, Bools
from inferometer.records.types import ABSENT, ChunkTable, ExchangeTable, RequestTable, Run
from inferometer.units import NS_PER_S

_MOST_IN_ALL: Final = 200_000_000
"""Delivered tokens of a run that are expanded one by one: 1.6 GB."""


class Deliveries(NamedTuple):
    """One row per delivery (D rows), in order of time."""

    request_index: I32
    """``RequestTable.request_index``"""
    time_ns: I64
    """Since the start of the run."""
    n_tokens: I64
    is_assumed: Bools
    """Nobody could tell how the answer's tokens are spread: they are taken to be spread evenly."""


class TokenTable(NamedTuple):
    """One row per delivered token (T rows), in order of time and, at one instant, of the batch."""

    request_index: I32
    """``RequestTable.request_index``"""
    time_ns: I64
    """Since the start of the run."""


class TokenGaps(NamedTuple):
    """One row per token but each request's first (G rows), by request and time: inter-token latencies."""

    request_index: I32
    gap_ns: I64
    """0 between tokens that were delivered together."""


class DeliveryGaps(NamedTuple):
    """One row per delivery but each request's first (G rows), in order of time."""

    request_index: I32
    time_ns: I64
    """When the gap ended."""
    gap_ns: I64
    n_tokens: I64
    is_assumed: Bools

    def per_token_s(self) -> F64:
        """Time per token, in order of time: a delivery of k tokens counts k times 1/k of its gap."""
        return np.asarray(
            np.repeat(self.gap_ns / np.maximum(self.n_tokens, 1), self.n_tokens) / NS_PER_S,
            dtype=np.float64,
        )


def deliveries(run: Run) -> Deliveries:
    """When was what delivered, and to whom? Chunks without a token are none.

    Raises
    ------
    RecordError
        The run does not say who got what when.
    """
    if run.steps is None or run.parts is None:
        if run.chunks is not None and run.requests is not None:
            return _of_chunks(run.chunks, run.requests, _most_tokens(run.requests, run.exchanges))
        allowed = "a load test, or a simulated run with them"
        raise RecordError(
            "the run has no parts of steps",
            where=run.manifest.run_id,
            allowed=allowed,
            try_="record_parts=True",
        )
    end_ns = run.steps.start_ns + run.steps.duration_ns
    has_any = run.parts.n_delivered_tokens > 0
    return Deliveries(
        request_index=run.parts.request_index[has_any],
        time_ns=end_ns[run.parts.step_index[has_any]],
        n_tokens=run.parts.n_delivered_tokens[has_any].astype(np.int64),
        is_assumed=np.zeros(int(has_any.sum()), np.bool_),
    )


def token_times(run: Run) -> TokenTable:
    """When was each token delivered, and to whom?

    Raises
    ------
    RecordError
        The run does not say who got what when.
    """
    given = deliveries(run)
    return TokenTable(
        request_index=np.repeat(given.request_index, given.n_tokens),
        time_ns=np.repeat(given.time_ns, given.n_tokens),
    )


def token_gaps(tokens: TokenTable) -> TokenGaps:
    """How long did each token come after the one before of the same request?"""
    by_request = np.argsort(tokens.request_index, kind="stable")
    request, time_ns = tokens.request_index[by_request], tokens.time_ns[by_request]
    has_predecessor = request[1:] == request[:-1]
    return TokenGaps(
        request_index=request[1:][has_predecessor], gap_ns=np.diff(time_ns)[has_predecessor]
    )


def delivery_gaps(given: Deliveries) -> DeliveryGaps:
    """How long did each delivery come after the one before of the same request?"""
    by_request = np.argsort(given.request_index, kind="stable")
    request, time_ns = given.request_index[by_request], given.time_ns[by_request]
    has_predecessor = np.flatnonzero(request[1:] == request[:-1]) + 1
    gap_ns = np.zeros(len(request), np.int64)
    gap_ns[has_predecessor] = time_ns[has_predecessor] - time_ns[has_predecessor - 1]
    in_time = has_predecessor[np.argsort(time_ns[has_predecessor], kind="stable")]
    rows = by_request[in_time]
    return DeliveryGaps(
        request_index=given.request_index[rows],
        time_ns=given.time_ns[rows],
        gap_ns=gap_ns[in_time],
        n_tokens=given.n_tokens[rows],
        is_assumed=given.is_assumed[rows],
    )


def _most_tokens(requests: RequestTable, exchanges: ExchangeTable | None) -> I64:
    """Upper bound on each request's tokens (N): its ``max_tokens``, or one per byte received.

    The server's own count may be false, and to expand it token by token takes memory for each.
    """
    if exchanges is None or not np.array_equal(exchanges.request_index, requests.request_index):
        return np.full(len(requests.request_index), _MOST_IN_ALL)
    return np.minimum(exchanges.asked_output_tokens, exchanges.received_bytes).astype(np.int64)


def _of_chunks(chunks: ChunkTable, requests: RequestTable, most_tokens: I64) -> Deliveries:
    """The chunks with tokens in order of time.

    Where nobody knows, an answer's tokens are spread evenly over its chunks.
    """
    n_rows = 1 + max(
        int(requests.request_index.max(initial=-1)), int(chunks.request_index.max(initial=-1))
    )
    most, output_tokens = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    most[requests.request_index] = most_tokens
    output_tokens[requests.request_index] = np.minimum(requests.output_tokens, most_tokens)
    is_assumed = chunks.n_tokens == ABSENT
    n_tokens = np.where(is_assumed, _evenly(chunks, output_tokens), _within(chunks, most))
    n_in_all = float(n_tokens.sum(dtype=np.float64))
    if n_in_all > _MOST_IN_ALL:
        raise RecordError(
            f"the answers have {n_in_all:.3g} tokens",
            where="chunks.parquet",
            allowed=f"{_MOST_IN_ALL:,} in a run",
        )
    rows = np.flatnonzero(n_tokens > 0)
    rows = rows[np.argsort(chunks.arrived_ns[rows], kind="stable")]
    return Deliveries(
        chunks.request_index[rows], chunks.arrived_ns[rows], n_tokens[rows], is_assumed[rows]
    )


def _within(chunks: ChunkTable, most: I64) -> I64:
    """The tokens of each chunk (K) as stored, cut where those of its answer exceed ``most``."""
    order = np.argsort(chunks.request_index, kind="stable")
    request = chunks.request_index[order]
    so_far = np.cumsum(np.clip(chunks.n_tokens[order], 0, most[request]))
    is_first = np.diff(request, prepend=-1) != 0
    before = np.maximum.accumulate(np.where(is_first, np.concatenate([[0], so_far[:-1]]), 0))
    within = np.minimum(so_far - before, most[request])
    cut = np.empty(len(request), np.int64)
    cut[order] = np.where(is_first, within, np.diff(within, prepend=0))
    return cut


def _evenly(chunks: ChunkTable, output_tokens: I64) -> I64:
    """Of each chunk (K), were its answer's tokens spread as evenly as whole tokens can be."""
    n_chunks = np.bincount(chunks.request_index, minlength=len(output_tokens))
    starts = np.cumsum(n_chunks) - n_chunks
    order = np.argsort(chunks.request_index, kind="stable")
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - starts[chunks.request_index[order]]
    total, n = output_tokens[chunks.request_index], n_chunks[chunks.request_index]
    return (nth + 1) * total // np.maximum(n, 1) - nth * total // np.maximum(n, 1)
