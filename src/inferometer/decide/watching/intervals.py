"""What did a server do between two scrapes?"""

from typing import NamedTuple

from inferometer.records.server_names import Counter, Gauge
from inferometer.records.server_series import (
    ServerRecord,
    counter_series,
    gauge_series,
    histogram_series,
    n_restarts,
)
from inferometer.units import NS_PER_S


class Interval(NamedTuple):
    """Counters by their growth, gauges as they are at its end; None where the server has none."""

    at_s: float
    """End of the interval, since the watch began."""
    took_s: float
    running: float
    waiting: float
    kv_usage: float | None
    """From 0 to 1."""
    kv_held_tokens: float
    """Tokens in the KV cache; 0 where the server does not report its size."""
    n_finished: float
    n_preempted: float | None
    n_prompts: float
    """Requests that got their first token."""
    prompt_tokens: float
    hit_tokens: float | None
    queried_tokens: float | None
    output_tokens: float
    n_steps: float | None
    n_gaps: float
    """Tokens after the first of their answers."""
    gaps_s: float
    """Seconds between those and the tokens before, together."""
    draft_tokens: float | None
    accepted_tokens: float | None
    is_restarted: bool = False
    queued_s: float = 0.0
    """Total queue time of the requests that ended; 0 where not reported."""


def last_interval(record: ServerRecord) -> Interval:
    """Changes between the last two scrapes of a record.

    A counter that the server lacks is 0 where it only weighs what is judged, None where it is
    judged itself.
    """
    start_ns, end_ns = record.scraped_ns[-2:].tolist()
    blocks, block_tokens = _gauge(record, "n_blocks"), _gauge(record, "block_tokens")
    usage = _gauge(record, "kv_usage")
    (n_prompts, _), (n_steps, _), (n_gaps, gaps_s), (_, queued_s) = (
        _gained(record, name) for name in ("ttft", "step_tokens", "itl", "queue")
    )
    return Interval(
        at_s=end_ns / NS_PER_S,
        took_s=(end_ns - start_ns) / NS_PER_S,
        running=_gauge(record, "running") or 0.0,
        waiting=_gauge(record, "waiting") or 0.0,
        kv_usage=usage,
        kv_held_tokens=(usage or 0.0) * (blocks or 0.0) * (block_tokens or 0.0),
        n_finished=_grown(record, "finished") or 0.0,
        n_preempted=_grown(record, "preemptions"),
        n_prompts=n_prompts or 0.0,
        prompt_tokens=_grown(record, "prompt_tokens") or 0.0,
        hit_tokens=_grown(record, "prefix_hits_tokens"),
        queried_tokens=_grown(record, "prefix_queries_tokens"),
        output_tokens=_grown(record, "output_tokens") or 0.0,
        n_steps=n_steps,
        n_gaps=n_gaps or 0.0,
        gaps_s=gaps_s or 0.0,
        draft_tokens=_grown(record, "draft_tokens"),
        accepted_tokens=_grown(record, "accepted_tokens"),
        is_restarted=n_restarts(record) > 0,
        queued_s=queued_s or 0.0,
    )


def _gauge(record: ServerRecord, gauge: Gauge) -> float | None:
    series = gauge_series(record, gauge)
    value = None if series is None else float(series.value[-1])
    return None if value is None or value != value else value  # noqa: PLR0124 -- NaN: not on this page


def _grown(record: ServerRecord, counter: Counter) -> float | None:
    series = counter_series(record, counter)
    return None if series is None else float(series.value[-1] - series.value[-2])


def _gained(record: ServerRecord, name: str) -> tuple[float | None, float | None]:
    """Observations and their sum."""
    found = histogram_series(record, name)  # type: ignore[arg-type]
    if found is None:
        return None, None
    n, total = (float(one.value[-1] - one.value[-2]) for one in found)
    return n, total
