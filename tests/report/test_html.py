"""Is the report one offline file that says everything, breaks nowhere and runs nothing that a name smuggles in?"""

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from inferometer.records.types import Caution
from inferometer.report.html import page_of, render_page, write_page
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
    assert len([attributes for attributes in elements.all("script") if not attributes]) == 1


def test_sections_in_order(elements):
    assert [attributes["id"] for attributes in elements.all("section")] == SECTIONS


def test_sections_without_data_are_absent(one_run_view):
    found = [
        attributes["id"]
        for attributes in Elements(render_page(page_of(one_run_view))).all("section")
    ]
    assert found == [name for name in SECTIONS if name not in {"time", "predicted"}]


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
        assert f"<figcaption>{label.group(1)}</figcaption>".replace("&#39;", "'") in figure.replace(
            "&#39;", "'"
        )
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


CHROMIUM = shutil.which("chromium")


def browser(tmp_path, *arguments):
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("is_evil", [False, True])
def test_a_browser_draws_all_charts_without_a_word(example_view, tmp_path, width, is_evil):
    write_page(
        page_of(evil_view(example_view) if is_evil else example_view), tmp_path / "report.html"
    )
    # A window is never narrower than 500 pixels; a frame is.
    (tmp_path / "frame.html").write_text(
        f"""<iframe src="report.html" style="width:{width}px;height:900px;border:0"></iframe><p id="seen"></p>
        <script>setTimeout(function () {{
          var page = document.querySelector("iframe").contentDocument, root = page.documentElement;
          var charts = Array.from(page.querySelectorAll("figure")).filter(function (figure) {{
            var drawn = figure.querySelector(".live svg");
            return drawn && drawn.clientWidth > 200 && figure.querySelector(".static").clientWidth === 0;
          }});
          document.title = [root.scrollWidth, root.clientWidth, charts.length, page.querySelectorAll("img").length].join(" ");
        }}, 8000);</script>""",
        encoding="utf-8",
    )
    dom, console = browser(
        tmp_path, "--window-size=1400,1000", "--dump-dom", f"file://{tmp_path / 'frame.html'}"
    )
    assert console == []
    scroll_width, client_width, n_charts, n_images = map(
        int, re.search(r"<title>([\d ]+)</title>", dom).group(1).split()
    )
    assert scroll_width <= client_width <= width
    assert n_charts == 12
    assert n_images == 0
