"""Servers that mean harm.

Each ends in its own code, in bounded memory, without a hang, and knows no secret that is not its
own.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from tiny_server import END, EVENT, HEAD, LAST, TinyServer, a_plan, chunk, load

from inferometer.measure.load.messages import ClientLimits
from inferometer.measure.load.target import Secrets
from inferometer.records.exchange_errors import EXCHANGE_ERRORS

MOST_RSS_BYTES = 400 * 1024 * 1024
"""Of the client process, which has some 110 MB before it sends anything."""
TIMEOUT_S = 3.0
LIMITS = ClientLimits(head_s=1.5, read_s=1.5, connect_s=1.0, body_bytes=4 * 1024 * 1024)
STREAM_TYPE = b"Content-Type: text/event-stream\r\n"


async def flood(writer, first, again, pause_s=0.0):
    """``again`` as long as anybody listens."""
    writer.write(first)
    while not writer.is_closing():
        writer.write(again)
        await writer.drain()
        await asyncio.sleep(pause_s)


def flooding(first, again, pause_s=0.0):
    async def answer(writer, _):
        await flood(writer, first, again, pause_s)

    return answer


def saying(data, *, then_closes=False):
    async def answer(writer, _):
        writer.write(data)
        await writer.drain()
        if then_closes:
            writer.close()

    return answer


def sized(n_bytes, body, *, then_closes):
    return saying(
        b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (STREAM_TYPE, n_bytes, body),
        then_closes=then_closes,
    )


def headed(*fields):
    return (
        b"HTTP/1.1 200 OK\r\n"
        + STREAM_TYPE
        + b"".join(field + b"\r\n" for field in fields)
        + b"\r\n"
    )


WHOLE = EVENT * 3 + LAST
HOSTILE = {
    "100 Continue for ever, fast": (
        flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 200),
        {"head_too_long"},
    ),
    "100 Continue for ever, slowly": (
        flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
        {"head_timeout"},
    ),
    "103 Early Hints without an end": (
        flooding(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 200),
        {"head_too_long"},
    ),
    "trailers without an end": (
        flooding(HEAD + chunk(WHOLE) + b"0\r\n", b"x-more: and more\r\n" * 500),
        {"bad_http"},
    ),
    "one trailer without an end": (
        flooding(HEAD + chunk(WHOLE) + b"0\r\nx-more: ", b"a" * 65536),
        {"bad_http"},
    ),
    "a chunk's extension without an end": (flooding(HEAD + b"10;x=", b"a" * 65536), {"bad_http"}),
    "a chunk's size, a digit at a time": (flooding(HEAD, b"0", 0.05), {"read_timeout"}),
    "a chunk's size of zeros without an end": (flooding(HEAD, b"0" * 65536), {"bad_http"}),
    "chunks of nothing but framing": (
        flooding(HEAD, b"1;%b\r\na\r\n" % (b"e" * 4000) * 16),
        {"bad_http"},
    ),
    "a chunk longer than it says": (saying(HEAD + b"4\r\n" + EVENT + b"\r\n" + END), {"bad_http"}),
    "a chunk shorter than it says": (
        saying(HEAD + b"ffff\r\n" + EVENT + b"\r\n" + END, then_closes=True),
        {"truncated"},
    ),
    "a chunk size beyond 64 bits": (saying(HEAD + b"fffffffffffffffff\r\n" + EVENT), {"bad_http"}),
    "a negative chunk size": (saying(HEAD + b"-1\r\n" + EVENT), {"bad_http"}),
    "Content-Length beyond the body": (
        sized(len(WHOLE) + 100, WHOLE, then_closes=True),
        {"truncated"},
    ),
    "Content-Length beyond the body, held open": (
        sized(len(WHOLE) + 100, WHOLE, then_closes=False),
        {"read_timeout"},
    ),
    "Content-Length below the body": (sized(len(EVENT), WHOLE, then_closes=False), {""}),
    "a negative Content-Length": (saying(headed(b"Content-Length: -5") + WHOLE), {"bad_http"}),
    "two Content-Lengths": (
        saying(headed(b"Content-Length: 5", b"Content-Length: 500") + WHOLE),
        {"bad_http"},
    ),
    "a length and chunks": (
        saying(
            headed(b"Content-Length: 5", b"Transfer-Encoding: chunked")
            + chunk(WHOLE)
            + b"0\r\n\r\n"
        ),
        {"bad_http"},
    ),
    "an event without an end": (
        flooding(HEAD + chunk(b"data: "), chunk(b"a" * 65536)),
        {"body_too_long"},
    ),
    "empty events without an end": (flooding(HEAD, chunk(b"\n\n" * 30_000)), {"body_too_long"}),
    "NUL bytes in the head": (saying(b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n"), {"bad_http"}),
    "NUL bytes without an end": (flooding(b"", b"\0" * 65536), {"bad_http"}),
    "a status line without an end": (flooding(b"HTTP/1.1 200 ", b"OK" * 30_000), {"head_too_long"}),
    "a status of many digits": (saying(b"HTTP/1.1 2000000000000 OK\r\n\r\n"), {"bad_http"}),
    "HTTP/2 unasked": (saying(b"\0\0\x12\x04\0\0\0\0\0" + b"\0" * 18), {"bad_http"}),
    "another protocol": (
        saying(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
        {"bad_http"},
    ),
    "no content": (saying(b"HTTP/1.1 204 No Content\r\n\r\n"), {"wrong_content_type"}),
    "compressed without an end": (
        flooding(
            headed(b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"), chunk(b"\0" * 65536)
        ),
        {"compressed"},
    ),
    "a trailer that takes back the kind": (
        saying(
            HEAD
            + chunk(WHOLE)
            + b"0\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\nRetry-After: 9\r\n\r\n"
        ),
        {""},
    ),
}


def largest_client_bytes():
    """What the client processes have taken at most, by the kernel's account."""
    found = [0]
    for children in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{child}/status").read_text().splitlines()
                found.append(
                    int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
                )
    return max(found)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """One run in which every server of the list answers one request; and how much memory that took, and how long."""
    tiny = TinyServer()
    ways = list(HOSTILE.values())

    async def each_in_turn(writer, body):
        await ways[body["max_tokens"] - 1][0](writer, body)

    tiny.answer = each_in_turn
    tiny.start()
    seen = [0]
    plan = a_plan(len(ways), gap_ns=30_000_000, output_tokens=list(range(1, len(ways) + 1)))
    began_s = time.monotonic()
    loaded = load(
        tiny.url,
        plan,
        tmp_path_factory.mktemp("hostile"),
        lambda _: seen.append(largest_client_bytes()),
        limits=LIMITS,
        timeout_s=TIMEOUT_S,
    )
    took_s = time.monotonic() - began_s
    tiny.stop()
    return loaded, max(seen), took_s


