"""Each way a server can misbehave ends in its own code, without a hang, a lost request or a leaked connection."""

import asyncio
import gzip
import signal
import socket
import ssl
import threading
import time

import pytest
from tiny_server import END, EVENT, HEAD, TinyServer, a_plan, chunk, load, silent_inside, stream

from inferometer.errors import MeasureError
from inferometer.measure.load.messages import ClientLimits
from inferometer.records.exchange_errors import EXCHANGE_ERRORS
from inferometer.records.raw_log import int32s

QUICK = ClientLimits(head_s=0.3, read_s=0.3, connect_s=1.0, body_bytes=1_000_000)


def answer_with(data):
    async def answer(writer, body):
        writer.write(data)

    return answer


def then_close(data):
    async def answer(writer, body):
        writer.write(data)
        await writer.drain()
        writer.close()

    return answer


async def reset(writer, body):
    writer.write(HEAD + chunk(EVENT))
    await writer.drain()
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def endless_head(writer, body):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not writer.is_closing():
        writer.write(b"x-again: and again\r\n" * 100)
        await writer.drain()


async def huge_chunk(writer, body):
    writer.write(HEAD + b"6400000\r\n")
    for _ in range(1600):
        if writer.is_closing():
            return
        writer.write(b"a" * 65536)
        await writer.drain()


async def silent(writer, body):
    await asyncio.sleep(30)


async def silent_after_its_head(writer, body):
    writer.write(HEAD)
    await asyncio.sleep(30)


async def dribbling(writer, body):
    writer.write(HEAD)
    while not writer.is_closing():
        writer.write(chunk(b": still here\n\n"))
        await asyncio.sleep(0.05)


def plain(status, headers=b"", body=b"{}"):
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


STREAM_TYPE = b"Content-Type: text/event-stream\r\n"
FAULTS = {
    "no_response": (then_close(b""), ""),
    "truncated": (then_close(HEAD + chunk(EVENT) + b"ff\r\nhalf"), ""),
    "reset": (reset, ""),
    "bad_http": (answer_with(b"220 smtp.example ESMTP\r\n"), ""),
    "head_too_long": (endless_head, ""),
    "body_too_long": (huge_chunk, "1,000,000"),
    "head_timeout": (silent, "0.3 s"),
    "read_timeout": (silent_inside, "0.3 s"),
    "total_timeout": (dribbling, "0.8 s"),
    "redirected": (
        answer_with(plain(b"307 Temporary Redirect", b"Location: /again\r\n")),
        "/again",
    ),
    "rate_limited": (answer_with(plain(b"429 Too Many Requests", b"Retry-After: 7\r\n")), ""),
    "overloaded": (answer_with(plain(b"503 Service Unavailable")), ""),
    "http_error": (
        answer_with(plain(b"500 Internal Server Error", body=b'{"error":"out of luck"}')),
        "",
    ),
    "compressed": (
        answer_with(
            plain(b"200 OK", STREAM_TYPE + b"Content-Encoding: gzip\r\n", gzip.compress(EVENT))
        ),
        "gzip",
    ),
    "wrong_content_type": (
        answer_with(plain(b"200 OK", b"Content-Type: text/html\r\n", b"<html>")),
        "text/html",
    ),
}


@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_has_its_code(code, server, tmp_path):
    server.answer, detail = FAULTS[code]
    loaded = load(server.url, a_plan(3, gap_ns=20_000_000), tmp_path, limits=QUICK, timeout_s=0.8)
    assert [frame.error for frame in loaded.requests] == [code] * 3
    assert code in EXCHANGE_ERRORS
    for frame in loaded.requests:
        assert detail in frame.detail
        assert len(frame.body) == int32s(frame.read_bytes).sum() <= frame.received_bytes
        assert frame.finished_ns >= frame.sent_ns
    assert loaded.outcome.n_failed == 3


