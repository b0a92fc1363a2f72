"""Does the explorer's server answer its own page, and nobody else's?"""

import json
import re
import threading

import pytest
from explorer import answer, ask, launched, served

from inferometer.api import explore_states
from inferometer.api.explore import query_of, state_of
from inferometer.api.explore_states import Started
from inferometer.serve import explore_server
from inferometer.serve.explore_server import (
    Answers,
    InTurns,
    Question,
    SupersededError,
    Turns,
)


@pytest.fixture(scope="module")
def port():
    with served(launched()) as found:
        yield found


def test_the_page_and_its_parts_come_from_here_alone(port):
    status, body, headers = ask(port)
    assert status == 200
    text = body.decode()
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self'" in policy
    named = re.findall(r'(?:src|href)="([^"#?]+)"', text)
    assert set(named) == {"data:,", "page.css", "explore.css", "page.js", "explore.js"}
    for name in ("page.css", "explore.css", "page.js", "explore.js"):
        assert ask(port, path=f"/{name}")[0] == 200
    assert ask(port, path="/../pyproject.toml")[0] == 404


def test_a_state_is_answered_in_stages(port):
    query = query_of(state_of(launched()))
    coarse, refined = (
        answer(port, query=query, stage=stage, tab="a") for stage in ("coarse", "refined")
    )
    assert coarse["query"] == refined["query"] == query
    assert "smollm2-135m" in coarse["head"]
    assert "ttft-vs-rate" not in coarse["figures"]
    assert "ttft-vs-rate" in refined["figures"]
    assert [one["text"] for one in coarse["numbers"]] == [one["text"] for one in refined["numbers"]]
    assert {
        name for timeline in refined["steps"] for row in timeline["slots"] for name in row
    } <= set("CgE·")


def test_a_state_that_cannot_be_says_why(port):
    found = answer(port, query="model=smollm2-135m&hardware=l4&rate=-1", stage="coarse")
    assert "-1.0 is not a number above 0" in found["problem"]
    found = answer(port, query="model=llama-3.1-405b&hardware=l4&rate=1", stage="coarse")
    assert "memory" in found["problem"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"host": "rebound.example"}),
        (421, {"host": "rebound.example:{port}"}),
        (421, {"host": "127.0.0.1"}),
        (403, {"origin": "http://evil.example"}),
        (403, {"origin": "null"}),
        (403, {"origin": "http://127.0.0.1:1"}),
        (403, {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/answer")])
def test_other_hosts_and_other_origins_are_refused(port, status, headers, method, path):
    sent = {name: value.format(port=port) for name, value in headers.items()}
    found, body, _ = ask(port, method, path, "{}", content_type="application/json", **sent)
    assert found == status
    assert b"smollm2" not in body


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:{port}", "origin": "http://127.0.0.1:{port}"}, 200),
        ({"host": "localhost:{port}", "sec_fetch_site": "none"}, 200),
        # A link in somebody's chat may lead here: the page shows, and asks for itself.
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 200),
    ],
)
def test_the_own_page_is_answered(port, headers, status):
    sent = {name: value.format(port=port) for name, value in headers.items()}
    assert ask(port, **sent)[0] == status


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("{", "application/json", 400),
        ('{"query": 1, "stage": "coarse"}', "application/json", 400),
        ('{"query": "", "stage": "fine"}', "application/json", 400),
        ("{}", "text/plain", 400),
        ("x" * 70_000, "application/json", 413),
    ],
)
def test_bodies_that_are_no_question_are_refused(port, body, kind, status):
    assert ask(port, "POST", "/answer", body, content_type=kind)[0] == status


def test_an_older_question_of_a_tab_gives_way():
    answers = Answers(launched(), ())
    query = query_of(state_of(launched()))
    assert answers.answer(Question(query, "coarse", "a", 2))["query"] == query
    assert answers.answer(Question(query, "refined", "a", 1)) == {"superseded": True}
    assert "query" in answers.answer(Question(query, "coarse", "b", 1))


def test_parts_stop_when_the_answer_is_not_wanted():
    done = []
    with pytest.raises(SupersededError):
        InTurns(Turns(), 0, lambda: len(done) < 3).map(done.append, range(10))
    assert done == [0, 1, 2]


def test_a_coarse_answer_waits_for_one_part_alone():
    turns, order, began, go = Turns(), [], threading.Event(), threading.Event()

    def slow(part):
        order.append(part)
        began.set()
        go.wait(10)

    refining = threading.Thread(target=lambda: InTurns(turns, 2, lambda: True).map(slow, "abc"))
    coarse = threading.Thread(target=lambda: InTurns(turns, 0, lambda: True).map(order.append, "X"))
    refining.start()
    began.wait(10)
    coarse.start()
    while not turns._waiting:
        pass
    go.set()
    refining.join()
    coarse.join()
    assert order == ["a", "X", "b", "c"]


def test_a_file_needs_no_server(tmp_path, monkeypatch):
    question = launched()
    monkeypatch.setattr(explore_states, "around", lambda _: [question, launched(rate=40.0)])
    path = tmp_path / "deep" / "page.html"
    assert explore_server.write_file(Started(question=question), path) == 2
    text = path.read_text()
    assert not re.search(r'(?:src|href)="(?!data:|\?|#)', text)
    assert "connect-src" not in text
    data = json.loads(re.search(r'id="start">(.*?)</script>', text, re.DOTALL)[1])
    assert [one["stage"] for one in data["grid"]] == ["refined", "refined"]
    assert data["grid"][0]["query"] == data["query"]
