"""Where does the window that is diagnosed come from?

From a server, a stored load test, or Prometheus.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from inferometer.api.load_run import open_run
from inferometer.api.load_sending import is_open
from inferometer.api.progress import PartsDone, talk
from inferometer.decide.diagnosis.observed import OutsideRow, outside_rows
from inferometer.decide.diagnosis.window import ServerWindow, observed_window
from inferometer.decide.tuning.start_command import command_of
from inferometer.errors import MeasureError, SpecError
from inferometer.fit.loads.server import Limit
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import ClosedArrivals
from inferometer.measure import forward_passes, local_server, scrape
from inferometer.measure.prometheus import TimeRange, prometheus_samples, time_range
from inferometer.measure.server_identity import ServerIdentity, server_identity
from inferometer.records import reading
from inferometer.records.server_series import gauge_series
from inferometer.records.step_logs import step_log_of
from inferometer.records.types import Run, SchedulerFacts, ServerSampleTable
from inferometer.units import format_duration

_LAST_S: Final = 600.0
_LONGEST_S: Final = 3600.0
"""Of a past time: its requests are simulated some hundred times."""
_GAUGES: Final = ("max_num_seqs", "max_num_batched_tokens")
_NOBODY: Final = ServerIdentity(None, None)
_EVERY_S: Final = 0.5
"""Gauges' highest values matter, and pass quickly."""
_WHERE_METRICS_ARE: Final = (
    "the address of the metrics page itself (trtllm-serve: /prometheus/metrics); SGLang has one"
    " with enable-metrics, llama.cpp with metrics"
)


LimitSource: TypeAlias = Literal["known", "server", "command", "metrics", "identified"]