@pytest.mark.parametrize(
    ("answer", "error", "limits", "timeout_s"),
    [
        (silent, "total_timeout", {}, 0.02),
        (dribbling, "total_timeout", {}, 0.13),
        (silent, "head_timeout", {"head_s": 0.02}, 1.0),
        (silent_after_its_head, "read_timeout", {"read_s": 0.02}, 1.0),
    ],
)
def test_a_timeout_ends_a_request_when_it_is_over(
    answer, error, limits, timeout_s, server, tmp_path
):
    """Before, limits were looked at every 100 ms: 1 ms let 70 ms pass."""
    server.answer = answer
    loaded = load(
        server.url,
        a_plan(9, gap_ns=7_000_000),
        tmp_path,
        limits=ClientLimits(**limits),
        timeout_s=timeout_s,
    )
    limit_ns = round(min([timeout_s, *limits.values()]) * 1e9)
    late_ns = []
    for frame in loaded.requests:
        begun_ns = frame.head_ns if error == "read_timeout" else frame.sent_ns
        late_ns.append(frame.finished_ns - begun_ns - limit_ns)
    assert {frame.error for frame in loaded.requests} == {error}
    assert min(late_ns) >= 0
    assert sorted(late_ns)[4] < 10_000_000, late_ns


def test_what_came_before_the_fault_is_kept(server, tmp_path):
    server.answer = silent_inside
    frame = load(server.url, a_plan(1), tmp_path, limits=QUICK).of(0)
    assert (frame.body, frame.http_status, frame.head_ns is not None) == (EVENT, 200, True)


def test_a_head_alone_is_no_answer(server, tmp_path):
    server.answer = silent_after_its_head
    frame = load(server.url, a_plan(1), tmp_path, limits=QUICK).of(0)
    assert (frame.error, frame.body, frame.head_ns is not None) == ("read_timeout", b"", True)


def test_the_servers_wish_to_wait_is_kept_and_not_obeyed(server, tmp_path):
    server.answer = FAULTS["rate_limited"][0]
    frame = load(server.url, a_plan(1), tmp_path).of(0)
    assert (frame.retry_after, frame.http_status) == ("7", 429)
    assert len(server.seen) == 1


def test_the_words_of_an_error_are_kept(server, tmp_path):
    server.answer = FAULTS["http_error"][0]
    assert load(server.url, a_plan(1), tmp_path).of(0).body == b'{"error":"out of luck"}'


def test_one_bad_answer_in_between_costs_one_request(server, tmp_path):
    async def every_third(writer, body):
        await (reset if len(server.seen) % 3 == 0 else stream)(writer, body)

    server.answer = every_third
    loaded = load(server.url, a_plan(30, gap_ns=5_000_000), tmp_path)
    assert sorted(frame.request_index for frame in loaded.requests) == list(range(30))
    assert sorted({frame.error for frame in loaded.requests}) == ["", "reset"]
    assert sum(frame.error == "" for frame in loaded.requests) == 20


def test_a_kept_connection_that_the_server_closed_is_no_failure(server, tmp_path):
    async def stream_then_hang_up(writer, body):
        await stream(writer, body)
        await writer.drain()
        writer.close()

    server.answer = stream_then_hang_up
    chain = {
        "arrival_ns": [0] + [-1] * 9,
        "follows": list(range(-1, 9)),
        "think_ns": [-1] + [0] * 9,
    }
    loaded = load(server.url, a_plan(10, **chain), tmp_path)
    assert [frame.error for frame in loaded.requests] == [""] * 10


def test_an_answer_without_length_ends_with_the_connection(server, tmp_path):
    server.answer = then_close(
        b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENT
    )
    frame = load(server.url, a_plan(1), tmp_path).of(0)
    assert (frame.error, frame.body) == ("", EVENT)


def test_what_comes_after_the_answer_is_not_the_next_answer(server, tmp_path):
    async def talks_on(writer, body):
        await stream(writer, body)
        writer.write(plain(b"200 OK", STREAM_TYPE, b"unasked"))

    server.answer = talks_on
    chain = {"arrival_ns": [0, -1], "follows": [-1, 0], "think_ns": [-1, 20_000_000]}
    loaded = load(server.url, a_plan(2, **chain), tmp_path)
    assert [frame.body.count(EVENT) for frame in loaded.requests] == [3, 3]
    assert not any(frame.is_reused for frame in loaded.requests)


def test_whose_user_goes_away_is_aborted_then(server, tmp_path):
    server.answer = silent_inside
    frame = load(server.url, a_plan(1, abort_after_ns=[200_000_000]), tmp_path).of(0)
    assert frame.error == "aborted"
    assert 200_000_000 <= frame.finished_ns < 500_000_000
    assert frame.body == EVENT


