"""inferometer watch: in which regime are these servers now, and what changed?"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

from inferometer.api.answer import Paged
from inferometer.api.known_facts import known_facts
from inferometer.api.progress import Screen, talk
from inferometer.api.question import SERVER, Option, duration_option, option
from inferometer.api.watch_exporter import WatchExporter, exporting
from inferometer.api.watch_prediction import prediction_of
from inferometer.api.watch_state import (
    RegimeChange,
    Scrapes,
    WatchAnswer,
    WatchedLimit,
    WatchedServer,
    limit_of,
    words_of,
)
from inferometer.api.watched_pages import OneServer, Wanted, WatchedUrl
from inferometer.errors import MeasureError, SpecError
from inferometer.inputs.objectives import NO_WORKFLOWS, parse_objective
from inferometer.measure import scrape
from inferometer.stats.estimate import worst_verdict
from inferometer.units import NS_PER_S

_DIAGNOSED_EVERY_S: Final = 600.0
_SETTLED_S: Final = 30.0
"""Without a change of regime, before what limits the server is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Servers, limits, predictions and duration of a watch."""

    urls: Annotated[
        tuple[str, ...],
        Option(
            "Addresses of servers, or of their metrics.",
            heading="Runs",
            is_argument=True,
            metavar="URL…",
            parse=SERVER,
        ),
    ]
    slo: str | None = option(
        None,
        "The SLO: ttft:p95<500ms, tpot:p95<50ms; with it, the time until it is missed.",
        "Limits",
        is_common=True,
        metavar="SLO",
    )
    predicted: Path | None = option(
        None,
        "Output of `inferometer simulate --json` for this traffic, to compare with.",
        "Runs",
        is_common=True,
        metavar="FILE",
    )
    once: bool = option(False, "Watch one window, print the state, and end.", is_common=True)
    duration: float | None = duration_option(
        None,
        "Stop after this time. [when stopped; with --once: --window]",
        "Limits",
        is_common=True,
        flags=("--for",),
    )
    window: float = duration_option(
        60.0, "Time that percentiles and rates cover. [60s]", "Limits", is_common=True
    )
    every: float = duration_option(1.0, "Time between two scrapes. [1s]", "Limits")
    replica: str | None = option(
        None,
        "Which of several engines, models or servers on one page of metrics: engine=1."
        " [all of them]",
        "Runs",
        metavar="LABEL=VALUE",
    )
    known: str | None = option(
        None,
        "Limits of the servers that are known, such as max_num_seqs=256.",
        "Engine",
        metavar="NAME=VALUE,…",
    )
    export_port: int | None = option(
        None,
        "Port of 127.0.0.1 on which to serve predictions, residuals, the limit and the regime as"
        " Prometheus metrics.",
        is_common=True,
        least=1,
        most=65535,
    )
    limit: bool = option(
        True,
        "Look for what limits each server, by simulation (some seconds of CPU).",
        "Limits",
        flags=("--limit/--no-limit",),
    )
    given: frozenset[str] = frozenset()


def watch(question: Watch) -> Paged[WatchAnswer]:
    """Watch servers: their regimes, and changes.

    Their metrics are read; nothing else is sent to them. The listener gets each change
    (``RegimeChange``) and of the state (``Screen``): but for a single look there is nothing left to
    read at the end. Ctrl-C ends it in order.

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
    wanted = Wanted(
        objective=None
        if question.slo is None
        else parse_objective(question.slo, why_none=NO_WORKFLOWS),
        prediction=None if question.predicted is None else prediction_of(question.predicted),
        window_s=max(question.window, 2 * question.every),
        every_s=max(question.every, 0.1),
        replica=question.replica,
    )
    for_s = question.duration
    if question.once and for_s is None:
        for_s = wanted.window_s
    with ExitStack() as stack:
        urls = [WatchedUrl(url, wanted) for url in dict.fromkeys(question.urls)]
        for url in urls:
            stack.callback(url.close)
        pool = stack.enter_context(ThreadPoolExecutor(len(urls) + 1))
        watching = _Watching(urls, wanted, pool, question)
        exporter = WatchExporter(lambda: watching.exported, wanted.prediction)
        stack.enter_context(exporting(question.export_port, exporter))
        try:
            watching.until(for_s)
        except KeyboardInterrupt:
            talk("stopped")
        answer = watching.answer()
    if all("several_servers" in one.conditions for one in answer.servers):
        raise MeasureError(
            "several servers answer at this address in turn, so their metrics cannot be separated",
            where=", ".join(dict.fromkeys(one.url for one in answer.servers)),
            allowed="the address of a single server, not of a load balancer",
            try_="inferometer watch with the address of each server: its own port",
        )
    if not question.once and not answer.changes:
        talk(_unchanged(answer))
    return Paged(answer, answer.pages() if question.once else ())


