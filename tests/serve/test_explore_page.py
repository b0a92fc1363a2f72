"""Is the explorer usable in a real browser: sliders, links, commands, keys, widths, many tabs?"""

import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from explorer import answer, launched, served

from inferometer.api import explore_states
from inferometer.api.explore_states import Started
from inferometer.serve import explore_server
from webdriver import browser, needs_driver

pytestmark = [needs_driver, pytest.mark.slow]
DONE = "return document.getElementById('state').dataset.state === 'done'"
NUMBERS = """return Array.from(document.querySelectorAll('.card')).map(card => [
    card.querySelector('dt').textContent, card.querySelector('.big').firstChild.textContent,
    card.querySelector('.note').textContent])"""
SET = """const field = document.getElementById(arguments[0]); field.value = arguments[1];
for (const kind of ['input', 'change']) { field.dispatchEvent(new Event(kind, {bubbles: true})); }"""
SLIDE = """const s = document.querySelector(`[data-of="${arguments[0]}"]`); s.value = arguments[1];
s.dispatchEvent(new Event('input', {bubbles: true})); s.dispatchEvent(new Event('change', {bubbles: true}));"""


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def url():
    with served(launched(slo="ttft:p95<1s")) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def page(window, url):
    window.size(1280, 900)
    window.dark(False)
    window.go("about:blank")
    window.console()
    window.go(url)
    window.until(DONE)
    yield window
    assert window.console() == []


def values(page):
    return {name: (value, note) for name, value, note in page.run(NUMBERS)}


def test_a_slider_moves_the_answer_and_the_address(page):
    before = values(page)
    curve = page.run("return document.querySelector('#ttft-vs-rate .line').getAttribute('d')")
    page.run(SLIDE, "rate", 640)
    assert page.run("return document.getElementById('state').textContent") == "refining …"
    page.until(DONE)
    after = values(page)
    assert after["TTFT p95"] != before["TTFT p95"]
    rate = page.run("return document.getElementById('f-rate').value")
    assert f"rate={rate}" in page.run("return location.search")
    # The same requests at the same loads: what did not change does not move.
    assert curve == page.run(
        "return document.querySelector('#ttft-vs-rate .line').getAttribute('d')"
    )
    page.call("POST", "/back", {})
    page.until("return document.getElementById('f-rate').value === '20'")
    page.until(DONE)
    assert values(page) == before


def test_a_link_brings_the_state_to_another_tab(page, url):
    page.run(SLIDE, "max_num_seqs", 300)
    page.run(SET, "f-loop", "concurrency")
    page.until(DONE)
    link, shown = page.run("return location.href"), values(page)
    page.go("about:blank")
    page.go(link)
    page.until(DONE)
    assert values(page) == shown
    assert page.run("return document.getElementById('f-loop').value") == "concurrency"


