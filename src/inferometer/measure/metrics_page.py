"""How is one page of a server's metrics asked for, again and again, over a connection that is kept?"""

import http.client
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Final
from urllib.parse import SplitResult, urlsplit

from inferometer.errors import MeasureError
from inferometer.records.exposition import MAX_PAGE_BYTES

ACCEPT: Final = "text/plain;version=0.0.4"
"""What is asked for: answers in OpenMetrics may have ``vllm_x`` for ``vllm:x``."""

_FAILURES: Final = (OSError, http.client.HTTPException, ValueError)


def metrics_url(url: str) -> str:
    """Where does the server at this address tell its metrics?

    Example
    -------
    >>> metrics_url("http://127.0.0.1:8000/v1"), metrics_url("http://127.0.0.1:8000/prometheus/metrics")
    ('http://127.0.0.1:8000/metrics', 'http://127.0.0.1:8000/prometheus/metrics')
    """
    base = url.rstrip("/")
    return base if base.endswith("/metrics") else f"{base.removesuffix('/v1')}/metrics"


class MetricsPage:
    """One page of a server, over a connection that is kept."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url = metrics_url(url)
        self._parts = _checked(self.url)
        self._headers = {"Accept": ACCEPT, **headers}
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def get(self) -> bytes:
        """The page as it is now. A kept connection that the server has closed meanwhile is opened anew.

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
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self) -> bytes:
        if self._connection is None:
            made = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            self._connection = made(self._parts.netloc, timeout=self._timeout_s)
        try:
            path = self._parts.path + (f"?{self._parts.query}" if self._parts.query else "")
            self._connection.request("GET", path, headers=self._headers)
            with closing(self._connection.getresponse()) as response:
                return self._body(response)
        except _FAILURES:
            self.close()
            raise

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
            f"{url!r} is no address of a server", allowed="http:// or https://, a host, a port", try_="http://127.0.0.1:8000"
        )
    return parts


__all__ = ["ACCEPT", "MetricsPage", "metrics_url"]
