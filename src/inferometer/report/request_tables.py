"""Which tables stand in a report on a run of requests, and which numbers are the server's own?

How are latencies and states of a run of requests called and written?
"""

import math
from collections.abc import Sequence
from typing import Final

from inferometer.inputs.objectives import METRICS, percentile_name
from inferometer.records.kv_pools import KvPoolView
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import (
    Judgement,
    LatencyMean,
    LatencySummary,
    Percentile,
    RequestSummary,
)
from inferometer.records.server_summaries import Level, ServerSummary, TtftParts
from inferometer.records.slot_timeline import CellState, SlotTimeline
from inferometer.report.tables import ABSENT_TEXT, N_TOO_SMALL, TextTable, known_cell, number_cell
from inferometer.report.views import OnlineView, RequestReportView, ServerUse
from inferometer.stats.autocorrelated import ONE_BURST
from inferometer.stats.estimate import Estimate
from inferometer.units import (
    format_duration,
    format_fraction,
    format_number,
    format_rate,
    s_from_ns,
)

LATENCY_NAMES: Final[dict[Latency, str]] = {
    **{metric: words.name for metric, words in METRICS.items()},
    "ttft_uncorrected": "TTFT uncorrected",
}

_OF_POOLS: Final[tuple[Latency, ...]] = ("ttft", "tpot")
STATE_NAMES: Final = {
    CellState.CONTEXT: "context (prefill)",
    CellState.GENERATION: "generation (decode)",
    CellState.END: "end of sequence",
    CellState.IDLE: "idle",
}
STATE_LETTERS: Final = {
    CellState.CONTEXT: "C",
    CellState.GENERATION: "g",
    CellState.END: "E",
    CellState.IDLE: "·",
}
STATE_COLOURS: Final = {
    CellState.CONTEXT: "#e69f00",
    CellState.GENERATION: "#0072b2",
    CellState.END: "#000000",
}
"""Colours of the palette that differ in lightness too; a letter repeats the meaning."""


READING_TOKENS_PER_S: Final = 238 / 60 * 4 / 3
"""A reader's speed: 238 words of English a minute (mean of 190 studies, Brysbaert 2019,
doi 10.1016/j.jml.2019.104047), at 3 words for 4 tokens."""


def reading_text(tokens_per_s: float) -> str:
    """A user's rate beside that of a reader.

    Example
    -------
    >>> reading_text(50.0)
    '9.45x a reader (5.3 tok/s)'
    """
    ratio = format_number(tokens_per_s / READING_TOKENS_PER_S)
    return f"{ratio}x a reader ({READING_TOKENS_PER_S:.1f} tok/s)"


def slot_time_text(timeline: SlotTimeline, time_ns: int) -> str:
    """``31.4 ms``; of a timeline of ticks ``17 ticks``."""
    if timeline.tick_ns is None:
        return format_duration(s_from_ns(time_ns))
    n_ticks = time_ns / timeline.tick_ns
    return f"{n_ticks:,.6g} {'tick' if n_ticks == 1 else 'ticks'}"


def kv_pools_table(pools: Sequence[KvPoolView]) -> TextTable:
    """Each pool of a divided KV cache: how full, and how its own requests fared."""
    rows = list[tuple[str, ...]]()
    for one in pools:
        latencies = [
            percentile_text(
                None if one.summary is None else one.summary.latency(name).percentile(0.95)
            )
            for name in _OF_POOLS
        ]
        shares = (
            one.mean_used_fraction,
            one.peak_used_fraction,
            one.tail_waste_fraction,
            one.cached_fraction,
        )
        rows.append(
            (
                one.rule,
                f"{one.n_blocks:,} × {one.block_size}",
                one.kv_dtype or ABSENT_TEXT,
                "0" if one.summary is None else f"{one.summary.n_requests:,}",
                *(known_cell(share, "{:.1%}".format) for share in shares),
                f"{one.n_preemptions:,}",
                *latencies,
            )
        )
    header = (
        *("KV pool", "blocks × tokens", "format", "requests", "used, mean", "peak"),
        *("tail waste", "cached", "preempted", "p95 TTFT", "p95 TPOT"),
    )
    return TextTable(caption="KV cache, pool by pool", header=header, rows=tuple(rows))


