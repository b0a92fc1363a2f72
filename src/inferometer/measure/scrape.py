"""What does the server report of itself while it is loaded?

A thread asks for the server's metrics every second and puts the pages aside, compressed, and reads
them when the run is over. A page costs the client 0.8 ms of CPU while it sends
(``bench/RESULTS.md``). Pages, their sum and each try are bounded: when there are too many, every
second one is dropped and the interval doubles. The connection is used again.
"""

import base64
import http.client
import threading
import time
import zlib
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from inferometer.errors import MeasureError, RecordError, SpecError
from inferometer.inputs.plans import LoadPlan
from inferometer.measure.load.target import (
    Place,
    Secrets,
    environment,
    proxy_for,
    proxy_of,
    shown_url,
    tls_context,
)
from inferometer.records.exposition import MAX_PAGE_BYTES
from inferometer.records.server_names import ServerKind
from inferometer.records.server_series import page_kind, sample_table
from inferometer.records.types import ServerSampleTable
from inferometer.units import NS_PER_S

ACCEPT: Final = "text/plain;version=0.0.4"
"""What is wanted: answers in OpenMetrics may have ``vllm_x`` for ``vllm:x``."""

_PORTS: Final = {"http": 80, "https": 443}
_SILENT_SCRAPES: Final = 3
"""Attempts in a row without an answer, after which a server has stopped."""
_FAILURES: Final = (OSError, http.client.HTTPException, ValueError)
TIMEOUT_S: Final = 5.0
MAX_PAGES: Final = 7200
MAX_STORED_BYTES: Final = 128 * 2**20
"""Limit of the compressed pages."""


