"""What did a server's metrics show in a window: how full, how many came, how long did steps take?

Letters of shapes: T scrapes of the window.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

import numpy as np

from inferometer.errors import ModelError
from inferometer.records.columns import F64
from inferometer.records.server_names import Counter, Gauge, Histogram, TokenHistogram
from inferometer.records.server_series import (
    Growth,
    ServerRecord,
    counter_series,
    gauge_series,
    histogram_growth,
    histogram_series,
    server_record,
)
from inferometer.records.server_summaries import ServerSummary, summarise_server
from inferometer.records.types import ServerSampleTable
from inferometer.units import NS_PER_S

_FEWEST_SCRAPES: Final = 12
_FEWEST_REQUESTS: Final = 20
_ALL: Final = slice(None)


class Cumulated(NamedTuple):
    """How often, and how much together, since the first scrape (T each)."""

    n: F64
    total: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """A server's own numbers, scrape by scrape; None where it does not report one."""

    summary: ServerSummary
    at_s: F64
    """(T) Since the first scrape."""
    running: F64
    """(T) Requests in the batch."""
    waiting: F64
    """(T)"""
    kv_usage: F64 | None
    """(T) From 0 to 1."""
    finished: F64
    """(T) Requests that ended since the first scrape, however they did."""
    prompt_tokens: F64
    """(T) Of requests whose prompt was done; those found in the prefix cache included."""
    output_tokens: F64
    """(T)"""
    steps: Cumulated | None
    """Engine steps, and their tokens."""
    gaps: Cumulated | None
    """Tokens after the first of each answer, and the seconds between them and those before."""
    prompt_lengths: Growth
    """Of requests that ended."""
    output_lengths: Growth
    spreads: dict[Histogram, Growth]
    """Of its latencies, where the server has buckets."""
    alike_fraction: float | None = None
    """Of the prompts' tokens, with which an earlier prompt began, where the workload is known."""

    @property
    def duration_s(self) -> float:
        """From the first scrape to the last."""
        return float(self.at_s[-1])

    @property
    def arrivals(self) -> F64:
        """(T - 1) How many requests came between two scrapes: those that ended, and those more in the server."""
        came = np.diff(self.finished) + np.diff(self.running + self.waiting)
        return np.maximum(np.rint(came), 0.0)

    @property
    def is_closed_loop(self) -> bool:
        """Do as many requests as ever stay in the server, because each client sends one after the other?"""
        inside = self.running + self.waiting
        return bool(inside.min() >= 1 and np.ptp(inside) <= max(1.0, 0.04 * inside.mean()))

    @property
    def is_cache_off(self) -> bool:
        """Is the prefix cache switched off: prompts are computed, and none is looked up (vLLM)?"""
        return self.summary.prefix_queries_tokens == 0 and bool(self.prompt_tokens[-1])

    @property
    def hit_fraction(self) -> float:
        """Share of prompt tokens found in the prefix cache; 0 where the server does not report it."""
        return self.summary.prefix_hit_fraction or 0.0


def observed_window(samples: ServerSampleTable) -> ServerWindow:
    """The window of all these scrapes.

    Raises
    ------
    RecordError
        There is no scrape of a known server that was answered, or only one.
    ModelError
        The server was started anew, reports too little, or too few requests ended.
    """
    record = server_record(samples)
    summary = summarise_server(samples)
    _check(summary)
    finished = _counted(record, "finished")
    prompts = histogram_growth(record, "request_prompt_tokens", _ALL)
    outputs = histogram_growth(record, "request_output_tokens", _ALL)
    if prompts is None or outputs is None or not prompts.edges.size or not outputs.edges.size:
        raise ModelError(
            f"this {summary.kind} server reports no histogram of its requests' lengths",
            where="its metrics",
            allowed="a server whose metrics hold lengths of prompts and answers: vLLM, SGLang",
        )
    if prompts.n < _FEWEST_REQUESTS:
        raise ModelError(
            f"{prompts.n} requests ended in {summary.end_s - summary.start_s:.0f} s",
            where="the window",
            allowed=f"{_FEWEST_REQUESTS} or more",
            try_="a longer --for, or more traffic",
        )
    usage = gauge_series(record, "kv_usage")
    return ServerWindow(
        summary=summary,
        at_s=(record.scraped_ns - record.scraped_ns[0]) / NS_PER_S,
        running=_gauge(record, "running"),
        waiting=_gauge(record, "waiting"),
        kv_usage=None if usage is None or np.isnan(usage.value).any() else usage.value,
        finished=finished,
        prompt_tokens=_counted(record, "prompt_tokens"),
        output_tokens=_counted(record, "output_tokens"),
        steps=_cumulated(record, "step_tokens"),
        gaps=_cumulated(record, "itl"),
        prompt_lengths=prompts,
        output_lengths=outputs,
        spreads=_spreads(record),
    )


def _spreads(record: ServerRecord) -> dict[Histogram, Growth]:
    found = ((name, histogram_growth(record, name, _ALL)) for name in get_args(Histogram))
    return {name: one for name, one in found if one is not None and one.counts.sum() > 0}


def _check(summary: ServerSummary) -> None:
    if summary.n_restarts:
        raise ModelError(
            "the server was started anew within the window",
            where="its metrics",
            try_="the same command again",
        )
    if summary.n_scrapes < _FEWEST_SCRAPES:
        raise ModelError(
            f"{summary.n_scrapes} scrapes were answered",
            where="the window",
            allowed=f"{_FEWEST_SCRAPES} or more",
            try_="a longer --for",
        )


def _gauge(record: ServerRecord, gauge: Gauge) -> F64:
    series = gauge_series(record, gauge)
    if series is None or np.isnan(series.value).any():
        raise _unreported(gauge)
    return series.value


def _counted(record: ServerRecord, counter: Counter) -> F64:
    series = counter_series(record, counter)
    if series is None:
        raise _unreported(counter)
    since_start: F64 = series.value - series.value[0]
    return since_start


def _unreported(name: str) -> ModelError:
    return ModelError(
        f"the server does not report {name.replace('_', ' ')} at each scrape",
        where="its metrics",
        allowed="vLLM's or SGLang's metrics (SGLang: --enable-metrics)",
    )


def _cumulated(record: ServerRecord, name: Histogram | TokenHistogram) -> Cumulated | None:
    found = histogram_series(record, name)
    return None if found is None else Cumulated(*(one.value - one.value[0] for one in found))
