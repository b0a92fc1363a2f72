"""What is there to read of a run of requests, measured or simulated, and of several side by side?"""

from dataclasses import replace
from typing import Final, TypeAlias

from inferometer.inputs.objectives import Metric, percentile_name
from inferometer.records.request_summaries import Judgement, Percentile, RequestSummary
from inferometer.report import online_tables, request_tables
from inferometer.report.charts.catalogue import request_charts_of
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.rates import (
    goodput_rate_chart,
    rate_cells,
    throughput_latency_chart,
    tpot_rate_chart,
    ttft_rate_chart,
)
from inferometer.report.charts.time_parts import ttft_parts_rate_chart
from inferometer.report.page import (
    Chip,
    Number,
    Page,
    Section,
    closing_sections,
    duration_number,
    lines_of,
    method_section,
    rate_number,
    slo_words,
)
from inferometer.report.request_tables import LATENCY_NAMES, percentile_text
from inferometer.report.sweep_page import Drawn, drawn_of, files_of
from inferometer.report.tables import TextTable
from inferometer.report.views import OnlineView, RateView, RequestReportView, Statement
from inferometer.units import format_fraction, format_number

_Judged: TypeAlias = tuple[Metric, float | None, Percentile | None, float | None]
_HEADLINE: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e")


def request_page_of(view: RequestReportView) -> Page:
    """The page of one run: its verdicts, its latencies against their limits, then its evidence."""
    charts = {chart.chart_id: chart for chart in request_charts_of(view)}
    lines, whole = view.five_lines, view.summaries[0]
    return Page(
        title=f"{view.title}: {answer_words(whole)}",
        subtitle=view.subtitle,
        chips=(*slo_chips(view.judgement), *_class_chips(view), *_validity(view.online)),
        numbers=summary_numbers(whole, view.judgement),
        table=request_tables.brief_latency_table(whole),
        chart=charts.get("ttft-over-time") or charts.get("latency-tails"),
        lines=lines_of(
            ("LIMIT", lines.limit),
            (
                "WHY",
                "\n".join(map(_nearest, _judged(view))),
            ),
            ("TRUST", lines.trust),
            ("NEXT", lines.next),
            *files_of(lines),
        ),
        lead_cautions=view.lead_cautions,
        cautions=view.cautions,
        sections=(*_results(view, drawn_of(charts)), *_evidence(view, drawn_of(charts))),
        tool_version=view.tool_version,
    )


def answer_words(summary: RequestSummary) -> str:
    """Throughput and the latencies that users feel, for a title."""
    parts = [
        f"{name} p95 {percentile_text(found).partition(' [')[0].partition(' (')[0]}"
        for name, found in (
            ("TTFT", summary.latency("ttft").percentile(0.95)),
            ("TPOT", summary.latency("tpot").percentile(0.95)),
        )
        if found is not None
    ]
    rate = summary.output_tokens_per_s
    parts += [] if rate is None else [f"{format_number(rate.value)} output tok/s"]
    return ", ".join(parts) or "no request gave a token"


def slo_chips(judgement: Judgement | None) -> tuple[Chip, ...]:
    """Verdict on the SLO; empty without an SLO."""
    if judgement is None:
        return ()
    of_requests = any(one.threshold.metric != "workflow" for one in judgement.thresholds)
    within = f": {judgement.objective.text}"
    if judgement.good is not None and of_requests:
        share = format_fraction(judgement.good.value)
        within = f": {share} of requests within {judgement.objective.text}"
    return (Chip(verdict=judgement.verdict, text=f"{slo_words(judgement.verdict)}{within}"),)


def summary_numbers(summary: RequestSummary, judgement: Judgement | None) -> tuple[Number, ...]:
    """The latencies with a limit, else TTFT, TPOT and E2E at p95; throughput; goodput."""
    judged: list[_Judged] = [
        (one.threshold.metric, one.threshold.percentile_fraction, one.seen, one.threshold.limit_s)
        for one in (() if judgement is None else judgement.thresholds)
        if one.threshold.percentile_fraction is not None
    ]
    named = {(metric, fraction) for metric, fraction, _, _ in judged}
    plain: list[_Judged] = [
        (metric, 0.95, summary.latency(metric).percentile(0.95), None)
        for metric in _HEADLINE
        if (metric, 0.95) not in named
    ]
    latencies = [
        number
        for metric, fraction, seen, limit_s in (*judged, *plain)
        for number in duration_number(
            f"{LATENCY_NAMES[metric]} {percentile_name(fraction or 0.5)}", seen, limit_s=limit_s
        )
    ]
    return (
        *latencies[:4],
        *rate_number("output", summary.output_tokens_per_s, "tok/s"),
        *rate_number("completed", summary.completed_requests_per_s, "requests/s"),
        *_goodput_number(judgement),
    )[:6] + _prefix_hit_number(summary)