def metrics_url(url: str) -> str:
    """URL of the metrics of the server at this address.

    Example
    -------
    >>> metrics_url("http://127.0.0.1:8000/v1"), metrics_url("http://127.0.0.1:8000/prometheus/metrics")
    ('http://127.0.0.1:8000/metrics', 'http://127.0.0.1:8000/prometheus/metrics')
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return parts._replace(
        path=path if path.endswith("/metrics") else f"{path.removesuffix('/v1')}/metrics"
    ).geturl()


NOT_FOUND: Final = f"HTTP {int(http.client.NOT_FOUND)}"
"""Problem of a server that has no such page."""


def other_metrics_urls(url: str) -> tuple[str, ...]:
    """Where the metrics are if ``metrics_url`` is not there: NVIDIA NIM's, trtllm-serve's.

    Empty where the page itself was named.

    Example
    -------
    >>> other_metrics_urls("http://127.0.0.1:8000")
    ('http://127.0.0.1:8000/v1/metrics', 'http://127.0.0.1:8000/prometheus/metrics')
    """
    if urlsplit(url).path.rstrip("/").endswith("/metrics"):
        return ()
    parts = urlsplit(metrics_url(url))
    base = parts.path.removesuffix("/metrics")
    return tuple(
        parts._replace(path=f"{base}{path}").geturl()
        for path in ("/v1/metrics", "/prometheus/metrics")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSource:
    """URL of a server's metrics, with the proxy and TLS settings of its requests."""

    url: str = field(repr=False)
    """The server's, to which ``/metrics`` is added, or that of the metrics themselves.
    Credentials and query are sent and never shown."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    proxy: Place | None = None
    proxy_authorization: str | None = field(default=None, repr=False)
    verifies_tls: bool = True


def remedy(problem: str, otherwise: str) -> str:
    """Remedy for metrics that cannot be read; if nobody listens, no other page helps."""
    is_nobody_there = "refused" in problem or "not known" in problem
    return "start the server, or check the URL" if is_nobody_there else otherwise


def source_of(
    load: LoadPlan, secrets: Secrets, *, url: str | None = None, asked_proxy: str | None = None
) -> MetricsSource:
    """Source of a load test's server metrics: ``url``, else the server's own address.

    ``asked_proxy`` is that of ``--proxy``.

    The headers of the server's requests are secrets of its host, and not for another one.

    Raises
    ------
    SpecError
        The URL is invalid.
    """
    try:
        parts, server = urlsplit(url or load.url), urlsplit(load.url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise SpecError(
            f"this is no URL: {error}", where="--metrics-url", try_="http://127.0.0.1:8000/metrics"
        ) from error
    address = Place(
        host=host, port=port or _PORTS.get(parts.scheme, 0), is_tls=parts.scheme == "https"
    )
    proxy, authorization = proxy_for(
        f"{parts.scheme}://{address.authority}", asked_proxy, environment()
    )
    is_same = (parts.scheme, host, port) == (server.scheme, server.hostname, server.port)
    return MetricsSource(
        url=url or load.url,
        headers=dict(secrets.headers) if is_same else {},
        proxy=None if proxy is None else proxy_of(proxy),
        proxy_authorization=authorization,
        verifies_tls=load.verifies_tls,
    )


class MetricsPage:
    """One page of a server, over a persistent connection."""

    def __init__(self, source: MetricsSource, timeout_s: float) -> None:
        """The page at the source's ``url``; the attribute ``url`` has no secrets."""
        self._parts = _checked(source.url)
        self.url = shown_url(self._parts.geturl())
        self._source = source
        self._headers = {"Accept": ACCEPT, **_own_authorization(self._parts), **source.headers}
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def get(self) -> bytes:
        """Fetch the page.

        Reconnects if the server has closed the connection.

        Raises
        ------
        MeasureError
            There is no answer, none in time, a refusal, or one that is too long.
        """
        try:
            if self._connection is not None:
                with suppress(ConnectionError):
                    return self._ask()
            return self._ask()
        except _FAILURES as error:
            raise MeasureError(str(error) or type(error).__name__, where=self.url) from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self) -> bytes:
        if self._connection is None:
            self._connection = self._opened()
        try:
            path = self._parts.path + (f"?{self._parts.query}" if self._parts.query else "")
            self._connection.request(
                "GET", self._prefix + path, headers=self._headers | self._for_proxy
            )
            with closing(self._connection.getresponse()) as response:
                return self._body(response)
        except _FAILURES:
            self.close()
            raise

    @property
    def _is_relayed(self) -> bool:
        """Does an HTTP proxy relay each request (which then needs the whole URL)?

        TLS goes through a tunnel.
        """
        return self._source.proxy is not None and self._parts.scheme == "http"

    @property
    def _prefix(self) -> str:
        return f"http://{_host_and_port(self._parts)}" if self._is_relayed else ""

    @property
    def _for_proxy(self) -> dict[str, str]:
        authorization = self._source.proxy_authorization
        return (
            {"Proxy-Authorization": authorization}
            if self._is_relayed and authorization is not None
            else {}
        )

    def _opened(self) -> http.client.HTTPConnection:
        proxy, is_tls = self._source.proxy, self._parts.scheme == "https"
        if proxy is not None and proxy.is_tls and is_tls:
            raise ValueError(
                "metrics over TLS are not scraped through a proxy that itself speaks TLS"
            )
        address = _host_and_port(self._parts) if proxy is None else proxy.host_and_port
        if not is_tls and not (proxy is not None and proxy.is_tls):
            return http.client.HTTPConnection(address, timeout=self._timeout_s)
        context = tls_context(verifies=self._source.verifies_tls)
        connection = http.client.HTTPSConnection(address, timeout=self._timeout_s, context=context)
        if proxy is not None and is_tls:
            authorization = self._source.proxy_authorization
            connection.set_tunnel(
                self._parts.hostname or "",
                self._parts.port or 443,
                {} if authorization is None else {"Proxy-Authorization": authorization},
            )
        return connection

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        if response.status != http.client.OK:
            raise ValueError(f"HTTP {response.status}")
        until_s = time.perf_counter() + self._timeout_s
        body = bytearray()
        while chunk := response.read1(2**16):
            body += chunk
            if len(body) > MAX_PAGE_BYTES:
                raise ValueError(f"a page of more than {MAX_PAGE_BYTES} bytes")
            if time.perf_counter() > until_s:
                raise TimeoutError(f"a page that takes more than {self._timeout_s} s")
        return bytes(body)


