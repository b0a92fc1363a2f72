"""One request before the run.

What would fail for the whole run ends it there, in the server's words; what may pass does not.
"""

import json
import shlex

import pytest
from tiny_server import HEAD, WORKLOAD, chunk, silent_inside

from inferometer.errors import MeasureError
from inferometer.inputs.plans import LoadPlan
from inferometer.measure.load import preflight
from inferometer.measure.load.messages import ClientLimits
from inferometer.measure.load.target import Secrets

JSON_TYPE = b"Content-Type: application/json\r\n"


def plain(status, body, headers=JSON_TYPE):
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(data), data)


def answers(to_post, to_get=b""):
    async def answer(writer, body):
        writer.write(to_get if body is None else to_post)

    return answer


def check(server, secrets=None, **changes):
    load = LoadPlan(
        url=server.url, served_model="tiny", endpoint="completions", workload=WORKLOAD, **changes
    )
    return preflight.check_server(load, secrets or Secrets(), ClientLimits(), ("127.0.0.1",))


def test_a_server_that_answers_is_asked_once_for_one_token(server):
    assert check(server, extra_body=(("temperature", "0"),)) is None
    (seen,) = server.seen
    assert seen.body == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "max_tokens": 1,
        "prompt": seen.body["prompt"],
        "temperature": 0,
    }
    check(server, is_streaming=True, prompt_form="token-ids", extra_body=(("min_tokens", "7"),))
    assert server.seen[-1].body["max_tokens"] == 7, "fewer than min_tokens are refused by servers"
    assert isinstance(server.seen[-1].body["prompt"][0], int)


WRONG_MODEL = plain(
    b"404 Not Found", {"error": {"message": "The model `tiny` does not exist.", "code": 404}}
)
MODELS = plain(
    b"200 OK", {"object": "list", "data": [{"id": "small", "object": "model"}, {"id": "large"}]}
)
OURS = plain(b"200 OK", {"data": [{"id": "tiny"}]})
REFUSALS = {
    "model": (
        WRONG_MODEL,
        MODELS,
        ("The model `tiny` does not exist.", "small, large", "--model small"),
    ),
    "path": (
        plain(b"404 Not Found", {"detail": "Not Found"}),
        WRONG_MODEL,
        ("404, Not Found", "--endpoint chat"),
    ),
    "key": (
        plain(b"401 Unauthorized", {"error": "Unauthorized"}),
        MODELS,
        ("401, Unauthorized", "INFEROMETER_API_KEY"),
    ),
    "no stream": (plain(b"200 OK", {"choices": []}), MODELS, ("application/json", "--no-stream")),
    "keys": (
        plain(b"400 Bad Request", {"message": "ignore_eos: extra"}),
        OURS,
        ("ignore_eos: extra", "--respect-eos"),
    ),
    "no JSON": (
        plain(b"403 Forbidden", "no", b"Content-Type: text/html\r\n"),
        MODELS,
        ('403, "no"',),
    ),
    "redirect": (
        plain(b"308 Permanent Redirect", {}, b"Location: /there\r\n"),
        MODELS,
        ("/there", "final URL"),
    ),
    "not HTTP": (b"220 smtp.example ESMTP\r\n", b"220 smtp.example ESMTP\r\n", ("no HTTP/1.1",)),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_would_fail_for_the_whole_run_is_told_before_it(case, server):
    to_post, to_get, words = REFUSALS[case]
    server.answer = answers(to_post, to_get)
    with pytest.raises(MeasureError) as caught:
        check(server)
    for word in words:
        assert word in str(caught.value)


def test_a_wrong_key_is_no_lack_of_models(server):
    """Before, the advice was --model, and the key was not mentioned."""
    server.answer = answers(b"", plain(b"401 Unauthorized", {"error": "Unauthorized"}))
    load = LoadPlan(url=server.url, served_model="", endpoint="chat", workload=WORKLOAD)
    with pytest.raises(MeasureError, match=r"401, Unauthorized") as caught:
        preflight.served_models(load, Secrets(), ClientLimits(), ("127.0.0.1",))
    assert "INFEROMETER_API_KEY" in (caught.value.try_ or "")


def test_a_servers_model_name_is_quoted_in_the_suggestion(server):
    server.answer = answers(WRONG_MODEL, plain(b"200 OK", {"data": [{"id": "a; reboot"}]}))
    with pytest.raises(MeasureError) as caught:
        check(server)
    assert shlex.split(caught.value.try_) == ["--model", "a; reboot"]


@pytest.mark.parametrize(
    "status", [b"429 Too Many Requests", b"500 Internal Server Error", b"503 Service Unavailable"]
)
def test_what_may_pass_does_not_end_the_run(status, server):
    server.answer = answers(plain(status, {"error": {"message": "not now"}}))
    assert "ended with" in check(server)


def test_a_server_that_takes_long_does_not_hold_the_run_up(server, monkeypatch):
    monkeypatch.setattr(preflight, "PATIENCE_S", 0.2)
    server.answer = silent_inside
    assert "no answer after" in check(server)


def test_secrets_are_sent_and_not_told(server):
    async def answer(writer, body):
        writer.write(plain(b"401 Unauthorized", {"error": {"message": "wrong key"}}))

    server.answer = answer
    with pytest.raises(MeasureError) as caught:
        check(server, Secrets(headers=(("Authorization", "Bearer hush"),)))
    assert "hush" not in str(caught.value)
    assert all("Authorization: Bearer hush" in one.head for one in server.seen)
    assert len(server.seen) == 2


def test_an_answer_without_an_end_is_cut(server):
    async def answer(writer, body):
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(chunk(b": more\n\n" * 1000))
            await writer.drain()

    server.answer = answer
    assert "body_too_long" in check(server)
