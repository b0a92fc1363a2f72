"""Does an answer have the tokens that came, at the instants at which they came, and says it who counted?"""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.records.load_frames import MS, ROLE, delta, fuzzed_bodies, request_frame, sse, usage

from inferometer.records.answers import answer_of, said_by
from inferometer.records.types import ABSENT, ChunkKind

DONE = b"[DONE]"


def of_events(*events, token_ends=None, **fields):
    return answer_of(request_frame(sse(*events), **fields), token_ends)


def tokens_of(answer):
    return [chunk.n_tokens for chunk in answer.chunks]


def words(text):
    """A tokenizer whose tokens are pairs of letters."""
    return [min(i + 2, len(text)) for i in range(0, len(text), 2)]


def test_one_token_a_chunk_where_the_counts_agree():
    answer = of_events(ROLE, delta("a"), delta("b"), delta("c", "length"), usage(3), DONE)
    assert tokens_of(answer) == [1, 1, 1]
    assert (answer.output_tokens, answer.token_source, answer.finish_reason, answer.error) == (
        3,
        "usage",
        "length",
        "",
    )
    assert [chunk.arrived_ns // MS for chunk in answer.chunks] == [
        110,
        120,
        130,
    ], "the role is no token"
    assert (answer.first_token_ns, answer.last_token_ns) == (110 * MS, 130 * MS)
    assert answer.usage == (7, ABSENT, 3)


def test_the_last_word_has_no_text():
    answer = of_events(ROLE, delta("a"), delta("b"), delta("", "stop"), usage(3), DONE)
    assert tokens_of(answer) == [1, 1, 1]
    assert answer.last_token_ns == 130 * MS
    assert (
        of_events(ROLE, delta("a"), delta("b"), delta(None, "stop"), usage(2), DONE).last_token_ns
        == 120 * MS
    )


def test_half_a_character_is_a_token_without_text():
    answer = of_events(ROLE, delta(""), delta("é"), delta("b", "length"), usage(3), DONE)
    assert tokens_of(answer) == [1, 1, 1]
    assert answer.first_token_ns == 110 * MS


def test_usage_with_every_chunk_tells_how_tokens_are_spread():
    answer = of_events(
        ROLE | usage(0),
        delta("abc", usage=4),
        delta("d", usage=5),
        delta("ef", "stop", usage=9),
        usage(9),
        DONE,
    )
    assert tokens_of(answer) == [4, 1, 4]
    assert answer.output_tokens == 9


def test_token_ids_tell_how_tokens_are_spread():
    events = [
        {"choices": [{"text": text, "token_ids": ids, "finish_reason": None}]}
        for text, ids in (("ab", [1, 2]), ("c", [3]))
    ]
    answer = of_events(*events, DONE)
    assert (tokens_of(answer), answer.output_tokens, answer.token_source) == ([2, 1], 3, "usage")


def test_a_tokenizer_tells_where_the_server_does_not():
    answer = of_events(delta("abcd"), delta("e"), delta("f", "stop"), DONE, token_ends=words)
    assert (tokens_of(answer), answer.output_tokens, answer.token_source) == (
        [2, 0, 1],
        3,
        "tokenizer",
    )
    assert answer.last_token_ns == 120 * MS
    beside = of_events(
        delta("abcd"), delta("e"), delta("f", "stop"), usage(4), DONE, token_ends=words
    )
    assert (tokens_of(beside), beside.token_source) == (
        [2, 0, 2],
        "usage",
    ), "the word that ends it has no text"


def test_nobody_can_tell_how_tokens_are_spread():
    answer = of_events(delta("abcd"), delta("e"), delta("f", "stop"), usage(50), DONE)
    assert (tokens_of(answer), answer.output_tokens) == ([ABSENT, ABSENT, ABSENT], 50)
    assert (
        tokens_of(
            of_events(
                delta("abcd"), delta("e"), delta("f", "stop"), usage(50), DONE, token_ends=words
            )
        )
        == [ABSENT] * 3
    )


def test_chunks_count_where_there_is_nothing_else():
    answer = of_events(ROLE, delta("a"), delta("b"), delta(None, "stop"), DONE)
    assert (tokens_of(answer), answer.output_tokens, answer.token_source) == ([1, 1], 2, "chunks")


