"""Did latency stay the same while the run went on?

Requests one by one, and percentiles of windows of time.
"""

import math
from typing import Final

import numpy as np

from inferometer.records.slo_verdicts import Judgement
from inferometer.report.charts.plot import Axis, Boxes, Chart, Dots, Line, Mark, Plot, Rule
from inferometer.report.request_views import LatencyHistory, RequestReportView
from inferometer.report.request_words import LATENCY_NAMES
from inferometer.units import format_duration

_NAMES: Final = ("p50", "p90", "p99")


def history_chart(view: RequestReportView) -> Chart | None:
    """TTFT against the time of the intended send; what was sent outside the steady state is shaded."""
    return _chart(view.history, view.judgement)


def tpot_history_chart(view: RequestReportView) -> Chart | None:
    """The same of TPOT."""
    return _chart(view.tpot_history, view.judgement)


def _chart(history: LatencyHistory | None, judgement: Judgement | None) -> Chart | None:
    if history is None or not (history.lower_s > 0).any():
        return None
    name = LATENCY_NAMES[history.latency]
    plot = Plot(
        x=Axis(title="intended send, s since the start of the run"),
        y=Axis(title=f"{name}, ms (log scale)", scale="log"),
        marks=(*_limits(history, judgement), *_marks(history)),
        height=280,
        has_brush=True,
        legend=_legend(history),
    )
    return Chart(
        chart_id=f"{history.latency}-over-time",
        title=f"{name} over the time of the run",
        finding=_finding(history, name),
        plots=(plot,),
        header=("sent from, s", "requests", "not done", "p50", "p90", "p99"),
        rows=tuple(
            _cells(history, i)
            for i in range(0, len(history.windows.start_s), 1 + len(history.windows.start_s) // 24)
        ),
    )


def _limits(history: LatencyHistory, judgement: Judgement | None) -> list[Mark]:
    thresholds = () if judgement is None else judgement.thresholds
    return [
        Rule(at=1e3 * one.threshold.limit_s, text=f"SLO: {one.threshold.text}")
        for one in thresholds
        if one.threshold.metric == history.latency
    ]


def _legend(history: LatencyHistory) -> str:
    n_drawn = int((history.lower_s > 0).sum())
    drawn = (
        "each small dot is a request"
        if n_drawn == history.n_requests
        else f"small dots: {n_drawn} of {history.n_requests} requests"
    )
    parts = [
        drawn,
        "orange: not done, at least" if history.is_bounded_below_only.any() else "",
        f"lines: percentiles of windows of {format_duration(history.windows.width_s)}",
        "shaded: warm-up and drain" if history.steady_s is not None else "",
    ]
    return " · ".join(part for part in parts if part)


def _marks(history: LatencyHistory) -> list[Mark]:
    """Requests one by one, percentiles of windows, and what lies outside the steady state."""
    is_shown = history.lower_s > 0
    undone = is_shown & history.is_bounded_below_only
    marks = list[Mark]()
    for chosen, colour in ((is_shown & ~undone, "c5"), (undone, "c1")):
        if chosen.any():
            xs, ys = history.sent_s[chosen].tolist(), (1e3 * history.lower_s[chosen]).tolist()
            marks.append(Dots(xs=xs, ys=ys, colour=colour, is_small=True))
    windows = history.windows
    middles = windows.start_s + windows.width_s / 2
    columns = (windows.p50_s, windows.p90_s, windows.p99_s)
    for rank, (name, column) in enumerate(zip(_NAMES, columns, strict=True)):
        values = np.where(column > 0, 1e3 * column, np.nan)
        if not np.isnan(values).all():
            marks.append(
                Line(xs=middles.tolist(), ys=values.tolist(), name=name, colour=f"c{rank}")
            )
    if history.steady_s is not None and len(history.sent_s):
        first_s, last_s = float(history.sent_s[0]), float(history.sent_s[-1])
        start_s, end_s = history.steady_s
        shown = 1e3 * history.lower_s[is_shown]
        low, high = float(shown.min()) / 1.05, float(shown.max()) * 1.05
        boxes = [(a, b, low, high) for a, b in ((first_s, start_s), (end_s, last_s)) if b > a]
        marks += [Boxes(boxes=boxes, colour="shade")] if boxes else []
    return marks


def _finding(history: LatencyHistory, name: str) -> str:
    """The median in the first and in the last window that have one."""
    found = [value for value in history.windows.p50_s.tolist() if not math.isnan(value)]
    undone = int(history.windows.n_bounded_below_only.sum())
    rest = (
        f"; {undone} of {history.n_requests} requests were not that far when the run ended"
        if undone
        else ""
    )
    if len(found) < 2:
        return (
            f"{name} of {history.n_requests} requests, too few to compare the beginning with the"
            f" end{rest}."
        )
    return (
        f"Median {name} is {format_duration(found[0])} in the first window and"
        f" {format_duration(found[-1])} in the last{rest}."
    )


def _cells(history: LatencyHistory, i: int) -> tuple[str, ...]:
    windows = history.windows
    values_s = (float(windows.p50_s[i]), float(windows.p90_s[i]), float(windows.p99_s[i]))
    return (
        f"{windows.start_s[i]:.1f}",
        str(windows.n_samples[i]),
        str(windows.n_bounded_below_only[i]),
        *("–" if math.isnan(value_s) else format_duration(value_s) for value_s in values_s),
    )
