"""What does a watched server show now: its latencies, how full it is, what changed, what limits it?"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from inferometer.api import diagnose_source, diagnosis
from inferometer.api.answer import Answer
from inferometer.api.watch_prediction import METRICS, Prediction
from inferometer.decide.diagnosis import rebuilding, replicas
from inferometer.decide.watching import intervals, regimes
from inferometer.errors import EXIT_OF_SLO, InferometerError, MeasureError, RecordError
from inferometer.fit.loads.server import Limit
from inferometer.inputs.objectives import Metric, ObjectiveSpec, percentile_name
from inferometer.measure.scrape import (
    NOT_FOUND,
    MetricsPage,
    MetricsSource,
    metrics_url,
    other_metrics_urls,
)
from inferometer.records import exposition, server_names, server_series, server_summaries
from inferometer.records.types import ServerSampleTable
from inferometer.stats.estimate import Verdict
from inferometer.units import NS_PER_S

_ALL: Final = slice(None)
_USUAL: Final = (0.5, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLatency:
    """One percentile of the window, by the server's histogram."""

    name: str
    """``ttft:p95``"""
    metric: Metric
    percentile_fraction: float
    n: int
    low_s: float
    """Edges of the bucket in which it lies."""
    high_s: float | None
    """None: in the last bucket, which has no end."""
    interval_low_s: float | None
    """95 % interval, to the edges of buckets; None: too few requests."""
    interval_high_s: float | None
    """None: too few requests, or in the last bucket."""
    n_needed: int | None
    """Requests that both ends need; None: there are enough."""
    limit_s: float | None
    verdict: Verdict | None
    """Verdict of the interval; None without a limit."""
    breach_soonest_s: float | None
    """Seconds until the limit is missed at the present slope; None: no slope beyond chance."""
    breach_latest_s: float | None
    predicted_low_s: float | None
    """Ends with fast and slow steps; None: too few requests were simulated for an interval."""
    predicted_s: float | None
    predicted_high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A mean of the window, and the predicted one."""

    metric: str
    measured_s: float
    predicted_s: float
    residual_ratio: float
    """measured / predicted - 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLimit:
    """What limits the server, by ``diagnose``; or why that is unknown."""

    at_utc: str
    words: str
    cause: str | None = None
    shares_fraction: dict[str, float]
    """Share of the first latency, by cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeChange:
    """A regime that began or ended."""

    url: str
    at_utc: str
    condition: regimes.Condition
    has_begun: bool
    text: str
    residual_ratio: float | None = None
    since_utc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedServer:
    """Current state of one server; None: not reported, or not yet known."""

    url: str
    at_utc: str
    conditions: tuple[regimes.Condition, ...]
    """None of them: healthy."""
    server: str | None = None
    replica: str | None = None
    """Which of several replicas on its page this is: ``engine=1``; all else is of this one."""
    n_replicas: int = 1
    window_s: float = 0.0
    n_requests: int | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    n_running: int | None = None
    """At the last scrape; so the next two."""
    n_waiting: int | None = None
    kv_used_fraction: float | None = None
    n_preemptions: int | None = None
    prefix_hit_fraction: float | None = None
    acceptance_fraction: float | None = None
    latencies: tuple[WatchedLatency, ...] = ()
    step_residual_ratio: float | None = None
    """Step time now / as learned of this server at this load - 1; None while it is learned."""
    model_valid: bool | None = None
    """Is the traffic the predicted one? None without --predicted."""
    why_not_valid: str = ""
    residuals: tuple[Residual, ...] = ()
    slo_verdict: Verdict | None = None
    """None without --slo; *undecided* until there are enough requests for its percentiles."""
    headroom_ratio: float | None = None
    """1 - percentile / limit, the least of all limits: 0 at the limit. None without --slo."""
    limit: WatchedLimit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHistory:
    """Requests in a server at each scrape of the window; None: not answered, or not reported."""

    url: str
    at_s: tuple[float, ...]
    """Since the start of the window."""
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAnswer(Answer):
    """The servers at the end, and every change of regime before."""

    table: ClassVar[str | None] = "servers"

    servers: tuple[WatchedServer, ...]
    changes: tuple[RegimeChange, ...]
    watched_s: float
    objective: str | None
    slo_verdict: Verdict | None
    """Verdict of all servers' windows at the end."""
    histories: tuple[ServerHistory, ...] = ()
    """Of the window of a single look (--once), of servers that answered twice or more."""

    @property
    def exit_code(self) -> int:
        """0 met or no SLO, 10 missed, 11 undecided."""
        return EXIT_OF_SLO[self.slo_verdict]


