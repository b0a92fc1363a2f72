"""Does the emulated server speak as vLLM does, on a real socket?"""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from emulated import MODEL, PLAN, Client, emulator, talking
from word_tokenizer import write_word_tokenizer

from inferometer.errors import SpecError
from inferometer.serve.emission_log import read_emission_log


def test_a_completion_in_one_piece():
    async def main():
        async with talking() as client:
            return await client.complete(max_tokens=5)

    reply = asyncio.run(main())
    assert reply.status == 200
    said = reply.json
    assert said["object"] == "text_completion"
    assert len(said["choices"][0]["text"].split()) == 5
    assert said["choices"][0]["finish_reason"] == "length"
    assert said["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 8,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


FRONT_END_S = 0.3
BEHIND = replace(PLAN.fleet, front_end_s=FRONT_END_S)


def test_the_first_token_waits_for_the_front_end_as_it_does_in_a_simulation():
    async def main():
        async with talking(fleet=BEHIND) as client:
            begun_s = time.perf_counter()
            reply = await client.complete(max_tokens=5)
            return reply, time.perf_counter() - begun_s

    reply, took_s = asyncio.run(main())
    assert reply.json["usage"]["completion_tokens"] == 5
    assert FRONT_END_S < took_s < 2 * FRONT_END_S


def test_who_leaves_within_the_front_end_takes_nobodys_place():
    async def main():
        async with emulator(fleet=BEHIND) as port:
            leaver, stayer = await Client.connect(port), await Client.connect(port)
            body = {"model": MODEL, "prompt": "a b", "max_tokens": 400}
            leaver.send("POST", "/v1/completions", body)
            await asyncio.sleep(FRONT_END_S / 3)
            during = await stayer.ask("GET", "/metrics")
            await leaver.close()
            reply = await stayer.complete(max_tokens=5)
            after = await stayer.ask("GET", "/metrics")
            await stayer.close()
            return during.body.decode(), reply, after.body.decode()

    during, reply, after = asyncio.run(main())
    assert reply.json["usage"]["completion_tokens"] == 5
    for page in (during, after):
        for state in ("running", "waiting"):
            assert f'vllm:num_requests_{state}{{engine="0",model_name="{MODEL}"}} 0.0' in page
    assert 'finished_reason="abort",model_name="test-model"} 1.0' in after


def test_a_streamed_completion():
    async def main():
        async with talking() as client:
            return await client.complete(
                [5, 6, 7, 8], max_tokens=4, stream=True, stream_options={"include_usage": True}
            )

    reply = asyncio.run(main())
    assert reply.is_whole
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.events[-1] == "[DONE]"
    *tokens, usage = reply.chunks
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [
        None,
        None,
        None,
        "length",
    ]
    assert all(len(chunk["choices"][0]["text"].split()) == 1 for chunk in tokens)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 4
    assert usage["usage"]["completion_tokens"] == 4
    assert "usage" not in tokens[0]
    assert tokens[0]["id"] == "cmpl-mine"


def test_a_streamed_chat_with_continuous_counts():
    async def main():
        async with talking() as client:
            options = {"include_usage": True, "continuous_usage_stats": True}
            return await client.chat(
                "one two", max_completion_tokens=3, stream=True, stream_options=options
            )

    role, *tokens, usage = asyncio.run(main()).chunks
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["object"] == "chat.completion.chunk"
    assert [chunk["usage"]["completion_tokens"] for chunk in (role, *tokens, usage)] == [
        0,
        1,
        2,
        3,
        3,
    ]
    assert usage["choices"] == []


def test_parts_of_messages_count_where_they_are_text():
    async def main():
        async with talking() as client:
            parts = [
                {"type": "text", "text": "one two"},
                {"type": "image_url", "image_url": {"url": "x"}},
            ]
            return await client.ask(
                "POST",
                "/v1/chat/completions",
                {
                    "messages": [{"role": "user", "content": parts}],
                    "max_tokens": 2,
                    "ignore_eos": True,
                },
            )

    assert asyncio.run(main()).json["usage"]["prompt_tokens"] == 2


def test_a_chat_without_a_word_is_a_token():
    async def main():
        async with talking() as client:
            return await client.chat("", max_tokens=2)

    assert asyncio.run(main()).json["usage"]["prompt_tokens"] == 1


def test_an_answer_ends_by_itself_or_at_a_stop_text():
    async def main():
        async with talking(mean_output_tokens=4.0, seed=3) as client:
            drawn = [await client.complete(max_tokens=400) for _ in range(30)]
            least = await client.complete(max_tokens=400, min_tokens=300)
            kept = await client.complete(max_tokens=40, ignore_eos=True)
        async with talking() as client:
            words = (await client.complete(max_tokens=9)).json["choices"][0]["text"].split()
        async with talking() as client:
            stopped = await client.complete(max_tokens=9, stop=[words[4]])
        async with talking() as client:
            streamed = await client.complete(max_tokens=9, stop=words[4][1:] + " ", stream=True)
        return drawn, least, kept, words, stopped, streamed

    drawn, least, kept, words, stopped, streamed = asyncio.run(main())
    lengths = [reply.json["usage"]["completion_tokens"] for reply in drawn]
    assert {reply.json["choices"][0]["finish_reason"] for reply in drawn} == {"stop"}
    assert 2 < np.mean(lengths) < 8
    assert least.json["usage"]["completion_tokens"] >= 300
    assert kept.json["usage"]["completion_tokens"] == 40
    assert stopped.json["choices"][0]["text"].split() == words[:4]
    assert stopped.json["choices"][0]["finish_reason"] == "stop"
    assert stopped.json["choices"][0]["stop_reason"] == words[4]
    assert len(streamed.chunks) == 6, "the space that ends the stop text leads the sixth word"
    said = "".join(chunk["choices"][0]["text"] for chunk in streamed.chunks)
    assert said == " " + " ".join(words[:4]) + " " + words[4][0]


def test_the_same_seed_says_the_same():
    async def main(seed):
        async with talking(mean_output_tokens=20.0, seed=seed) as client:
            return [
                (await client.complete(max_tokens=50)).json["choices"][0]["text"] for _ in range(5)
            ]

    assert asyncio.run(main(1)) == asyncio.run(main(1))
    assert asyncio.run(main(1)) != asyncio.run(main(2))


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"model": "other", "prompt": "x"}, 404, "The model `other` does not exist."),
        ({"prompt": "word " * 512}, 400, "maximum context length is 512"),
        ({"prompt": ""}, 400, "empty"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": ["x", 7]}, 400, "prompt"),
        ({"prompt": "x", "n": 0}, 400, "n must be at least 1"),
        ({"prompt": "x", "temperature": 2.5}, 400, "temperature must be in [0, 2]"),
        ({"prompt": "x", "top_p": 0}, 400, "top_p must be in (0, 1]"),
        ({"prompt": "x", "temperature": 0, "n": 2}, 400, "n must be 1 when using greedy"),
        ({"prompt": ["x"] * 600, "n": 2}, 400, "1024 answers"),
        ({"prompt": "x", "min_tokens": 9, "max_tokens": 8}, 400, "min_tokens"),
        ({"prompt": "x", "logprobs": -1}, 400, "max allowed: 20"),
        ({"prompt": "x", "logprobs": -2}, 400, "`logprobs` must be a positive value or -1"),
        ({"prompt": "x", "logprobs": 21}, 400, "max allowed: 20"),
        ({"prompt": "x", "max_tokens": 513}, 400, "max_tokens=513 cannot be greater than"),
        ({"prompt": "x", "min_tokens": -1}, 400, "min_tokens must be greater"),
        ({"prompt": "x", "stop": ["y", ""]}, 400, "stop cannot contain an empty string"),
        ({"prompt": "x", "top_k": -5}, 400, "top_k must be 0 (disable), or at least 1, got -5."),
        ({"prompt": "x", "repetition_penalty": 0}, 400, "repetition_penalty must be greater"),
        ({"prompt": [5, -1]}, 400, "a token id in prompt is negative"),
        ({"prompt": "x", "max_tokens": 3.5}, 400, "max_tokens"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream=True"),
        ({"prompt": 7}, 400, "prompt"),
        (b"{", 400, ""),
    ],
)
def test_what_cannot_be_served_is_refused_in_openais_shape(body, status, word):
    async def main():
        async with talking() as client:
            refused = await client.ask("POST", "/v1/completions", body)
            return refused, await client.complete(max_tokens=1)

    refused, after = asyncio.run(main())
    assert refused.status == status
    error = refused.json["error"]
    assert error["code"] == status
    assert word in error["message"]
    assert error["type"]
    assert after.status == 200