def test_what_is_not_done_when_the_drain_is_over_is_unfinished(server, tmp_path):
    server.answer = silent_inside
    started_s = time.monotonic()
    loaded = load(server.url, a_plan(5, gap_ns=100_000_000), tmp_path, for_s=0.25, drain_s=0.3)
    assert time.monotonic() - started_s < 10
    assert [frame.error for frame in loaded.requests] == ["drain_over"] * 3, "two come after for_s"
    assert not loaded.outcome.is_interrupted


def test_a_follower_is_sent_whatever_became_of_its_leader(server, tmp_path):
    server.answer = FAULTS["http_error"][0]
    chain = {"arrival_ns": [0, -1], "follows": [-1, 0], "think_ns": [-1, 0]}
    assert len(load(server.url, a_plan(2, **chain), tmp_path).requests) == 2


def test_nobody_there_is_said_before_anything_is_sent(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(MeasureError, match="no answer"):
        load(f"http://127.0.0.1:{port}", a_plan(1), tmp_path)
    with pytest.raises(MeasureError, match="cannot be resolved"):
        load("http://no-such-host.invalid:1", a_plan(1), tmp_path)


def test_a_server_that_goes_away_in_the_middle(tmp_path):
    tiny = TinyServer()
    tiny.start()

    async def stream_then_die(writer, body):
        await stream(writer, body)
        if len(tiny.seen) == 5:
            threading.Timer(0.05, tiny.stop).start()

    tiny.answer = stream_then_die
    loaded = load(tiny.url, a_plan(20, gap_ns=100_000_000), tmp_path)
    assert len(loaded.requests) == 20
    assert {"", "connect_refused"} <= {frame.error for frame in loaded.requests}


def test_an_answer_far_beyond_what_was_asked_is_given_up(server, tmp_path):
    async def endless(writer, _):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while True:
            writer.write(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' * 1000)
            await writer.drain()

    server.answer = endless
    frame = load(server.url, a_plan(1, output_tokens=[10], max_tokens=[10]), tmp_path).of(0)
    assert frame.error == "body_too_long"
    assert len(frame.body) <= 1024 * 1024 + 10 * 16 * 1024


def test_bodies_in_flight_have_a_common_cap(server, tmp_path):
    async def half_a_megabyte(writer, body):
        writer.write(HEAD + chunk(b"a" * 500_000))
        await asyncio.sleep(30)

    server.answer = half_a_megabyte
    loaded = load(
        server.url, a_plan(8), tmp_path, limits=ClientLimits(kept_bytes=2_000_000), timeout_s=1.0
    )
    assert sum(frame.error == "body_too_long" for frame in loaded.requests) == 4
    assert sum(frame.error == "total_timeout" for frame in loaded.requests) == 4


def test_ctrl_c_stops_sending_and_keeps_what_ended(server, tmp_path):
    def interrupt_once(progress):
        if progress.n_sent > 5 and not stopped:
            stopped.append(progress)
            signal.raise_signal(signal.SIGINT)

    stopped = []
    loaded = load(server.url, a_plan(500, gap_ns=20_000_000), tmp_path, on_progress=interrupt_once)
    assert loaded.outcome.is_interrupted
    assert 5 < len(loaded.requests) == loaded.outcome.n_sent < 500
    assert {frame.error for frame in loaded.requests} <= {"", "interrupted"}
    assert loaded.ends[0].is_interrupted
    assert loaded.ends[0].n_unsent == 500 - loaded.outcome.n_sent


def tls_server(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    tiny = TinyServer(ssl=context)
    tiny.start()
    return tiny


@pytest.mark.slow
def test_tls_is_verified_unless_it_was_said_not_to(certificate, tmp_path, monkeypatch):
    tiny = tls_server(certificate)
    refused = load(tiny.url, a_plan(1), tmp_path / "unknown")
    assert refused.of(0).error == "tls_failed"
    assert "certificate" in refused.of(0).detail.lower()
    assert load(tiny.url, a_plan(1), tmp_path / "insecure", verifies_tls=False).of(0).error == ""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "certificate.pem"))
    trusted = load(tiny.url, a_plan(2, gap_ns=200_000_000), tmp_path / "trusted")
    assert [frame.error for frame in trusted.requests] == ["", ""]
    assert trusted.of(1).is_reused
    tiny.stop()


class Plain(TinyServer):
    """Answers a TLS handshake as servers of plain HTTP do."""

    async def _serve(self, reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()


def test_plain_http_on_the_port_of_an_https_url_is_no_matter_of_certificates(tmp_path):
    plain = Plain()
    plain.start()
    refused = load(plain.url.replace("http://", "https://"), a_plan(1), tmp_path).of(0)
    plain.stop()
    assert refused.error == "not_tls"
    assert "http://" in EXCHANGE_ERRORS["not_tls"].remedy


async def _pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class Proxy(TinyServer):
    """Passes on to a server: by CONNECT where it is asked so, else as it answers itself."""

    refuses = False
    held_s = {}
    """How long it holds back its n-th tunnel."""

    async def _serve(self, reader, writer):
        self.n_connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:  # only asked whether somebody is there
            writer.close()
            return
        self.heads = [*getattr(self, "heads", []), head]
        if self.refuses or not head.startswith("CONNECT "):
            writer.write(
                b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
                if self.refuses
                else HEAD + END
            )
            await writer.drain()
            writer.close()
            return
        host, port = head.split(" ")[1].split(":")
        try:
            await asyncio.sleep(self.held_s.get(len(self.heads) - 1, 0))
        except asyncio.CancelledError:  # the test is over
            writer.close()
            raise
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))


