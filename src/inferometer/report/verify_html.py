"""What do sealed predictions and their measurement look like as one file that opens anywhere?"""

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.report.charts.verified import verified_charts
from inferometer.report.request_terminal import table_text
from inferometer.report.sections import Page, Section, figure_of
from inferometer.report.verify_tables import DEFINITIONS, VerifyView, claims_table, promises_table


def verify_page_of(view: VerifyView) -> Page:
    """Predicted against measured, then every number, then what was sealed when."""
    tables = tuple(
        table for table in (claims_table(view), promises_table(view)) if table is not None
    )
    figures = tuple(figure_of(chart) for chart in verified_charts(view))
    return Page(
        title=view.title,
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        answers=tuple(
            (name, text)
            for name, text in (("Answer", view.answer), ("Why", view.why), ("Trust", view.trust))
            if text
        ),
        sections=(
            Section(
                id="predicted",
                title="Predicted vs measured",
                nav="Predicted vs measured",
                figures=figures,
                tables=tables,
            ),
            Section(
                id="method", title="Method and definitions", nav="Method", definitions=DEFINITIONS
            ),
            Section(
                id="provenance",
                title="What was sealed, and what was measured",
                nav="Provenance",
                groups=view.facts,
            ),
        ),
    )


# How do sealed predictions and their measurement look in a terminal: the answer first?
# Nothing here prints.


def verify_text(view: VerifyView) -> RenderableType:
    """The answer, every claim, what they rest on, what to do next."""
    tables = [table for table in (claims_table(view), promises_table(view)) if table is not None]
    lines = (
        ("TRUST", view.trust),
        ("SEAL", view.seal),
        ("RUNS", view.measured),
        ("NEXT", view.next),
    )
    return Group(
        Text(f"ANSWER {view.answer}", style="bold"),
        Text(f"WHY    {view.why}"),
        Text(),
        *(table_text(table) for table in tables),
        *(Text(f"{name:<6} {text}") for name, text in lines if text),
    )
