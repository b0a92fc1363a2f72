"""Does the scraper take what a server says, in bounded time and memory, whatever the server does?"""

import ssl
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from inferometer.errors import MeasureError
from inferometer.measure import scrape
from inferometer.measure.load.target import Place
from inferometer.measure.scrape import ACCEPT, MetricsSource, ScrapeLimits, metrics_url, scraping
from inferometer.records.server_series import counter_series, server_record
from inferometer.records.server_summaries import summarise_server

QUICK_S = 0.02
PAGE = (
    'vllm:generation_tokens_total{{engine="0"}} {n}\nvllm:num_requests_running 3\npython_info 1\n'
)


class Server(ThreadingHTTPServer):
    """Says how often it was asked; ``answers`` override what it says: bytes, a status, or a function of the handler."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.n_asked = 0
        self.n_connections = 0
        self.accepted = []
        self.paths = []
        self.heads = []
        self.answers = {}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request, client_address):
        self.n_connections += 1
        super().process_request(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.n_asked += 1
        self.server.accepted.append(self.headers["Accept"])
        self.server.paths.append(self.path)
        self.server.heads.append(self.headers)
        answer = self.server.answers.get(
            self.server.n_asked,
            self.server.answers.get("always", PAGE.format(n=self.server.n_asked)),
        )
        if callable(answer):
            answer(self)
            return
        status, body = (
            (answer, b"")
            if isinstance(answer, int)
            else (200, answer if isinstance(answer, bytes) else answer.encode())
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def pages_through(source, server):
    with scraping(source, started_ns=0, every_s=60, limits=ScrapeLimits(timeout_s=5.0)) as scraper:
        assert not scraper.problems
    assert server.n_asked == 2


def test_metrics_go_the_way_of_the_requests_through_a_proxy(server):
    """The test's server stands for the proxy: it gets the whole URL of a host that does not exist."""
    source = MetricsSource(
        url="http://me:word@metrics.invalid:9/metrics?token=a",
        proxy=Place(host="127.0.0.1", port=server.server_port, is_tls=False),
        proxy_authorization="Basic abc",
    )
    pages_through(source, server)
    assert server.paths[0] == "http://metrics.invalid:9/metrics?token=a"
    assert server.heads[0]["Proxy-Authorization"] == "Basic abc"
    assert server.heads[0]["Authorization"] == "Basic bWU6d29yZA=="


