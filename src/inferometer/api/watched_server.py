"""One watched server: its pages of the window, its regimes, and what it shows now."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inferometer.api.watch_prediction import Prediction
from inferometer.api.watch_state import (
    WatchedLimit,
    WatchedServer,
    acceptance_of,
    headroom_of,
    latencies_of,
    residuals_of,
)
from inferometer.decide.watching.intervals import last_interval
from inferometer.decide.watching.regimes import Change, Regimes
from inferometer.errors import MeasureError, RecordError
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.measure.scrape import MetricsPage, MetricsSource, metrics_url
from inferometer.records.exposition import PageReader, PageSample
from inferometer.records.server_names import kept_series
from inferometer.records.server_series import server_record, table_of
from inferometer.records.server_summaries import summarise_server
from inferometer.units import NS_PER_S

_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The question, read."""

    objective: ObjectiveSpec | None
    prediction: Prediction | None
    window_s: float
    every_s: float


class WatchedUrl:
    """One server: its pages of the window, its regimes, and what limits it."""

    def __init__(self, url: str, wanted: Wanted) -> None:
        self.url = url
        self._wanted = wanted
        self._page = MetricsPage(MetricsSource(url=metrics_url(url)), _TIMEOUT_S)
        self._reader = PageReader(kept_series)
        self._scrapes = deque[tuple[int, tuple[PageSample, ...] | None]]()
        self.regimes = Regimes()
        self.limit: WatchedLimit | None = None
        self.problem = ""
        self.changed_s = 0.0
        self.diagnosed_s = float("-inf")

    def close(self) -> None:
        """Let go of the connection."""
        self._page.close()

    def look(self, now_ns: Callable[[], int]) -> tuple[Change, ...]:
        """Scrape once; what that changes.

        Its instant is that at which the page was there: a server that is late wrote it just before.
        """
        try:
            page = self._page.get()
            at_ns = now_ns()
            samples = self._reader.read(page)
        except (MeasureError, RecordError) as error:
            at_ns = now_ns()
            self.problem = error.what
            changes = self.regimes.miss(at_ns / NS_PER_S)
        else:
            self.problem = ""
            changes = self._taken(at_ns, samples)
        if changes:
            self.changed_s = at_ns / NS_PER_S
        return changes

    def _taken(self, at_ns: int, samples: tuple[PageSample, ...]) -> tuple[Change, ...]:
        self._scrapes.append((at_ns, samples))
        while at_ns - self._scrapes[0][0] > self._wanted.window_s * NS_PER_S:
            self._scrapes.popleft()
        if len(self._scrapes) < 2:
            return ()
        record = server_record(table_of(list(self._scrapes)[-2:]))
        interval = last_interval(record)
        if interval.is_restarted:
            while len(self._scrapes) > 1:
                self._scrapes.popleft()
        return self.regimes.take(interval)

    def samples(self) -> list[tuple[int, tuple[PageSample, ...] | None]]:
        """The window's pages, to be read by another thread."""
        return list(self._scrapes)

    def state(self, at_utc: str) -> WatchedServer:
        """The server now."""
        conditions = tuple(self.regimes.conditions)
        if len(self._scrapes) < 2 or self.problem:
            return WatchedServer(url=self.url, at_utc=at_utc, conditions=conditions)
        table = table_of(self._scrapes)
        record, summary = server_record(table), summarise_server(table)
        prediction = self._wanted.prediction
        took_s = summary.end_s - summary.start_s
        latencies = latencies_of(record, self._wanted.objective, prediction)
        why_not = "" if prediction is None else prediction.why_not_valid(summary)
        last = last_interval(record)
        return WatchedServer(
            url=self.url,
            server=summary.kind,
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
            headroom_ratio=headroom_of(latencies),
            limit=self.limit,
        )


def _per_s(count: int | None, took_s: float) -> float | None:
    return None if count is None or took_s <= 0 else count / took_s