def words_of(change: regimes.Change, url: str, utc: Mapping[float, str]) -> RegimeChange:
    """The change as a line; ``utc`` has its instants."""
    words = regimes.WORDS[change.condition]
    at_utc = utc[change.at_s]
    since_utc = None if change.since_s is None else utc[change.since_s]
    if change.residual_ratio is not None and change.has_begun:
        size = (
            f"step times {math.expm1(change.residual_ratio):+.0%}"
            if change.condition in {"slower", "faster"}
            else f"{change.residual_ratio * 100:+.0f} points"
        )
        words = f"{words}: {size} since {since_utc}"
    text = words if change.has_begun else f"over: {words.partition(':')[0]}"
    return RegimeChange(
        url=url,
        at_utc=at_utc,
        condition=change.condition,
        has_begun=change.has_begun,
        text=f"{at_utc} {url} {text}",
        residual_ratio=change.residual_ratio,
        since_utc=since_utc,
    )


def latencies_of(
    record: server_series.ServerRecord,
    objective: ObjectiveSpec | None,
    prediction: Prediction | None,
) -> tuple[WatchedLatency, ...]:
    """p50 and p95 of TTFT, TPOT and E2E, and the SLO's percentiles."""
    limits: dict[tuple[Metric, float], float] = {
        (one.metric, one.percentile_fraction): one.limit_s
        for one in (() if objective is None else objective.thresholds)
        if one.percentile_fraction is not None
    }
    metrics: tuple[Metric, ...] = ("ttft", "tpot", "e2e")
    usual: list[tuple[Metric, float]] = [
        (metric, fraction) for metric in metrics for fraction in _USUAL
    ]
    names: dict[tuple[Metric, float], None] = dict.fromkeys([*usual, *limits])
    found = (_latency(record, name, limits.get(name), prediction) for name in names)
    return tuple(one for one in found if one is not None)


def _latency(
    record: server_series.ServerRecord,
    name: tuple[Metric, float],
    limit_s: float | None,
    prediction: Prediction | None,
) -> WatchedLatency | None:
    """One latency; None where the server has no buckets of it, or no request ended."""
    metric, fraction = name
    histogram = _histogram(record, metric)
    growth = None if histogram is None else server_series.histogram_growth(record, histogram, _ALL)
    bucket = None if growth is None else server_summaries.bucket_percentile(growth, fraction)
    if histogram is None or growth is None or bucket is None:
        return None
    now_s = bucket.low_s if math.isinf(bucket.high_s) else (bucket.low_s + bucket.high_s) / 2
    if limit_s is not None and bucket.low_s < limit_s <= bucket.high_s:
        now_s = min(now_s, limit_s)
    breach = None if limit_s is None else _breach(record, histogram, now_s, limit_s)
    certain = intervals.certainty_of(
        growth.edges, server_series.bucket_series(record, histogram), fraction
    )
    bounds = None if prediction is None else prediction.quantiles_s.get(name)
    return WatchedLatency(
        name=f"{metric}:{percentile_name(fraction)}",
        metric=metric,
        percentile_fraction=fraction,
        n=growth.n,
        low_s=bucket.low_s,
        high_s=_finite(bucket.high_s),
        interval_low_s=None if certain is None else certain.low_s,
        interval_high_s=None if certain is None else _finite(certain.high_s),
        n_needed=None if certain is None else certain.n_needed,
        limit_s=limit_s,
        verdict=None if limit_s is None else intervals.verdict_of(certain, limit_s),
        breach_soonest_s=None if breach is None else breach.soonest_s,
        breach_latest_s=None if breach is None else breach.latest_s,
        predicted_low_s=None if bounds is None else bounds.low_s,
        predicted_s=None if bounds is None else bounds.mid_s,
        predicted_high_s=None if bounds is None else bounds.high_s,
    )


