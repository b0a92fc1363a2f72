"""What does a run of requests look like as one file that opens anywhere?"""

from inferometer.records.promises import Judgement
from inferometer.report import online_tables, request_tables, server_tables
from inferometer.report.charts.catalogue import request_charts_of
from inferometer.report.html import Drawn
from inferometer.report.request_views import OnlineView, RequestReportView
from inferometer.report.sections import Figure, Page, Section, answers_of, figure_of
from inferometer.report.views import Statement


def request_page_of(view: RequestReportView) -> Page:
    """The sections of a report on requests: lead cautions, the answer, then its evidence."""
    figures = {chart.chart_id: figure_of(chart) for chart in request_charts_of(view)}

    def drawn(*names: str) -> tuple[Figure, ...]:
        return tuple(figures[name] for name in names if name in figures)

    return Page(
        title=view.title,
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        answers=_validity(view.online) + answers_of(view.five_lines),
        lead_cautions=view.lead_cautions,
        sections=(*_results(view, drawn), *_evidence(view, drawn)),
    )


def _results(view: RequestReportView, drawn: Drawn) -> tuple[Section, ...]:
    """What was measured or simulated."""
    online, handovers = view.online, request_tables.handovers_table(view)
    return (
        _promises(view.judgement),
        Section(
            id="latency",
            title="Throughput and latency",
            nav="Throughput and latency",
            statements=view.statements,
            tables=(
                request_tables.rates_table(view),
                request_tables.latency_table(view),
                request_tables.counts_table(view),
                *([handovers] if handovers else ()),
            ),
            figures=drawn(
                "latency-tails",
                "ttft-parts",
                "ttft-over-time",
                "tpot-over-time",
                *(("itl-map",) if online is None else ()),
            ),
        ),
        *online_sections(online, drawn),
        Section(
            id="load",
            title="Seats, queue and KV cache over time",
            nav="Queue and KV",
            figures=drawn("load-queue", "load-kv", "load-holes", "load-swaps", "load-preemptions"),
        ),
        Section(id="slots", title="Who sits where", nav="Slots", figures=drawn("slot-timeline")),
    )


def _evidence(view: RequestReportView, drawn: Drawn) -> tuple[Section, ...]:
    """Whether it may be trusted, what the words mean, and where it comes from."""
    online = view.online
    return (
        Section(
            id="checks",
            title="Validity checks",
            nav="Validity checks",
            cautions=view.cautions,
            tables=() if online is None else (online_tables.validity_table(online),),
            figures=drawn("client-lateness"),
        ),
        Section(
            id="method",
            title="Method and definitions",
            nav="Method",
            definitions=_definitions(view),
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


def _promises(judgement: Judgement | None) -> Section:
    goodput = (
        ()
        if judgement is None
        else (Statement(sentence=request_tables.goodput_text(judgement), support="supported"),)
    )
    return Section(
        id="promises",
        title="What was promised",
        nav="Promises",
        statements=goodput,
        tables=() if judgement is None else (request_tables.promises_table(judgement),),
    )


def _definitions(view: RequestReportView) -> tuple[tuple[str, str], ...]:
    return request_tables.DEFINITIONS + (
        ()
        if view.online is None
        else online_tables.ONLINE_DEFINITIONS + server_tables.SERVER_DEFINITIONS
    )


def _validity(online: OnlineView | None) -> tuple[tuple[str, str], ...]:
    return () if online is None else (("Validity", online_tables.validity_line(online.validity)),)


def online_sections(online: OnlineView | None, drawn: Drawn) -> tuple[Section, ...]:
    """Sections of a load test: tokens, in-flight, server, errors, other tools; else none."""
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