def test_metrics_over_tls_are_verified_unless_it_was_said_not_to(server, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http://", "https://")
    with pytest.raises(MeasureError, match="certificate"), scraping(url, started_ns=0):
        pass
    pages_through(MetricsSource(url=url, verifies_tls=False), server)


def test_what_is_shown_of_a_metrics_url_has_no_secret():
    with (
        pytest.raises(MeasureError) as refused,
        scraping("http://me:hush@127.0.0.1:9/metrics?token=hush", started_ns=0),
    ):
        pass
    assert "hush" not in str(refused.value)
    assert "http://…@127.0.0.1:9/metrics?…" in str(refused.value)


@contextmanager
def scraped(server, n_wanted, limits=None, every_s=QUICK_S):
    """A scraper that has asked ``n_wanted`` times."""
    with scraping(
        server.url,
        started_ns=time.monotonic_ns(),
        every_s=every_s,
        limits=limits or ScrapeLimits(timeout_s=1.0),
    ) as scraper:
        until_s = time.monotonic() + 20
        while server.n_asked < n_wanted and time.monotonic() < until_s:
            threading.Event().wait(0.005)
        yield scraper


def test_every_page_is_taken_over_one_connection(server):
    with scraped(server, 5) as scraper:
        pass
    table = scraper.table()
    series = counter_series(server_record(table), "output_tokens")
    assert series.value.tolist() == list(range(server.n_asked))
    assert server.n_connections == 1
    assert set(server.accepted) == {ACCEPT}
    assert (np.diff(series.at_s) > 0).all()
    assert series.at_s[0] >= 0
    assert scraper.problems == ()


def test_known_families_and_changes_only(server):
    with scraped(server, 4) as scraper:
        pass
    table = scraper.table()
    names, n = np.unique(table.name, return_counts=True)
    assert dict(zip(names.tolist(), n.tolist(), strict=True)) == {
        "up": server.n_asked, "vllm:generation_tokens_total": server.n_asked, "vllm:num_requests_running": 1
    }  # fmt: skip


def test_a_server_without_metrics_is_an_error(server):
    server.answers["always"] = 404
    with (
        pytest.raises(MeasureError, match="cannot be read: HTTP 404") as caught,
        scraped(server, 1),
    ):
        pass
    assert "--enable-metrics" in caught.value.try_
    server.answers["always"] = "go_threads 5\n"
    with (
        pytest.raises(
            MeasureError, match="none of the page's 1 samples is of a known model server"
        ),
        scraped(server, 1),
    ):
        pass
    server.answers["always"] = "<html>"
    with pytest.raises(MeasureError, match="line 1 is no sample"), scraped(server, 1):
        pass


def only_at(path):
    """An answer for every request: the page is at this path alone."""

    def answer(handler):
        body = PAGE.format(n=handler.server.n_asked).encode()
        is_there = handler.path == path
        handler.send_response(200 if is_there else 404)
        handler.send_header("Content-Length", str(len(body) if is_there else 0))
        handler.end_headers()
        handler.wfile.write(body if is_there else b"")

    return answer


@pytest.mark.parametrize("path", ["/v1/metrics", "/prometheus/metrics"])
def test_metrics_at_another_usual_address_are_found(server, path):
    """NVIDIA NIM's and trtllm-serve's; the pages that were not there leave no failed scrape."""
    server.answers["always"] = only_at(path)
    with scraped(server, 4) as scraper:
        pass
    assert set(server.paths[3:]) == {path}
    table = scraper.table()
    assert (table.value[table.name == "up"] == 1).all()
    assert scraper.problems == ()


def test_no_other_page_is_looked_for_where_one_was_named(server):
    server.answers["always"] = only_at("/v1/metrics")
    source = MetricsSource(url=f"{server.url}/metrics")
    with pytest.raises(MeasureError, match="HTTP 404"), scraping(source, started_ns=0):
        pass
    assert server.paths == ["/metrics"]


def test_nobody_there_is_an_error():
    with pytest.raises(MeasureError, match="refused"), scraping("http://127.0.0.1:9", started_ns=0):
        pass
    with (
        pytest.raises(MeasureError, match="no address of a server"),
        scraping("localhost:8000", started_ns=0),
    ):
        pass


def test_failures_on_the_way_are_recorded_and_got_over(server):
    server.answers = {2: 503, 3: b"broken", 4: b"vllm:x " + b"9" * 100 + b"\xff"}
    with scraped(server, 7) as scraper:
        pass
    summary = summarise_server(scraper.table())
    assert summary.n_failed_scrapes == 3
    assert scraper.problems == ("HTTP 503",), (
        "a broken page is an answer; that it is broken shows when it is read"
    )
    assert summary.output_tokens == server.n_asked - 1


def test_a_connection_that_the_server_closed_is_opened_anew(server):
    def last_of_its_connection(handler):
        body = PAGE.format(n=2).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = (
            True  # without saying so, as servers do after their keep-alive timeout
        )

    server.answers[2] = last_of_its_connection
    with scraped(server, 5) as scraper:
        pass
    assert summarise_server(scraper.table()).n_failed_scrapes == 0
    assert server.n_connections == 2


def test_a_slow_server_holds_up_nobody(server):
    def drips(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(40):
            handler.wfile.write(b"#")
            handler.wfile.flush()
            threading.Event().wait(0.05)

    server.answers[2] = drips
    began_s = time.monotonic()
    with scraped(server, 2, ScrapeLimits(timeout_s=0.2)) as scraper:
        pass
    assert time.monotonic() - began_s < 1.5, "two seconds would be all of the dripping"
    assert "takes more than 0.2 s" in scraper.problems[0]


def test_a_page_without_end_is_cut(server, monkeypatch):
    monkeypatch.setattr(scrape, "MAX_PAGE_BYTES", 100_000)
    server.answers[2] = b"# " + b"x" * 1_000_000
    with scraped(server, 4) as scraper:
        pass
    assert scraper.problems == ("a page of more than 100000 bytes",)
    assert summarise_server(scraper.table()).n_failed_scrapes == 1


def test_too_many_pages_are_thinned_and_growth_is_kept(server):
    with scraped(server, 30, ScrapeLimits(max_pages=8), every_s=0.005) as scraper:
        pass
    summary = summarise_server(scraper.table())
    assert 4 <= summary.n_scrapes <= 8
    assert scraper.every_s > 0.005
    assert summary.output_tokens == server.n_asked - 1, "first and last stay"


def test_too_many_bytes_are_thinned(server):
    noise = np.random.default_rng(1).integers(0, 2**62, 3000)
    server.answers["always"] = PAGE.format(n=1) + "".join(
        f"python_x{i} {n}\n" for i, n in enumerate(noise)
    )
    with scraped(server, 11, ScrapeLimits(max_stored_bytes=240_000)) as scraper:
        assert sum(len(one.page) for one in scraper._scrapes) <= 240_000
        assert len(scraper._scrapes) < 11


@pytest.mark.parametrize(
    "url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "http://h:1/metrics"]
)
def test_where_the_metrics_are(url):
    assert metrics_url(url) == "http://h:1/metrics"
