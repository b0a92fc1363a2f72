"""Are the words of a server that refuses found, whatever shape they have, and kept short?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.load_frames import request_frame

from inferometer.records.error_words import error_words, most_said


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}', "The model `x` does not exist."),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":"out of luck"}', "out of luck"),
        (b'data: {"error":{"message":"inside the stream"}}\n\ndata: [DONE]\n\n', "inside the stream"),
        (b"<html>\n<h1>502 Bad\tGateway</h1>", "<html> <h1>502 Bad Gateway</h1>"),
        (b'{"detail":[{"loc":["body"]}]}', '{"detail":[{"loc":["body"]}]}'),
        (b"\x1b[31mred\xff", "[31mred�"),
        (b"a" * 500, "a" * 200 + " …"),
        (b"", ""),
    ],
)
def test_words_of_a_body(body, words):
    assert error_words(request_frame([body], error="http_error", http_status=404)) == words


def test_the_clients_own_note_comes_first():
    assert error_words(request_frame([b"{}"], error="redirected", detail="/elsewhere")) == "/elsewhere"


@given(body=st.binary(max_size=300))
def test_no_bytes_break_it(body):
    words = error_words(request_frame([body], error="http_error", http_status=500))
    assert words.isprintable() or not any(ord(letter) < 32 for letter in words)


def test_the_most_frequent_words_stand_for_their_code():
    said = most_said([("a", "rare"), ("a", "often"), ("a", "often"), ("b", ""), ("b", "once"), ("", "")])
    assert said == {"a": "often", "b": "once"}