def _prefix_hit_number(summary: RequestSummary) -> tuple[Number, ...]:
    """Share of the prompt tokens that the prefix cache supplied."""
    if not summary.cached_tokens:
        return ()
    percent = 100 * summary.cached_tokens / summary.input_tokens
    return (Number(name="prefix hit", value=percent, unit="%", note="of prompt tokens"),)


def _goodput_number(judgement: Judgement | None) -> tuple[Number, ...]:
    """Goodput, with the interval of the share of good requests at the same arrivals."""
    if judgement is None or judgement.good_requests_per_s is None:
        return ()
    rate, share = judgement.good_requests_per_s, judgement.good
    if share is None or not share.value:
        return (Number(name="goodput", value=rate, unit="requests/s"),)
    return rate_number("goodput", share.scaled(rate / share.value), "requests/s")


def _results(view: RequestReportView, drawn: Drawn) -> tuple[Section, ...]:
    """Sections of measured or simulated results."""
    online, handovers = view.online, request_tables.handovers_table(view)
    return (
        _promises(view),
        Section(
            id="latency",
            title="How fast, and how much?",
            nav="Latency",
            statements=view.statements,
            tables=(
                request_tables.rates_table(view),
                request_tables.latency_table(view),
                request_tables.counts_table(view),
                *([handovers] if handovers else ()),
            ),
            charts=drawn(
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
            title="Is it full: batch, queue, KV cache?",
            nav="Queue and KV",
            tables=(request_tables.kv_pools_table(view.kv_pools),) if view.kv_pools else (),
            charts=drawn("load-queue", "load-kv", "load-holes", "load-swaps", "load-preemptions"),
        ),
        Section(
            id="slots",
            title="What does each slot of the batch do?",
            nav="Slots",
            charts=drawn("slot-timeline"),
        ),
    )


def _evidence(view: RequestReportView, drawn: Drawn) -> tuple[Section, ...]:
    """Sections on validity, definitions and provenance."""
    online = view.online
    return (
        Section(
            id="checks",
            title="Can the numbers be trusted?",
            nav="Validity",
            cautions=view.cautions,
            tables=() if online is None else (online_tables.validity_table(online),),
            charts=drawn("client-lateness"),
        ),
        *closing_sections(_definitions(view), view.fact_groups, view.files, view.rerun_command),
    )


def _judged(view: RequestReportView) -> list[tuple[str, Judgement]]:
    """Verdicts by the common SLO, under '', and by classes' own."""
    whole = [] if view.judgement is None else [("", view.judgement)]
    return whole + [(one.name, one.judgement) for one in view.class_judgements]


def _class_chips(view: RequestReportView) -> tuple[Chip, ...]:
    return tuple(
        replace(chip, text=f"{one.name} {chip.text}")
        for one in view.class_judgements
        for chip in slo_chips(one.judgement)
    )


def _nearest(judged: tuple[str, Judgement]) -> str:
    name, weakest = judged[0], judged[1].weakest
    if weakest is None:
        return ""
    lead = f"{name}: {judged[1].verdict}; " if name else ""
    return f"{lead}nearest its limit: {weakest.threshold.text}, {weakest.why}"


def _promises(view: RequestReportView) -> Section:
    judged = _judged(view)
    return Section(
        id="promises",
        title="Was the SLO met?",
        nav="SLO",
        statements=tuple(
            Statement(sentence=request_tables.goodput_text(one, name), support="supported")
            for name, one in judged
        ),
        tables=tuple(request_tables.promises_table(one, name) for name, one in judged),
    )


def _definitions(view: RequestReportView) -> tuple[tuple[str, str], ...]:
    return request_tables.DEFINITIONS + (
        ()
        if view.online is None
        else online_tables.ONLINE_DEFINITIONS + request_tables.SERVER_DEFINITIONS
    )


def _validity(online: OnlineView | None) -> tuple[Chip, ...]:
    if online is None:
        return ()
    text = online_tables.validity_line(online.validity)
    return (Chip(verdict=online.validity.verdict, text=text),)


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
            title="How evenly do tokens come?",
            nav="Tokens",
            tables=(online_tables.inter_token_table(online.inter_token),),
            charts=drawn("itl-map"),
        ),
        Section(
            id="steady",
            title="Was it steady?",
            nav="Over time",
            statements=(steady,),
            charts=drawn("in-flight"),
        ),
        Section(
            id="server",
            title="What does the server report?",
            nav="Server",
            tables=request_tables.tables_of(online),
        ),
        Section(
            id="errors",
            title="What went wrong?",
            nav="Errors",
            tables=() if errors is None else (errors,),
        ),
        Section(
            id="tools", title="What would other tools report?", nav="Other tools", tables=tools
        ),
    )


