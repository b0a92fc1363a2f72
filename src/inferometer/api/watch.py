"""inferometer watch: in which regime are these servers now, and what changed?"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

from inferometer.api.known_facts import known_facts
from inferometer.api.progress import talk
from inferometer.api.question import DURATION, Option
from inferometer.api.watch_prediction import Prediction, prediction_of
from inferometer.api.watch_state import (
    RegimeChange,
    WatchAnswer,
    WatchedLimit,
    WatchedServer,
    acceptance_of,
    headroom_of,
    latencies_of,
    limit_of,
    residuals_of,
    verdict_of,
    words_of,
)
from inferometer.decide.watching.intervals import last_interval
from inferometer.decide.watching.regimes import Change, Regimes
from inferometer.errors import MeasureError, RecordError, SpecError
from inferometer.inputs.objectives import ObjectiveSpec, parse_objective
from inferometer.measure.scrape import MetricsPage, MetricsSource, metrics_url
from inferometer.records.exposition import PageReader, PageSample
from inferometer.records.server_names import kept_series
from inferometer.records.server_series import server_record, table_of
from inferometer.records.server_summaries import summarise_server
from inferometer.stats.estimate import Verdict
from inferometer.units import NS_PER_S

_TIMEOUT_S: Final = 2.0
_DIAGNOSED_EVERY_S: Final = 600.0
_SETTLED_S: Final = 30.0
"""Without a change of regime, before what limits the server is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Which servers, against which limits and predictions, and for how long."""

    urls: Annotated[
        tuple[str, ...],
        Option(
            "Addresses of servers, or of their metrics.",
            heading="Runs",
            is_argument=True,
            metavar="URL…",
        ),
    ]
    slo: Annotated[
        str | None,
        Option(
            "The SLO: ttft:p95<500ms, tpot:p95<50ms; with it, the time until it is missed.",
            heading="Limits",
            is_common=True,
            metavar="SLO",
        ),
    ] = None
    predicted: Annotated[
        Path | None,
        Option(
            "What `inferometer simulate --json` printed for this traffic: shown beside.",
            heading="Runs",
            is_common=True,
            metavar="FILE",
        ),
    ] = None
    once: Annotated[bool, Option("Watch one window, print the state, and end.", is_common=True)] = (
        False
    )
    duration: Annotated[
        float | None,
        Option(
            "Stop after this time. [when stopped; with --once: --window]",
            heading="Limits",
            is_common=True,
            flags=("--for",),
            metavar="DURATION",
            parse=DURATION,
        ),
    ] = None
    window: Annotated[
        float,
        Option(
            "Percentiles and rates are those of so long. [60s]",
            heading="Limits",
            is_common=True,
            metavar="DURATION",
            parse=DURATION,
            shows_default=False,
        ),
    ] = 60.0
    every: Annotated[
        float,
        Option(
            "Between two scrapes. [1s]",
            heading="Limits",
            metavar="DURATION",
            parse=DURATION,
            shows_default=False,
        ),
    ] = 1.0
    known: Annotated[
        str | None,
        Option(
            "Limits of the servers that are known, such as max_num_seqs=256.",
            heading="Engine",
            metavar="NAME=VALUE,…",
        ),
    ] = None
    limit: Annotated[
        bool,
        Option(
            "Look for what limits each server, by simulation (some seconds of CPU).",
            heading="Limits",
            flags=("--limit/--no-limit",),
        ),
    ] = True
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """All servers were looked at; what they show now costs some milliseconds each, where wanted."""

    read: Callable[[], tuple[WatchedServer, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The question, read."""

    objective: ObjectiveSpec | None
    prediction: Prediction | None
    window_s: float
    every_s: float


class WatchedUrl:
    """One server: its pages of the window, its regimes, and what limits it."""

    def __init__(self, url: str, asked: _Asked) -> None:
        self.url = url
        self._asked = asked
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

    def look(self, at_ns: int) -> tuple[Change, ...]:
        """Scrape once; what that changes."""
        try:
            samples = self._reader.read(self._page.get())
        except (MeasureError, RecordError) as error:
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
        while at_ns - self._scrapes[0][0] > self._asked.window_s * NS_PER_S:
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
        prediction = self._asked.prediction
        took_s = summary.end_s - summary.start_s
        latencies = latencies_of(record, self._asked.objective, prediction)
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
            running=None if summary.running is None else last.running,
            waiting=None if summary.waiting is None else last.waiting,
            kv_usage=last.kv_usage,
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