def percentile_text(percentile: Percentile | LatencyMean | None) -> str:
    """A percentile or a mean: ``97.4 ms [96.1 ms, 98.8 ms]``.

    ``≥`` before a value that requests which were not done can only push up.

    Example
    -------
    >>> percentile_text(None)
    '–'
    """
    if percentile is None:
        return ABSENT_TEXT
    return f"{'≥ ' if percentile.is_lower_bound else ''}{duration_cell(percentile.seconds)}"


def duration_cell(estimate: Estimate | None) -> str:
    """A duration with its interval; an unknown end is written as ``…``."""
    return ABSENT_TEXT if estimate is None else estimate.text(_seconds, bare=f" ({N_TOO_SMALL})")


def share_cell(estimate: Estimate) -> str:
    """``98.4 % [97.9 %, 98.8 %]``."""
    return estimate.text(format_fraction)


def rate_text(estimate: Estimate | None, unit: str) -> str:
    """``582 tok/s [533, 632]``."""
    if estimate is None:
        return ABSENT_TEXT
    why = ONE_BURST if estimate.method.endswith(ONE_BURST) else N_TOO_SMALL
    return estimate.text(unit=f" {unit}", bare=f" ({why})")


def _seconds(duration_s: float) -> str:
    return "…" if math.isinf(duration_s) else format_duration(duration_s)


DEFINITIONS: Final = (
    (
        "TTFT",
        (
            "first output token − intended send of the request. From the actual send: what a late"
            " generator hides."
        ),
    ),
    (
        "TPOT",
        (
            "(last − first token) ÷ (output tokens − 1) of each completed answer; an answer of one"
            " token has none."
        ),
    ),
    ("E2E", "last token − intended send = TTFT + (n − 1) · TPOT."),
    ("Queue", "first time in a batch − actual send."),
    (
        "Throughput",
        (
            "output tokens, input and output tokens, or completed requests ÷ (end of the run −"
            " first intended send)."
        ),
    ),
    ("Tok/s/user", "1 ÷ median TPOT."),
    (
        "Goodput",
        (
            "requests per second that were completed within every limit; the share is of all"
            " requests, refused ones too."
        ),
    ),
    (
        "Not done",
        (
            "took at least as long as it had been there: such requests count, and where they can"
            " push a percentile up it has ≥."
        ),
    ),
    (
        "Interval",
        (
            "95 %. Requests of one run depend on one another; batches of it tell how many"
            " independent ones it is worth."
        ),
    ),
    (
        "",
        (
            "Those carry the interval: order statistics for percentiles, batch means for means,"
            " rates. n too small: the run is worth too few."
        ),
    ),
    ("Absent", f"{ABSENT_TEXT} means unknown; it is never 0."),
)


_BRIEF: Final = (0.5, 0.9, 0.95, 0.99)


def counts_table(view: RequestReportView) -> TextTable:
    """Numbers of requests and tokens, by class and status."""
    statuses = list(
        dict.fromkeys(name for summary in view.summaries for name, _ in summary.n_by_status)
    )
    rows = tuple(
        (
            summary.name,
            f"{summary.n_requests:,}",
            *(f"{dict(summary.n_by_status).get(status, 0):,}" for status in statuses),
            known_cell(summary.n_preemptions, "{:,}".format),
            f"{summary.input_tokens:,}",
            known_cell(summary.cached_tokens, "{:,}".format),
            f"{summary.output_tokens:,}",
        )
        for summary in view.summaries
    )
    header = (
        "requests of",
        "n",
        *statuses,
        "preemptions",
        "input tokens",
        "of them cached",
        "output tokens",
    )
    return TextTable(caption="Requests by how they ended", header=header, rows=rows)