def test_kinds_of_chunks():
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    answer = of_events(
        ROLE,
        delta(reasoning_content="hm"),
        delta(reasoning="so"),
        delta("x"),
        delta(**call),
        usage(4),
        DONE,
    )
    kinds = [chunk.kind for chunk in answer.chunks]
    assert kinds == [
        ChunkKind.REASONING,
        ChunkKind.REASONING,
        ChunkKind.CONTENT,
        ChunkKind.TOOL_CALL,
    ]
    assert [chunk.n_characters for chunk in answer.chunks] == [2, 2, 1, 3]


def test_chunks_of_one_read_are_coalesced():
    parts = sse(ROLE, delta("a"), delta("b"), delta("c"), usage(3), DONE)
    answer = answer_of(
        request_frame(
            [parts[0], parts[1] + parts[2][:4], parts[2][4:] + parts[3] + parts[4] + parts[5]]
        )
    )
    assert answer.n_coalesced == 1
    assert [chunk.arrived_ns // MS for chunk in answer.chunks] == [110, 120, 120]


def test_a_body_that_comes_whole():
    body = {
        "choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]
    } | {"usage": usage(9, 4, 2)["usage"]}
    text = json.dumps(body).encode()
    answer = answer_of(request_frame([text[:20], text[20:]], content_type="application/json"))
    assert (tokens_of(answer), answer.usage, answer.finish_reason, answer.error) == (
        [9],
        (4, 2, 9),
        "stop",
        "",
    )
    assert (answer.first_token_ns, answer.last_token_ns) == (ABSENT, 110 * MS)
    silent = json.dumps(
        {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    ).encode()
    assert tokens_of(answer_of(request_frame([silent], content_type="application/json"))) == [1]


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ((delta("a"), {"error": {"message": "out of memory", "code": 500}}), "error_event"),
        ((delta("a"), {"object": "error", "message": "no", "code": 400}), "error_event"),
        ((delta("a"), b"{not json}", DONE), "bad_event"),
        ((delta("a"), b"[1, 2]", DONE), "bad_event"),
        ((delta("a"),), "no_end"),
        ((ROLE, usage(0), DONE), "empty_answer"),
        ((ROLE, delta("a", "stop")), ""),
        (
            (b'{"choices":[{"delta":{"content":"\xff"},"finish_reason":"stop"}]}', DONE),
            "invalid_utf8",
        ),
    ],
)
def test_what_is_wrong_with_the_content(events, error):
    assert of_events(*events).error == error


def test_the_wire_says_first_what_went_wrong():
    answer = of_events(delta("a"), delta("b"), error="reset")
    assert (answer.error, tokens_of(answer)) == ("reset", [1, 1])
    cut = request_frame([*sse(delta("a")), b'data: {"choices":[{"del'], error="truncated")
    assert (answer_of(cut).error, tokens_of(answer_of(cut))) == ("truncated", [1])


def test_an_error_of_http_has_no_tokens():
    answer = answer_of(request_frame([b'{"error":"x"}'], http_status=500, error="http_error"))
    assert (answer.chunks, answer.output_tokens, answer.token_source, answer.error) == (
        (),
        0,
        "",
        "http_error",
    )
    assert (
        answer_of(request_frame([], http_status=None, error="connect_refused")).first_token_ns
        == ABSENT
    )


ANSWERS = st.lists(
    st.sampled_from(
        [
            ROLE,
            delta("a"),
            delta("é€"),
            delta(""),
            delta("bc", usage=3),
            usage(4),
            DONE,
            delta(None, "stop"),
        ]
    )
)


@settings(deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 10**6), max_size=12))
def test_any_cut_of_the_bytes_gives_the_same_answer(events, cuts):
    body = b"".join(sse(*events))
    at = sorted({cut % (len(body) + 1) for cut in cuts} | {0, len(body)})
    reads = [body[start:end] for start, end in pairwise(at)]
    whole, cut = answer_of(request_frame([body] if body else [])), answer_of(request_frame(reads))
    assert [chunk[1:4] for chunk in cut.chunks] == [chunk[1:4] for chunk in whole.chunks]
    assert (cut.output_tokens, cut.error, cut.usage) == (
        whole.output_tokens,
        whole.error,
        whole.usage,
    )
    times = [chunk.arrived_ns for chunk in cut.chunks]
    assert times == sorted(times)
    ends = np.cumsum([len(read) for read in reads])
    for chunk in cut.chunks:
        assert chunk.arrived_ns == (100 + 10 * chunk.read_index) * MS
        assert chunk.read_index < len(ends)