def watch(question: Watch) -> WatchAnswer:
    """In which regime are these servers, and what changed while they were watched?

    Their metrics are read; nothing else is sent to them. The listener hears of each change
    (``RegimeChange``) and of the state (``Screen``). Ctrl-C ends it in order.

    Raises
    ------
    SpecError
        A value cannot be.
    MeasureError
        No server's metrics can be read.
    """
    if not question.urls:
        raise SpecError(
            "no server", where="URL", allowed="one or more", try_="http://127.0.0.1:8000"
        )
    asked = _Asked(
        objective=None if question.slo is None else parse_objective(question.slo),
        prediction=None if question.predicted is None else prediction_of(question.predicted),
        window_s=max(question.window, 2 * question.every),
        every_s=max(question.every, 0.1),
    )
    for_s = question.duration
    if question.once and for_s is None:
        for_s = asked.window_s
    with ExitStack() as stack:
        servers = [WatchedUrl(url, asked) for url in dict.fromkeys(question.urls)]
        for server in servers:
            stack.callback(server.close)
        pool = stack.enter_context(ThreadPoolExecutor(len(servers) + 1))
        watching = _Watching(servers, asked, pool, question)
        try:
            watching.until(for_s)
        except KeyboardInterrupt:
            talk("stopped")
        return watching.answer()


class _Watching:
    """The loop over all servers."""

    def __init__(
        self,
        servers: list[WatchedUrl],
        asked: _Asked,
        pool: ThreadPoolExecutor,
        question: Watch,
    ) -> None:
        self._servers = servers
        self._asked = asked
        self._pool = pool
        self._known = known_facts(question.known).limits
        self._finds_limits = question.limit
        self._is_once = question.once
        self._began_ns = time.monotonic_ns()
        self._began_utc = datetime.now(UTC)
        self._changes: list[RegimeChange] = []
        self._diagnosing: tuple[WatchedUrl, Future[WatchedLimit]] | None = None

    def until(self, for_s: float | None) -> None:
        """Look again and again until the time is over."""
        self._look()
        if all(server.problem for server in self._servers):
            first = self._servers[0]
            raise MeasureError(
                f"the server's metrics cannot be read: {first.problem}",
                where=first.url,
                allowed="the address of a model server, or of its metrics page",
                try_="inferometer watch http://127.0.0.1:8000; SGLang has metrics with a flag",
            )
        due_s = self._at_s()
        while for_s is None or due_s + self._asked.every_s <= for_s + 1e-6:
            due_s = max(due_s + self._asked.every_s, self._at_s() - self._asked.every_s)
            time.sleep(max(0.0, due_s - self._at_s()))
            self._look()
            talk(Screen(read=self._states))
            self._diagnose(due_s)

    def answer(self) -> WatchAnswer:
        """The state at the end."""
        if self._is_once and self._finds_limits:
            talk("looking for what limits each server")
            for server in self._servers:
                server.limit = self._limit(server)
        states = self._states()
        verdicts: list[Verdict | None] = [verdict_of(state.latencies) for state in states]
        return WatchAnswer(
            servers=states,
            changes=tuple(self._changes),
            watched_s=self._at_s(),
            objective=None if self._asked.objective is None else self._asked.objective.text,
            slo_verdict=_worst(verdicts),
        )

    def _look(self) -> None:
        at_ns = time.monotonic_ns() - self._began_ns
        looks = [self._pool.submit(server.look, at_ns) for server in self._servers]
        for server, look in zip(self._servers, looks, strict=True):
            for change in look.result():
                instants = {change.at_s, change.at_s if change.since_s is None else change.since_s}
                said = words_of(change, server.url, {one: self._utc(one) for one in instants})
                self._changes.append(said)
                talk(said)

    def _diagnose(self, now_s: float) -> None:
        """Look for a limit in a thread of its own, one server after the other, when it is settled."""
        if not self._finds_limits or self._is_once:
            return
        if self._diagnosing is not None:
            server, future = self._diagnosing
            if not future.done():
                return
            server.limit, self._diagnosing = future.result(), None
        for server in self._servers:
            is_settled = now_s - server.changed_s >= min(_SETTLED_S, self._asked.window_s)
            is_due = server.diagnosed_s < server.changed_s or (
                now_s - server.diagnosed_s >= _DIAGNOSED_EVERY_S
            )
            if is_settled and is_due and not server.problem:
                server.diagnosed_s = now_s
                self._diagnosing = server, self._pool.submit(self._limit, server)
                return

    def _limit(self, server: WatchedUrl) -> WatchedLimit:
        samples = table_of(server.samples())
        return limit_of(
            server.url, samples, self._asked.objective, self._known, self._utc(self._at_s())
        )

    def _states(self) -> tuple[WatchedServer, ...]:
        at_utc = self._utc(self._at_s())
        return tuple(server.state(at_utc) for server in self._servers)

    def _at_s(self) -> float:
        return (time.monotonic_ns() - self._began_ns) / NS_PER_S

    def _utc(self, at_s: float) -> str:
        return (self._began_utc + timedelta(seconds=at_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _worst(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    known = [one for one in verdicts if one is not None]
    order: tuple[Verdict, ...] = ("missed", "undecided", "met")
    return next((one for one in order if one in known), None)


def _per_s(count: int | None, took_s: float) -> float | None:
    return None if count is None or took_s <= 0 else count / took_s
