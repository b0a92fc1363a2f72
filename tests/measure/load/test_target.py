"""Where do requests go, and do secrets stay where they belong?"""

from dataclasses import replace

import pytest
from tiny_server import a_plan, load, question_of

from inferometer.errors import SpecError
from inferometer.measure.load.target import (
    Secrets,
    bearer_token,
    custom_header,
    endpoint_in,
    proxy_for,
    request_head,
    target_of,
)
from inferometer.records.raw_log import raw_logs


def plan_of(url, **changes):
    return replace(question_of(url, a_plan(1), None).load, **changes)


@pytest.mark.parametrize(
    ("url", "endpoint", "authority", "path"),
    [
        ("http://127.0.0.1:8000", "chat", "127.0.0.1:8000", "/v1/chat/completions"),
        ("http://127.0.0.1:8000/v1", "completions", "127.0.0.1:8000", "/v1/completions"),
        ("https://host", "chat", "host", "/v1/chat/completions"),
        ("https://host:444/prefix/", "completions", "host:444", "/prefix/v1/completions"),
        ("http://[::1]:8000", "chat", "[::1]:8000", "/v1/chat/completions"),
    ],
)
def test_urls(url, endpoint, authority, path):
    target = target_of(plan_of(url, endpoint=endpoint))
    assert (target.server.authority, target.path) == (authority, path)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host:many",
        "http://me:secret@host",
        "http://host/?a=b",
    ],
)
def test_urls_that_are_none(url):
    with pytest.raises(SpecError) as raised:
        target_of(plan_of(url))
    assert "secret" not in str(raised.value)


def test_a_url_without_a_scheme_is_named_and_completed():
    with pytest.raises(SpecError, match="'localhost' has no http://") as raised:
        target_of(plan_of("localhost"))
    assert raised.value.try_ == "http://localhost"


@pytest.mark.parametrize(
    ("url", "base", "endpoint"),
    [
        ("http://h:8000/v1/chat/completions", "http://h:8000", "chat"),
        ("http://h/prefix/v1/completions/", "http://h/prefix", "completions"),
        ("http://h/v1", "http://h/v1", None),
    ],
)
def test_a_url_with_an_endpoint_is_the_server_s_and_the_endpoint(url, base, endpoint):
    assert endpoint_in(url) == (base, endpoint)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/prefix/v1/completions/", "/completions"]
)
def test_urls_of_an_endpoint_are_told_apart_from_those_of_a_server(path):
    with pytest.raises(
        SpecError, match="--endpoint " + ("chat" if "chat" in path else "completions")
    ) as raised:
        target_of(plan_of("http://host" + path))
    assert "http://host/prefix --endpoint" in str(raised.value) or "http://host --endpoint" in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("url", "asked", "variables", "proxy"),
    [
        ("http://host", None, {}, None),
        ("http://host", None, {"http_proxy": "http://p:3128"}, "http://p:3128"),
        ("https://host", None, {"http_proxy": "http://p:3128"}, None),
        ("https://host", None, {"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        ("http://host", None, {"all_proxy": "http://p:1"}, "http://p:1"),
        ("http://a.host", None, {"http_proxy": "http://p:1", "no_proxy": "localhost,.host"}, None),
        ("http://ahost", None, {"http_proxy": "http://p:1", "no_proxy": "host"}, "http://p:1"),
        ("http://host", None, {"http_proxy": "http://p:1", "no_proxy": "*"}, None),
        ("http://host", "http://q:2", {"http_proxy": "http://p:1", "no_proxy": "*"}, "http://q:2"),
    ],
)
def test_proxies(url, asked, variables, proxy):
    assert proxy_for(url, asked, variables) == (proxy, None)


def test_a_proxys_credentials_are_kept_apart():
    assert proxy_for("http://host", "http://me:p%40ss@q:2", {}) == (
        "http://q:2",
        "Basic bWU6cEBzcw==",
    )


def test_tokens_and_headers_come_from_the_environment():
    assert bearer_token({}) is None
    assert bearer_token({"OPENAI_API_KEY": "b"}) == "b"
    assert bearer_token({"OPENAI_API_KEY": "b", "INFEROMETER_API_KEY": "a"}) == "a"
    assert custom_header("X-Team: $TEAM", {"TEAM": "blue"}) == ("X-Team", "blue")
    assert custom_header("X-Team: red: yes", {}) == ("X-Team", "red: yes")
    key = {"KEY": "k-1"}
    for text in ("Bearer $KEY", "Bearer ${KEY}"):
        assert custom_header(f"Authorization: {text}", key) == ("Authorization", "Bearer k-1")
    assert custom_header("X-Price: 5$", {}) == ("X-Price", "5$")
    with pytest.raises(SpecError, match="no KEY"):
        custom_header("Authorization: Bearer $KEY", {})


@pytest.mark.parametrize("token", ["hush\r\nHost: other", "h\u00fcsch"])
def test_a_token_that_cannot_be_sent_is_not_repeated(token):
    with pytest.raises(SpecError) as raised:
        bearer_token({"OPENAI_API_KEY": token})
    assert "OPENAI_API_KEY" in str(raised.value)
    assert "h" + token[1:4] not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["X-Team", ": v", "X Team: v", "Host: other", "X-Team: $NONE", "X: a\r\nHost: b"]
)
def test_headers_that_cannot_be_sent(text):
    with pytest.raises(SpecError):
        custom_header(text, {})


def test_secrets_are_shown_by_nothing_and_kept_nowhere(server, tmp_path):
    secrets = Secrets(
        headers=(("Authorization", "Bearer hush"), ("X-Team", "hush")),
        proxy_authorization="Basic hush",
    )
    assert "hush" not in repr(secrets)
    load(server.url, a_plan(1), tmp_path, secrets=secrets)
    assert "Authorization: Bearer hush" in server.seen[0].head
    assert all(b"hush" not in path.read_bytes() for path in raw_logs(tmp_path))


def test_what_a_request_says_of_itself():
    before_id, before_length = request_head(
        target_of(plan_of("http://host:1")), Secrets(), is_streaming=True
    )
    assert before_id.startswith(
        b"POST /v1/completions HTTP/1.1\r\nHost: host:1\r\nUser-Agent: inferometer/"
    )
    assert b"\r\nAccept-Encoding: identity\r\n" in before_id
    assert before_id.endswith(b"\r\nX-Request-Id: ")
    assert before_length == b"\r\nContent-Length: "


def test_a_text_that_is_no_address_is_answered_with_one():
    with pytest.raises(SpecError) as raised:
        target_of(plan_of("some server"))
    assert raised.value.try_ == "http://127.0.0.1:8000"