class ToldLimit(NamedTuple):
    """A limit that need not be identified."""

    value: int
    source: LimitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A window, and what else is known of it."""

    window: ServerWindow
    when: str | None = None
    """The past time, in UTC, by Prometheus; None: as it is now, or in a load test."""
    samples: ServerSampleTable | None = None
    """Of a server that was read just now."""
    outside: tuple[OutsideRow, ...] = ()
    """Of a load test: what its clients measured against what the server reports."""
    local: local_server.LocalNumbers | None = None
    """Of a server on this machine, where that was asked for: what its processes show."""
    identity: ServerIdentity = _NOBODY
    """What the server says that it is."""
    command: tuple[str, ...] = ()
    """Of a server on this machine, where that was asked for: the words that started it."""

    def limits(self, known: Mapping[Limit, int]) -> dict[Limit, ToldLimit]:
        """What the server's command line states, what it says of itself, and what is ``known``.

        The later ones go before the earlier. Of several data-parallel ranks only what is known: what
        is rebuilt is all of them together.
        """
        facts = self.identity.facts
        told = SchedulerFacts() if facts is None or facts.scheduler is None else facts.scheduler
        stated: dict[Limit, ToldLimit] = {
            name: ToldLimit(value, "known") for name, value in known.items()
        }
        command = command_of(self.command)
        n_ranks = told.data_parallel_size or _count(command.value("dp")) or 1
        if n_ranks > 1:
            return stated
        n_blocks = None if facts is None else facts.n_kv_blocks
        is_reported = self.window.summary.n_kv_blocks is not None
        found: tuple[tuple[Limit, LimitSource, int | None], ...] = (
            ("max_num_seqs", "command", _count(command.value("max_num_seqs"))),
            ("max_num_batched_tokens", "command", _count(command.value("max_num_batched_tokens"))),
            *((name, "metrics", _gauge(self.window, name)) for name in _GAUGES),
            ("max_num_seqs", "server", told.max_num_seqs),
            ("max_num_batched_tokens", "server", told.max_num_batched_tokens),
            ("n_kv_blocks", "server", None if is_reported else n_blocks),
        )
        limits: dict[Limit, ToldLimit] = {
            name: ToldLimit(value, source) for name, source, value in found if value
        }
        return limits | stated


def _gauge(
    window: ServerWindow, name: Literal["max_num_seqs", "max_num_batched_tokens"]
) -> int | None:
    """A limit that the server reports among its metrics (TensorRT-LLM)."""
    series = gauge_series(window.record, name)
    return None if series is None or not np.isfinite(series.value[-1]) else round(series.value[-1])


def _count(text: str | None) -> int | None:
    """The whole number; None for what a flag has else."""
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None


def live_source(
    url: str, for_s: float, fpm: str | None = None, *, is_local: bool = False
) -> Source:
    """The server at this address, for so many seconds from now on.

    ``fpm`` is where it publishes its steps; its processes are looked at where it ``is_local``.

    Raises
    ------
    SpecError
        ``fpm`` is no endpoint, or the server is not on this machine.
    MeasureError
        Its metrics or processes cannot be read, or no steps are published.
    """
    started_ns = time.monotonic_ns()
    n_parts = max(round(for_s / _EVERY_S), 1)
    try:
        with (
            forward_passes.listening(fpm) as listener,
            local_server.watching(url) if is_local else nullcontext(None) as watched,
            scrape.scraping(url, started_ns=started_ns, every_s=_EVERY_S) as scraper,
        ):
            talk(f"reading the metrics of {url} for {for_s:.0f} s; nothing is sent to the server")
            for part in range(n_parts):
                time.sleep(_EVERY_S)
                talk(PartsDone("half seconds", part + 1, n_parts))
            local = None if watched is None else watched()
            command = local_server.server_command(url) if is_local else ()
    except MeasureError as error:
        raise MeasureError(
            error.what,
            where=error.where,
            allowed=error.allowed,
            try_=scrape.remedy(error.what, _WHERE_METRICS_ARE),
        ) from error
    samples = scraper.table()
    window = observed_window(samples)
    identity = server_identity(url, window.summary.kind)
    window = replace(window, enable_prefix_caching=_is_caching(identity))
    if listener is not None:
        log = listener.step_log()
        talk(f"{len(log.duration_s):,} steps were published, {log.n_lost:,} lost on the way")
        window = replace(window, step_log=log)
    return Source(window=window, samples=samples, local=local, identity=identity, command=command)


def _n_users(run: Run) -> int | None:
    """Of a load test whose users each send one request after the other."""
    load = run.manifest.load
    arrivals = None if load is None else load.workload.arrivals
    return arrivals.concurrency if isinstance(arrivals, ClosedArrivals) else None


def _is_caching(identity: ServerIdentity) -> bool | None:
    scheduler = identity.scheduler
    return None if scheduler is None else scheduler.enable_prefix_caching


def stored_source(folder: Path) -> Source:
    """A load test that stored the server's metrics.

    Raises
    ------
    SpecError
        There is none, or it did not.
    """
    run = open_run(folder) if is_open(folder) else reading.read_run(folder)
    if run.server is None:
        raise SpecError(
            f"{folder} holds no metrics of a server",
            where="the run",
            allowed="a load test of a server that reports metrics",
            try_="inferometer load URL --metrics-url URL, or the server's own URL here",
        )
    identity = ServerIdentity(None, run.manifest.engine)
    window = replace(
        observed_window(run.server),
        enable_prefix_caching=_is_caching(identity),
        n_users=_n_users(run),
        alike_fraction=_alike_fraction(run),
        step_log=None if run.steps is None else step_log_of(run.steps, "steps of a run"),
    )
    requests = run.requests
    return Source(
        window=window,
        identity=identity,
        outside=() if requests is None else outside_rows(requests, window.summary),
    )


def past_source(prometheus: str, target: str, past: TimeRange) -> Source:
    """The server that Prometheus scraped as ``target``, host:port or a URL with it.

    Raises
    ------
    MeasureError
        Prometheus does not answer, or did not scrape it then.
    """
    instance = urlsplit(target).netloc if "://" in target else target
    samples: ServerSampleTable = prometheus_samples(prometheus, instance, past)
    return Source(window=observed_window(samples), when=past.text)


def past_of(range_text: str | None, last_s: float | None) -> TimeRange:
    """The time that Prometheus is asked for: the range, or the last ten minutes.

    Raises
    ------
    SpecError
        It is no range, or longer than an hour.
    """
    if range_text is not None:
        past = time_range(range_text, where="--range")
    else:
        now_s = datetime.now(UTC).timestamp()
        past = TimeRange(now_s - (last_s or _LAST_S), now_s)
    if past.duration_s > _LONGEST_S:
        raise SpecError(
            f"{format_duration(past.duration_s)} of metrics",
            where="--last" if range_text is None else "--range",
            allowed=f"up to {format_duration(_LONGEST_S)}",
            try_="the minutes in which the latency was bad",
        )
    return past


def _alike_fraction(run: Run) -> float | None:
    """Share of the prompts' tokens with which an earlier one began; None where it cannot be drawn."""
    load = run.manifest.load
    if load is None or load.workload.replay is not None:
        return None
    plan = draw_workload(load.workload).plan
    return float(plan.prefix_tokens.sum()) / max(float(plan.prompt_tokens.sum()), 1.0)
