"""Is a run of requests shown with its answer first, in the page and in the terminal, with nothing left out?"""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console
from tests.report.browser import check_looks_right, needs_browser
from tests.report.request_example import request_example

from inferometer.inputs.types import Caution
from inferometer.records.slot_timeline import slot_timeline
from inferometer.report.html import render_page, write_page
from inferometer.report.request_page import request_page_of, summary_numbers
from inferometer.report.terminal import page_text
from inferometer.report.timeline_page import slot_timeline_text

SECTIONS = [
    "answer",
    "promises",
    "latency",
    "load",
    "slots",
    "checks",
    "method",
    "provenance",
    "data",
]
OVERLOAD = Caution(code="overload", text="the queue grows without bound", remedy="a lower rate")
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Ids(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.sections, self.ids, self.images = [], [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs).get("id")
        self.ids += [found] if found else []
        self.sections += [found] if tag == "section" else []
        self.images += tag == "img"


@pytest.fixture(scope="module")
def page(request_example):
    return render_page(request_page_of(request_example))


def text_of(renderable, width):
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_page(page):
    assert len(page.encode()) <= 1_500_000
    found = Ids(page)
    assert found.sections == SECTIONS
    assert len(found.ids) == len(set(found.ids))
    assert page.index("nearest its limit: ttft:p95") < page.index('id="promises"')
    assert "21" in page
    assert "≥ 847 ms" in page
    assert "nan" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).lower().split()


@pytest.fixture(scope="module")
def bare_example(request_example):
    """Without what charts are drawn of."""
    return replace(
        request_example,
        judgement=None,
        tails=(),
        history=None,
        load=None,
        timeline=None,
        gaps=None,
        ttft_parts=None,
        cautions=(),
    )


def test_sections_without_data_are_absent(bare_example):
    page = render_page(request_page_of(bare_example))
    assert Ids(page).sections == [
        name for name in SECTIONS if name not in {"promises", "load", "slots", "checks"}
    ]
    assert "<script" not in page


def test_overload_stands_before_the_answer(bare_example):
    view = replace(bare_example, lead_cautions=(OVERLOAD,))
    page = render_page(request_page_of(view))
    assert page.index("grows without bound") < page.index('class="cards"')
    text = text_of(page_text(request_page_of(view)), 120)
    assert text.index("grows without bound") < text.index("E2E p95")


def test_names_run_nothing(request_example):
    evil = replace(
        request_example,
        title=EVIL,
        subtitle=EVIL,
        summaries=tuple(replace(summary, name=EVIL) for summary in request_example.summaries),
        lead_cautions=(Caution(code=EVIL, text=EVIL, remedy=EVIL),),
        files=((EVIL, EVIL),),
    )
    page = render_page(request_page_of(evil))
    assert "<script>alert" not in page
    assert Ids(page).images == 0


def test_same_view_same_bytes(request_example, page, tmp_path):
    write_page(request_page_of(request_example), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_terminal(request_example):
    text = text_of(page_text(request_page_of(request_example), is_verbose=True), 140)
    assert (
        text.index("misses the SLO")
        < text.index("limit 500")
        < text.index("Goodput is 7.26 requests/s")
        < text.index("completed req/s")
    )
    assert "\x1b" not in text
    for word in ("unfinished", "chat", "batch", "97 [95.5, 98.5]"):
        assert word in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("n_steps", [1, 60, 500])
def test_slot_timeline_fits_its_width(recorded_requests, width, n_steps):
    text = text_of(
        slot_timeline_text(
            slot_timeline(recorded_requests, first_step=3000, n_steps=n_steps), width=width
        ),
        300,
    )
    rows = [line for line in text.splitlines() if re.match(r"^\d+ [CgE·]+$", line)]
    assert rows
    assert all(len(row) <= width for row in rows)
    assert len({len(row) for row in rows}) == 1
    assert "\x1b" not in text


def test_slot_timeline_says_what_the_cells_say(recorded_requests):
    timeline = slot_timeline(recorded_requests, first_step=3000, n_steps=60)
    text = text_of(slot_timeline_text(timeline, width=100), 120)
    rows = [line.split()[1] for line in text.splitlines() if re.match(r"^\d+ [CgE·]+$", line)]
    assert [["·CgE".index(letter) for letter in row] for row in rows] == timeline.states.tolist()
    assert "7 slots, steps 3000 to 3059 of 6388" in text


def test_many_seats_are_cut_and_said_so(recorded_requests):
    timeline = slot_timeline(recorded_requests, n_steps=10)
    tall = timeline._replace(states=np.ones((300, 10), np.int8))
    text = text_of(slot_timeline_text(tall, max_slots=16), 80)
    assert "… 284 more slots" in text
    assert "300 slots" in text


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "is_dark"), [(390, False), (1280, True), (1440, False)])
def test_a_browser_draws_all_charts_without_a_word(request_example, tmp_path, width, is_dark):
    page = render_page(request_page_of(request_example))
    check_looks_right(page, tmp_path, width=width, n_charts=8, is_dark=is_dark)


def test_a_first_screen_in_the_terminal(request_example):
    """At 80 columns at most 25 lines, none of them wider."""
    lines = text_of(page_text(request_page_of(request_example)), 80).rstrip().splitlines()
    assert len(lines) <= 25
    assert all(len(line) <= 80 for line in lines if "inferometer " not in line)


def test_the_share_of_prompts_that_the_prefix_cache_supplied_is_a_number_of_the_page():
    summary = replace(request_example().summaries[0], input_tokens=1000, cached_tokens=650)
    (hit,) = [one for one in summary_numbers(summary, None) if one.name == "prefix hit"]
    assert (hit.value, hit.unit, hit.note) == (65.0, "%", "of prompt tokens")
    for none in (None, 0):
        names = [one.name for one in summary_numbers(replace(summary, cached_tokens=none), None)]
        assert "prefix hit" not in names