def test_a_refused_limit_has_the_name_that_the_client_gave_it():
    async def main():
        async with talking() as client:
            names = ("max_tokens", "max_completion_tokens")
            return [await client.chat("x", **{name: 513}) for name in names]

    old, new = (reply.json["error"] for reply in asyncio.run(main()))
    assert (old["param"], new["param"]) == ("max_tokens", "max_completion_tokens")
    assert new["message"].startswith("max_completion_tokens=513 cannot be greater than")


def test_a_whole_url_as_a_proxys_client_sends_it():
    said = raw(
        b"GET http://localhost/v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert said.startswith(b"HTTP/1.1 200 ")


def test_numbers_in_other_writings_are_the_numbers():
    """VLLM's pydantic takes them; clients in other languages send them."""

    async def main():
        async with talking() as client:
            return [await client.complete(max_tokens=value) for value in (3.0, "3")]

    assert [reply.json["usage"]["completion_tokens"] for reply in asyncio.run(main())] == [3, 3]


def test_several_prompts_with_several_answers_each():
    async def main(**body):
        async with talking(mean_output_tokens=6.0) as client:
            prompts = ["one two three", [4, 5]]
            reply = await client.complete(prompts, n=2, max_tokens=20, **body)
            return reply, (await client.ask("GET", "/metrics")).body.decode()

    whole, page = asyncio.run(main())
    texts = [choice["text"] for choice in whole.json["choices"]]
    assert [choice["index"] for choice in whole.json["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4, "each answer is drawn for itself"
    n_said = sum(len(text.split()) for text in texts)
    assert whole.json["usage"]["prompt_tokens"] == 5, "a prompt counts once"
    assert whole.json["usage"]["completion_tokens"] == n_said
    assert f'generation_tokens_total{{engine="0",model_name="{MODEL}"}} {n_said}.0' in page
    streamed, _ = asyncio.run(main(stream=True, stream_options={"include_usage": True}))
    *events, usage = streamed.chunks
    assert streamed.events[-1] == "[DONE]"
    assert usage["usage"]["completion_tokens"] == n_said
    for index, text in enumerate(texts):
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in mine) == text
        assert [one["finish_reason"] is not None for one in mine] == [False] * (len(mine) - 1) + [
            True
        ]


def test_a_chat_with_two_answers_has_two_roles():
    async def main():
        async with talking() as client:
            return (await client.chat("one", n=2, max_tokens=2, stream=True)).chunks

    roles = [
        chunk["choices"][0]["index"]
        for chunk in asyncio.run(main())
        if "role" in chunk["choices"][0]["delta"]
    ]
    assert roles == [0, 1]


@pytest.mark.parametrize("prompt", ["one two  three", [7, 8, 9]])
def test_the_prompt_is_repeated_and_weighed_where_that_is_asked(prompt):
    async def main():
        async with talking() as client:
            asked = {"echo": True, "logprobs": 2}
            return [
                await client.complete(prompt, **asked, max_tokens=n, stream=n == 3)
                for n in (0, 2, 3)
            ]

    silent, whole, streamed = asyncio.run(main())
    (only,) = silent.json["choices"]
    assert len(only["text"].split()) == 3
    assert silent.json["usage"]["completion_tokens"] == 1, "vLLM draws one that it does not say"
    (choice,) = whole.json["choices"]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert choice["text"].startswith(only["text"])
    assert [choice["text"][at:] for at in told["text_offset"]] == [
        "".join(told["tokens"][i:]) for i in range(5)
    ]
    assert told["token_logprobs"][0] is None
    assert np.exp(told["token_logprobs"][1:]) == pytest.approx(1 / 256)
    assert all(
        next(iter(top)) == token and len(top) == 2
        for token, top in zip(told["tokens"][1:], told["top_logprobs"][1:], strict=True)
    )
    pieces = [chunk["choices"][0]["logprobs"] for chunk in streamed.chunks]
    text = "".join(chunk["choices"][0]["text"] for chunk in streamed.chunks)
    assert [
        text[at:].startswith(token)
        for piece in pieces
        for at, token in zip(piece["text_offset"], piece["tokens"], strict=True)
    ] == [True] * 6


def test_likelihoods_of_a_chat():
    async def main():
        async with talking() as client:
            plain = await client.chat("one", max_tokens=2, logprobs=True)
            return plain, await client.chat(
                "one", max_tokens=2, logprobs=True, top_logprobs=3, stream=True
            )

    plain, streamed = asyncio.run(main())
    (choice,) = plain.json["choices"]
    assert (
        "".join(one["token"] for one in choice["logprobs"]["content"])
        == choice["message"]["content"]
    )
    assert all(
        bytes(one["bytes"]).decode() == one["token"] and one["top_logprobs"] == []
        for one in choice["logprobs"]["content"]
    )
    told = [chunk["choices"][0]["logprobs"]["content"][0] for chunk in streamed.chunks[1:]]
    assert [len(one["top_logprobs"]) for one in told] == [3, 3]


@pytest.mark.parametrize("includes_stop", [False, True])
def test_an_answer_stops_at_the_id_of_a_token(includes_stop):
    """``stop_token_ids`` was ignored; the stop token counts, and is sent where that is asked."""

    async def main():
        async with talking() as client:
            words = (await client.complete(max_tokens=9)).json["choices"][0]["text"].split()
            page = await client.ask("POST", "/tokenize", {"prompt": " ".join(words)})
        ids = page.json["tokens"]
        body = {"stop_token_ids": [ids[6], ids[4]], "include_stop_str_in_output": includes_stop}
        async with talking() as client:
            stopped = await client.complete(max_tokens=9, **body)
        async with talking() as client:
            late = await client.complete(max_tokens=9, min_tokens=6, **body)
        return words, ids, stopped.json, late.json

    words, ids, stopped, late = asyncio.run(main())
    (choice,) = stopped["choices"]
    assert choice["text"].split() == words[: 4 + includes_stop]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[4])
    assert stopped["usage"]["completion_tokens"] == 5
    assert late["choices"][0]["stop_reason"] == ids[6]


def test_cached_tokens_are_sent_where_the_server_is_started_so():
    """vLLM sends ``prompt_tokens_details`` with --enable-prompt-tokens-details alone."""

    async def main():
        async with talking(enable_prompt_tokens_details=False) as client:
            whole = await client.complete(max_tokens=2)
            options = {"include_usage": True}
            return whole, await client.complete(max_tokens=2, stream=True, stream_options=options)

    whole, streamed = asyncio.run(main())
    assert whole.json["usage"]["prompt_tokens_details"] is None
    assert "prompt_tokens_details" not in streamed.chunks[-1]["usage"]


def test_a_stop_text_is_kept_where_that_is_asked():
    async def main():
        async with talking() as client:
            words = (await client.complete(max_tokens=9)).json["choices"][0]["text"].split()
        async with talking() as client:
            return words, await client.complete(
                max_tokens=9, stop=words[4], include_stop_str_in_output=True
            )

    words, stopped = asyncio.run(main())
    assert stopped.json["choices"][0]["text"].split() == words[:5]


def test_pages():
    async def main():
        async with talking() as client:
            asked = [
                ("GET", "/health"),
                ("GET", "/v1/models"),
                ("GET", "/version"),
                ("GET", "/nowhere"),
                ("GET", "/v1/completions"),
            ]
            pages = [await client.ask(*page) for page in asked]
            pages.append(
                await client.ask(
                    "POST", "/tokenize", {"prompt": "one two one", "return_token_strs": True}
                )
            )
            pages.append(await client.ask("POST", "/detokenize", {"tokens": [1, 2, 1]}))
            return pages

    health, models, version, nowhere, wrong, tokens, text = asyncio.run(main())
    assert health.status == 200
    assert models.json["data"][0]["id"] == MODEL
    assert models.json["data"][0]["max_model_len"] == 512
    assert "emulating vLLM" in version.json["version"]
    assert (nowhere.status, wrong.status) == (404, 405)
    assert tokens.json["count"] == 3
    assert tokens.json["token_strs"] == ["one", "two", "one"]
    assert tokens.json["tokens"][0] == tokens.json["tokens"][2]
    assert len(text.json["prompt"].split()) == 3


def test_prefixes_are_found_again_also_across_turns():
    async def main():
        async with talking() as client:
            question = " ".join(f"w{i}" for i in range(64))
            first = await client.chat(question, max_tokens=32)
            answer = first.json["choices"][0]["message"]["content"]
            second = await client.chat(question, answer, "and then", max_tokens=4)
            other = await client.chat("x " + question, max_tokens=4)
            return first, second, other, (await client.ask("GET", "/metrics")).body.decode()

    first, second, other, page = asyncio.run(main())
    cached = [
        reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        for reply in (first, second, other)
    ]
    assert cached == [
        0,
        80,
        0,
    ]  # the last token of an answer is never computed, so its block is not whole
    assert f'vllm:prefix_cache_hits_total{{engine="0",model_name="{MODEL}"}} 80.0' in page


def test_requests_in_one_packet_are_answered_in_order():
    async def main():
        async with talking() as client:
            for n_tokens in (5, 1, 3):
                client.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": n_tokens})
            replies = [await asyncio.wait_for(client.receive(), 20) for _ in range(3)]
            client.send("GET", "/health", connection="close")
            await client.receive()
            return replies, await client.reader.read()

    replies, rest = asyncio.run(main())
    assert [reply.json["usage"]["completion_tokens"] for reply in replies] == [5, 1, 3]
    assert rest == b""


def test_a_client_that_leaves_frees_its_seat(tmp_path):
    async def main():
        async with emulator(emission_log=tmp_path / "log") as port:
            leaver, stayer = await Client.connect(port), await Client.connect(port)
            leaver.send(
                "POST", "/v1/completions", {"prompt": "x", "max_tokens": 400, "stream": True}
            )
            await leaver.reader.readuntil(b"data: ")
            during = await stayer.ask("GET", "/metrics")
            await leaver.close()
            await stayer.complete(max_tokens=3)
            after = await stayer.ask("GET", "/metrics")
            await stayer.close()
            return during.body.decode(), after.body.decode()

    during, after = asyncio.run(main())
    running = f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}}'
    assert f"{running} 1.0" in during
    assert f"{running} 0.0" in after
    assert 'finished_reason="abort",model_name="test-model"} 1.0' in after
    log = read_emission_log(tmp_path / "log")
    assert {request.end for request in log.requests} == {"abort", "length"}


