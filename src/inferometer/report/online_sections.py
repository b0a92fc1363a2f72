"""Which sections has a page on a load test beside those of every run of requests?"""

from collections.abc import Callable
from typing import TypeAlias

from inferometer.report import online_tables, server_tables
from inferometer.report.figure import Figure
from inferometer.report.online_views import OnlineView
from inferometer.report.sections import Section
from inferometer.report.views import Statement

Drawn: TypeAlias = Callable[..., tuple[Figure, ...]]


def online_sections(online: OnlineView | None, drawn: Drawn) -> tuple[Section, ...]:
    """Tokens one by one, requests in flight, errors, and what other tools would have reported; none for other runs."""
    if online is None:
        return ()
    errors = online_tables.errors_table(online)
    tools = tuple(
        table
        for table in (online_tables.tools_table(online), online_tables.tool_rates_table(online))
        if table is not None
    )
    steady = Statement(sentence=online_tables.steady_sentence(online.steady), support="supported")
    return (
        Section(
            id="tokens",
            title="Token by token",
            nav="Tokens",
            tables=(online_tables.inter_token_table(online.inter_token),),
            figures=drawn("itl-map"),
        ),
        Section(
            id="steady",
            title="Over the time of the run",
            nav="Over time",
            statements=(steady,),
            figures=drawn("in-flight"),
        ),
        Section(
            id="server",
            title="What the server says",
            nav="Server",
            tables=server_tables.tables_of(online),
        ),
        Section(
            id="errors",
            title="What went wrong",
            nav="Errors",
            tables=() if errors is None else (errors,),
        ),
        Section(id="tools", title="What other tools would say", nav="Other tools", tables=tools),
    )
