"""What does an answer look like as one file that opens anywhere, without a network?

Everything from the page is user input: the template escapes it, and the page's policy runs only the
script whose hash it names. The same page gives the same bytes.
"""

import base64
import hashlib
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from inferometer.records.durability import make_folder, replace_file
from inferometer.report.charts.plot import Plot
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
    """The text of a page; it carries a script only where it has a chart."""
    sections = [section for section in page.sections if not section.is_empty]
    has_chart = page.chart is not None or any(section.charts for section in sections)
    script = resource("page.js") if has_chart else None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(str(resource("page.html"))).render(
        page=page,
        sections=sections,
        loose_cautions=[
            caution
            for caution in page.cautions
            if not any(caution in section.cautions for section in sections)
        ],
        style=resource("page.css"),
        script=script,
        sha256=None if script is None else _sha256(script),
        draw=_drawn,
        legend=legend_of,
        note=number_note,
        percent=_percent,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def number_note(number: Number) -> str:
    """What stands below a number: its limit, its interval, and its note."""
    limit = (
        ""
        if number.limit is None
        else f"{number.limit_name} {format_number(number.limit)} {number.unit}"
    )
    return " · ".join(part for part in (limit.strip(), number.interval, number.note) if part)


def resource(name: str) -> Markup:
    """A file of the page that comes with the package."""
    # Package data: no input of anybody's.
    return Markup(  # noqa: S704
        resources.files("inferometer.report").joinpath("page", name).read_text(encoding="utf-8")
    )


def _drawn(plot: Plot) -> Markup:
    # The drawing escapes every text of the plot.
    return Markup(drawn(plot))  # noqa: S704


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