def test_the_log_says_when_each_token_was_written(tmp_path):
    async def main():
        async with talking(emission_log=tmp_path / "log") as client:
            before_ns = time.perf_counter_ns()
            reply = await client.complete(max_tokens=20, stream=True)
            return reply, before_ns, time.perf_counter_ns()

    reply, before_ns, after_ns = asyncio.run(main())
    log = read_emission_log(tmp_path / "log")
    (request,) = log.requests
    assert (request.client_id, request.end, request.prompt_tokens, request.output_tokens) == (
        "mine",
        "length",
        3,
        20,
    )
    instants_ns = log.token_instants_ns(request.number)
    assert len(instants_ns) == len(reply.chunks) == 20
    assert before_ns < request.accepted_ns < instants_ns[0]
    assert np.all(np.diff(instants_ns) > 0)
    assert instants_ns[-1] < after_ns
    due_ns = log.due_ns[log.n_tokens > 0]
    assert np.diff(due_ns).tolist() == [1_000_000] * 19, "lateness must not add up"
    assert np.all(log.lateness_ns() > 0)


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path):
    async def main():
        async with talking(emission_log=tmp_path / "log") as client:
            await client.complete(max_tokens=5, stream=True)

    asyncio.run(main())
    content = (tmp_path / "log").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-5])
    assert len(read_emission_log(tmp_path / "cut").written_ns) == 6
    assert read_emission_log(tmp_path / "cut").requests == ()


