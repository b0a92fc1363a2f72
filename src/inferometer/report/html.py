"""What does a run look like as one file that opens anywhere, without a network?

Everything from the view is user input: the template escapes it, JSON blocks escape it again, and
the page's policy runs only the script whose hash it names. The same view gives the same bytes.
"""

import base64
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, TypeAlias

import jinja2
import vl_convert
from markupsafe import Markup

from inferometer.errors import RecordError
from inferometer.records.durability import make_folder, replace_file
from inferometer.report import tables
from inferometer.report.charts.catalogue import charts_of
from inferometer.report.sections import Figure, Page, Section, answers_of, figure_of
from inferometer.report.views import SweepReportView

Drawn: TypeAlias = Callable[..., tuple[Figure, ...]]
"""The figures of these names that the view has data for."""


def page_of(view: SweepReportView) -> Page:
    """The sections of a report on sweeps."""
    figures = {chart.chart_id: figure_of(chart) for chart in charts_of(view)}

    def drawn(*names: str) -> tuple[Figure, ...]:
        return tuple(figures[name] for name in names if name in figures)

    return Page(
        title=view.title,
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        answers=answers_of(view.five_lines),
        sections=(*_results(view, drawn), *_evidence(view, drawn)),
    )


def _results(view: SweepReportView, drawn: Drawn) -> tuple[Section, ...]:
    """What was measured."""
    points = tables.points_table(view)
    return (
        Section(
            id="limits",
            title="What limits it",
            nav="What limits it",
            statements=view.statements,
            figures=drawn("roofline", "utilisation"),
        ),
        Section(
            id="latency",
            title="Throughput and latency",
            nav="Throughput and latency",
            figures=drawn(
                *(
                    f"{name}-vs-{axis}"
                    for name in ("ttft", "step", "throughput")
                    for axis in ("prompt", "batch")
                )
            ),
            tables=() if points is None else (points,),
        ),
        Section(
            id="time",
            title="Where time goes",
            nav="Where time goes",
            figures=drawn("time-decode", "time-prefill"),
        ),
        Section(id="memory-section", title="Memory", nav="Memory", figures=drawn("memory")),
    )


def _evidence(view: SweepReportView, drawn: Drawn) -> tuple[Section, ...]:
    """How well it is predicted, whether it may be trusted, and where it comes from."""
    predicted = tuple(
        table
        for table in (tables.held_out_table(view), tables.parameters_table(view))
        if table is not None
    )
    return (
        Section(
            id="predicted",
            title="Predicted vs measured",
            nav="Predicted vs measured",
            figures=drawn("predicted-vs-measured"),
            tables=predicted,
        ),
        Section(
            id="checks",
            title="Validity checks",
            nav="Validity checks",
            cautions=view.cautions,
            figures=drawn("ceilings"),
        ),
        Section(
            id="method",
            title="Method and definitions",
            nav="Method",
            definitions=tables.definitions(view),
        ),
        Section(id="provenance", title="Provenance", nav="Provenance", groups=view.fact_groups),
        Section(
            id="data",
            title="Data and re-run",
            nav="Data",
            files=view.files,
            command=view.rerun_command,
        ),
    )


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
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(str(resource("page.html"))).render(
        page=page,
        sections=sections,
        style=resource("page.css"),
        script=page_script() if any(section.figures for section in sections) else None,
    )


# Which scripts and styles does a page carry?


SNIPPET: Final = "window.vegaEmbed = vegaEmbed;"
"""The bundle's own name ``vega`` is null (Vega has no default export), so charts are drawn
through vega-embed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageScript:
    """The one script of a page, and the hash by which the page's policy knows it."""

    text: Markup
    sha256: str


def page_script() -> PageScript:
    """Vega, its licence notices (the minifier removes them), and the code that draws our charts."""
    text = f"/*!\n{resource('notices.txt')}*/\n{vega_bundle()}\n{resource('page.js')}"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    # Package data and a library: no input of anybody's.
    return PageScript(text=Markup(text), sha256=digest)  # noqa: S704


def resource(name: str) -> Markup:
    """A file of the page that comes with the package."""
    # Package data: no input of anybody's.
    return Markup(  # noqa: S704
        resources.files("inferometer.report").joinpath("page", name).read_text(encoding="utf-8")
    )


def vega_bundle(cache_dir: Path | None = None) -> str:
    """Vega and vega-embed as one script, from the user's cache, or built once (a second)."""
    folder = cache_dir or user_cache_dir()
    path = (
        folder
        / f"vega-{vl_convert.get_vega_version()}-embed-{vl_convert.get_vega_embed_version()}.js"
    )
    if path.is_file():
        return path.read_text(encoding="utf-8")
    script: str = vl_convert.javascript_bundle(SNIPPET)
    # A script element ends at the first such text, whatever JavaScript thinks of it.
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    try:
        make_folder(folder)
        replace_file(path, script.encode())
    except RecordError:
        # A home that cannot be written costs seconds for each report, not the report.
        return script
    return script


def user_cache_dir() -> Path:
    """Where this user's caches are: XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "inferometer"
