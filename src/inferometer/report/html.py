"""What does a run look like as one file that opens anywhere, without a network?

Everything from the view is user input: the template escapes it, JSON blocks escape it again, and the page's policy runs
only the script whose hash it names. The same view gives the same bytes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jinja2

from inferometer.records.durability import make_folder, replace_file
from inferometer.report import tables
from inferometer.report.bundle import page_script, resource
from inferometer.report.charts.catalogue import charts_of
from inferometer.report.figure import figure_of
from inferometer.report.views import FiveLines, SweepReportView

SECTION_CHARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "limits": ("roofline", "utilisation"),
    "latency": ("ttft-vs-prompt", "step-vs-batch", "throughput-vs-batch"),
    "time": ("time-decode", "time-prefill"),
    "memory": ("memory",),
    "predicted": ("predicted-vs-measured",),
    "checks": ("ceilings",),
}
"""Section of the page -> its charts, in order."""


def write_report(view: SweepReportView, path: Path) -> None:
    """Write the report of this view: all of it or nothing.

    Raises
    ------
    RecordError
        The folder or the file cannot be written.
    """
    page = render_report(view).encode()
    make_folder(path.parent)
    replace_file(path, page)


def render_report(view: SweepReportView) -> str:
    """The page as text."""
    figures = [figure_of(chart) for chart in charts_of(view)]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(str(resource("page.html"))).render(
        view=view,
        answers=_answers(view.five_lines),
        sections={name: [figure for figure in figures if figure.id in ids] for name, ids in SECTION_CHARTS.items()},
        points=tables.points_table(view),
        held_out=tables.held_out_table(view),
        parameters=tables.parameters_table(view),
        definitions=tables.definitions(view),
        style=resource("page.css"),
        script=page_script() if figures else None,
    )


def _answers(lines: FiveLines) -> tuple[tuple[str, str], ...]:
    return (("Answer", lines.answer), ("Limit", lines.limit), ("Next", lines.next), ("Trust", lines.trust), ("Files", lines.report))


__all__ = ["SECTION_CHARTS", "render_report", "write_report"]
