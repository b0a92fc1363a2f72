"""What did the server's gauges, counters and histograms do over time?

A ``ServerSampleTable`` is written as Prometheus stores: a sample where a value changed, NaN where a
series went away, and ``up`` for every try, 1 or 0. Between samples a series keeps its value; a
table that has every sample of every scrape reads the same. A counter that falls was reset: what it
shows then is what it grew by. Letters of shapes: T scrapes, B buckets.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.columns import F64, I64, Bools
from inferometer.records.exposition import PageReader, PageSample, SeriesName, labels_of
from inferometer.records.server_names import (
    SERVERS,
    START_TIME,
    Counter,
    Gauge,
    Histogram,
    Name,
    ServerKind,
    ServerNames,
    TokenHistogram,
    kept_series,
    plain,
)
from inferometer.records.tables import from_columns
from inferometer.records.types import ServerSampleTable
from inferometer.units import NS_PER_S

UP = "up"
"""The series that says of every try to scrape whether it was answered."""
_RANK = "tp_rank"
_PRIORITY = "priority"
_MODEL, _OF_ENGINE = "model", "nv_trt_llm_"
"""Triton's label of a model, and its families that TensorRT-LLM fills."""


class Series(NamedTuple):
    """One series at every answered scrape (T): NaN where it was missing."""

    labels: dict[str, str]
    value: F64


class TimeSeries(NamedTuple):
    """A quantity over time, for a chart."""

    at_s: F64
    """Since the start of the run."""
    value: F64
    """NaN where the server did not say."""


