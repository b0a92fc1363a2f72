"""Where does the window that is diagnosed come from, and which limits of the server are stated?

From a server, or Prometheus; a stored load test is read in ``diagnose_stored.py``.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from inferometer.api.progress import PartsDone, talk
from inferometer.decide.diagnosis.observed import OutsideRow, check_balanced
from inferometer.decide.diagnosis.window import ServerWindow, observed_window
from inferometer.decide.tuning.start_command import command_of
from inferometer.errors import MeasureError, SpecError
from inferometer.fit.loads.server import Limit
from inferometer.measure import forward_passes, local_server, scrape
from inferometer.measure.prometheus import TimeRange, prometheus_samples, time_range
from inferometer.measure.server_identity import ServerIdentity, server_identity
from inferometer.records.server_series import gauge_series
from inferometer.records.types import SchedulerFacts, ServerSampleTable
from inferometer.units import format_duration

_LAST_S: Final = 600.0
_LONGEST_S: Final = 3600.0
"""Longest window of the past: its requests are simulated some hundred times."""
_NOBODY: Final = ServerIdentity(None, None)
_EVERY_S: Final = 0.5
"""Gauges' highest values matter, and pass quickly."""
_WHERE_METRICS_ARE: Final = (
    "the address of the metrics page itself (trtllm-serve: /prometheus/metrics, NVIDIA NIM:"
    " /v1/metrics); SGLang has one with enable-metrics, llama.cpp with metrics"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The observed window of a server, and other facts about it."""

    window: ServerWindow
    when: str | None = None
    """The past time, in UTC, by Prometheus; None: as it is now, or in a load test."""
    samples: ServerSampleTable | None = None
    """Samples of a server that was scraped just now."""
    outside: tuple[OutsideRow, ...] = ()
    """For a load test: latencies of its clients beside those of the server."""
    local: local_server.LocalNumbers | None = None
    """Findings about the processes of a server on this machine, if requested."""
    identity: ServerIdentity = _NOBODY
    """Model, version and settings that the server reports."""
    command: tuple[str, ...] = ()
    """Command line of a server on this machine, if requested."""


def live_source(
    url: str,
    for_s: float,
    fpm: str | None = None,
    *,
    is_local: bool = False,
    replica: str | None = None,
) -> Source:
    """Observe the server at this address for ``for_s`` from now on.

    ``fpm`` is where it publishes its steps; its processes are looked at where it ``is_local``. Of
    several replicas on its page it is ``replica``, else the fullest.

    Raises
    ------
    SpecError
        ``fpm`` is no endpoint, the server is not on this machine, or there is no such replica.
    MeasureError
        Its metrics or processes cannot be read, or it stops answering, or no steps are published.
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
    if scraper.silent_from_s is not None:
        raise MeasureError(
            f"the server stopped answering {scraper.silent_from_s:.0f} s into the window",
            where=url,
            allowed="a server that answers until the window ends",
            try_="its log says why; the same command when it runs again",
        )
    source = scraped_source(url, scraper.table(), replica)
    if listener is not None:
        log = listener.step_log()
        talk(f"{len(log.duration_s):,} steps were published, {log.n_lost:,} lost on the way")
        source = replace(source, window=replace(source.window, step_log=log))
    return replace(source, local=local, command=command)


def scraped_source(url: str, samples: ServerSampleTable, replica: str | None = None) -> Source:
    """The server at this address, by samples that were scraped, and by its own report now.

    Raises
    ------
    SpecError
        There is no such replica.
    RecordError, ModelError
        The metrics tell too little, or are not of one whole server.
    """
    window = observed_window(samples, replica=replica)
    check_balanced(window)
    identity = server_identity(url, window.summary.kind)
    window = replace(window, enable_prefix_caching=is_caching(identity))
    return Source(window=window, samples=samples, identity=identity)


def is_caching(identity: ServerIdentity) -> bool | None:
    """Is the prefix cache on, by the server's report? None: not reported."""
    scheduler = identity.scheduler
    return None if scheduler is None else scheduler.enable_prefix_caching


def past_source(
    prometheus: str, target: str, past: TimeRange, replica: str | None = None
) -> Source:
    """The server that Prometheus scraped as ``target``, host:port or a URL with it.

    Raises
    ------
    MeasureError
        Prometheus does not answer, or did not scrape it then.
    """
    instance = urlsplit(target).netloc if "://" in target else target
    window = observed_window(prometheus_samples(prometheus, instance, past), replica=replica)
    check_balanced(window)
    return Source(window=window, when=past.text)


def past_of(range_text: str | None, last_s: float | None) -> TimeRange:
    """The time that is read from Prometheus: the range, or the last ten minutes.

    Raises
    ------
    SpecError
        The range is invalid, or longer than an hour.
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


LimitSource: TypeAlias = Literal["known", "server", "command", "metrics", "identified"]
_GAUGES: Final = ("max_num_seqs", "max_num_batched_tokens")


class StatedLimit(NamedTuple):
    """A limit that need not be identified."""

    value: int
    source: LimitSource


def stated_limits(source: Source, known: Mapping[Limit, int]) -> dict[Limit, StatedLimit]:
    """Limits by the server's command line, by its own report, and by ``known``; later ones win.

    For several data-parallel ranks whose metrics are added up only ``known`` counts, since the
    rebuilt server is all ranks together. Where ranks are separated, each
    has the stated limits.
    """
    engine = source.identity.facts
    facts = source.identity.scheduler or SchedulerFacts()
    stated: dict[Limit, StatedLimit] = {
        name: StatedLimit(value, "known") for name, value in known.items()
    }
    command = command_of(source.command)
    n_ranks = facts.data_parallel_size or _count(command.value("dp")) or 1
    if n_ranks > 1 and source.window.replica is None:
        return stated
    n_blocks = None if engine is None else engine.n_kv_blocks
    is_reported = source.window.summary.n_kv_blocks is not None
    found: tuple[tuple[Limit, LimitSource, int | None], ...] = (
        ("max_num_seqs", "command", _count(command.value("max_num_seqs"))),
        ("max_num_batched_tokens", "command", _count(command.value("max_num_batched_tokens"))),
        *((name, "metrics", _gauge(source.window, name)) for name in _GAUGES),
        ("max_num_seqs", "server", facts.max_num_seqs),
        ("max_num_batched_tokens", "server", facts.max_num_batched_tokens),
        ("n_kv_blocks", "server", None if is_reported else n_blocks),
    )
    limits: dict[Limit, StatedLimit] = {
        name: StatedLimit(value, source) for name, source, value in found if value
    }
    return limits | stated


def _gauge(
    window: ServerWindow, name: Literal["max_num_seqs", "max_num_batched_tokens"]
) -> int | None:
    """A limit that the server reports among its metrics (TensorRT-LLM)."""
    series = gauge_series(window.record, name)
    return None if series is None or not np.isfinite(series.value[-1]) else round(series.value[-1])


def _count(text: str | None) -> int | None:
    """A whole number; None for other values of a flag."""
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None
