"""Tables of a load test's report: verdict, token gaps, errors, other tools' numbers."""

from typing import Final

from inferometer.inputs.objectives import percentile_name
from inferometer.records.request_summaries import InterTokenSummary
from inferometer.records.steady_state import SteadyState
from inferometer.records.tool_views import Spread
from inferometer.records.types import Validity
from inferometer.report.request_tables import LATENCY_NAMES, percentile_text
from inferometer.report.tables import TextTable, known_cell, number_cell
from inferometer.report.views import OnlineView
from inferometer.units import NS_PER_S, format_duration, format_fraction, format_number

_MAX_REASONS: Final = 3
ONLINE_DEFINITIONS: Final = (
    (
        "ITL",
        (
            "gap between chunks of an answer; per token each of a chunk's k tokens took a k-th of"
            " its gap."
        ),
    ),
    (
        "Validity",
        (
            "VALID: nothing speaks against the numbers. SUSPECT: some may be wrong. INVALID: they"
            " are the client's, not the server's."
        ),
    ),
    (
        "Warm-up",
        (
            "requests at the start whose latency is unlike the rest (MSER-5, checked against"
            " chance); drain: the same at the end."
        ),
    ),
    (
        "Steady state",
        (
            "what lies between: latencies of requests sent in it, rates between its first and its"
            " last sending."
        ),
    ),
)


def validity_line(validity: Validity) -> str:
    """The verdict and its reason, in one line."""
    bad = [one for one in validity.reasons if one.verdict != "VALID"]
    if not bad:
        return f"VALID: {len(validity.reasons)} checks; {validity.reasons[0].text}."
    rest = f"; and {len(bad) - _MAX_REASONS} more" if len(bad) > _MAX_REASONS else ""
    return f"{validity.verdict}: {'; '.join(one.text for one in bad[:_MAX_REASONS])}{rest}."


def validity_table(view: OnlineView) -> TextTable:
    """Every check with its observation and its remedy."""
    rows = tuple((one.verdict, one.check, one.text, one.remedy) for one in view.validity.reasons)
    return TextTable(
        caption=f"Validity: {view.validity.verdict}",
        header=("verdict", "check", "what was seen", "try"),
        rows=rows,
    )


def steady_sentence(steady: SteadyState | None) -> str:
    """Start and end of the run's steady state."""
    if steady is None:
        return "Too few requests to tell warm-up and steady state from chance."
    start_s, end_s = steady.start_ns / NS_PER_S, steady.end_ns / NS_PER_S
    informed_by = (
        ""
        if steady.warm_up_shown_by is None
        else f", as {LATENCY_NAMES[steady.warm_up_shown_by]} shows"
    )
    cut = (
        f"{steady.n_warm_up:,} requests of the warm-up{informed_by}, and {steady.n_drain:,} of the"
        " drain"
    )
    if steady.drifting:
        changes = [
            f"{LATENCY_NAMES[one.latency]} changed {format_number(one.trend.ratio)}-fold"
            for one in steady.drifting
        ]
        return (
            f"No steady state: {' and '.join(changes)} while the run went on; before and after were"
            f" {cut}."
        )
    if not steady.is_reached:
        return "No steady state: more than half of the run would have to be cut."
    return (
        f"Steady from {start_s:.1f} s to {end_s:.1f} s: {steady.n_steady:,} requests, after {cut}."
    )


def inter_token_table(summary: InterTokenSummary) -> TextTable:
    """Inter-token latency in both views."""
    fractions = [one.percentile_fraction for one in summary.per_chunk.percentiles]
    rows = tuple(
        (
            name,
            f"{one.n_samples:,}",
            known_cell(one.mean_s, format_duration),
            *(percentile_text(percentile) for percentile in one.percentiles),
        )
        for name, one in (("per chunk", summary.per_chunk), ("per token", summary.per_token))
        if one.n_samples
    )
    ratio = (
        ""
        if summary.tokens_per_chunk_ratio is None
        else f", {format_number(summary.tokens_per_chunk_ratio)} tokens a chunk"
    )
    assumed = f"; {summary.n_chunks_assumed:,} of unknown size" if summary.n_chunks_assumed else ""
    caption = f"ITL [95 % interval]: {summary.n_chunks:,} chunks{ratio}{assumed}"
    return TextTable(
        caption=caption,
        header=("ITL", "gaps", "mean", *(percentile_name(fraction) for fraction in fractions)),
        rows=rows,
    )


def errors_table(view: OnlineView) -> TextTable | None:
    """Requests by error; None without errors."""
    rows = tuple(
        (
            one.code,
            f"{one.n_requests:,}",
            format_fraction(one.share_fraction),
            ", ".join(map(str, one.http_statuses)),
            one.meaning,
            one.remedy,
        )
        for one in view.errors
    )
    header = ("error", "requests", "share", "HTTP", "meaning", "try")
    return TextTable(caption="What went wrong", header=header, rows=rows) if rows else None


def tools_table(view: OnlineView) -> TextTable | None:
    """Results that other tools would have reported; None where no answer was completed."""
    rows = tuple(
        (
            one.tool,
            _median(one.ttft),
            known_cell(one.ttft, lambda known: format_duration(known.p99_s)),
            _median(one.tpot),
            known_cell(one.itl, lambda known: format_duration(known.mean_s)),
            _median(one.itl),
            _median(one.e2e),
            one.definitions,
        )
        for one in view.tools
    )
    header = (
        "tool",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "ITL mean",
        "ITL p50",
        "E2E p50",
        "how it counts",
    )
    return (
        TextTable(
            caption="What each tool would have reported of the same answers",
            header=header,
            rows=rows,
        )
        if rows
        else None
    )


def tool_rates_table(view: OnlineView) -> TextTable | None:
    """Throughput that other tools would have reported; None where no answer was completed."""
    rows = tuple(
        (
            one.tool,
            number_cell(one.rates.requests_per_s),
            number_cell(one.rates.output_tokens_per_s),
            number_cell(one.rates.total_tokens_per_s),
            format_duration(one.rates.span_s),
            one.rates.span,
            one.rates.source,
        )
        for one in view.tools
        if one.rates is not None
    )
    header = (
        "tool",
        "requests/s",
        "output tok/s",
        "total tok/s",
        "over",
        "how it counts",
        "defined in",
    )
    return (
        TextTable(caption="What throughput each tool would have reported", header=header, rows=rows)
        if rows
        else None
    )


def _median(spread: Spread | None) -> str:
    return known_cell(spread, lambda known: format_duration(known.median_s))