def latency_table(view: RequestReportView) -> TextTable:
    """Mean and percentiles of each latency, of all requests and of each class."""
    fractions = [one.percentile_fraction for one in view.summaries[0].latencies[0].percentiles]
    rows: list[tuple[str, ...]] = []
    for summary in view.summaries:
        for latency in summary.latencies:
            if latency.n_samples and not _repeats_ttft(summary, latency):
                cells = (percentile_text(latency.percentile(fraction)) for fraction in fractions)
                undone = str(latency.n_bounded_below_only) if latency.n_bounded_below_only else ""
                mean = percentile_text(latency.mean)
                rows.append(
                    (
                        summary.name,
                        LATENCY_NAMES[latency.latency],
                        f"{latency.n_samples:,}",
                        undone,
                        mean,
                        *cells,
                    )
                )
    header = (
        "requests of",
        "latency",
        "n",
        "not done",
        "mean",
        *(percentile_name(fraction) for fraction in fractions),
    )
    present = _without_empty(
        header, rows, keep={"not done"} if any(row[3] for row in rows) else set()
    )
    return TextTable(
        caption="Latency: mean and percentiles [95 % interval]", header=present[0], rows=present[1]
    )


def brief_latency_table(summary: RequestSummary) -> TextTable:
    """Mean and percentiles of each latency without their intervals: a first screen's table."""
    rows = tuple(
        (
            LATENCY_NAMES[one.latency],
            *(
                percentile_text(found).partition(" [")[0].partition(" (")[0]
                for found in (one.mean, *(one.percentile(fraction) for fraction in _BRIEF))
            ),
        )
        for one in summary.latencies
        if one.n_samples and not _repeats_ttft(summary, one)
    )
    header = ("latency", "mean", *(percentile_name(fraction) for fraction in _BRIEF))
    return TextTable(
        caption=f"Latency of {summary.n_requests:,} requests", header=header, rows=rows
    )


def handovers_table(view: RequestReportView) -> TextTable | None:
    """Times of KV transfers; None where there were none."""
    if view.handovers is None:
        return None
    cells = tuple(duration_cell(one.seconds) for one in view.handovers.percentiles)
    header = (
        "between servers",
        "n",
        "never arrived",
        *(percentile_name(one.percentile_fraction) for one in view.handovers.percentiles),
    )
    row = (
        "KV transfer",
        f"{view.handovers.n_requests:,}",
        f"{view.handovers.n_never_arrived:,}",
        *cells,
    )
    return TextTable(
        caption="From the end of the prefill to the KV cache's arrival [95 % interval]",
        header=header,
        rows=(row,),
    )


def rates_table(view: RequestReportView) -> TextTable:
    """Throughput of all requests and of each class."""
    traffic = "offered req/s" if view.concurrency is None else "concurrency"
    rows = tuple(
        (
            summary.name,
            _rate(summary.output_tokens_per_s),
            _rate(summary.total_tokens_per_s),
            _rate(summary.completed_requests_per_s),
            _traffic_cell(view, summary),
            _rate(summary.tokens_per_s_per_user),
        )
        for summary in view.summaries
    )
    header = (
        "requests of",
        "output tok/s",
        "input + output tok/s",
        "completed req/s",
        traffic,
        "tok/s/user",
    )
    return TextTable(
        caption=f"Rates over {format_duration(view.summaries[0].span_s)} [95 % interval]",
        header=header,
        rows=rows,
    )


def _traffic_cell(view: RequestReportView, summary: RequestSummary) -> str:
    """The offered load: a rate, or the users of a closed loop, by class where each has its own."""
    if view.concurrency is not None:
        return str(view.class_users.get(summary.name, view.concurrency))
    return number_cell(summary.offered_requests_per_s)


def promises_table(judgement: Judgement, of_class: str = "") -> TextTable:
    """Each limit of the SLO, or of a class's own, its measured value, and the verdict."""
    rows = [
        (
            one.threshold.text,
            percentile_text(one.seen),
            (
                "counts for goodput"
                if one.threshold.percentile_fraction is None
                else one.verdict.upper()
            ),
            "nearest its limit" if one is judgement.weakest else "",
        )
        for one in judgement.thresholds
    ]
    caption = f"The SLO of {of_class}" if of_class else "The SLO"
    return TextTable(caption=caption, header=("limit", "seen", "verdict", ""), rows=tuple(rows))


