"""Are the words of a server that refuses found, whatever shape they have, and kept short?"""

import pytest
from hypothesis import given, strategies as st
from tests.records.load_frames import request_frame

from inferometer.records.load_decoding import most_frequent, words_of_error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            (
                b'{"error":{"message":"The model `x` does not'
                b' exist.","type":"NotFoundError","code":404}}'
            ),
            "The model `x` does not exist.",
        ),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":"out of luck"}', "out of luck"),
        (b"<html>\n<h1>502 Bad\tGateway</h1>", "<html> <h1>502 Bad Gateway</h1>"),
        (b'{"detail":[{"loc":["body"]}]}', '{"detail":[{"loc":["body"]}]}'),
        (b"\x1b[31mred\xff", "[31mred�"),
        (b"a" * 500, "a" * 200 + " …"),
        (b"", ""),
    ],
)
def test_words_of_a_body(body, words):
    assert (
        words_of_error(request_frame([body], error="http_error", http_status=404), "http_error")
        == words
    )


def test_the_clients_own_note_comes_first():
    assert (
        words_of_error(
            request_frame([b"{}"], error="redirected", detail="/elsewhere"), "redirected"
        )
        == "/elsewhere"
    )


def test_an_error_inside_a_stream_is_told_apart_from_what_came_before():
    stream = [
        b'data: {"choices":[{"text":"a"}]}\n\n',
        b'data: {"error":{"message":"out of memory"}}\n\n',
        b"data: [DONE]\n\n",
    ]
    assert words_of_error(request_frame(stream), "error_event") == "out of memory"


def test_an_answer_that_was_meant_well_is_no_word_of_the_server():
    assert words_of_error(request_frame([b"data: {not json\n\n"]), "bad_event") == ""


@given(body=st.binary(max_size=300))
def test_no_bytes_break_it(body):
    words = words_of_error(request_frame([body], error="http_error", http_status=500), "http_error")
    assert words.isprintable() or not any(ord(letter) < 32 for letter in words)


def test_the_most_frequent_words_stand_for_their_code():
    said = most_frequent(
        [("a", "rare"), ("a", "often"), ("a", "often"), ("b", ""), ("b", "once"), ("", "")]
    )
    assert said == {"a": "often", "b": "once"}
