"""How are requests put on connections, and connections opened, kept and used again?

Each exchange holds one connection until its answer is whole; then the connection waits for the next
one. Nothing is pipelined.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from inferometer.measure.load.answers import Answer, AnswerLimits
from inferometer.measure.load.target import Place, Secrets, Target, connect_head
from inferometer.units import NS_PER_S

_IDLE_NS: Final = 3 * NS_PER_S
"""A connection that waited longer is closed instead of used: servers close theirs after 5 s,
often just when a request comes."""
_PLAIN_REASONS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)
"""OpenSSL's messages on a plain HTTP answer to its handshake."""
_TUNNEL_LIMITS: Final = AnswerLimits(body_bytes=64 * 1024)


class Exchange:
    """One request in flight, and its state."""

    __slots__ = (
        "answer",
        "connected_ns",
        "connection",
        "connection_index",
        "intended_ns",
        "is_reused",
        "message",
        "request_index",
        "sent_ns",
        "was_sent_again",
    )

    def __init__(
        self, request_index: int, intended_ns: int, message: bytes, answer: Answer
    ) -> None:
        self.request_index = request_index
        self.intended_ns = intended_ns
        self.message = message
        self.answer = answer
        self.connection: Connection | None = None
        self.connection_index = -1
        self.is_reused = False
        self.sent_ns: int | None = None
        self.connected_ns: int | None = None
        self.was_sent_again = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How long may an exchange take: until its head, between two reads, and as a whole?"""

    total_ns: int
    head_ns: int
    read_ns: int

    @property
    def shortest_ns(self) -> int:
        """No exchange takes too long before this."""
        return min(self.total_ns, self.head_ns, self.read_ns)

    def passed(self, exchange: Exchange, now_ns: int) -> tuple[str, str] | None:
        """The error and its detail, once a limit is passed."""
        for due_ns, error, detail in self._ends(exchange):
            if now_ns >= due_ns:
                return error, detail
        return None

    def next_ns(self, exchange: Exchange, now_ns: int) -> int:
        """The earliest instant at which a limit can be passed, whatever comes in until then."""
        if exchange.sent_ns is None:
            return now_ns + self.shortest_ns
        ends_ns = [due_ns for due_ns, _, _ in self._ends(exchange)]
        if exchange.answer.head_ns is None:
            ends_ns.append(now_ns + self.read_ns)
        return min(ends_ns)

    def _ends(self, exchange: Exchange) -> Iterator[tuple[int, str, str]]:
        answer, sent_ns = exchange.answer, exchange.sent_ns
        if sent_ns is None:
            return
        yield sent_ns + self.total_ns, "total_timeout", f"after {self.total_ns / NS_PER_S:g} s"
        if answer.head_ns is None:
            yield sent_ns + self.head_ns, "head_timeout", f"after {self.head_ns / NS_PER_S:g} s"
        else:
            last_ns = max((answer.head_ns, *answer.read_ns[-1:]))
            detail = f"nothing for {self.read_ns / NS_PER_S:g} s"
            yield last_ns + self.read_ns, "read_timeout", detail


class Connection(asyncio.Protocol):
    """One TCP (or TLS) connection to the server."""

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self.index = -1
        self.connected_ns = 0
        self.n_exchanges = 0
        self.has_waited = False
        self.idle_since_ns = 0

    @property
    def is_open(self) -> bool:
        """Can a request be sent on it?"""
        return self._transport is not None and not self._transport.is_closing()

    def start(self, exchange: Exchange) -> None:
        """Send the exchange's request."""
        assert self._transport is not None  # noqa: S101 -- only open connections are handed out
        self._exchange = exchange
        exchange.connection = self
        exchange.connection_index = self.index
        exchange.is_reused = self.n_exchanges > 0
        if not exchange.is_reused:
            exchange.connected_ns = self.connected_ns
        self.n_exchanges += 1
        if exchange.sent_ns is None:
            exchange.sent_ns = time.monotonic_ns()
        self._transport.write(exchange.message)

    def abort(self) -> None:
        """Close at once, without waiting for data in flight."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by class

    def data_received(self, data: bytes) -> None:
        """The hot path: the instant first, then the bytes to the answer."""
        now_ns = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:  # a server that talks unasked
            self.abort()
            return
        answer = exchange.answer
        answer.feed(data, now_ns)
        if answer.is_over:
            self._release(exchange, now_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, with or without an error."""
        now_ns = time.monotonic_ns()
        self._transport = None
        exchange, self._exchange = self._exchange, None
        self._pool.forget(self)
        if exchange is None:
            return
        exchange.connection = None
        is_stale = (
            (exchange.is_reused or self.has_waited)
            and not exchange.answer.is_begun
            and not exchange.was_sent_again
        )
        if is_stale:  # closed by the server while it waited: nobody has seen the request
            exchange.was_sent_again = True
            self._pool.send_again(exchange)
            return
        exchange.answer.end("" if exc is None else str(exc) or type(exc).__name__)
        self._pool.on_over(exchange, now_ns)

    def _release(self, exchange: Exchange, now_ns: int) -> None:
        """After a complete or cancelled answer: reuse the connection if possible."""
        self._exchange = None
        exchange.connection = None
        if exchange.answer.keeps_alive and not exchange.answer.has_surplus and self.is_open:
            self.idle_since_ns = now_ns
            self._pool.take_back(self)
        else:
            self.abort()
        self._pool.on_over(exchange, now_ns)