def raw(*requests, n_bytes=None, **changes):
    """What comes back for these bytes until the server hangs up."""

    async def main():
        async with emulator(**changes) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for request in requests:
                writer.write(request)
            said = await asyncio.wait_for(
                reader.read() if n_bytes is None else reader.readexactly(n_bytes), 10
            )
            writer.close()
            return said

    return asyncio.run(main())


POST = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def test_http_1_0_gets_a_stream_without_chunks_and_an_end():
    body = b'{"prompt": "x", "max_tokens": 2, "stream": true}'
    said = raw(
        b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length:"
        b" %d\r\n\r\n%b" % (len(body), body)
    )
    head, _, stream = said.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert b"connection: close" in head
    assert stream.startswith(b"data: {")
    assert stream.endswith(b"data: [DONE]\n\n")


def test_a_client_that_waits_for_a_word_before_it_sends_gets_it():
    said = raw(
        POST % b"/tokenize" + b"expect: 100-continue\r\ncontent-length: 15\r\n\r\n", n_bytes=25
    )
    assert said == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"host: attacker.example", 421),
        (b"host: 127.0.0.1.attacker.example:80", 421),
        (b"host: localhost:8000", 404),
        (b"host: [::1]:8000", 404),
        (b"host: localhost\r\ncontent-type: text/plain", 400),
        (b"x: y", 400),
    ],
)
def test_other_hosts_and_types_are_refused(head, status):
    content_type = b"" if b"content-type" in head else b"\r\ncontent-type: application/json"
    body = b'{"model": "another", "prompt": "x"}'
    request = (
        b"POST /v1/completions HTTP/1.1\r\n%b%b\r\nconnection: close\r\ncontent-length:"
        b" %d\r\n\r\n%b"
    )
    said = raw(request % (head, content_type, len(body), body))
    assert said.startswith(b"HTTP/1.1 %d " % status), said[:300]