def _checked(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise MeasureError(
            f"{shown_url(url)!r} is no address of a server",
            where="URL",
            allowed="http:// or https://, a host, a port",
            try_="http://127.0.0.1:8000",
        )
    return parts


def _host_and_port(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _own_authorization(parts: SplitResult) -> dict[str, str]:
    """The user and the password in the URL, as a header."""
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


class Scrape(NamedTuple):
    """One attempt to read the page."""

    at_ns: int
    """Arrival of the answer, by ``time.monotonic_ns``."""
    page: bytes | None
    """Compressed; None where there was no answer."""
    problem: str
    """'' or why there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeLimits:
    """Time limit of an attempt, and size limit of the stored pages."""

    timeout_s: float = TIMEOUT_S
    max_pages: int = MAX_PAGES
    max_stored_bytes: int = MAX_STORED_BYTES


_LIMITS: Final = ScrapeLimits()


class Scraper:
    """Scrapes one server from its start to its stop; ``scraping`` makes one."""

    def __init__(
        self, source: MetricsSource, *, started_ns: int, every_s: float, limits: ScrapeLimits
    ) -> None:
        self._source = source
        self._page = self._page_at(metrics_url(source.url), limits)
        self._started_ns = started_ns
        self._every_s = every_s
        self._limits = limits
        self._scrapes: list[Scrape] = []
        self._stored_bytes = 0
        self.kind: ServerKind | None = None
        """Whose pages they are, once the first one was read."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="scraper", daemon=True)

    @property
    def every_s(self) -> float:
        """The interval now: doubled each time that there were too many pages."""
        return self._every_s

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons of failed attempts, each once."""
        return tuple(dict.fromkeys(scrape.problem for scrape in self._scrapes if scrape.problem))

    @property
    def silent_from_s(self) -> float | None:
        """When the last three attempts or more began to have no answer; None: one of them had."""
        answered = [rank for rank, one in enumerate(self._scrapes) if one.page is not None]
        silent = self._scrapes[answered[-1] + 1 :] if answered else []
        if len(silent) < _SILENT_SCRAPES:
            return None
        return (silent[0].at_ns - self._started_ns) / NS_PER_S

    def start(self) -> None:
        """Scrape now, and then periodically.

        Raises
        ------
        MeasureError
            There is no page, or none of a known model server.
        """
        first = self._scrape()
        if first.problem == NOT_FOUND:
            first = self._elsewhere() or first
        try:
            self.kind = self._kind_of(first)
        except MeasureError:
            self._page.close()
            raise
        self._thread.start()

    def _page_at(self, url: str, limits: ScrapeLimits) -> MetricsPage:
        return MetricsPage(replace(self._source, url=url), limits.timeout_s)

    def _elsewhere(self) -> Scrape | None:
        """The first scrape of another usual page; None where the server has none of them."""
        usual = self._page
        for url in other_metrics_urls(self._source.url):
            self._page = self._page_at(url, self._limits)
            found = self._scrape()
            if found.page is not None:
                usual.close()
                self._scrapes = [found]
                return found
            self._page.close()
        self._page = usual
        return None

    def stop(self) -> None:
        """Scrape a last time, after the scrape under way."""
        self._over.set()
        self._thread.join(2 * self._limits.timeout_s)
        if (
            not self._thread.is_alive()
        ):  # else a server that drips its answer holds it; the thread is a daemon
            self._scrape()
            self._page.close()

    def table(self) -> ServerSampleTable:
        """Samples so far, of known families; ``up`` tells whether an attempt succeeded.

        A sample is there where a value changed, NaN where a series went away. A page that cannot be
        read counts as not answered.
        """
        pages = (
            (one.at_ns - self._started_ns, None if one.page is None else zlib.decompress(one.page))
            for one in list(self._scrapes)
        )
        return sample_table(pages)

    def _kind_of(self, first: Scrape) -> ServerKind:
        """Kind of the model server; raises where it is unknown."""
        if first.page is None:
            raise MeasureError(
                f"the server's metrics cannot be read: {first.problem}",
                where=self._page.url,
                allowed="a page in the Prometheus text format",
                try_=remedy(
                    first.problem,
                    "--metrics-url; SGLang and llama.cpp need --enable-metrics or --metrics;"
                    " trtllm-serve has /prometheus/metrics, NVIDIA NIM /v1/metrics",
                ),
            )
        try:
            return page_kind(zlib.decompress(first.page))
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
        """Drop every second page except the first and the last, which show growth over the run."""
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
    metrics_source = MetricsSource(url=source) if isinstance(source, str) else source
    scraper = Scraper(metrics_source, started_ns=started_ns, every_s=every_s, limits=limits)
    scraper.start()
    try:
        yield scraper
    finally:
        scraper.stop()
