"""Is each fault seen on the wire, by a client that looks at every byte, and is the server well after it?"""

import asyncio
import gzip
import json
import time
from contextlib import suppress

import pytest
from emulated import MODEL, Client, emulator, talking

from inferometer.errors import SpecError
from inferometer.serve.emission_log import read_emission_log
from inferometer.serve.emulator_plan import FaultRule, draw_faults, parse_faults

WHOLE = {"max_tokens": 8}
STREAM = {**WHOLE, "stream": True, "stream_options": {"include_usage": True}}


def ask(fault, tmp_path=None, **body):
    """One request to a server with this fault; what came, and how long that took."""

    async def main():
        log = None if tmp_path is None else tmp_path / "log"
        async with talking(faults=parse_faults(fault), emission_log=log) as client:
            started_s = time.perf_counter()
            reply = await client.complete(
                **((STREAM if body.get("stream", True) else WHOLE) | body)
            )
            return reply, time.perf_counter() - started_s

    return asyncio.run(main())


async def page_when_idle(port):
    """The metrics once nobody is served any more; a client that has gone is dropped at the end of a step."""
    running = f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}}'
    for _ in range(200):
        client = await Client.connect(port)
        page = (await client.ask("GET", "/metrics")).body.decode()
        await client.close()
        if f"{running} 0.0" in page:
            return page
    raise AssertionError("requests stay")


def test_too_many_requests(tmp_path):
    reply, _ = ask("http-429(retry_after=1500ms)", tmp_path)
    assert reply.status == 429
    assert reply.headers["retry-after"] == "2"
    assert reply.json["error"]["type"] == "RateLimitError"
    (request,) = read_emission_log(tmp_path / "log").requests
    assert (request.fault, request.client_id, request.end) == ("http-429", "mine", "refused")


@pytest.mark.parametrize("status", [500, 503])
def test_server_errors(status):
    reply, _ = ask(f"http-{status}")
    assert reply.status == reply.json["error"]["code"] == status


def test_redirects_that_lead_back():
    reply, _ = ask("redirect-loop")
    assert reply.status == 307
    assert reply.headers["location"] == "/v1/completions"


def test_a_bomb():
    reply, _ = ask("gzip-bomb(bytes=5MB)")
    assert reply.headers["content-encoding"] == "gzip"
    assert len(reply.body) < 10_000
    assert len(gzip.decompress(reply.body)) == 5_000_000


def test_silence_and_headers_without_end():
    async def main(fault, n_bytes):
        async with emulator(faults=parse_faults(fault)) as port:
            client = await Client.connect(port)
            client.send("POST", "/v1/completions", {"prompt": "x"})
            try:
                return await asyncio.wait_for(client.reader.readexactly(n_bytes), 0.5)
            except TimeoutError:
                return b""
            except asyncio.IncompleteReadError as ended:
                return ended.partial
            finally:
                await client.close()

    assert asyncio.run(main("never-answers", 1)) == b""
    endless = asyncio.run(main("endless-headers", 10_000))
    assert endless.count(b"x-more: ") == 10
    assert b"\r\n\r\n" not in endless
    assert asyncio.run(main("endless-headers(bytes=3kB)", 10_000)).count(b"x-more: ") == 3


@pytest.mark.parametrize("stream", [True, False])
def test_slow_headers(stream):
    reply, took_s = ask("slow-headers(for=300ms)", stream=stream)
    assert reply.status == 200
    assert took_s > 0.3
    assert reply.is_whole
    if stream:
        assert reply.events[-1] == "[DONE]"
        assert len(reply.chunks) == 9


def test_a_stall_keeps_tokens_back_and_then_tells_them(tmp_path):
    reply, took_s = ask("stall(after=3, for=300ms)", tmp_path)
    assert took_s > 0.3
    assert len(reply.chunks) == 9
    log = read_emission_log(tmp_path / "log")
    late_ns = log.lateness_ns()
    assert len(late_ns) == 8
    assert late_ns[2] < 200_000_000 < late_ns[3]


class Listener(asyncio.Protocol):
    """Keeps what came before a reset, which a stream reader does not."""

    def __init__(self):
        self.said, self.end = b"", asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.said += data

    def connection_lost(self, exc):
        self.end.set_result(exc)


def test_a_reset():
    async def main():
        async with emulator(faults=parse_faults("reset(after=2)")) as port:
            transport, listener = await asyncio.get_running_loop().create_connection(
                Listener, "127.0.0.1", port
            )
            body = json.dumps({"prompt": "x", **STREAM}).encode()
            transport.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type:"
                b" application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            end = await asyncio.wait_for(listener.end, 10)
            await page_when_idle(port)
            return listener.said, end

    said, end = asyncio.run(main())
    assert isinstance(end, ConnectionResetError)
    assert said.count(b"data: ") == 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_truncated_answer(stream):
    reply, _ = ask("truncated-sse(after=2)", stream=stream)
    assert b"[DONE]" not in reply.body
    if stream:
        assert not reply.is_whole
        assert reply.body.count(b"data: ") == 3
    with pytest.raises(ValueError, match=r"."):
        _ = reply.chunks if stream else reply.json


