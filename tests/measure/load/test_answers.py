"""Whatever bytes come, in whatever pieces: an answer is over once, with one code, and what is kept adds up."""

import itertools

import pytest
from hypothesis import given, strategies as st

from inferometer.measure.load.answers import STREAM_TYPE, Answer, AnswerLimits
from inferometer.records.exchange_errors import EXCHANGE_ERRORS

LIMITS = AnswerLimits(head_bytes=2000, body_bytes=5000)


def fed(data, cuts=(), limits=LIMITS, *, then=None):
    answer = Answer(limits, STREAM_TYPE)
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    for now_ns, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if not answer.is_over:
            answer.feed(data[begin:end], now_ns)
    if then is not None:
        answer.end(then)
    return answer


@st.composite
def responses(draw):
    """A valid response, and its body."""
    pieces = draw(st.lists(st.binary(min_size=1, max_size=60), max_size=8))
    body = b"".join(pieces)
    names = draw(
        st.lists(
            st.sampled_from([b"Server: x", b"x-long: " + b"y" * 300, b"Date: today"]), max_size=3
        )
    )
    if draw(st.booleans()):
        framing, wire = b"Content-Length: %d" % len(body), body
    else:
        framing, wire = (
            b"Transfer-Encoding: chunked",
            b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n",
        )
    lead = draw(
        st.sampled_from(
            [
                b"",
                b"HTTP/1.1 100 Continue\r\n\r\n",
                b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
            ]
        )
    )
    head = b"\r\n".join(
        [b"HTTP/1.1 200 OK", b"content-type: Text/Event-Stream; charset=utf-8", *names, framing]
    )
    return lead + head + b"\r\n\r\n" + wire, body


CUTS = st.lists(st.integers(0, 3000), max_size=30)


@given(response=responses(), cuts=CUTS)
def test_a_valid_response_is_the_same_however_it_is_cut(response, cuts):
    data, body = response
    answer = fed(data, cuts)
    assert (answer.is_over, answer.error, answer.status) == (True, "", 200)
    assert b"".join(answer.parts) == body
    assert sum(answer.read_bytes) == answer.received_bytes == len(body)
    assert len(answer.read_ns) == len(answer.read_bytes)
    assert answer.read_ns == sorted(set(answer.read_ns))
    assert answer.keeps_alive
    assert not answer.has_surplus


@given(response=responses(), cuts=CUTS, n_kept=st.integers(0, 3000))
def test_a_response_that_was_cut_off_says_so(response, cuts, n_kept):
    data, body = response
    answer = fed(data[: min(n_kept, len(data) - 1)], cuts, then="")
    assert answer.is_over
    assert answer.error in {"truncated", "no_response"}
    assert body.startswith(b"".join(answer.parts))


@given(
    response=responses(),
    cuts=CUTS,
    at=st.integers(0, 3000),
    noise=st.binary(min_size=1, max_size=20),
)
def test_a_broken_response_ends_in_one_known_code(response, cuts, at, noise):
    data, _ = response
    answer = fed(data[:at] + noise + data[at:], cuts, then="")
    assert answer.is_over
    assert answer.error == "" or answer.error in EXCHANGE_ERRORS
    assert sum(answer.read_bytes) == len(b"".join(answer.parts)) <= answer.received_bytes


@given(
    data=st.binary(max_size=3000), cuts=CUTS, end=st.sampled_from(["", "Connection reset by peer"])
)
def test_no_bytes_at_all_break_it(data, cuts, end):
    answer = fed(data, cuts, then=end)
    assert answer.is_over
    assert answer.error in EXCHANGE_ERRORS
    before = (answer.error, answer.detail, answer.keeps_alive)
    answer.give_up("total_timeout", "later")
    answer.end("later still")
    assert (answer.error, answer.detail, answer.keeps_alive) == before, "the first end counts"


@given(response=responses(), more=st.binary(min_size=1, max_size=50))
def test_what_comes_behind_an_answer_is_noticed_and_not_taken(response, more):
    data, body = response
    answer = fed(data + more)
    assert (answer.error, b"".join(answer.parts)) == ("", body)
    # Line ends between messages are allowed by RFC 9112.
    assert answer.has_surplus or not more.strip(b"\r\n")


@pytest.mark.parametrize(("n_bytes", "error"), [(5000, ""), (5001, "body_too_long")])
def test_the_cap_is_exact(n_bytes, error):
    answer = fed(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        % n_bytes
        + b"a" * n_bytes,
        range(0, 6000, 7),
    )
    assert answer.error == error
    assert len(b"".join(answer.parts)) == sum(answer.read_bytes) <= 5000