def check_fuzzed(n, seed):
    n_tokens = 0
    for body, rng in fuzzed_bodies(n, seed):
        at = sorted({0, len(body), *rng.integers(0, len(body) + 1, 2).tolist()})
        reads = [body[start:end] for start, end in pairwise(at)]
        answer = answer_of(request_frame(reads), words)
        times = [chunk.arrived_ns for chunk in answer.chunks]
        assert times == sorted(times)
        assert answer.output_tokens >= 0
        assert ABSENT in tokens_of(answer) or all(n >= 0 for n in tokens_of(answer))
        n_tokens += answer.output_tokens
    assert n_tokens > n / 20, "the fuzz finds tokens"


def test_no_bytes_make_it_fail():
    check_fuzzed(3000, 3)


@pytest.mark.slow
@pytest.mark.long
def test_200_000_bodies_do_not_make_it_fail():
    check_fuzzed(200_000, 4)


@settings(max_examples=300)
@given(st.binary())
def test_any_event_is_read(data):
    said_by(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"x":' * 200_000,
        b'{"choices":[' + b"[" * 200_000,
        b'{"usage":{"completion_tokens":-1}}',
    ],
)
def test_deep_and_odd_json_is_read(data):
    assert not said_by(data).text


def test_a_count_that_is_none_is_absent():
    assert said_by(b'{"usage":{"completion_tokens":-1,"prompt_tokens":99999999999}}').usage == (
        2**31 - 1,
        ABSENT,
        ABSENT,
    )


def test_a_count_above_max_tokens_counts_nothing_and_marks_the_answer():
    false = of_events(
        ROLE,
        delta("a"),
        delta("b"),
        delta("c", "length"),
        usage(12_000_000),
        DONE,
        asked_output_tokens=12,
    )
    assert (false.output_tokens, false.token_source, false.error) == (
        3,
        "chunks",
        "too_many_tokens",
    )
    assert tokens_of(false) == [1, 1, 1]
    assert false.usage.output_tokens == 12_000_000, "what the server reported stays in the record"
    running = of_events(
        ROLE | usage(0), delta("a", usage=9_000_000), delta("b", "stop", usage=12_000_000), DONE
    )
    assert (tokens_of(running), running.error) == ([1, 1], "too_many_tokens")


def test_a_count_above_the_bytes_of_a_stream_is_false():
    events = (ROLE, delta("a"), delta("b", "length"), usage(5_000), DONE)
    assert of_events(*events, asked_output_tokens=10_000).error == "too_many_tokens"
    assert of_events(*events, asked_output_tokens=10_000, received_bytes=5_000).error == ""


def test_more_token_ids_than_requested_and_impossible_prompts_are_false_too():
    event = {"choices": [{"text": "a", "token_ids": [1] * 500}]}
    assert of_events(event, DONE, asked_output_tokens=12)[1:3] == (1, "chunks")
    assert of_events(event, DONE, asked_output_tokens=12).error == "too_many_tokens"
    for count in (2**40, 10**30, 12_000_000):
        false = of_events(ROLE, delta("a", "length"), usage(1, n_prompt=count), DONE)
        assert (false.error, false.usage.prompt_tokens) == ("too_many_tokens", ABSENT)
        assert of_events(ROLE, delta("a", "length"), usage(count), DONE).error == "too_many_tokens"
    assert of_events(ROLE, delta("a", "length"), usage(1, n_prompt=9_000), DONE).error == "", (
        "a server's own system prompt"
    )


def test_a_usage_without_a_choice_is_no_answer():
    assert of_events(usage(3), DONE).error == "empty_answer"
    whole = json.dumps(usage(3)).encode()
    frame = request_frame([whole], content_type="application/json")
    assert answer_of(frame).error == "empty_answer"
