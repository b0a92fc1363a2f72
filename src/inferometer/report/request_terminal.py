"""A run of requests in a terminal: main cautions, the answer, then its tables.

Nothing here prints.
"""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.records.tool_views import ToolView
from inferometer.report import online_tables, request_tables, server_tables
from inferometer.report.request_views import OnlineView, RequestReportView
from inferometer.report.tables import TextTable
from inferometer.report.terminal import five_lines_text


def request_report_text(view: RequestReportView) -> RenderableType:
    """The whole run: cautions, five lines, verdicts, latencies, rates, counts, other cautions."""
    parts: list[RenderableType] = [Text(f"{view.title} · {view.subtitle}", style="bold")]
    parts += [
        Text(f"CAUTION {caution.text} – {caution.remedy}", style="bold")
        for caution in view.lead_cautions
    ]
    parts += (
        []
        if view.online is None
        else [Text(online_tables.validity_line(view.online.validity), style="bold")]
    )
    parts.append(five_lines_text(view.five_lines))
    if view.judgement is not None:
        parts += [
            table_text(request_tables.promises_table(view.judgement)),
            Text(request_tables.goodput_text(view.judgement) + "\n"),
        ]
    parts += [
        table_text(build(view))
        for build in (
            request_tables.latency_table,
            request_tables.rates_table,
            request_tables.counts_table,
        )
    ]
    handovers = request_tables.handovers_table(view)
    parts += [] if handovers is None else [table_text(handovers)]
    parts += [] if view.online is None else _online(view.online)
    parts += [
        Text(f"  {statement.sentence}")
        for statement in view.statements
        if statement.support != "undecided"
    ]
    parts += [Text(f"CAUTION {caution.text} – {caution.remedy}") for caution in view.cautions]
    return Group(*parts)


def _online(view: OnlineView) -> list[RenderableType]:
    """Tokens, errors, other tools' numbers, and the checks that found something."""
    built = (
        *server_tables.tables_of(view),
        online_tables.inter_token_table(view.inter_token),
        online_tables.errors_table(view),
        online_tables.tools_table(view),
        online_tables.tool_rates_table(view),
    )
    shown = [table for table in built if table is not None and table.rows]
    parts = [
        part
        for table in shown
        for part in (
            Text(table.caption, style="bold"),
            table_text(online_tables.without_sentences(table)),
        )
    ]
    parts += [Text(f"  {one.tool}: {one.definitions}{_rates_text(one)}") for one in view.tools[1:]]
    return [
        *parts,
        Text(),
        *(
            Text(f"  {one.verdict} {one.check}: {one.text} – {one.remedy}")
            for one in view.validity.reasons
            if one.remedy
        ),
    ]


def _rates_text(tool: ToolView) -> str:
    return "" if tool.rates is None else f"; rates {tool.rates.span}"


def table_text(table: TextTable) -> RenderableType:
    """A table without lines: names to the left, all else to the right."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", title=None, padding=(0, 2, 0, 0))
    for index, name in enumerate(table.header):
        drawn.add_column(name, justify="left" if index == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return Padding(drawn, (0, 0, 1, 0))