@pytest.mark.parametrize("name", HOSTILE)
def test_each_hostile_server_has_its_code(name, attacked):
    frame = attacked[0].of(list(HOSTILE).index(name))
    assert frame.error in HOSTILE[name][1], frame.detail
    assert frame.error in {"", *EXCHANGE_ERRORS}
    assert frame.finished_ns - frame.sent_ns < (TIMEOUT_S + 2) * 1e9


def test_all_of_them_together_take_little_memory_and_time(attacked):
    loaded, rss_bytes, took_s = attacked
    assert len(loaded.requests) == len(HOSTILE)
    assert 0 < rss_bytes < MOST_RSS_BYTES
    assert took_s < 60


def test_a_trailer_changes_nothing_of_the_head(attacked):
    frame = attacked[0].of(list(HOSTILE).index("a trailer that takes back the kind"))
    assert (frame.content_type, frame.retry_after, frame.body) == ("text/event-stream", "", WHOLE)


def test_what_is_beyond_the_length_is_not_taken_and_ends_the_connection(attacked):
    loaded, *_ = attacked
    frame = loaded.of(list(HOSTILE).index("Content-Length below the body"))
    assert frame.body == EVENT
    assert sum(other.connection_index == frame.connection_index for other in loaded.requests) == 1


def test_a_redirect_to_another_host_takes_no_token_along(server, tmp_path):
    other = TinyServer()
    other.start()
    server.answer = saying(
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: %b/v1\r\nContent-Length: 0\r\n\r\n"
        % other.url.encode()
    )
    secrets = Secrets(headers=(("Authorization", "Bearer not-yours"),))
    loaded = load(server.url, a_plan(2, gap_ns=50_000_000), tmp_path, secrets=secrets)
    other.stop()
    assert [frame.error for frame in loaded.requests] == ["redirected"] * 2
    assert "Bearer not-yours" in server.seen[0].head
    assert (other.seen, other.n_connections) == ([], 0)


def test_a_server_that_says_the_token_aloud_gets_it_onto_no_disk(server, tmp_path):
    token = "sk-a-secret-of-some-length"  # noqa: S105 -- of nothing
    words = b'{"error":{"message":"invalid key: %b"}}' % token.encode()
    elsewhere = b"http://127.0.0.1:1/?key=" + token.encode()
    ways = [
        saying(
            b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length:"
            b" %d\r\n\r\n%b" % (len(words), words)
        ),
        saying(b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % elsewhere),
        saying(HEAD + chunk(b'data: {"choices":[{"text":"%b"}]}\n\n' % token.encode()) + END),
    ]

    async def each_in_turn(writer, body):
        await ways[body["max_tokens"] - 1](writer, body)

    server.answer = each_in_turn
    plan = a_plan(3, gap_ns=30_000_000, output_tokens=[1, 2, 3])
    loaded = load(
        server.url, plan, tmp_path, secrets=Secrets(headers=(("Authorization", f"Bearer {token}"),))
    )
    assert [frame.error for frame in loaded.requests] == ["http_error", "redirected", ""]
    assert b"invalid key: " in loaded.of(0).body
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path.name