def test_malformed_json_in_one_event_and_in_a_whole_answer():
    reply, _ = ask("malformed-json(after=2)")
    assert reply.is_whole
    bad = [event for event in reply.events if '"choices":[[,' in event]
    assert len(bad) == 1
    assert reply.events.index(bad[0]) == 2
    whole, _ = ask("malformed-json", stream=False)
    with pytest.raises(ValueError, match=r"."):
        _ = whole.json


def test_bytes_that_are_no_text():
    reply, _ = ask("invalid-utf8")
    assert b"\xff\xfe" in reply.body
    with pytest.raises(UnicodeDecodeError):
        reply.body.decode()


def test_a_huge_chunk():
    reply, _ = ask("huge-chunk(bytes=3MB)")
    assert max(len(chunk["choices"][0]["text"]) for chunk in reply.chunks[:-1]) == 3_000_001


def test_wrong_and_missing_counts():
    assert ask("wrong-usage(count=5)")[0].chunks[-1]["usage"]["completion_tokens"] == 13
    assert ask("wrong-usage", stream=False)[0].json["usage"]["completion_tokens"] == 9
    assert "usage" not in ask("no-usage")[0].chunks[-1]
    assert "usage" not in ask("no-usage", stream=False)[0].json


def test_an_end_without_done():
    reply, _ = ask("missing-done")
    assert reply.is_whole
    assert "[DONE]" not in reply.events


def test_an_error_in_the_stream():
    reply, _ = ask("error-event(after=2)")
    assert reply.is_whole
    assert [("error" in chunk) for chunk in reply.chunks] == [False, False, True]
    assert reply.events[-1] == "[DONE]"


def test_comments_and_split_writes_change_nothing_of_what_is_said():
    plain = [chunk["choices"] for chunk in ask("missing-done:0")[0].chunks]
    comments, _ = ask("comments(after=0)")
    assert comments.body.count(b": keep-alive\n\n") == 8
    assert [chunk["choices"] for chunk in comments.chunks] == plain
    assert [chunk["choices"] for chunk in ask("split-writes(after=0)")[0].chunks] == plain


def test_several_tokens_in_a_chunk(tmp_path):
    reply, _ = ask("tokens-per-chunk=3", tmp_path)
    counts = [len(chunk["choices"][0]["text"].split()) for chunk in reply.chunks[:-1]]
    assert counts == [3, 3, 2]
    assert reply.chunks[-1]["usage"]["completion_tokens"] == 8
    log = read_emission_log(tmp_path / "log")
    assert len(log.token_instants_ns(0)) == 8


def test_a_share_may_be_in_percent():
    assert parse_faults("http-429:5%") == parse_faults("http-429:0.05")
    for text, try_ in (("http-42:5%", "--fault http-429"), ("stall:15", "--fault stall:0.05")):
        with pytest.raises(SpecError) as caught:
            parse_faults(text)
        assert caught.value.try_ == try_


def test_the_server_goes_on_after_each_kind():
    rules = parse_faults(
        "reset:0.3(after=1), truncated-sse:0.3, error-event:0.3, http-500:0.3, malformed-json:0.3"
    )

    async def main():
        async with emulator(faults=rules, seed=1) as port:
            for _ in range(40):
                client = await Client.connect(port)
                client.send("POST", "/v1/completions", {"prompt": "x", **STREAM})
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    await asyncio.wait_for(client.receive(), 10)
                await client.close()
            return await page_when_idle(port)

    page = asyncio.run(main())
    labels = f'{{engine="0",model_name="{MODEL}"}} 0.0'
    assert f"vllm:num_requests_waiting{labels}" in page
    assert f"vllm:kv_cache_usage_perc{labels}" in page
    ends = [line for line in page.splitlines() if line.startswith("vllm:request_success_total")]
    struck = [draw_faults(rules, 1, number).strike for number in range(40)]
    n_refused = sum(rule is not None and rule.kind == "http-500" for rule in struck)
    assert sum(float(line.rpartition(" ")[2]) for line in ends) == 40 - n_refused


def test_faults_are_drawn_alike_under_one_seed_and_as_often_as_asked():
    rules = parse_faults("reset:0.1, http-500:0.5, tokens-per-chunk:0.2(count=4)")
    drawn = [draw_faults(rules, 7, number) for number in range(4000)]
    assert drawn == [draw_faults(rules, 7, number) for number in range(4000)]
    kinds = [fault.strike.kind if fault.strike else None for fault in drawn]
    assert kinds.count("reset") == pytest.approx(400, abs=80)
    assert kinds.count("http-500") == pytest.approx(0.9 * 0.5 * 4000, abs=130)
    assert sum(fault.tokens_per_chunk == 4 for fault in drawn) == pytest.approx(800, abs=110)
    assert draw_faults((), 7, 0).strike is None


def test_rules_are_read_with_their_options():
    (rule,) = parse_faults(" stall:0.01(for=3s, after=5) ")
    assert rule == FaultRule(
        kind="stall", share_fraction=0.01, hold_ns=3_000_000_000, after_tokens=5
    )
    assert parse_faults("tokens-per-chunk=4")[0].count == 4
    assert parse_faults("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "resets",
        "reset:2",
        "reset:x",
        "stall(for=3)",
        "stall(when=3s)",
        "reset(after=x)",
        "tokens-per-chunk=0",
    ],
)
def test_rules_that_cannot_be_are_refused(text):
    with pytest.raises(SpecError, match=r"--fault"):
        parse_faults(text)
