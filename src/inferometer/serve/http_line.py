"""How does a small server read and answer HTTP on a connection?

HTTP/1.1 over a socket, with keep-alive, pipelining and chunked replies.

Replies are written to the socket at once, not at the event loop's next turn, so that the time that
is noted is that of the write.
"""

import asyncio
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, cast

import httptools

_MAX_BODY_BYTES: Final = 64 * 2**20
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_END_OF_CHUNKS: Final = b"0\r\n\r\n"
JSON: Final = "application/json"


def path_of(target: str) -> str:
    """The path of a request's target; clients that know a proxy send a whole URL (RFC 9112, 3.2.2).

    Example
    -------
    >>> path_of("/v1/models?x=1"), path_of("http://localhost:8000/v1/models"), path_of("http://a")
    ('/v1/models', '/v1/models', '/')
    """
    path = target.partition("?")[0]
    return "/" + path.partition("://")[2].partition("/")[2] if path[:1] != "/" else path


class HttpRequest(NamedTuple):
    """One HTTP request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    accepted_ns: int
    """Time when its last byte had been read."""


class Line(asyncio.Protocol):
    """One HTTP connection.

    ``on_request`` gets each request once the reply to the last one is complete; ``on_lost`` is
    called when the connection is lost.
    """

    def __init__(
        self, on_request: Callable[["Line", HttpRequest], None], on_lost: Callable[["Line"], None]
    ) -> None:
        self._on_request = on_request
        self._on_lost = on_lost
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[HttpRequest, bool, bool]] = deque()
        self._is_busy = False
        self._is_open = False
        self._is_cut = False
        self._keeps_alive = True
        self._is_chunked = True
        self._url, self._headers, self._body = b"", dict[str, str](), bytearray()

    # what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the socket of a client that has connected."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_cut:
            transport.close()
            return
        sock = cast("socket.socket", transport.get_extra_info("socket"))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fd = sock.fileno()
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse bytes that came."""
        self._read_ns = time.perf_counter_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(HTTPStatus.BAD_REQUEST)
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)

    def eof_received(self) -> bool:
        """Close: the client sends no more. uvicorn takes that for its leave, too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that the connection ended, by the client or by us."""
        del exc
        self._is_open = False
        self._waiting.clear()
        self._on_lost(self)

    # what the parser calls

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url, self._headers, self._body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        """Take a piece of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Answer ``Expect: 100-continue``, for which the client waits before it sends the body."""
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body += body
        if len(self._body) > _MAX_BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def on_message_complete(self) -> None:
        """Hand on a request that is complete, or queue it behind the one in work."""
        if not self._is_open:
            return
        if (
            "host" not in self._headers and self._parser.get_http_version() == "1.1"
        ):  # RFC 9112, 3.2
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        path = path_of(self._url.decode("latin-1"))
        method = self._parser.get_method().decode("latin-1")
        request = HttpRequest(method, path, self._headers, bytes(self._body), self._read_ns)
        self._waiting.append(
            (request, self._parser.should_keep_alive(), self._parser.get_http_version() != "1.0")
        )
        if not self._is_busy:
            self._next()

    # what a reply calls

    def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Send a whole reply; returns the instant after the write (ns)."""
        more = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        written_ns = self.write(self._head(status, more) + body)
        self.done()
        return written_ns

    def begin_stream(self) -> int:
        """Send the head of a stream of events; returns the instant after the write (ns)."""
        framing = {"transfer-encoding": "chunked"} if self._is_chunked else {}
        return self.write(
            self._head(200, {"content-type": "text/event-stream; charset=utf-8", **framing})
        )

    def chunk(self, data: bytes, *, is_last: bool = False) -> int:
        """Send a piece of a stream; returns the instant after the write (ns)."""
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if is_last:
                data += _END_OF_CHUNKS
        return self.write(data)

    def done(self) -> None:
        """End the reply; the next request that waits is handed on."""
        if not self._keeps_alive:
            self.cut()
            return
        self._is_busy = False
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next_in_line)

    def cut(self) -> None:
        """Close after pending writes; a connection that is not made yet is closed when it is."""
        self._is_open, self._is_cut = False, True
        if hasattr(self, "_transport"):
            self._transport.close()

    def reset(self) -> None:
        """Hang up at once, with a TCP reset."""
        self._is_open = False
        sock = cast("socket.socket", self._transport.get_extra_info("socket"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def write(self, data: bytes) -> int:
        """Write, after pending writes; returns the instant after the write (ns)."""
        if not self._is_open:
            return time.perf_counter_ns()
        n_written = 0
        if self._transport.get_write_buffer_size() == 0:
            try:
                n_written = os.write(self._fd, data)
            except BlockingIOError:
                n_written = 0
            except OSError:
                self._transport.abort()
                self._is_open = False
                return time.perf_counter_ns()
        written_ns = time.perf_counter_ns()
        if n_written < len(data):
            self._transport.write(data[n_written:])
        return written_ns

    @property
    def is_open(self) -> bool:
        """Is the client still connected?"""
        return self._is_open

    def _next(self) -> None:
        if self._is_busy or not self._waiting:
            return
        request, self._keeps_alive, self._is_chunked = self._waiting.popleft()
        if not self._is_chunked:
            self._keeps_alive = False
        self._is_busy = True
        self._on_request(self, request)

    def _next_in_line(self) -> None:
        """Hand on the next request that waited; it counts as accepted now."""
        if self._waiting:
            request, keeps_alive, is_chunked = self._waiting[0]
            self._waiting[0] = (
                request._replace(accepted_ns=time.perf_counter_ns()),
                keeps_alive,
                is_chunked,
            )
            self._next()

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer with this status and hang up; hang up at once where a reply is under way."""
        if self._is_open and not self._is_busy:
            self._keeps_alive = False
            self.reply(status, b"")
        elif self._is_open:
            self.cut()

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: inferometer"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not self._keeps_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