class ConnectionPool:
    """All connections of one process.

    ``on_over`` is called once for each exchange, when it is over.
    """

    def __init__(
        self,
        target: Target,
        secrets: Secrets,
        addresses: Sequence[str],
        *,
        connect_s: float,
        most: int | None,
        on_over: Callable[[Exchange, int], None],
    ) -> None:
        self.on_over = on_over
        self._target = target
        self._secrets = secrets
        self._addresses = deque(addresses)
        self._connect_s = connect_s
        self._most = most
        self._tls = (
            target.tls_context() if target.server.is_tls or target.first_hop.is_tls else None
        )
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._waiting: deque[Exchange] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._n_opened = 0
        self._is_empty: asyncio.Event | None = None

    @property
    def n_waiting(self) -> int:
        """Exchanges that wait because no more connections are allowed."""
        return max(0, len(self._waiting) - len(self._opening))

    def send(self, exchange: Exchange) -> None:
        """Send on an idle connection, else on the first that is free, new or used.

        The longest waiting exchange is served first, so that a slow connection does not delay it
        twice.
        """
        now_ns = time.monotonic_ns()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now_ns - connection.idle_since_ns < _IDLE_NS:
                connection.start(exchange)
                return
            connection.abort()
        self._waiting.append(exchange)
        if self._may_open:
            self._open_for(exchange)

    def send_again(self, exchange: Exchange) -> None:
        """Send it before all that wait: it was on its way once."""
        self._waiting.appendleft(exchange)
        self._open_for(exchange)

    @property
    def _may_open(self) -> bool:
        return self._most is None or len(self._all) + len(self._opening) < self._most

    def _open_for(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._open(exchange))
        self._opening.add(task)
        task.add_done_callback(self._on_opened)

    def take_back(self, connection: Connection) -> None:
        """Give a free connection to the longest waiting exchange, else keep it idle."""
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.answer.is_over:
                connection.start(exchange)
                return
        connection.has_waited = True
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection is gone; where exchanges wait for one, another is opened."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._is_empty is not None and not self._all:
            self._is_empty.set()
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Open as many connections as exchanges wait, up to the limit."""
        while len(self._waiting) > len(self._opening) and self._may_open:
            exchange = self._waiting[len(self._opening)]
            if exchange.answer.is_over:
                self._waiting.remove(exchange)
            else:
                self._open_for(exchange)

    def _on_opened(self, task: "asyncio.Task[None]") -> None:
        self._opening.discard(task)
        self._serve_waiting()

    async def close(self) -> None:
        """Close all connections, and wait for that."""
        self._waiting.clear()
        for task in tuple(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        if self._all:
            self._is_empty = asyncio.Event()
            for connection in tuple(self._all):
                connection.abort()
            await self._is_empty.wait()

    async def _open(self, exchange: Exchange) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                connection = await self._connected()
        except (OSError, EOFError, ValueError, ProxyRefusedError) as error:
            if exchange in self._waiting:  # else another connection was free before
                self._waiting.remove(exchange)
                if not exchange.answer.is_over:
                    exchange.answer.give_up(_code_of(error), str(error) or self._unsaid(error))
                    self.on_over(exchange, time.monotonic_ns())
            return
        connection.idle_since_ns = connection.connected_ns
        if connection.is_open:
            self.take_back(connection)
        elif exchange in self._waiting:
            self._waiting.remove(exchange)
            if not exchange.answer.is_over:
                exchange.answer.end("")
                self.on_over(exchange, time.monotonic_ns())

    def _unsaid(self, error: BaseException) -> str:
        """Text of an error, also where the system has none."""
        handshake = "" if self._tls is None else " and no TLS handshake"
        return (
            f"no connection{handshake} within {self._connect_s:g} s"
            if isinstance(error, TimeoutError)
            else type(error).__name__
        )

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        hop = self._target.first_hop
        if self._target.has_tunnel:
            connection = await self._tunnelled(loop, hop)
        else:
            transport = await self._first_that_answers(
                loop, lambda: Connection(self), self._tls if hop.is_tls else None
            )
            protocol = transport.get_protocol()
            assert isinstance(protocol, Connection)  # noqa: S101 -- what the factory made
            connection = protocol
        connection.connected_ns = time.monotonic_ns()
        connection.index = self._n_opened
        self._n_opened += 1
        if connection.is_open:
            self._all.add(connection)
        return connection

    async def _first_that_answers(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> asyncio.Transport:
        """Try the host's addresses, the one that worked last first."""
        hop = self._target.first_hop
        for n_left in range(len(self._addresses) - 1, -1, -1):
            try:
                transport, _ = await loop.create_connection(
                    factory,
                    self._addresses[0],
                    hop.port,
                    ssl=tls,
                    server_hostname=hop.host if tls is not None else None,
                )
            except ssl.SSLError:
                raise
            except OSError:  # nobody there, or no way: a host with IPv6 by name only
                self._addresses.rotate(-1)
                if not n_left:
                    raise
            else:
                return transport
        raise OSError("the host has no address")

    async def _tunnelled(self, loop: asyncio.AbstractEventLoop, hop: Place) -> Connection:
        request = connect_head(self._target, self._secrets)
        transport = await self._first_that_answers(
            loop, lambda: _Tunnel(request, loop.create_future()), self._tls if hop.is_tls else None
        )
        tunnel = transport.get_protocol()
        assert isinstance(tunnel, _Tunnel)  # noqa: S101 -- what the factory made
        try:
            await tunnel.opened
            connection = Connection(self)
            assert self._tls is not None  # noqa: S101 -- a tunnel is for TLS
            inner = await loop.start_tls(
                transport, connection, self._tls, server_hostname=self._target.server.host
            )
        except BaseException:
            transport.abort()
            raise
        if inner is None:
            raise EOFError("the connection closed during the TLS handshake")
        connection.connection_made(inner)
        return connection