def test_tls_goes_through_a_proxys_tunnel(certificate, tmp_path):
    from inferometer.measure.load.target import Secrets

    tiny, proxy = tls_server(certificate), Proxy()
    proxy.start()
    secrets = Secrets(
        headers=(("Authorization", "Bearer secret"),), proxy_authorization="Basic abc"
    )
    loaded = load(
        tiny.url, a_plan(2), tmp_path / "a", proxy=proxy.url, verifies_tls=False, secrets=secrets
    )
    assert [frame.error for frame in loaded.requests] == ["", ""]
    assert proxy.heads[0].startswith(f"CONNECT 127.0.0.1:{tiny.port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic abc" in proxy.heads[0]
    assert "secret" not in proxy.heads[0]
    assert "Authorization: Bearer secret" in tiny.seen[0].head
    proxy.refuses = True
    refused = load(tiny.url, a_plan(1), tmp_path / "b", proxy=proxy.url, verifies_tls=False).of(0)
    assert (refused.error, "407" in refused.detail) == ("proxy_refused", True)
    proxy.stop()
    tiny.stop()


def test_a_connection_that_is_free_first_is_used(certificate, tmp_path):
    """Further tunnels take 0.6 s; the first request's connection is free long before."""

    async def in_100_ms(writer, body):
        await asyncio.sleep(0.1)
        await stream(writer, body)

    tiny, proxy = tls_server(certificate), Proxy()
    tiny.answer, proxy.held_s = in_100_ms, dict.fromkeys((1, 2, 3), 0.6)
    proxy.start()
    plan = a_plan(4, gap_ns=40_000_000)
    loaded = load(tiny.url, plan, tmp_path, proxy=proxy.url, verifies_tls=False)
    sent = [loaded.of(row) for row in range(4)]
    assert [frame.error for frame in sent] == [""] * 4
    assert all(frame.sent_ns - frame.intended_ns < 500e6 for frame in sent)
    assert [frame.sent_ns for frame in sent] == sorted(frame.sent_ns for frame in sent)
    assert {frame.connection_index for frame in sent} == {0}
    proxy.stop()
    tiny.stop()


def test_plain_http_is_asked_of_a_proxy_by_its_whole_url(server, tmp_path):
    proxy = Proxy()
    proxy.start()
    loaded = load("http://example.invalid:8000/prefix", a_plan(1), tmp_path, proxy=proxy.url)
    assert loaded.of(0).error == ""
    assert proxy.heads[0].startswith(
        "POST http://example.invalid:8000/prefix/v1/completions HTTP/1.1\r\nHost:"
        " example.invalid:8000\r\n"
    )
    proxy.stop()
