"""What is there to read of watched servers: a page for each, the regime first."""

import math
from typing import Final

from inferometer import suggestions
from inferometer.api.watch_state import (
    RegimeChange,
    ServerHistory,
    WatchAnswer,
    WatchedLatency,
    WatchedServer,
)
from inferometer.decide.watching.regimes import WORDS, Condition
from inferometer.report.charts.load import served_chart
from inferometer.report.charts.plot import Chart
from inferometer.report.page import Chip, Page, Section, lines_of
from inferometer.report.tables import TextTable
from inferometer.units import format_duration, format_fraction, format_number

_UNSEEN: Final = "no request has ended in the window"
_GOOD: Final[frozenset[Condition]] = frozenset({"idle", "faster"})


def watch_pages(answer: WatchAnswer) -> tuple[Page, ...]:
    """A page for each server."""
    return tuple(
        server_page(
            one,
            tuple(
                change
                for change in answer.changes
                if change.url == one.url and change.replica in {one.replica, None}
            ),
            answer.objective,
            next(
                (
                    history
                    for history in answer.histories
                    if (history.url, history.replica) == (one.url, one.replica)
                ),
                None,
            ),
        )
        for one in answer.servers
    )


def server_page(
    server: WatchedServer,
    changes: tuple[RegimeChange, ...],
    objective: str | None,
    history: ServerHistory | None = None,
) -> Page:
    """The regime, numbers of the window, what limits the server, and recent changes."""
    table = _table(server)
    chart = None if history is None else _chart(history)
    beside = (
        Section(
            id="latencies", title="How long do requests take?", nav="Latencies", tables=(table,)
        )
        if chart is not None and table is not None
        else None
    )
    return Page(
        title=f"{server.name} is {_regime(server)}",
        subtitle=_load(server),
        chips=_chips(server),
        table=table,
        chart=chart,
        lines=lines_of(
            ("LIMIT", "" if server.limit is None else server.limit.words),
            ("WHY", _state(server)),
            ("OR", _outlook(server)),
            ("TRUST", _trust(server)),
            (
                "DATA",
                "; ".join(
                    change.text.split(" ", 2)[0][11:] + " " + change.text.split(" ", 2)[2]
                    for change in changes[-3:]
                ),
            ),
            ("NEXT", _next(server, objective)),
        ),
        sections=() if beside is None else (beside,),
    )


def _chart(history: ServerHistory) -> Chart | None:
    """Requests in the server over the window."""
    running, waiting = (
        tuple(math.nan if one is None else one for one in values)
        for values in (history.running, history.waiting)
    )
    return served_chart(history.at_s, running, waiting)


def _regime(server: WatchedServer) -> str:
    if not server.conditions:
        return "healthy" if server.server is not None else "not seen yet"
    return ", ".join(WORDS[one].partition(":")[0] for one in server.conditions)


def _load(server: WatchedServer) -> str:
    if server.server is None:
        return server.at_utc
    parts = [f"{server.server} · {server.at_utc} · last {server.window_s:.0f} s"]
    if server.replica is not None:
        parts.append(f"one of {server.n_replicas} replicas on its page")
    if server.n_added_up > 1:
        parts.append(f"{server.n_added_up} engines with shared counters, added up")
    for value, name in (
        (server.requests_per_s, "requests/s"),
        (server.output_tokens_per_s, "output tok/s"),
        (server.n_running, "running"),
        (server.n_waiting, "waiting"),
    ):
        parts += [] if value is None else [f"{format_number(value)} {name}"]
    return " · ".join(parts)


def _chips(server: WatchedServer) -> tuple[Chip, ...]:
    chips: list[Chip] = []
    bad = [one for one in server.conditions if one not in _GOOD]
    chips.append(
        Chip(
            verdict="missed" if bad else "met",
            text="; ".join(WORDS[one] for one in server.conditions) or "no condition is on",
        )
    )
    verdict = server.slo_verdict
    if verdict is not None:
        words = {"met": "meets", "missed": "misses", "undecided": "undecided:"}[verdict]
        limits = [_limited(one) for one in server.latencies if one.verdict == verdict]
        chips.append(Chip(verdict=verdict, text=f"{words} {', '.join(limits) or _UNSEEN}"))
    return tuple(chips)