def _histogram(record: server_series.ServerRecord, metric: Metric) -> server_names.Histogram | None:
    """Histogram of this latency; that of gaps between tokens where there is none of TPOT."""
    if metric == "workflow":
        return None  # no server knows what belongs together
    names: tuple[server_names.Histogram, ...] = ("tpot", "itl") if metric == "tpot" else (metric,)
    return next(
        (name for name in names if server_series.histogram_series(record, name) is not None), None
    )


def _breach(
    record: server_series.ServerRecord,
    histogram: server_names.Histogram,
    now_s: float,
    limit_s: float,
) -> regimes.Breach | None:
    series = server_series.histogram_series(record, histogram)
    if series is None:
        return None
    n, total = series
    return regimes.time_to_breach(*regimes.part_means(n.at_s, n.value, total.value), now_s, limit_s)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def acceptance_of(record: server_series.ServerRecord) -> float | None:
    """Accepted / drafted tokens of the window; None without speculation."""
    drafted, accepted = (
        server_series.counter_series(record, name) for name in ("draft_tokens", "accepted_tokens")
    )
    if drafted is None or accepted is None or drafted.value[-1] <= 0:
        return None
    return float(accepted.value[-1] / drafted.value[-1])


def residuals_of(
    summary: server_summaries.ServerSummary, prediction: Prediction
) -> tuple[Residual, ...]:
    """Means, which histograms have exactly."""
    found: list[Residual] = []
    for metric in METRICS:
        predicted = prediction.means_s.get(metric)
        names: tuple[server_names.Histogram, ...] = (
            ("tpot", "itl") if metric == "tpot" else ("ttft",) if metric == "ttft" else ("e2e",)
        )
        time = next((one for one in map(summary.time, names) if one is not None), None)
        if predicted is not None and time is not None and predicted.mid_s > 0:
            found.append(
                Residual(
                    metric=metric,
                    measured_s=time.mean_s,
                    predicted_s=predicted.mid_s,
                    residual_ratio=time.mean_s / predicted.mid_s - 1,
                )
            )
    return tuple(found)


def headroom_of(latencies: tuple[WatchedLatency, ...]) -> float | None:
    """The least of 1 - percentile / limit, by the bucket's upper edge; None without limits."""
    rooms = [
        1
        - (one.low_s if one.high_s is None else min(one.high_s, max(one.low_s, one.limit_s)))
        / one.limit_s
        for one in latencies
        if one.limit_s is not None
    ]
    return min(rooms) if rooms else None


def verdict_of(
    latencies: tuple[WatchedLatency, ...], objective: ObjectiveSpec | None
) -> Verdict | None:
    """Missed where one limit is, met where all are, else undecided."""
    n_limits = 0 if objective is None else len(objective.percentile_fractions)
    if not n_limits:
        return None
    seen = [one.verdict for one in latencies if one.verdict is not None]
    if "missed" in seen:
        return "missed"
    is_met = len(seen) == n_limits and set(seen) == {"met"}
    return "met" if is_met else "undecided"


def limit_of(
    url: str,
    samples: ServerSampleTable,
    objective: ObjectiveSpec | None,
    known: Mapping[Limit, int],
    at_utc: str,
) -> WatchedLimit:
    """What limits the server in this window, by simulation (``diagnose``), or why it is unknown."""
    try:
        source = diagnose_source.scraped_source(url, samples)
        stated = diagnose_source.stated_limits(source, known)
        limits: dict[Limit, int] = {name: one.value for name, one in stated.items()}
        agreement = rebuilding.rebuilt_servers(source.window, limits)
        agreement.check()
        answer = diagnosis.answer_of(url, source, agreement, objective, stated).answer
    except InferometerError as error:
        return WatchedLimit(at_utc=at_utc, words=f"not known: {error.what}", shares_fraction={})
    return WatchedLimit(
        at_utc=at_utc,
        words=_limit_words(answer),
        cause=answer.cause,
        shares_fraction=_shares(answer),
    )