def goodput_text(judgement: Judgement, of_class: str = "") -> str:
    """Goodput in one sentence: of all requests, or of a class's."""
    rate = known_cell(
        judgement.good_requests_per_s, lambda per_s: f"{format_number(per_s)} requests/s"
    )
    share = (
        ""
        if judgement.good is None
        else f", {share_cell(judgement.good)} of {'its' if of_class else 'all'} requests"
    )
    still = (
        f"; {judgement.n_open} more were within every limit but not done"
        if judgement.n_open
        else ""
    )
    return (
        f"{f'{of_class}: ' if of_class else ''}Goodput is {rate}{share}: {judgement.n_good:,} requests"
        f" within {judgement.objective.text}{still}."
    )


def summary_sentence(summary: RequestSummary) -> str:
    """Throughput and the latencies that users feel, in one sentence."""
    ttft, tpot, e2e = (summary.latency(name) for name in ("ttft", "tpot", "e2e"))
    parts = [
        (
            f"{rate_text(summary.output_tokens_per_s, 'output tok/s')},"
            f" {rate_text(summary.completed_requests_per_s, 'req/s')}"
        )
    ]
    for latency in (ttft, tpot, e2e):
        shown = [
            f"{percentile_name(fraction)} {percentile_text(latency.percentile(fraction))}"
            for fraction in (0.5, 0.95)
            if latency.percentile(fraction) is not None
        ]
        parts += [f"{LATENCY_NAMES[latency.latency]} {', '.join(shown)}"] if shown else []
    return "; ".join(parts) + "."


def _repeats_ttft(summary: RequestSummary, latency: LatencySummary) -> bool:
    """Was every request sent as intended, so that both kinds of TTFT are equal?"""
    return (
        latency.latency == "ttft_uncorrected"
        and latency.percentiles == summary.latency("ttft").percentiles
    )


def _rate(estimate: Estimate | None) -> str:
    return rate_text(estimate, "").replace("  ", " ").strip()