def test_the_copied_command_gives_the_numbers_of_the_page(page):
    page.run(SLIDE, "max_num_seqs", 250)
    page.until(DONE)
    typed = page.run("return document.getElementById('command').textContent")
    _, *words = shlex.split(typed)
    done = subprocess.run(
        [sys.executable, "-m", "inferometer", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 10, 11}, done.stderr
    found = json.loads(done.stdout)
    shown = answer(
        int(page.run("return location.port")),
        query=page.run("return location.search.slice(1)"),
        stage="refined",
    )
    levels = found["simulation"]["levels"]
    p95_s = {
        one["latency"]: next(
            p["seconds"]["value"] for p in one["percentiles"] if p["percentile_fraction"] == 0.95
        )
        for one in levels[0]["summary"]["latencies"]
        if one["percentiles"]
    }
    numbers = {one["name"]: one for one in shown["numbers"]}
    per_s = {"µs": 1e6, "ms": 1e3, "s": 1.0}
    for name, latency in (("TTFT p95", "ttft"), ("TPOT p95", "tpot"), ("E2E p95", "e2e")):
        number = numbers[name]
        assert number["value"] == pytest.approx(per_s[number["unit"]] * p95_s[latency], rel=1e-12)
    assert numbers["output"]["value"] == levels[0]["summary"]["output_tokens_per_s"]["value"]
    assert {name: (one["text"]) for name, one in numbers.items()} == {
        name: value for name, (value, _) in values(page).items()
    }


def test_a_state_is_held_beside_another(page):
    first = values(page)["TTFT p95"][0]
    page.run("document.getElementById('lock').click()")
    page.run(SLIDE, "rate", 900)
    page.until(DONE)
    cells = page.run(
        "return Array.from(document.querySelectorAll('#beside tbody tr')).map(r => Array.from(r.cells).map(c => c.textContent))"
    )
    row = next(one for one in cells if one[0] == "TTFT p95")
    assert row[1].startswith(f"{first} ms")
    assert row[2].startswith(values(page)["TTFT p95"][0])
    assert row[3].endswith("%")
    assert page.run("return document.querySelectorAll('.held .fig').length") >= 6
    link = page.run("return location.href")
    page.go("about:blank")
    page.go(link)
    page.until("return document.querySelectorAll('.held .fig').length >= 6")
    page.until(DONE)
    page.run("document.getElementById('lock').click()")
    assert page.run("return document.querySelectorAll('.held').length") == 0


def test_it_is_used_by_keys_alone(page):
    page.run("document.querySelector('[data-of=\"rate\"]').focus()")
    before = page.run("return document.getElementById('f-rate').value")
    page.keys("\ue014" * 12)
    page.until(DONE)
    assert float(page.run("return document.getElementById('f-rate').value")) > float(before)
    page.run("document.getElementById('step').focus()")
    words = page.run("return document.getElementById('step-words').textContent")
    page.keys("\ue014\ue014")
    assert page.run("return document.getElementById('step-words').textContent") != words
    unnamed = page.run("""return Array.from(document.querySelectorAll('input,select,button')).filter(one =>
        !one.textContent.trim() && !one.getAttribute('aria-label') && !(one.labels && one.labels.length)).map(one => one.outerHTML)""")
    assert unnamed == []
    assert page.run("return document.querySelectorAll('.chart:not([aria-label])').length") == 0


def test_a_screen_reader_hears_names_and_an_outline(page):
    levels = page.run("return [...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels)), levels
    nameless = page.run("""return [...document.querySelectorAll('input,select,button,output')]
        .filter(e => !(e.labels?.length || e.ariaLabel || e.getAttribute('aria-labelledby')
            || e.ariaLive || e.textContent.trim())).map(e => e.outerHTML.slice(0, 120))""")
    assert nameless == []
    clipped = page.run("""return [...document.querySelectorAll('.card')]
        .filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)""")
    assert clipped == []


def test_a_problem_is_said_and_the_last_answer_stays(page):
    before = values(page)
    page.run(SET, "f-set", "nonsense=1")
    page.until("return !document.getElementById('problem').hidden")
    assert "nonsense" in page.run("return document.getElementById('problem').textContent")
    assert values(page) == before
    page.run(SET, "f-set", "")
    page.until(DONE)
    assert page.run("return document.getElementById('problem').hidden")


def test_what_a_policy_has_no_setting_for_is_left_out_and_kept_for_the_others(page):
    for field, value in (("max_num_seqs", "8"), ("max_num_batched_tokens", "512")):
        page.run(SET, f"f-{field}", value)
    page.run(SET, "f-num_blocks", "900")
    for policy, left in (
        ("none", ()),
        ("static", ("max_num_seqs",)),
        ("dynamic", ("max_num_seqs",)),
    ):
        page.run(SET, "f-policy", policy)
        page.until(DONE)
        assert page.run("return document.getElementById('problem').hidden"), policy
        address = page.run("return location.search")
        assert f"policy={policy}" in address
        assert "num_blocks=900" in address
        assert page.run("return document.getElementById('f-chunked').disabled")
        for field in ("max_num_seqs", "max_num_batched_tokens"):
            assert (f"{field}=" in address) == (field in left)
            disabled = page.run(
                "return document.getElementById('f-' + arguments[0]).disabled", field
            )
            assert disabled == (field not in left)
    page.run(SET, "f-policy", "")
    page.until(DONE)
    address = page.run("return location.search")
    assert "max_num_seqs=8" in address
    assert "max_num_batched_tokens=512" in address


@pytest.mark.parametrize("chapter", range(5))
def test_each_chapter_sets_up_a_state_that_is_answered_on_a_phone(page, chapter):
    page.size(390, 844)
    page.run("document.querySelectorAll('.try')[arguments[0]].click()", chapter)
    page.until(
        "return document.getElementById('answer-title').textContent.startsWith('llama-3.1-8b')"
    )
    page.until(DONE, within_s=120)
    assert page.run("return document.getElementById('problem').hidden")
    assert page.run("return document.querySelectorAll('[data-slot] > .fig').length") >= 7
    assert page.run("return document.documentElement.scrollWidth") <= 390
    title = page.run("return document.getElementById('answer-title').textContent")
    page.run(SLIDE, "rate", 640)
    page.until(
        f"return document.getElementById('answer-title').textContent !== {json.dumps(title)}"
    )


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_nothing_is_wider_than_the_screen(page, width, is_dark):
    page.size(width, 900)
    page.dark(is_dark)
    assert page.run("return document.documentElement.scrollWidth") <= width
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == is_dark


def test_a_page_of_another_origin_gets_nothing(page, tmp_path, url):
    (tmp_path / "evil.html").write_text(
        f"<script>fetch('{url}answer', {{method: 'POST', headers: {{'content-type': 'application/json'}}, body: '{{}}'}})"
        ".then(r => r.text()).then(t => document.title = 'got ' + t, () => document.title = 'refused')</script>"
    )
    page.go((tmp_path / "evil.html").as_uri())
    assert page.until("return document.title") == "refused"
    page.console()  # the browser reports the refusal


def test_ten_tabs_at_once_are_answered(url):
    port = int(url.rstrip("/").rsplit(":", 1)[1])

    def tab(rank):
        query = f"model=smollm2-135m&hardware=l4&requests=120&datasheet=true&rate={10 + rank}"
        return [
            answer(port, query=query, stage=stage, tab=str(rank), turn=1)
            for stage in ("coarse", "sketch", "refined")
        ]

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(tab, range(10)))
    assert [[one["stage"] for one in answers] for answers in found] == [
        ["coarse", "sketch", "refined"]
    ] * 10


def test_the_exported_file_answers_without_a_server(window, tmp_path, monkeypatch):
    states = [launched(), launched(rate=40.0), launched(max_num_seqs=8)]
    monkeypatch.setattr(explore_states, "around", lambda _: states)
    explore_server.write_file(Started(question=states[0]), tmp_path / "page.html")
    window.go("about:blank")
    window.console()
    window.go(Path(tmp_path / "page.html").as_uri())
    window.until(DONE)
    before = values(window)
    window.run(SET, "f-rate", "38")
    window.until(
        "return document.getElementById('state').textContent === 'the nearest state of this file'"
    )
    assert values(window) != before
    assert window.console() == []
