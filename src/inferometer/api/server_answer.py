"""Which of the server's own numbers does an answer hold?"""

import math
from dataclasses import dataclass

from inferometer.records.server_summaries import Level, ServerSummary, ServerTime
from inferometer.report.request_views import ServerUse


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsLevel:
    """How many requests, over the run."""

    mean_load: float
    highest_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLevel:
    """Which share, over the run."""

    mean_fraction: float
    highest_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeRow:
    """One of the server's own latencies; its 95th percentile lies between two edges of its histogram."""

    name: str
    n: int
    mean_s: float
    p95_low_s: float | None
    p95_high_s: float | None
    """None in the last bucket, which has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """What the server says of the run. None: it does not."""

    kind: str
    n_scrapes: int
    n_failed_scrapes: int
    n_restarts: int
    running: RequestsLevel | None
    waiting: RequestsLevel | None
    kv_usage: ShareLevel | None
    n_preemptions: int | None
    n_rejected: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    prefix_hit_fraction: float | None
    flop_per_s: float | None
    """Per accelerator, as the server estimates."""
    moved_bytes_per_s: float | None
    use: ServerUse | None
    """Shares of the device's peaks, where somebody named it (--server-hardware)."""
    times: tuple[ServerTimeRow, ...]


def server_answer(server: ServerSummary, use: ServerUse | None) -> ServerAnswer:
    """The summary as an answer holds it."""
    return ServerAnswer(
        kind=server.kind,
        n_scrapes=server.n_scrapes,
        n_failed_scrapes=server.n_failed_scrapes,
        n_restarts=server.n_restarts,
        running=_requests(server.running),
        waiting=_requests(server.waiting),
        kv_usage=_share(server.kv_usage),
        n_preemptions=server.n_preemptions,
        n_rejected=server.n_rejected,
        prompt_tokens=server.prompt_tokens,
        output_tokens=server.output_tokens,
        prefix_hit_fraction=server.prefix_hit_fraction,
        flop_per_s=server.flop_per_s,
        moved_bytes_per_s=server.moved_bytes_per_s,
        use=use,
        times=tuple(_time(time) for time in server.times),
    )


def _requests(level: Level | None) -> RequestsLevel | None:
    return (
        None if level is None else RequestsLevel(mean_load=level.mean, highest_load=level.highest)
    )


def _share(level: Level | None) -> ShareLevel | None:
    return (
        None
        if level is None
        else ShareLevel(mean_fraction=level.mean, highest_fraction=level.highest)
    )


def _time(time: ServerTime) -> ServerTimeRow:
    p95 = next((one for one in time.percentiles if one.percentile_fraction == 0.95), None)
    return ServerTimeRow(
        name=time.name,
        n=time.n,
        mean_s=time.mean_s,
        p95_low_s=None if p95 is None else p95.low_s,
        p95_high_s=None if p95 is None or math.isinf(p95.high_s) else p95.high_s,
    )
