"""Which servers are on a watched page of metrics, and what has each done in the window?

Engines of data parallelism, and servers behind a router or a federation that gathers their metrics,
are on one page: each is a row of its own. One that comes later is a new row; one that leaves the
page is unreachable, and stays one: a dead server is no server less.
"""

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from inferometer.api.watch_prediction import Prediction
from inferometer.api.watch_state import (
    Scrapes,
    ServerHistory,
    WatchedLimit,
    WatchedServer,
    acceptance_of,
    headroom_of,
    latencies_of,
    residuals_of,
    verdict_of,
)
from inferometer.decide.diagnosis import replicas
from inferometer.decide.watching import intervals, regimes
from inferometer.errors import MeasureError, RecordError
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.measure.scrape import (
    NOT_FOUND,
    MetricsPage,
    MetricsSource,
    metrics_url,
    other_metrics_urls,
)
from inferometer.records import exposition, server_names, server_series, server_summaries
from inferometer.units import NS_PER_S

_TIMEOUT_S: Final = 2.0
_N_TOLD_APART: Final = 12
"""Pages in a row, in which servers that answer in turn show."""
_LEFT: Final = "its metrics are not on the page any more"
_RUNNING: Final = frozenset(
    one.family for names in server_names.SERVERS for one in names.gauges.get("running", ())
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The question, read."""

    objective: ObjectiveSpec | None
    prediction: Prediction | None
    window_s: float
    every_s: float
    replica: str | None = None
    """As ``--replica`` names it; None: all of them."""


class WatchedUrl:
    """One page of metrics, and the servers on it."""

    def __init__(self, url: str, wanted: Wanted) -> None:
        self.url = url
        self._wanted = wanted
        self._page = MetricsPage(MetricsSource(url=metrics_url(url)), _TIMEOUT_S)
        self._reader = exposition.PageReader(server_names.kept_series)
        self._running: frozenset[exposition.SeriesName] | None = None
        """Series of running requests on the page when its servers were separated."""
        self._servers_of = dict[exposition.SeriesName, tuple[OneServer, ...]]()
        self.servers = [OneServer(url, wanted)]
        """Those of all pages so far; without a page, one that is not known yet."""

    def close(self) -> None:
        """Close the connection."""
        self._page.close()

    def look(self, now_ns: Callable[[], int]) -> list[tuple["OneServer", regimes.Change]]:
        """Scrape once, and return the changes.

        Its instant is that at which the page was there: a server that is late wrote it just before.

        Raises
        ------
        RecordError
            The first page has no metric of a known server.
        SpecError
            The first page lacks the replica that is wanted.
        """
        try:
            page = self._fetched()
            at_ns = now_ns()
            samples = self._reader.read(page)
        except (MeasureError, RecordError) as error:
            at_ns, problem = now_ns(), error.what
            return [(one, change) for one in self.servers for change in one.miss(at_ns, problem)]
        is_server = self._tell_apart(samples)
        own = dict[OneServer, list[exposition.PageSample]]((one, []) for one in self.servers)
        for sample in samples if is_server else ():
            for server in self._holders(sample.series):
                own[server].append(sample)
        return [
            (one, change)
            for one in self.servers
            for change in (
                one.take(at_ns, tuple(own[one]))
                if any(one.is_own(sample.series) for sample in own[one])
                else one.miss(at_ns, _LEFT)
            )
        ]

    def _fetched(self) -> bytes:
        """The page, at another usual address where the first one is not there at the first look."""
        try:
            return self._page.get()
        except MeasureError as error:
            if self._running is not None or error.what != NOT_FOUND:
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

    def _holders(self, series: exposition.SeriesName) -> tuple["OneServer", ...]:
        known = self._servers_of.get(series)
        if known is None:
            known = tuple(one for one in self.servers if one.holds(series))
            self._servers_of[series] = known
        return known

    def _tell_apart(self, samples: tuple[exposition.PageSample, ...]) -> bool:
        """Give every server on the page its labels; False: none is on it any more."""
        is_server = any(one.series.name != server_names.START_TIME for one in samples)
        running = frozenset(
            one.series for one in samples if server_names.plain(one.series.name) in _RUNNING
        )
        is_first = self._running is None
        if not is_first and (not is_server or running == self._running):
            return is_server
        page = server_series.table_of([(0, samples)])
        if self._wanted.replica is not None:
            if is_first:
                observed = replicas.observed_replica(page, self._wanted.replica)
                self.servers[0].replica = observed.replica
        else:
            self._name(samples, replicas.replicas_on_page(page), replicas.labels_of_only(page))
        self._running = running
        self._servers_of.clear()
        return True

    def _name(
        self,
        samples: tuple[exposition.PageSample, ...],
        found: tuple[replicas.Replica, ...],
        only: frozenset[tuple[str, str]],
    ) -> None:
        """Rows for the replicas that are on the page."""
        first = self.servers[0]
        if not found and len(self.servers) == 1:
            if first.all_labels and not only:
                first.begin_again()  # it is added up from now on: counters jump, and nothing happened
            first.all_labels = only
            return
        present = {one.all_labels for one in found} or {only}
        gone = [
            sample
            for one in self.servers
            if one.all_labels not in present
            for sample in one.latest()
        ]
        # With those that left, so that names and labels tell all rows apart.
        together = {one.series: one for one in (*gone, *samples)}
        rows = {one.all_labels: one for one in self.servers if one.all_labels is not None}
        for replica in replicas.replicas_on_page(
            server_series.table_of([(0, tuple(together.values()))])
        ):
            if replica.all_labels not in rows:
                is_new = first.all_labels is not None
                rows[replica.all_labels] = OneServer(self.url, self._wanted) if is_new else first
                if is_new:
                    self.servers.append(rows[replica.all_labels])
            row = rows[replica.all_labels]
            row.replica, row.all_labels = replica, replica.all_labels


class OneServer:
    """One server: its pages of the window, regimes, and what limits it."""

    def __init__(self, url: str, wanted: Wanted) -> None:
        self.url = url
        self._wanted = wanted
        self._scrapes = deque[tuple[int, tuple[exposition.PageSample, ...] | None]]()
        self._latest = deque[tuple[int, tuple[exposition.PageSample, ...] | None]](
            maxlen=_N_TOLD_APART
        )
        self.replica: replicas.Replica | None = None
        """None: it has its page to itself."""
        self.all_labels: frozenset[tuple[str, str]] | None = None
        """Of its running requests; None: not seen yet, empty: it has no such labels."""
        self.regimes = regimes.Regimes()
        self.limit: WatchedLimit | None = None
        self.problem = ""
        self.changed_s = 0.0
        self.diagnosed_s = float("-inf")

    @property
    def name(self) -> str | None:
        """Which of several replicas on its page this is: ``engine=1``."""
        return None if self.replica is None else self.replica.name

    def holds(self, series: exposition.SeriesName) -> bool:
        """Is a series of this server, or of all on its page?"""
        labels = exposition.labels_of(series.labels)
        return self.replica is None or self.replica.holds(series.name, labels)

    def is_own(self, series: exposition.SeriesName) -> bool:
        """Is a series of this server alone? One that all share does not show that it is there."""
        if self.replica is None:
            return series.name != server_names.START_TIME
        return self.replica.labels.items() <= exposition.labels_of(series.labels).items()

    def miss(self, at_ns: int, problem: str) -> tuple[regimes.Change, ...]:
        """It is on no page now; the changes."""
        self.problem = problem
        return self._changed(at_ns, self.regimes.miss(at_ns / NS_PER_S))

    def take(
        self, at_ns: int, samples: tuple[exposition.PageSample, ...]
    ) -> tuple[regimes.Change, ...]:
        """Its samples of a page; the changes."""
        self.problem = ""
        return self._changed(at_ns, self._taken(at_ns, samples))

    def _changed(
        self, at_ns: int, changes: tuple[regimes.Change, ...]
    ) -> tuple[regimes.Change, ...]:
        if changes:
            self.changed_s = at_ns / NS_PER_S
        return changes

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

    def begin_again(self) -> None:
        """Forget the pages so far: what is counted from now on is not what they counted."""
        self._scrapes.clear()
        self._latest.clear()

    def latest(self) -> tuple[exposition.PageSample, ...]:
        """Its samples of the last page that it was on."""
        return (self._scrapes[-1][1] or ()) if self._scrapes else ()

    def samples(self) -> Scrapes:
        """The window's pages, to be read by another thread."""
        return list(self._scrapes)

    def n_inside(self) -> float:
        """Requests in its batch and queue, mean of the window; 0 where it is not reported."""
        history = self.history()
        if history is None:
            return 0.0
        known = [
            (running or 0.0) + (waiting or 0.0)
            for running, waiting in zip(history.running, history.waiting, strict=True)
        ]
        return sum(known) / len(known)

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
            url=self.url,
            replica=self.name,
            at_s=tuple(at_s.tolist()),
            running=running,
            waiting=waiting,
        )

    def state(self, at_utc: str) -> WatchedServer:
        """The server now."""
        conditions = tuple(self.regimes.conditions)
        n_replicas = 1 if self.replica is None else self.replica.n_replicas
        if len(self._scrapes) < 2 or self.problem:
            return WatchedServer(
                url=self.url,
                replica=self.name,
                n_replicas=n_replicas,
                at_utc=at_utc,
                conditions=conditions,
                slo_verdict=verdict_of((), self._wanted.objective),
            )
        table = server_series.table_of(self._scrapes)
        record = server_series.server_record(table)
        summary = server_summaries.summarise_server(table)
        prediction = self._wanted.prediction
        took_s = summary.end_s - summary.start_s
        latencies = latencies_of(record, self._wanted.objective, prediction)
        why_not = "" if prediction is None else prediction.why_not_valid(summary)
        last = intervals.last_interval(record)
        return WatchedServer(
            url=self.url,
            server=summary.kind,
            replica=self.name,
            n_replicas=n_replicas,
            n_added_up=1 if self.replica is not None else replicas.n_added_up(record),
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