class ProxyRefusedError(Exception):
    """The proxy let no connection through."""


class _Tunnel(asyncio.Protocol):
    """Requests a tunnel from a proxy; ``opened`` is done when it exists."""

    def __init__(self, request: bytes, opened: "asyncio.Future[None]") -> None:
        self.opened = opened
        self._request = request
        self._head = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            return
        self._head += data
        if len(self._head) > _TUNNEL_LIMITS.head_bytes:
            self.opened.set_exception(ProxyRefusedError("its answer does not end"))
        elif b"\r\n\r\n" in self._head:
            status_line = bytes(self._head.partition(b"\r\n")[0])
            if status_line.split(b" ")[1:2] == [b"200"]:
                self.opened.set_result(None)
            else:
                self.opened.set_exception(ProxyRefusedError(status_line.decode("latin-1")[:200]))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ProxyRefusedError(str(exc or "it closed the connection")))


def _code_of(error: BaseException) -> str:
    """Error code for a failure to open a connection."""
    match error:
        case ProxyRefusedError():
            return "proxy_refused"
        case TimeoutError():
            return "connect_timeout"
        case ConnectionRefusedError():
            return "connect_refused"
        case ssl.SSLError(reason=reason) if reason in _PLAIN_REASONS:
            return "not_tls"
        case ssl.SSLError() | ssl.CertificateError() | EOFError():
            return "tls_failed"
        case _:
            return "connect_failed"