def _limit_words(answer: diagnosis.DiagnoseAnswer) -> str:
    row = next((one for one in answer.causes if one.name == answer.cause), None)
    if row is None:
        return "nothing: no setting costs a tenth of the latency"
    share = _shares(answer).get(row.name)
    part = "" if share is None else f", {share:.0%} of {answer.latencies[0].name}"
    maybe = "undecided, may be " if answer.finding == "undecided" else ""
    of = "" if answer.replica is None else f" ({answer.replica} of {answer.n_replicas} replicas)"
    return f"{maybe}{row.words}{part}{of}; {row.change}"


def _shares(answer: diagnosis.DiagnoseAnswer) -> dict[str, float]:
    now_s = answer.latencies[0].simulated_s.value
    if now_s <= 0:
        return {}
    return {
        one.name: float(np.clip(one.shares_s[0].value / now_s, 0.0, 1.0)) for one in answer.causes
    }


_TIMEOUT_S: Final = 2.0
_N_TOLD_APART: Final = 12
"""Pages in a row, in which servers that answer in turn show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The question, read."""

    objective: ObjectiveSpec | None
    prediction: Prediction | None
    window_s: float
    every_s: float
    replica: str | None = None
    """As ``--replica`` names it; None: the fullest at the start."""


class WatchedUrl:
    """One server: pages of the window, regimes, and what limits it."""

    def __init__(self, url: str, wanted: Wanted) -> None:
        self.url = url
        self._wanted = wanted
        self._page = MetricsPage(MetricsSource(url=metrics_url(url)), _TIMEOUT_S)
        self._reader = exposition.PageReader(server_names.kept_series)
        self._scrapes = deque[tuple[int, tuple[exposition.PageSample, ...] | None]]()
        self._latest = deque[tuple[int, tuple[exposition.PageSample, ...] | None]](
            maxlen=_N_TOLD_APART
        )
        self._observed: replicas.Observed | None = None
        self._is_of_it = dict[exposition.SeriesName, bool]()
        self._has_its_labels = set[exposition.SeriesName]()
        self.regimes = regimes.Regimes()
        self.limit: WatchedLimit | None = None
        self.problem = ""
        self.changed_s = 0.0
        self.diagnosed_s = float("-inf")

    def close(self) -> None:
        """Close the connection."""
        self._page.close()

    def look(self, now_ns: Callable[[], int]) -> tuple[regimes.Change, ...]:
        """Scrape once, and return the changes.

        Its instant is that at which the page was there: a server that is late wrote it just before.
        """
        try:
            page = self._fetched()
            at_ns = now_ns()
            samples = self._reader.read(page)
        except (MeasureError, RecordError) as error:
            at_ns = now_ns()
            self.problem = error.what
            changes = self.regimes.miss(at_ns / NS_PER_S)
        else:
            of_it = self._of_replica(samples)
            self.problem = "" if of_it else "its metrics are not on the page any more"
            changes = self._taken(at_ns, of_it) if of_it else self.regimes.miss(at_ns / NS_PER_S)
        if changes:
            self.changed_s = at_ns / NS_PER_S
        return changes

    def _fetched(self) -> bytes:
        """The page, at another usual address where the first one is not there at the first look."""
        try:
            return self._page.get()
        except MeasureError as error:
            if self._scrapes or error.what != NOT_FOUND:
                raise
            for url in other_metrics_urls(self.url):
                page = MetricsPage(MetricsSource(url=url), _TIMEOUT_S)
                with suppress(MeasureError):
                    found = page.get()
                    self._page.close()
                    self._page = page
                    return found
                page.close()
            raise

    def _of_replica(
        self, samples: tuple[exposition.PageSample, ...]
    ) -> tuple[exposition.PageSample, ...]:
        """Samples of one of several replicas on the page: added up they are no server's.

        It is chosen at the first look and stays, so that changes are those of one server.
        Where it is gone, and others are still there, no sample is left.
        """
        if self._observed is None:
            table = server_series.table_of([(0, samples)])
            self._observed = replicas.observed_replica(table, self._wanted.replica)
        replica = self._observed.replica
        if replica is None:
            return samples
        for series, _ in samples:
            if series not in self._is_of_it:
                labels = exposition.labels_of(series.labels)
                self._is_of_it[series] = replica.holds(series.name, labels)
                if replica.labels.items() <= labels.items():
                    self._has_its_labels.add(series)
        if not any(series in self._has_its_labels for series, _ in samples):
            return ()
        return tuple(one for one in samples if self._is_of_it[one.series])

    def _taken(
        self, at_ns: int, samples: tuple[exposition.PageSample, ...]
    ) -> tuple[regimes.Change, ...]:
        self._scrapes.append((at_ns, samples))
        self._latest.append((at_ns, samples))
        while at_ns - self._scrapes[0][0] > self._wanted.window_s * NS_PER_S:
            self._scrapes.popleft()
        if len(self._scrapes) < 2:
            return ()
        record = server_series.server_record(server_series.table_of(list(self._scrapes)[-2:]))
        interval = intervals.last_interval(record)
        if interval.is_restarted:
            while len(self._scrapes) > 1:
                self._scrapes.popleft()
        if self._is_mixed(interval):
            self.problem = regimes.WORDS["several_servers"]
            return self.regimes.mix(interval.at_s)
        return self.regimes.take(interval)

    def _is_mixed(self, interval: intervals.Interval) -> bool:
        """Are the latest pages from several servers (not one that restarted)?"""
        if not interval.is_restarted and "several_servers" not in self.regimes.conditions:
            return False
        return server_series.is_of_several(
            server_series.server_record(server_series.table_of(self._latest))
        )

    def samples(self) -> list[tuple[int, tuple[exposition.PageSample, ...] | None]]:
        """The window's pages, to be read by another thread."""
        return list(self._scrapes)

    def history(self) -> ServerHistory | None:
        """Requests in the server over the window; None before its second answer."""
        if len(self._scrapes) < 2:
            return None
        record = server_series.server_record(server_series.table_of(self._scrapes))
        at_s = (record.scraped_ns - record.scraped_ns[0]) / NS_PER_S
        found = [server_series.gauge_series(record, name) for name in ("running", "waiting")]
        running, waiting = (
            (None,) * len(at_s)
            if one is None
            else tuple(value if math.isfinite(value) else None for value in one.value.tolist())
            for one in found
        )
        return ServerHistory(
            url=self.url, at_s=tuple(at_s.tolist()), running=running, waiting=waiting
        )

    def state(self, at_utc: str) -> WatchedServer:
        """The server now."""
        conditions = tuple(self.regimes.conditions)
        if len(self._scrapes) < 2 or self.problem:
            return WatchedServer(
                url=self.url,
                at_utc=at_utc,
                conditions=conditions,
                slo_verdict=verdict_of((), self._wanted.objective),
            )
        table = server_series.table_of(self._scrapes)
        record, summary = (
            server_series.server_record(table),
            server_summaries.summarise_server(table),
        )
        prediction = self._wanted.prediction
        took_s = summary.end_s - summary.start_s
        latencies = latencies_of(record, self._wanted.objective, prediction)
        why_not = "" if prediction is None else prediction.why_not_valid(summary)
        last = intervals.last_interval(record)
        replica = None if self._observed is None else self._observed.replica
        return WatchedServer(
            url=self.url,
            server=summary.kind,
            replica=None if replica is None else replica.name,
            n_replicas=1 if replica is None else replica.n_replicas,
            at_utc=at_utc,
            conditions=conditions,
            window_s=took_s,
            n_requests=summary.n_finished,
            requests_per_s=_per_s(summary.n_finished, took_s),
            output_tokens_per_s=_per_s(summary.output_tokens, took_s),
            n_running=None if summary.running is None else round(last.running),
            n_waiting=None if summary.waiting is None else round(last.waiting),
            kv_used_fraction=last.kv_usage,
            n_preemptions=summary.n_preemptions,
            prefix_hit_fraction=summary.prefix_hit_fraction,
            acceptance_fraction=acceptance_of(record),
            latencies=latencies,
            step_residual_ratio=self.regimes.drifts.pace.residual,
            model_valid=None if prediction is None else not why_not,
            why_not_valid=why_not,
            residuals=() if prediction is None else residuals_of(summary, prediction),
            slo_verdict=verdict_of(latencies, self._wanted.objective),
            headroom_ratio=headroom_of(latencies),
            limit=self.limit,
        )


def _per_s(count: int | None, took_s: float) -> float | None:
    return None if count is None or took_s <= 0 else count / took_s
