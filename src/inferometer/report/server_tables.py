"""What does the server itself say of a load test, and where does the time to the first token go?"""

from typing import Final

from inferometer.records.server_summaries import Level, ServerSummary, TtftParts
from inferometer.report.cells import ABSENT_TEXT
from inferometer.report.request_views import OnlineView, ServerUse
from inferometer.report.tables import TextTable
from inferometer.units import format_duration, format_fraction, format_number, format_rate

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
    """Both tables, as far as the server told."""
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
    """Each part by its name, in the order in which they pass."""
    return (
        ("client", parts.client_s),
        ("network", parts.network_s),
        ("queue", parts.queue_s),
        ("prefill", parts.prefill_s),
        ("hand-over", parts.handover_s),
    )


def largest_part(parts: TtftParts) -> str:
    """Which part of the mean time to the first token is the largest?"""
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
    """Where the time to the first token goes and how full the server was; None where it said neither."""
    said: list[str] = []
    if parts is not None and (parts.queue_s, parts.prefill_s, parts.network_s) != (
        None,
        None,
        None,
    ):
        said.append(largest_part(parts))
    if server.running is not None:
        waited = (
            "" if server.waiting is None else f" and {format_number(server.waiting.highest)} waited"
        )
        said.append(
            f"at most {format_number(server.running.highest)} requests ran{waited} at a scrape"
        )
    said += (
        []
        if server.kv_usage is None
        else [f"KV cache at most {format_fraction(server.kv_usage.highest)} full"]
    )
    said += [] if server.n_preemptions is None else [f"{server.n_preemptions:,} preemptions"]
    return "; ".join(said) + ", as the server reports." if said else None


def _duration(value_s: float | None) -> str:
    if value_s is None:
        return ABSENT_TEXT
    return f"−{format_duration(-value_s)}" if value_s < 0 else format_duration(value_s)


def _share(value_s: float | None, total_s: float) -> str:
    return ABSENT_TEXT if value_s is None or total_s <= 0 else format_fraction(value_s / total_s)


def _work(server: ServerSummary, use: ServerUse | None) -> list[tuple[str, str]]:
    """What each accelerator did, as the server estimates, and which share of its peak that is."""
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
