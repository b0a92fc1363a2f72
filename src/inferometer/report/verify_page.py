"""What is there to read of sealed predictions and of their measurement?"""

from inferometer.report.charts.verified import verified_charts
from inferometer.report.page import Chip, Page, Section, lines_of
from inferometer.report.verify_tables import DEFINITIONS, VerifyView, claims_table, promises_table


def verify_page_of(view: VerifyView) -> Page:
    """Predicted against measured, then every number, then what was sealed when."""
    tables = tuple(
        table for table in (claims_table(view), promises_table(view)) if table is not None
    )
    charts = verified_charts(view)
    return Page(
        title=view.answer,
        subtitle=view.subtitle,
        chips=(Chip(verdict=view.verdict, text=view.verdict),),
        table=tables[0] if tables else None,
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", view.why),
            ("TRUST", f"{view.trust}; sealed {view.seal}"),
            ("DATA", view.measured),
            ("NEXT", view.next),
        ),
        tool_version=view.tool_version,
        sections=(
            Section(
                id="predicted",
                title="Was it so?",
                nav="Predicted vs measured",
                charts=charts,
                tables=tables,
            ),
            Section(
                id="method", title="What do the words mean?", nav="Method", definitions=DEFINITIONS
            ),
            Section(
                id="provenance",
                title="What was sealed, and what was measured?",
                nav="Provenance",
                groups=view.facts,
            ),
        ),
    )