def _limited(one: WatchedLatency) -> str:
    """What limits the server, and what is missing where there are too few requests."""
    words = f"{one.name}<{format_duration(one.limit_s or 0.0)}"
    if one.verdict != "undecided":
        return words
    if one.n_needed is None:
        return f"{words} (95 % interval {_interval(one)})"
    return f"{words} ({one.n} requests, {one.n_needed} are needed)"


def _table(server: WatchedServer) -> TextTable | None:
    if not server.latencies:
        return None
    has_prediction = any(one.predicted_s is not None for one in server.latencies)
    predicted = ("predicted",) if has_prediction else ()
    header = ("latency", "now", "95 % interval", *predicted, "limit", "breach in")
    rows = tuple(
        (
            one.name,
            _bucket(one),
            _interval(one),
            *((_predicted(one),) if has_prediction else ()),
            "" if one.limit_s is None else format_duration(one.limit_s),
            _breach(one),
        )
        for one in server.latencies
    )
    return TextTable(caption="Latencies of the window", header=header, rows=rows)


def _bucket(one: WatchedLatency) -> str:
    return _between(one.low_s, one.high_s)


def _interval(one: WatchedLatency) -> str:
    if one.n_needed is not None:
        return f"n {one.n}, needs {one.n_needed}"
    return "" if one.interval_low_s is None else _between(one.interval_low_s, one.interval_high_s)


def _between(low_s: float, high_s: float | None) -> str:
    high = "…" if high_s is None else format_duration(high_s)
    return f"{format_duration(low_s)} to {high}" if low_s else f"below {high}"


def _predicted(one: WatchedLatency) -> str:
    if one.predicted_s is None:
        return ""
    if one.predicted_low_s is None or one.predicted_high_s is None:
        return f"{format_duration(one.predicted_s)} (n too small)"
    ends = f"{format_duration(one.predicted_low_s)}, {format_duration(one.predicted_high_s)}"
    return f"{format_duration(one.predicted_s)} [{ends}]"


def _breach(one: WatchedLatency) -> str:
    if one.breach_soonest_s is None:
        return ""
    if one.breach_soonest_s == 0:
        return "above it"
    soonest_s, latest_s = one.breach_soonest_s, one.breach_latest_s or one.breach_soonest_s
    return f"{format_duration(soonest_s)} to {format_duration(latest_s)}"


def _state(server: WatchedServer) -> str:
    parts: list[str] = []
    for value, name in (
        (server.kv_used_fraction, "of the KV cache used"),
        (server.prefix_hit_fraction, "of prompt tokens from the prefix cache"),
        (server.acceptance_fraction, "of drafted tokens accepted"),
    ):
        parts += [] if value is None else [f"{format_fraction(value)} {name}"]
    if server.n_preemptions is not None:
        parts.append(f"{server.n_preemptions:,} preemptions")
    return ", ".join(parts)


def _outlook(server: WatchedServer) -> str:
    soonest = [one for one in server.latencies if one.breach_soonest_s]
    if not soonest:
        return ""
    first = min(soonest, key=lambda one: one.breach_soonest_s or 0.0)
    return f"at the present slope {first.name} misses its limit in {_breach(first)}"


def _trust(server: WatchedServer) -> str:
    parts: list[str] = []
    if server.step_residual_ratio is None:
        parts.append("step times of this server are being learned (a minute of traffic)")
    else:
        parts.append(f"step times {server.step_residual_ratio:+.0%} of those learned at this load")
    parts += [
        f"{one.metric} {one.residual_ratio:+.0%} of the predicted mean" for one in server.residuals
    ]
    if server.model_valid is False:
        parts.append(f"the prediction is not for this traffic: {server.why_not_valid}")
    return "; ".join(parts)


def _next(server: WatchedServer, objective: str | None) -> str:
    """A remedy for what is wrong, or a window long enough for the percentiles."""
    if {"unreachable", "several_servers"} & set(server.conditions):
        return ""
    if not all(one in _GOOD for one in server.conditions):
        return suggestions.command("diagnose", server.url, *_replica(server))
    wanting = [
        one.n_needed / one.n
        for one in server.latencies
        if one.verdict == "undecided" and one.n_needed is not None
    ]
    if not wanting or objective is None:
        return ""
    window = f"{math.ceil(max(wanting) * server.window_s / 60)}min"
    return suggestions.command(
        "watch", server.url, *_replica(server), "--once", "--window", window, "--slo", objective
    )


def _replica(server: WatchedServer) -> tuple[str, ...]:
    return () if server.replica is None else ("--replica", server.replica)
