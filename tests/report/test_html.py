"""Is the report one offline file that says everything, breaks nowhere and runs nothing that a name smuggles in?"""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.report.browser import check_looks_right, needs_browser

from inferometer.inputs.types import Caution
from inferometer.report.charts.plot import Axis, ticks_of
from inferometer.report.html import render_page, write_page
from inferometer.report.page import Section
from inferometer.report.sweep_page import page_of
from inferometer.report.tables import TextTable
from inferometer.report.views import FactGroup, Statement

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028"
SECTIONS = [
    "answer",
    "limits",
    "latency",
    "time",
    "memory-section",
    "predicted",
    "checks",
    "method",
    "provenance",
    "data",
]
MAX_BYTES = 1_500_000


class Elements(HTMLParser):
    """Start tags, in order, with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def page(example_view):
    return render_page(page_of(example_view))


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page)


def without_scripts(page):
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_size(page):
    assert len(page.encode()) <= MAX_BYTES


def test_nothing_is_fetched(page, elements):
    for tag, attributes in elements.found:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, target)
    assert "url(" not in without_scripts(page)
    assert "@import" not in without_scripts(page)


def test_policy_names_the_only_script(page, elements):
    (policy,) = [
        attributes["content"] for attributes in elements.all("meta") if attributes.get("http-equiv")
    ]
    assert policy.startswith("default-src 'none'")
    assert "'sha256-" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]
    assert "unsafe-eval" not in page
    assert len([attributes for attributes in elements.all("script") if not attributes]) == 1


def test_sections_in_order(elements):
    assert [attributes["id"] for attributes in elements.all("section")] == SECTIONS


def test_sections_without_data_are_absent(one_run_view):
    found = [
        attributes["id"]
        for attributes in Elements(render_page(page_of(one_run_view))).all("section")
    ]
    assert found == [name for name in SECTIONS if name not in {"time", "predicted"}]


def test_a_section_whose_only_chart_stands_above_is_absent(example_view):
    """The page of a timeline ended with a heading and nothing below."""
    page = page_of(example_view)
    alone = Section(id="alone", title="Nothing else?", nav="Alone", charts=(page.chart,))
    assert "Nothing else?" not in render_page(replace(page, sections=(alone,)))
    both = replace(alone, charts=page.sections[0].charts)
    assert len(both.charts) > 1
    assert "Nothing else?" in render_page(replace(page, sections=(both,)))


def test_a_wide_table_on_the_first_screen_has_its_whole_width(example_view):
    """Beside the lines of a comparison its verdicts were cut off."""
    page = replace(page_of(example_view), chart=None, sections=())
    for header, kind in ((("a", "b", "c"), "two"), (("a", "b", "c", "d", "e"), "two one")):
        table = TextTable(caption="", header=header, rows=(header,))
        assert f'<div class="{kind}">' in render_page(replace(page, table=table))


def test_an_axis_that_runs_down_has_all_its_labels():
    """Of the slots of a batch only the first was named."""
    axis = Axis(title="", low=3, high=0, ticks=(0.5, 1.5, 2.5), labels=("0", "1", "2"))
    assert [text for _, text in ticks_of(axis, (3, 0))] == ["0", "1", "2"]


def test_a_page_without_charts_has_no_script(bare_view):
    page = render_page(page_of(bare_view))
    assert "<script" not in page
    assert [attributes["id"] for attributes in Elements(page).all("section")] == ["answer"]


def test_links_lead_somewhere(elements):
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in elements.all("a"):
        assert attributes["href"][1:] in ids


def test_every_chart_has_alternative_text_a_picture_and_a_table(page, elements):
    figures = page.split("<figure")[1:]
    assert len(figures) == 12
    for part in figures:
        figure = part.split("</figure>")[0]
        label = re.search(r'role="img" aria-label="([^"]+)"', figure)
        assert label is not None
        assert re.search(rf"<(h2|h3|p)[^>]*>{re.escape(label.group(1).rstrip('.'))}", figure)
        assert "<svg" in figure
        assert "<details>" in figure
        assert "<table>" in figure


def test_language_and_viewport(elements):
    assert elements.all("html")[0]["lang"] == "en"
    assert any(attributes.get("name") == "viewport" for attributes in elements.all("meta"))


def test_same_view_same_bytes(example_view, page, tmp_path):
    write_page(page_of(example_view), tmp_path / "new" / "report.html")
    assert (tmp_path / "new" / "report.html").read_bytes() == page.encode()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]


def evil_view(view):
    label = {"run_label": f"eager {EVIL}"}
    points = tuple(
        replace(row, **label, flags=(EVIL,), decode_limited_by=EVIL) for row in view.points
    )
    lines = replace(view.five_lines, answer=EVIL, limit=EVIL, next=EVIL, trust=EVIL, report=EVIL)
    return replace(
        view,
        title=EVIL,
        subtitle=EVIL,
        five_lines=lines,
        points=points,
        ceilings=tuple(replace(moment, **label) for moment in view.ceilings),
        explained=tuple(replace(row, **label, limited_by=EVIL) for row in view.explained),
        predictions=tuple(replace(row, **label) for row in view.predictions),
        statements=(Statement(sentence=EVIL, support="supported"),),
        cautions=(Caution(code=EVIL, text=EVIL, remedy=EVIL),),
        fact_groups=(FactGroup(title=EVIL, facts=((EVIL, EVIL),)),),
        files=((EVIL, EVIL),),
        rerun_command=EVIL,
        tool_version=EVIL,
    )


def test_names_run_nothing(example_view):
    page = render_page(page_of(evil_view(example_view)))
    elements = Elements(page)
    assert "<script>alert" not in page
    assert not elements.all("img")
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert len([attributes for attributes in elements.all("script") if not attributes]) == 1


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("width", "is_dark", "is_evil"),
    [(390, False, False), (1280, False, False), (1440, True, False), (1280, False, True)],
)
def test_a_browser_draws_all_charts_without_a_word(example_view, tmp_path, width, is_dark, is_evil):
    shown = render_page(page_of(evil_view(example_view) if is_evil else example_view))
    check_looks_right(shown, tmp_path, width=width, n_charts=12, is_dark=is_dark)


def test_a_page_without_charts_is_light(bare_view):
    assert len(render_page(page_of(bare_view)).encode()) < 20_000