class Growth(NamedTuple):
    """Growth of a histogram in a window."""

    n: int
    total: float
    """Sum of all observations, in the histogram's unit: seconds, or tokens."""
    edges: F64
    """(B) Upper edges of the buckets, the last infinite; empty where the server has none."""
    counts: F64
    """(B) Observations in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """The samples of one server, by family."""

    names: ServerNames
    scraped_ns: I64
    """(T) Answered scrapes, since the start of the run."""
    n_failed_scrapes: int
    families: dict[str, tuple[Series, ...]]
    """Name, with ``_`` for ``:`` -> its series."""


def server_record(samples: ServerSampleTable) -> ServerRecord:
    """The samples in order, with the kind of server.

    Raises
    ------
    RecordError
        There is none, or they are of no server that is known: absent is an error here, never 0.
    """
    is_up = samples.name == UP
    tries_ns, answers = samples.scraped_ns[is_up], samples.value[is_up]
    scraped_ns = np.unique(tries_ns[answers == 1.0] if tries_ns.size else samples.scraped_ns)
    if not scraped_ns.size:
        raise RecordError(
            "the record has no scrape of a server that was answered",
            allowed="at least one",
            try_="--metrics-url",
        )
    families = _families(samples, ~is_up, scraped_ns)
    names = next((one for one in SERVERS if one.wrote(families)), None)
    if names is None:
        raise RecordError(
            "no metric of a known model server is among the samples",
            where=f"{len(families)} families",
            allowed=", ".join(one.shown for one in SERVERS),
            try_="switch on the server's metrics: option enable-metrics of SGLang, metrics of llama.cpp",
        )
    return ServerRecord(
        names=names,
        scraped_ns=scraped_ns,
        n_failed_scrapes=int((answers == 0.0).sum()),
        families=_of_engines(families) if names.kind == "triton" else families,
    )


def gauge_series(record: ServerRecord, gauge: Gauge) -> TimeSeries | None:
    """A gauge at every scrape; None where the server has none.

    Requests are added up over its engines, shares are averaged.
    """
    series = _found(record, record.names.gauges.get(gauge, ()))
    if not series:
        return None
    stacked = np.stack([one.value for one in series])
    value = stacked.mean(axis=0) if gauge in {"kv_usage", "block_tokens"} else stacked.sum(axis=0)
    return TimeSeries(record.scraped_ns / NS_PER_S, value)


def series_of(record: ServerRecord, gauge: Gauge) -> tuple[Series, ...]:
    """A gauge of each engine separately; empty where the server has none."""
    return _found(record, record.names.gauges.get(gauge, ()))


def counter_series(record: ServerRecord, counter: Counter) -> TimeSeries | None:
    """Growth of a counter since the first scrape, corrected for resets.

    None where the server has none.
    """
    found = _found(record, record.names.counters.get(counter, ()))
    if not found:
        return None
    grown = np.stack([_grown(one.value) for one in found])
    is_each = counter in {"flop", "read_bytes", "write_bytes"}
    return TimeSeries(
        record.scraped_ns / NS_PER_S, grown.mean(axis=0) if is_each else grown.sum(axis=0)
    )


def histogram_growth(record: ServerRecord, histogram: Histogram | TokenHistogram) -> Growth | None:
    """Growth of a histogram over the record; None where the server has none."""
    seen = histogram_series(record, histogram)
    if seen is not None:
        n, total = (float(one.value[-1]) for one in seen)
        within = _cumulative(record, histogram)
        edges = sorted(within)
        counts = np.diff([float(within[edge][-1]) for edge in edges], prepend=0.0)
        return Growth(round(n), total, np.array(edges), counts)
    spread = next((one for name, one in record.names.spreads.items() if name == histogram), None)
    if spread is None or not {spread.took, spread.observed} <= record.families.keys():
        return None
    n, took = (
        float(sum(_grown(one.value)[-1] for one in record.families[family]))
        for family in (spread.observed, spread.took)
    )
    return Growth(round(n), took * spread.unit_s, np.empty(0), np.empty(0))


def histogram_series(
    record: ServerRecord, histogram: Histogram | TokenHistogram
) -> tuple[TimeSeries, TimeSeries] | None:
    """Growth of a histogram's count and sum since the first scrape.

    None where the server has none.
    """
    for name in record.names.names_of(histogram):
        parts = [
            _with_label(record.families.get(f"{name.family}_{part}", ()), name)
            for part in ("count", "sum")
        ]
        if all(parts):
            at_s = record.scraped_ns / NS_PER_S
            n, total = (
                TimeSeries(at_s, np.stack([_grown(one.value) for one in part]).sum(axis=0))
                for part in parts
            )
            return n, total
    return None


def bucket_series(record: ServerRecord, histogram: Histogram | TokenHistogram) -> F64:
    """(T, B) Growth of each bucket since the first scrape.

    The buckets are those of ``histogram_growth``; none where the server has none.
    """
    within = _cumulative(record, histogram)
    if not within:
        return np.empty((len(record.scraped_ns), 0))
    cumulative = np.stack([within[edge] for edge in sorted(within)], axis=1)
    return np.diff(cumulative, prepend=0.0, axis=1)


def n_restarts(record: ServerRecord) -> int:
    """The number of restarts of the server between scrapes.

    By its start time, or, where it does not say, by counters that fell.
    """
    starts = record.families.get(START_TIME, ())
    if starts:
        known = starts[0].value[np.isfinite(starts[0].value)]
        return int((np.diff(known) != 0).sum())
    falls = [np.diff(_filled(series.value)) < 0 for series in _counted_series(record)]
    return int(np.any(falls, axis=0).sum()) if falls else 0


def is_of_several(record: ServerRecord) -> bool:
    """Do several servers behind one address answer in turn?

    A server that is restarted starts later than before, and counts from 0 on. A start time that
    went back is another server's, and so are counters that fell and were back one scrape later, and
    fell again.
    """
    starts = record.families.get(START_TIME, ())
    if starts:
        known = starts[0].value[np.isfinite(starts[0].value)]
        if (np.diff(known) < 0).any():
            return True
    return any(
        np.max(steps[fell + 1 : fell_again], initial=0.0) >= -steps[fell]
        for series in _counted_series(record)
        for steps in (np.diff(_filled(series.value)),)
        for fell, fell_again in pairwise(np.flatnonzero(steps < 0))
    )


def _counted_series(record: ServerRecord) -> list[Series]:
    families = [name.family for several in record.names.counters.values() for name in several]
    return [series for family in families for series in record.families.get(family, ())]


def _families(
    samples: ServerSampleTable, mask: Bools, scraped_ns: I64
) -> dict[str, tuple[Series, ...]]:
    rows = np.flatnonzero(mask)
    names = samples.name[rows].tolist()
    plain_of = {name: plain(name) for name in set(names)}
    grouped: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, name, labels in zip(rows.tolist(), names, samples.labels[rows].tolist(), strict=True):
        grouped[plain_of[name], labels].append(row)
    families: dict[str, list[Series]] = defaultdict(list)
    for (name, labels), own in grouped.items():
        order = np.array(own)[np.argsort(samples.scraped_ns[own], kind="stable")]
        last = np.searchsorted(samples.scraped_ns[order], scraped_ns, side="right") - 1
        value = np.where(last >= 0, samples.value[order][np.maximum(last, 0)], np.nan)
        families[name].append(Series(labels_of(labels), value))
    return {name: _once(series) for name, series in families.items()}


def _of_engines(families: dict[str, tuple[Series, ...]]) -> dict[str, tuple[Series, ...]]:
    """Without what Triton counts of an ensemble's other models: each request passes through all."""
    engines = {
        one.labels.get(_MODEL)
        for family, series in families.items()
        if family.startswith(_OF_ENGINE)
        for one in series
    }
    own = {
        family: tuple(one for one in series if one.labels.get(_MODEL) in engines)
        for family, series in families.items()
    }
    return {family: own[family] or series for family, series in families.items()}


def _once(series: list[Series]) -> tuple[Series, ...]:
    """Series without duplicates by further tensor-parallel ranks, and by priorities.

    SGLang's ranks each have a page of their own with ``--enable-metrics-for-all-schedulers``. With
    ``--enable-priority-scheduling`` its gauges of requests have the total under an empty priority
    (Prometheus drops the empty label) and the same requests again under each priority.
    """
    series = _without_shares(series)
    if not any(_RANK in one.labels for one in series):
        return tuple(series)
    by_rank = sorted(series, key=lambda one: _whole(one.labels.get(_RANK)) or 0)
    first = dict[frozenset[tuple[str, str]], Series]()
    for one in by_rank:
        first.setdefault(_beside(one, _RANK), one)
    return tuple(first.values())