class _Watching:
    """The loop over all servers."""

    def __init__(
        self, urls: list[WatchedUrl], wanted: Wanted, pool: ThreadPoolExecutor, question: Watch
    ) -> None:
        self._urls = urls
        self._wanted = wanted
        self._pool = pool
        self._known = known_facts(question.known).limits
        self._finds_limits = question.limit
        self._is_once = question.once
        self._is_exported = question.export_port is not None
        self.exported: tuple[WatchedServer, ...] = ()
        """As they were after the last look: another thread writes them out."""
        self._began_ns = time.monotonic_ns()
        self._began_utc = datetime.now(UTC)
        self._changes: list[RegimeChange] = []
        self._diagnosing: tuple[OneServer, Future[WatchedLimit]] | None = None

    @property
    def _servers(self) -> list[OneServer]:
        """Those on all pages so far."""
        return [server for url in self._urls for server in url.servers]

    def until(self, for_s: float | None) -> None:
        """Look again and again until the time is over."""
        self._look()
        if all(server.problem for server in self._servers):
            first = self._servers[0]
            raise MeasureError(
                f"the server's metrics cannot be read: {first.problem}",
                where=first.url,
                allowed="the address of a model server, or of its metrics page",
                try_=scrape.remedy(
                    first.problem,
                    "inferometer watch http://127.0.0.1:8000; SGLang has metrics with a flag",
                ),
            )
        due_s = 0.0  # when the watch began, not when the first look came back: --for 5s is 5 s
        while for_s is None or due_s + self._wanted.every_s <= for_s + 1e-6:
            due_s = max(due_s + self._wanted.every_s, self._at_s() - self._wanted.every_s)
            time.sleep(max(0.0, due_s - self._at_s()))
            self._look()
            talk(Screen(lambda: self.answer().drawn()))
            self._diagnose(due_s)

    def answer(self) -> WatchAnswer:
        """The state at the end."""
        if self._is_once and self._finds_limits:
            talk("looking for what limits each server")
            for url in self._urls:
                # Some seconds of CPU each: of the replicas on a page, the one where users wait most.
                fullest = max(url.servers, key=OneServer.n_inside)
                fullest.limit = self._limit(fullest.url, fullest.samples())
        states = self._states()
        return WatchAnswer(
            servers=states,
            changes=tuple(self._changes),
            watched_s=self._at_s(),
            objective=None if self._wanted.objective is None else self._wanted.objective.text,
            slo_verdict=worst_verdict(state.slo_verdict for state in states),
            histories=tuple(
                one
                for server in self._servers
                if self._is_once and (one := server.history()) is not None
            ),
        )

    def _look(self) -> None:
        for look in [self._pool.submit(url.look, self._at_ns) for url in self._urls]:
            for server, change in look.result():
                instants = {change.at_s, change.at_s if change.since_s is None else change.since_s}
                utc = {one: self._utc(one) for one in instants}
                line = words_of(change, server.url, server.name, utc)
                self._changes.append(line)
                talk(line.text if self._is_once else line)
        if self._is_exported:
            self.exported = self._states()

    def _diagnose(self, now_s: float) -> None:
        """Diagnose the settled servers in turn, in a thread."""
        if not self._finds_limits or self._is_once:
            return
        if self._diagnosing is not None:
            server, future = self._diagnosing
            if not future.done():
                return
            server.limit, self._diagnosing = future.result(), None
        for server in self._servers:
            is_settled = now_s - server.changed_s >= min(_SETTLED_S, self._wanted.window_s)
            is_due = server.diagnosed_s < server.changed_s or (
                now_s - server.diagnosed_s >= _DIAGNOSED_EVERY_S
            )
            if is_settled and is_due and not server.problem:
                server.diagnosed_s = now_s
                future = self._pool.submit(self._limit, server.url, server.samples())
                self._diagnosing = server, future
                return

    def _limit(self, url: str, samples: Scrapes) -> WatchedLimit:
        at_utc = self._utc(self._at_s())
        return limit_of(url, samples, self._wanted.objective, self._known, at_utc)

    def _states(self) -> tuple[WatchedServer, ...]:
        at_utc = self._utc(self._at_s())
        return tuple(server.state(at_utc) for server in self._servers)

    def _at_ns(self) -> int:
        return time.monotonic_ns() - self._began_ns

    def _at_s(self) -> float:
        return self._at_ns() / NS_PER_S

    def _utc(self, at_s: float) -> str:
        return (self._began_utc + timedelta(seconds=at_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _unchanged(answer: WatchAnswer) -> str:
    """Sentence at the end of a watch without changes, which tells that data were seen."""
    states = [
        f"{one.name}: {', '.join(one.conditions) or 'no condition is on'}"
        if one.server is not None
        else f"{one.name}: no metrics yet"
        for one in answer.servers
    ]
    return (
        f"nothing changed in {answer.watched_s:.0f} s; {'; '.join(states)}"
        " (--once prints the state of a window)"
    )