def test_what_is_no_http_is_sent_away():
    assert raw(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    too_large = POST % b"/tokenize" + b"content-length: 99999999\r\n\r\n"
    assert raw(too_large, b"x" * 67_200_000).startswith(b"HTTP/1.1 413 ")


def test_bodies_may_come_in_pieces_and_chunks():
    pieces = [b'{"prompt": "one ', b'two", "max_tokens": 1}']
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    said = raw(
        POST % b"/v1/completions" + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        chunks,
    )
    assert b'"prompt_tokens":2' in said


def test_time_passes_as_fast_as_asked(tmp_path):
    async def main(scale):
        async with talking(time_scale_ratio=scale, emission_log=tmp_path / "log") as client:
            await client.complete(max_tokens=6, stream=True)
        log = read_emission_log(tmp_path / "log")
        return np.diff(log.due_ns[log.n_tokens > 0]).tolist()

    assert asyncio.run(main(3.0)) == [3_000_000] * 5
    assert asyncio.run(main(0.5)) == [500_000] * 5


def test_it_stops_by_itself(tmp_path):
    async def main():
        started_s = time.perf_counter()
        async with emulator(for_s=0.2, emission_log=tmp_path / "log") as port:
            client = await Client.connect(port)
            client.send(
                "POST", "/v1/completions", {"prompt": "x", "max_tokens": 500, "stream": True}
            )
            rest = await asyncio.wait_for(client.reader.read(), 10)
            await client.close()
            return rest, time.perf_counter() - started_s

    rest, took_s = asyncio.run(main())
    assert b"data: " in rest
    assert b"[DONE]" not in rest
    assert took_s > 0.2
    log = read_emission_log(tmp_path / "log")
    (request,) = log.requests
    assert request.end == "unfinished"
    assert len(log.token_instants_ns(0)) == rest.count(b"data: ") <= request.output_tokens


def test_a_tokenizer_of_its_own(tmp_path):
    pytest.importorskip("tokenizers")
    folder = write_word_tokenizer(tmp_path / "tokenizer")

    async def main():
        async with talking(tokenizer=folder) as client:
            first = await client.complete("ban dar nowhere", max_tokens=20)
            tokens = await client.ask(
                "POST", "/tokenize", {"prompt": first.json["choices"][0]["text"]}
            )
            again = await client.complete([*tokens.json["tokens"]] * 2, max_tokens=1)
            back = await client.ask("POST", "/detokenize", {"tokens": tokens.json["tokens"][:3]})
            return first, tokens, again, back

    first, tokens, again, back = asyncio.run(main())
    assert first.json["usage"]["prompt_tokens"] == 3
    assert tokens.json["count"] == 20, "as many tokens as were counted"
    assert again.json["usage"]["prompt_tokens"] == 40
    assert back.json["prompt"].split() == first.json["choices"][0]["text"].split()[:3]


def test_a_plan_that_cannot_be_is_refused(tmp_path):
    for change in (
        {"time_scale_ratio": 0.0},
        {"mean_output_tokens": 0.5},
        {"port": 70_000},
    ):
        with pytest.raises(SpecError):
            replace(PLAN, **change)
    with pytest.raises(SpecError, match="tokenizer"):
        asyncio.run(refused(tokenizer=tmp_path / "none"))
    with pytest.raises(SpecError, match="cannot write"):
        asyncio.run(refused(emission_log=tmp_path / "none" / "log"))


async def refused(**changes):
    async with emulator(**changes):
        pass