def _without_shares(series: list[Series]) -> list[Series]:
    """Without the series of single priorities beside which their total stands."""
    if not any(one.labels.get(_PRIORITY) for one in series):
        return series
    totals = {_beside(one, _PRIORITY) for one in series if not one.labels.get(_PRIORITY)}
    return [
        one
        for one in series
        if not one.labels.get(_PRIORITY) or _beside(one, _PRIORITY) not in totals
    ]


def _beside(one: Series, label: str) -> frozenset[tuple[str, str]]:
    """The other labels."""
    return frozenset(pair for pair in one.labels.items() if pair[0] != label)


def _found(record: ServerRecord, names: Iterable[Name]) -> tuple[Series, ...]:
    """The series of the first of these names that the server has."""
    for name in names:
        series = _with_label(record.families.get(name.family, ()), name)
        if series:
            return series
    return ()


def _with_label(series: tuple[Series, ...], name: Name) -> tuple[Series, ...]:
    if not name.label:
        return series
    if name.value:
        return tuple(one for one in series if one.labels.get(name.label) == name.value)
    numbers = ((one, _whole(one.labels.get(name.label))) for one in series)
    return tuple(
        Series(one.labels, np.where(np.isnan(one.value), np.nan, number))
        for one, number in numbers
        if number is not None
    )


def _whole(text: str | None) -> int | None:
    return (
        int(text)
        if text is not None and text.isascii() and text.isdigit() and len(text) < 16
        else None
    )


def _filled(value: F64) -> F64:
    """The last known value for each NaN; before the first known one, 0.

    The series was not there yet, so nothing had been counted.
    """
    known = np.where(np.isnan(value), -1, np.arange(len(value)))
    last = np.maximum.accumulate(known)
    return np.where(last >= 0, value[np.maximum(last, 0)], 0.0)


def _grown(value: F64) -> F64:
    filled = _filled(value)
    steps = np.diff(filled, prepend=filled[0])
    return np.cumsum(np.where(steps < 0, filled, steps))


def _cumulative(record: ServerRecord, histogram: Histogram | TokenHistogram) -> dict[float, F64]:
    """(T) Growth of what is at most each edge, since the first scrape."""
    within: dict[float, F64] = {}
    for name in record.names.names_of(histogram):
        for one in _with_label(record.families.get(f"{name.family}_bucket", ()), name):
            edge = _edge(one.labels.get("le"))
            if edge is not None:
                within[edge] = within.get(edge, 0.0) + _grown(one.value)
        if within:
            break
    return within


def _edge(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


# How do pages of a server's metrics become the record's table of samples?
# As in Prometheus: a sample where a value changed, NaN where a series went away, and ``up`` for
# every try, 1 or 0.


def sample_table(pages: Iterable[tuple[int, bytes | None]]) -> ServerSampleTable:
    """Samples of metrics pages with ns since the run's start; None where no answer came.

    Families that no summary reads are left out. A page that cannot be read counts as no answer.
    """
    reader = PageReader(kept_series)
    return table_of((at_ns, _read(reader, page)) for at_ns, page in pages)


def table_of(
    scrapes: Iterable[tuple[int, Iterable[tuple[SeriesName, float]] | None]],
) -> ServerSampleTable:
    """A table of scrapes, ns since the run's start; None where no answer came."""
    rows: list[tuple[int, str, str, float]] = []
    last: dict[SeriesName, float] = {}
    for at_ns, samples in scrapes:
        rows.append((at_ns, UP, "", 0.0 if samples is None else 1.0))
        if samples is not None:
            now = dict(samples)
            gone = {series: float("nan") for series in last if series not in now}
            changed = {series: value for series, value in now.items() if last.get(series) != value}
            rows += [
                (at_ns, series.name, series.labels, value)
                for series, value in (changed | gone).items()
            ]
            last = now
    names = ("scraped_ns", "name", "labels", "value")
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(names)
    return from_columns(ServerSampleTable, dict(zip(names, columns, strict=True)))


def page_kind(page: bytes) -> ServerKind:
    """Kind of model server that wrote this page of metrics.

    Raises
    ------
    RecordError
        It cannot be read, or none of its samples is of one.
    """
    samples = PageReader().read(page)
    families = {plain(sample.series.name) for sample in samples}
    for server in SERVERS:
        if server.wrote(families):
            return server.kind
    raise RecordError(
        f"none of the page's {len(samples)} samples is of a known model server",
        allowed=", ".join(server.shown for server in SERVERS),
        try_="is this the server's address, and are its metrics switched on?",
    )


def _read(reader: PageReader, page: bytes | None) -> tuple[PageSample, ...] | None:
    try:
        return None if page is None else reader.read(page)
    except RecordError:
        return None