class Deaf:
    """Accepts, and neither reads nor says anything."""

    def __init__(self, address="127.0.0.1", family=socket.AF_INET):
        self.socket = socket.create_server((address, 0), family=family, backlog=64)
        self.port = self.socket.getsockname()[1]
        self.taken = []
        self.thread = threading.Thread(target=self._take, daemon=True)
        self.thread.start()

    def _take(self):
        with contextlib.suppress(OSError):
            while True:
                taken, _ = self.socket.accept()
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                self.taken.append(taken)

    def close(self):
        for one in (self.socket, *self.taken):
            one.close()


@pytest.fixture
def deaf():
    one = Deaf()
    yield one
    one.close()


def test_tls_that_stalls_in_its_handshake_ends_with_the_patience_for_connections(deaf, tmp_path):
    loaded = load(
        f"https://127.0.0.1:{deaf.port}", a_plan(3, gap_ns=50_000_000), tmp_path, limits=LIMITS
    )
    assert [frame.error for frame in loaded.requests] == ["connect_timeout"] * 3
    for frame in loaded.requests:
        assert 0.9e9 < frame.finished_ns - frame.intended_ns < 4e9
    assert "TLS" in loaded.of(0).detail


def test_who_never_reads_holds_nobody_up(deaf, tmp_path):
    prompt_tokens = [200_000] * 4
    loaded = load(
        f"http://127.0.0.1:{deaf.port}",
        a_plan(4, prompt_tokens=prompt_tokens),
        tmp_path,
        limits=LIMITS,
    )
    assert [frame.error for frame in loaded.requests] == ["head_timeout"] * 4
    assert max(frame.finished_ns for frame in loaded.requests) < 6e9


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_server_on_ipv6_alone(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    tiny = TinyServer(host="::1")
    tiny.start()
    loaded = load(
        f"http://[::1]:{tiny.port}", a_plan(2, gap_ns=50_000_000), tmp_path / "by address"
    )
    assert [frame.error for frame in loaded.requests] == [""] * 2
    assert f"Host: [::1]:{tiny.port}\r\n" in tiny.seen[0].head
    names = {
        found[4][0] for found in socket.getaddrinfo("localhost", tiny.port, type=socket.SOCK_STREAM)
    }
    if "::1" in names:
        loaded = load(
            f"http://localhost:{tiny.port}", a_plan(2, gap_ns=50_000_000), tmp_path / "by name"
        )
        assert [frame.error for frame in loaded.requests] == [""] * 2
    tiny.stop()


def in_head(asked, n_tokens):
    return (
        HEAD.replace(b"\r\n\r\n", b"\r\nX-Request-Id: %b\r\n\r\n" % asked)
        + chunk(EVENT) * n_tokens
        + END
    )


def in_body(asked, n_tokens):
    """As vLLM does it."""
    return (
        HEAD
        + chunk(b'data: {"id":"cmpl-%b","choices":[{"text":"tok"}]}\n\n' % asked) * n_tokens
        + END
    )


@pytest.mark.parametrize("written", [in_head, in_body])
def test_the_answer_of_an_earlier_request_on_a_kept_connection_is_noticed(
    written, server, tmp_path
):
    """Something on the way mixes its connections up: it says for whom the answer was."""

    def id_of(seen):
        return (
            next(line for line in seen.head.split("\r\n") if line.startswith("X-Request-Id"))
            .split(": ")[1]
            .encode()
        )

    async def one_behind(writer, body):
        writer.write(written(id_of(server.seen[-2:][0]), body["max_tokens"]))

    async def its_own(writer, body):
        writer.write(written(id_of(server.seen[-1]), body["max_tokens"]))

    server.answer = one_behind
    chain = {
        "arrival_ns": [0] + [-1] * 3,
        "follows": list(range(-1, 3)),
        "think_ns": [-1] + [10_000_000] * 3,
    }
    loaded = load(server.url, a_plan(4, **chain), tmp_path / "mixed")
    assert [frame.error for frame in loaded.requests] == [""] + ["foreign_answer"] * 3
    assert loaded.of(1).detail == "it says that it is request 0's"
    server.answer = its_own
    assert [frame.error for frame in load(server.url, a_plan(3), tmp_path / "right").requests] == [
        ""
    ] * 3