_MOST_NAMED: Final = 3
RATE_CHARTS: Final = (
    ttft_rate_chart,
    tpot_rate_chart,
    ttft_parts_rate_chart,
    goodput_rate_chart,
    throughput_latency_chart,
)
_HEADER: Final = (
    "run",
    "verdict",
    "traffic",
    "completed req/s",
    "good req/s",
    "output tok/s",
    "TTFT p50",
    "TTFT p95",
    "TPOT p50",
    "TPOT p95",
)


def rate_charts_of(view: RateView) -> tuple[Chart, ...]:
    """The charts that these runs have data for, in the order of the page."""
    return tuple(chart for build in RATE_CHARTS if (chart := build(view)) is not None)


def rate_page_of(view: RateView) -> Page:
    """The sections of a report on several runs of requests: curves, then the table that they draw."""
    charts = rate_charts_of(view)
    by = "concurrency" if view.is_closed else "offered rate"
    header = tuple(
        {"traffic": "concurrency" if view.is_closed else "offered req/s"}.get(name, name)
        for name in _HEADER
    )
    within = f"; good: within {view.objective}" if view.objective else ""
    table = TextTable(
        caption=f"Runs by {by}{within}",
        header=header,
        rows=tuple(rate_cells(point) for point in view.points),
    )
    sections = (
        Section(
            id="rates",
            title=f"What happens as the {by} grows?",
            nav=by.capitalize(),
            tables=(table,),
            charts=charts,
        ),
        method_section(request_tables.DEFINITIONS + online_tables.ONLINE_DEFINITIONS),
        Section(id="data", title="Which runs are these?", nav="Data", files=view.files),
    )
    return Page(
        title=f"{view.title}: {view.answer}",
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        chips=_validity_of_runs(view),
        numbers=_numbers(view),
        table=table,
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", "\n".join(chart.finding for chart in charts[1:4])),
            ("TRUST", "numbers are of the steady state where a run has one, else of the whole run"),
        ),
        sections=sections,
        cautions=view.cautions,
    )


def _validity_of_runs(view: RateView) -> tuple[Chip, ...]:
    """Are all runs VALID, and which are not?"""
    known = [point for point in view.points if point.verdict is not None]
    doubtful = [point for point in known if point.verdict != "VALID"]
    if not known:
        return ()
    if not doubtful:
        return (Chip(verdict="VALID", text=f"all {len(known)} runs are VALID"),)
    verdict = "INVALID" if any(one.verdict == "INVALID" for one in doubtful) else "SUSPECT"
    named = ", ".join(f"{one.label} is {one.verdict}" for one in doubtful[:_MOST_NAMED])
    more = f" and {len(doubtful) - _MOST_NAMED} more" if len(doubtful) > _MOST_NAMED else ""
    return (Chip(verdict=verdict, text=f"{named}{more}"),)


def _numbers(view: RateView) -> tuple[Number, ...]:
    """The most output and goodput, and TTFT and TPOT at the least and at the most traffic."""
    most = max(
        view.points, key=lambda one: one.output_tokens_per_s.value if one.output_tokens_per_s else 0
    )
    good = max(view.points, key=lambda one: one.good_requests_per_s or 0.0)
    goodput = good.good_requests_per_s
    ends = dict.fromkeys((view.points[0], view.points[-1]))
    return (
        *rate_number("most output", most.output_tokens_per_s, "tok/s", note=most.label),
        *(
            (Number(name="most goodput", value=goodput, unit="requests/s", note=good.label),)
            if goodput is not None
            else ()
        ),
        *(
            number
            for name, pick in (("TTFT", "ttft_p95"), ("TPOT", "tpot_p95"))
            for one in ends
            for number in duration_number(f"{name} p95", getattr(one, pick), note=one.label)
        ),
    )
