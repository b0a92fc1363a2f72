"""Answers as one file that opens anywhere without a network, and the page of the explorer.

Everything from the answer is user input: the template escapes it, and the page's policy runs only
the script whose hash it names. The same page gives the same bytes.

In the explorer, the answer and its charts are those of every other page; the fields and the script
are its own.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
from markupsafe import Markup

from inferometer import __version__
from inferometer.inputs.types import Caution
from inferometer.records.run_folder import make_folder, replace_file
from inferometer.report.charts.plot import Chart, Plot
from inferometer.report.charts.svg import drawn, legend_of
from inferometer.report.page import Number, Page
from inferometer.units import format_number


def write_page(page: Page, path: Path) -> None:
    """Write a page: all of it or nothing.

    Raises
    ------
    RecordError
        The folder or the file cannot be written.
    """
    text = render_page(page).encode()
    make_folder(path.parent)
    replace_file(path, text)


def render_page(page: Page) -> str:
    """HTML of a page; with a script only where it has a chart."""
    lead = None if page.chart is None else page.chart.chart_id
    below = (
        replace(one, charts=tuple(chart for chart in one.charts if chart.chart_id != lead))
        for one in page.sections
    )
    sections = [section for section in below if not section.is_empty]
    has_chart = page.chart is not None or any(section.charts for section in sections)
    script = resource("page.js") if has_chart else None
    return (
        templates()
        .get_template("page.html")
        .render(
            page=page,
            sections=sections,
            loose_cautions=loose_cautions(page),
            style=resource("page.css"),
            script=script,
            sha256=None if script is None else sha256_of(script),
        )
    )


def loose_cautions(page: Page) -> list[Caution]:
    """Cautions that no section shows."""
    return [
        caution
        for caution in page.cautions
        if not any(caution in section.cautions for section in page.sections)
    ]


@cache
def templates() -> jinja2.Environment:
    """The package's templates; all values are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: str(resource(name))),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    named: dict[str, Any] = {
        "draw": _drawn,
        "legend": legend_of,
        "note": number_note,
        "percent": _percent,
    }
    environment.globals.update(named)
    return environment


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def number_note(number: Number) -> str:
    """Text below a number: its limit, its interval, and its note."""
    limit = (
        ""
        if number.limit is None
        else f"{number.limit_name} {format_number(number.limit)} {number.unit}"
    )
    return " · ".join(part for part in (limit.strip(), number.interval, number.note) if part)


def resource(name: str) -> Markup:
    """A file of the page from the package."""
    # Package data: no input of anybody's.
    return Markup(  # noqa: S704
        resources.files("inferometer.report").joinpath("page", name).read_text(encoding="utf-8")
    )


def _drawn(plot: Plot) -> Markup:
    # The drawing escapes every text of the plot.
    return Markup(drawn(plot))  # noqa: S704


def sha256_of(script: str) -> str:
    """Hash of a script in the page's content security policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


ASSETS: Final[Mapping[str, str]] = {
    "page.css": "text/css",
    "explore.css": "text/css",
    "page.js": "text/javascript",
    "explore.js": "text/javascript",
}
_BESIDE_ANSWER: Final = "ttft-vs-rate"
"""The chart beside the sentence, under no heading but the page's own."""
POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " img-src data:; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self'"
)
"""Content security policy of the served page: no other origins, inline scripts or eval."""


class Slot(NamedTuple):
    """A place for a chart."""

    id: str
    section: str


class Chapter(NamedTuple):
    """A lesson: what to know, one thing to try, and its state."""

    title: str
    text: str
    try_: str
    query: str


def fragments(page: Page, charts: Sequence[Chart]) -> dict[str, Any]:
    """The parts of the page that an answer fills, as HTML."""
    parts: Any = templates().get_template("parts.html").module
    return {
        "head": str(parts.answer_head(page)),
        "lines": str(parts.answer_lines(page, loose_cautions(page))),
        "figures": {
            chart.chart_id: str(parts.figure(chart, 2 if chart.chart_id == _BESIDE_ANSWER else 3))
            for chart in charts
        },
    }


def render_explorer(
    start: Mapping[str, Any],
    choices: Mapping[str, Sequence[str]],
    chapters: Sequence[Chapter],
    chart_ids: Sequence[str],
    *,
    is_file: bool,
) -> str:
    """The explorer's page, for a server that adds answers, or as one file with all in it.

    ``start`` has the page's first state; for a file also the answers of a grid of states.
    """
    scripts = [resource(name) for name in ("page.js", "explore.js")] if is_file else []
    # In an element of a script: no text may end the element.
    data = Markup(json.dumps(start).replace("<", "\\u003c"))  # noqa: S704 -- no "<" is left
    return (
        templates()
        .get_template("explore.html")
        .render(
            start=data,
            choices=choices,
            chapters=chapters,
            chart_ids=chart_ids,
            styles=[resource(name) for name in ("page.css", "explore.css")] if is_file else [],
            scripts=scripts,
            hashes=[sha256_of(one) for one in scripts],
            version=__version__,
            is_file=is_file,
        )
    )