def _without_empty(
    header: Sequence[str], rows: Sequence[tuple[str, ...]], *, keep: set[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The table without empty columns."""
    columns = [i for i, name in enumerate(header) if name in keep or any(row[i] for row in rows)]
    return tuple(header[i] for i in columns), tuple(tuple(row[i] for i in columns) for row in rows)


SERVER_DEFINITIONS = (
    (
        "Parts of the TTFT",
        (
            "means: client = sent − intended; network = the client's − the server's; hand-over ="
            " the server's − queue − prefill."
        ),
    ),
    (
        "The server's numbers",
        (
            "growth of its counters between the first and the last scrape; it counts every client,"
            " not this one alone."
        ),
    ),
)

_IN_FULL: Final = {
    "network": (
        "network, proxies, or text that the server held back (to tell a tool call or a thought)"
    )
}


def tables_of(view: OnlineView) -> tuple[TextTable, ...]:
    """Both tables, as far as the server's metrics go."""
    parts = () if view.ttft_parts is None else (ttft_parts_table(view.ttft_parts),)
    return parts if view.server is None else (*parts, server_table(view.server, view.server_use))


def ttft_parts_table(parts: TtftParts) -> TextTable:
    """The mean time to the first token, part by part, and each part's share."""
    named = (*named_parts(parts), ("all", parts.total_s))
    rows = tuple((name, _duration(value), _share(value, parts.total_s)) for name, value in named)
    of_server = (
        ""
        if parts.n_server_requests is None
        else f"; the server counted {parts.n_server_requests:,}"
    )
    caption = (
        f"Where the mean time to the first token goes: {parts.n_requests:,} requests{of_server}"
    )
    return TextTable(caption=caption, header=("part", "mean", "share"), rows=rows)


def named_parts(parts: TtftParts) -> tuple[tuple[str, float | None], ...]:
    """Each part with its name, in the order of time."""
    return (
        ("client", parts.client_s),
        ("network", parts.network_s),
        ("queue", parts.queue_s),
        ("prefill", parts.prefill_s),
        ("hand-over", parts.handover_s),
    )


def largest_part(parts: TtftParts) -> str:
    """The largest part of the mean TTFT."""
    name, value = max(
        ((name, value) for name, value in named_parts(parts) if value is not None),
        key=lambda one: one[1],
    )
    return f"{_share(value, parts.total_s)} of the mean TTFT is {_IN_FULL.get(name, name)}"


def server_table(server: ServerSummary, use: ServerUse | None = None) -> TextTable:
    """Server load, cache hits and counters; what it did not report is left out."""
    levels = (("running", server.running), ("waiting", server.waiting))
    rows = [(name, _requests(level)) for name, level in levels if level is not None]
    rows += [] if server.kv_usage is None else [("KV cache", _shares(server.kv_usage))]
    rows += [] if server.n_preemptions is None else [("preemptions", f"{server.n_preemptions:,}")]
    hit = server.prefix_hit_fraction
    rows += (
        [] if hit is None else [("prompt tokens found in the prefix cache", format_fraction(hit))]
    )
    rows += [] if server.output_tokens is None else [("output tokens", f"{server.output_tokens:,}")]
    rows += (
        [] if server.n_rejected is None else [("requests turned away", f"{server.n_rejected:,}")]
    )
    rows += _work(server, use)
    failed = f", {server.n_failed_scrapes:,} failed" if server.n_failed_scrapes else ""
    restarts = f"; it restarted {server.n_restarts} times" if server.n_restarts else ""
    caption = (
        f"What the server reports ({server.kind}, {server.n_scrapes:,} scrapes{failed}{restarts})"
    )
    return TextTable(caption=caption, header=("of the run", "mean, highest"), rows=tuple(rows))


def limit_sentence(server: ServerSummary, parts: TtftParts | None) -> str | None:
    """Largest part of TTFT and load of the server; None where its metrics show neither."""
    parts_shown: list[str] = []
    known_s = () if parts is None else (parts.queue_s, parts.prefill_s, parts.network_s)
    longest_s = max((one for one in known_s if one is not None), default=None)
    # a part that is longer than all of it: the server's mean is of other requests than ours
    if parts is not None and longest_s is not None and longest_s <= parts.total_s:
        parts_shown.append(largest_part(parts))
    was_seen = server.running is None or server.running.highest > 0
    if server.running is not None and was_seen:
        waited = (
            "" if server.waiting is None else f" and {format_number(server.waiting.highest)} waited"
        )
        parts_shown.append(
            f"at most {format_number(server.running.highest)} requests ran{waited} at a scrape"
        )
    if server.kv_usage is not None and was_seen:
        parts_shown.append(f"KV cache at most {format_fraction(server.kv_usage.highest)} full")
    # requests that are shorter than the time between scrapes: an empty cache would be an artefact
    parts_shown += [] if was_seen else [f"no request ran at any of {server.n_scrapes:,} scrapes"]
    parts_shown += [] if server.n_preemptions is None else [f"{server.n_preemptions:,} preemptions"]
    return "; ".join(parts_shown) + ", as the server reports." if parts_shown else None


def _duration(value_s: float | None) -> str:
    if value_s is None:
        return ABSENT_TEXT
    return f"−{format_duration(-value_s)}" if value_s < 0 else format_duration(value_s)


def _share(value_s: float | None, total_s: float) -> str:
    return ABSENT_TEXT if value_s is None or total_s <= 0 else format_fraction(value_s / total_s)


def _work(server: ServerSummary, use: ServerUse | None) -> list[tuple[str, str]]:
    """Work of each accelerator by the server's estimate, and its share of the peak."""
    of, flop_share, bytes_share = "", None, None
    if use is not None:
        of = f"of the peak of {use.device}"
        flop_share, bytes_share = use.flop_utilisation_fraction, use.bandwidth_utilisation_fraction
    known = (
        ("computed", server.flop_per_s, "FLOP/s", flop_share),
        ("moved in memory", server.moved_bytes_per_s, "B/s", bytes_share),
    )
    return [
        (
            f"{what}, each accelerator",
            format_rate(per_s, unit)
            + ("" if share is None else f", {format_fraction(share)} {of}"),
        )
        for what, per_s, unit, share in known
        if per_s is not None
    ]


def _requests(level: Level) -> str:
    return f"{format_number(level.mean)}, {format_number(level.highest)} requests"


def _shares(level: Level) -> str:
    return f"{format_fraction(level.mean)}, {format_fraction(level.highest)}"
