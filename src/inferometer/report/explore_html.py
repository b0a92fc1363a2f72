"""What does the explorer look like: its fields, and the parts that each answer fills?

The answer and its charts are those of every other page; the fields and the script are its own.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from inferometer import __version__
from inferometer.report.charts.plot import Chart
from inferometer.report.html import loose_cautions, resource, sha256_of, templates
from inferometer.report.page import Page

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
