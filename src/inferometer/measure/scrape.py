"""What does the server say of itself while it is loaded?

A thread asks for the server's metrics every second and puts the pages aside, compressed, and reads
them when the run is over. A page costs the client 0.8 ms of CPU while it sends
(``bench/RESULTS.md``). Pages, their sum and each try are bounded: when there are too many, every
second one is dropped and the interval doubles.
"""

import threading
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from inferometer.errors import MeasureError, RecordError
from inferometer.measure.metrics_page import MetricsPage, MetricsSource
from inferometer.records.server_series import check_page, sample_table
from inferometer.records.types import ServerSampleTable

TIMEOUT_S: Final = 5.0
MAX_PAGES: Final = 7200
MAX_STORED_BYTES: Final = 128 * 2**20
"""Of compressed pages."""


class Scrape(NamedTuple):
    """One try."""

    at_ns: int
    """When the answer was there, by ``time.monotonic_ns``."""
    page: bytes | None
    """Compressed; None where there was no answer."""
    problem: str
    """'' or why there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeLimits:
    """How long may a try take, and how much is kept?"""

    timeout_s: float = TIMEOUT_S
    max_pages: int = MAX_PAGES
    max_stored_bytes: int = MAX_STORED_BYTES


_LIMITS: Final = ScrapeLimits()


class Scraper:
    """Scrapes one server from its start to its stop; ``scraping`` makes one."""

    def __init__(
        self, source: MetricsSource, *, started_ns: int, every_s: float, limits: ScrapeLimits
    ) -> None:
        self._page = MetricsPage(source, limits.timeout_s)
        self._started_ns = started_ns
        self._every_s = every_s
        self._limits = limits
        self._scrapes: list[Scrape] = []
        self._stored_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="scraper", daemon=True)

    @property
    def every_s(self) -> float:
        """The interval now: doubled each time that there were too many pages."""
        return self._every_s

    @property
    def problems(self) -> tuple[str, ...]:
        """Why tries failed, each reason once."""
        return tuple(dict.fromkeys(scrape.problem for scrape in self._scrapes if scrape.problem))

    def start(self) -> None:
        """Scrape once, and go on doing so.

        Raises
        ------
        MeasureError
            There is no page, or none of a known model server.
        """
        first = self._scrape()
        try:
            self._refuse(first)
        except MeasureError:
            self._page.close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Scrape a last time, after the scrape under way."""
        self._over.set()
        self._thread.join(2 * self._limits.timeout_s)
        if (
            not self._thread.is_alive()
        ):  # else a server that drips its answer holds it; the thread is a daemon
            self._scrape()
            self._page.close()

    def table(self, *, keeps_all: bool = False) -> ServerSampleTable:
        """What was scraped so far: known families, or all; ``up`` says of each try whether it was answered.

        A sample is there where a value changed, NaN where a series went away. A page that cannot be
        read counts as not answered.
        """
        pages = (
            (one.at_ns - self._started_ns, None if one.page is None else zlib.decompress(one.page))
            for one in list(self._scrapes)
        )
        return sample_table(pages, keeps_all=keeps_all)

    def _refuse(self, first: Scrape) -> None:
        """Raise unless it is a page of a known model server."""
        if first.page is None:
            raise MeasureError(
                f"the server's metrics cannot be read: {first.problem}",
                where=self._page.url,
                allowed="a page in the Prometheus text format",
                try_=(
                    "--metrics-url; SGLang and llama.cpp need --enable-metrics or --metrics;"
                    " trtllm-serve has /prometheus/metrics"
                ),
            )
        try:
            check_page(zlib.decompress(first.page))
        except RecordError as error:
            raise MeasureError(
                error.what, where=self._page.url, allowed=error.allowed, try_=error.try_
            ) from error

    def _watch(self) -> None:
        due_s = time.perf_counter() + self._every_s
        while not self._over.wait(max(0.0, due_s - time.perf_counter())):
            self._scrape()
            due_s = max(due_s + self._every_s, time.perf_counter())

    def _scrape(self) -> Scrape:
        page, problem = None, ""
        try:
            page = zlib.compress(self._page.get(), 1)
        except MeasureError as error:
            problem = error.what
        scrape = Scrape(time.monotonic_ns(), page, problem)
        self._scrapes.append(scrape)
        self._stored_bytes += 0 if page is None else len(page)
        if (
            len(self._scrapes) > self._limits.max_pages
            or self._stored_bytes > self._limits.max_stored_bytes
        ):
            self._thin()
        return scrape

    def _thin(self) -> None:
        """Every second page goes; the first and the last stay, so growth over the run is still known."""
        self._scrapes = self._scrapes[:-1:2] + self._scrapes[-1:]
        self._stored_bytes = sum(
            len(scrape.page) for scrape in self._scrapes if scrape.page is not None
        )
        self._every_s *= 2


@contextmanager
def scraping(
    source: MetricsSource | str,
    *,
    started_ns: int,
    every_s: float = 1.0,
    limits: ScrapeLimits = _LIMITS,
) -> Generator[Scraper]:
    """Scrape this server within the ``with``: at its start, every ``every_s``, and at its end.

    Parameters
    ----------
    source
        Where the metrics are and the way there; a URL alone is asked directly.
    started_ns
        The start of the run, by ``time.monotonic_ns``.

    Raises
    ------
    MeasureError
        The first try has no page, or none of a known model server. Later tries that fail are
        recorded.
    """
    asked = MetricsSource(url=source) if isinstance(source, str) else source
    scraper = Scraper(asked, started_ns=started_ns, every_s=every_s, limits=limits)
    scraper.start()
    try:
        yield scraper
    finally:
        scraper.stop()
