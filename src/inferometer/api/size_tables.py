"""Which tables does a sizing have, the same for the terminal and for the page.

How fast, how much, how dear, and the policies over time?
"""

from collections.abc import Sequence
from typing import Final

from inferometer.api.sizing import SizeAnswer
from inferometer.api.sizing_over_time import OverTime
from inferometer.api.sizing_rows import PaceRow
from inferometer.inputs.objectives import percentile_name
from inferometer.records.request_summaries import Percentile
from inferometer.report.cells import ABSENT_TEXT, estimate_cell
from inferometer.report.tables import TextTable
from inferometer.units import format_number

_MS: Final = 1e3


def size_tables(answer: SizeAnswer) -> tuple[TextTable, ...]:
    """Each device in each; none where nothing keeps the promise."""
    if not answer.kinds:
        return ()
    over = () if answer.over_time is None else (policy_table(answer.over_time),)
    return _fast(answer), _much(answer), _dear(answer), *over


def _fast(answer: SizeAnswer) -> TextTable:
    first = answer.kinds[0].asked.served
    header = (
        "device",
        "layout",
        f"TTFT {which(first.ttft)}, ms",
        f"TPOT {which(first.tpot)}, ms",
        "verdict",
    )
    rows = [
        (
            row.hardware_id,
            f"{row.n_replicas} x {row.parallelism} {row.weights_dtype}",
            _ms(row.asked.served.ttft),
            _ms(row.asked.served.tpot),
            row.verdict,
        )
        for row in answer.kinds
    ]
    return TextTable(
        caption="Latency under this traffic [95 % interval]", header=header, rows=tuple(rows)
    )


def _much(answer: SizeAnswer) -> TextTable:
    header = (
        "device",
        "in flight each",
        "req/s each",
        "req/s/device",
        "max req/s",
        "headroom",
        "N+1",
    )
    rows = [
        (
            row.hardware_id,
            format_number(row.in_flight_load),
            _number(row.instance_requests_per_s),
            _number(row.device_requests_per_s),
            _capacity(row.asked),
            ABSENT_TEXT if row.headroom_fraction is None else f"{row.headroom_fraction:.0%}",
            str(row.n_replicas_if_one_fails),
        )
        for row in answer.kinds
    ]
    return TextTable(caption="What it carries within the promise", header=header, rows=tuple(rows))


def _dear(answer: SizeAnswer) -> TextTable:
    header = ("device", "devices", "$/h", "$/1M in", "$/1M out", "$/1M out, all", "J/tok out")
    rows = [
        (
            row.hardware_id,
            str(row.n_devices),
            _usd(row.usd_per_hour),
            _usd(row.costs.input_usd_per_million_tokens),
            _usd(row.costs.output_usd_per_million_tokens),
            _usd(row.costs.usd_per_million_output_tokens),
            _number(row.costs.output_joule_per_token),
        )
        for row in answer.kinds
    ]
    return TextTable(caption="Cost under this traffic", header=header, rows=tuple(rows))


def policy_table(said: OverTime) -> TextTable:
    """Each policy: replicas, cost, how often the promise is kept."""
    header = ("policy", "replicas", "$", "kept, time", "requests in limits", "verdict")
    rows = [
        (
            row.name + ("" if row.is_settled else " (not settled)"),
            _span(row.n_replicas),
            _usd(row.usd),
            f"{row.kept_fraction:.1%}",
            ABSENT_TEXT if row.good is None else f"{row.good.value:.2%}",
            row.verdict,
        )
        for row in said.policies
    ]
    return TextTable(caption="Policies over time", header=header, rows=tuple(rows))


def which(percentile: Percentile | None) -> str:
    """``p95``"""
    return "" if percentile is None else percentile_name(percentile.percentile_fraction)


def _ms(percentile: Percentile | None) -> str:
    """``444 [290, 783]``"""
    if percentile is None:
        return ABSENT_TEXT
    return f"{'≥ ' if percentile.is_lower_bound else ''}{estimate_cell(percentile.seconds, _MS)}"


def _capacity(pace: PaceRow) -> str:
    """Of all replicas: the highest rate that was shown to keep the promise, and the lowest that was shown to break it."""
    if pace.kept_requests_per_s is None:
        return ABSENT_TEXT
    above = (
        ""
        if pace.broken_requests_per_s is None
        else f"–{format_number(pace.broken_requests_per_s)}"
    )
    return f"{format_number(pace.kept_requests_per_s)}{above}"


def _usd(value: float | None) -> str:
    return ABSENT_TEXT if value is None else f"{value:.2f}"


def _number(value: float | None) -> str:
    return ABSENT_TEXT if value is None else format_number(value)


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"
