"""Where does the time of each point go?"""

from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.report.cells import ABSENT_TEXT, estimate_cell, has_several_runs, statistic_text
from inferometer.report.charts.bars import MAX_ROWS, label_axis, rows_height, stacked_layers
from inferometer.report.charts.frame import ChartSpec, Row, finished
from inferometer.report.views import Explained, PhaseName, SweepReportView
from inferometer.units import format_duration, format_number

COLOURS: Final = {
    "launch": "#e69f00",
    "weights": "#0072b2",
    "kv": "#56b4e9",
    "matmul": "#d55e00",
    "attention": "#cc79a7",
    "logits": "#009e73",
    "per_sequence": "#f0e442",
    "communication": "#882255",
    "unexplained": "#c4c9ce",
}
"""Areas, not lines: each has a dark stroke, a legend in the order of the stack, and the table
beside it."""
OTHER_COLOUR: Final = "#999999"


def decode_time_chart(view: SweepReportView) -> ChartSpec | None:
    """The parts of a decode step, as shares of what was measured."""
    return _time_chart(
        view, "decode", chart_id="time-decode", title="Where the time of a decode step goes"
    )


def prefill_time_chart(view: SweepReportView) -> ChartSpec | None:
    """The parts of a prefill, as shares of what was measured."""
    return _time_chart(
        view, "prefill", chart_id="time-prefill", title="Where the time of a prefill goes"
    )


def _time_chart(
    view: SweepReportView, phase: PhaseName, *, chart_id: str, title: str
) -> ChartSpec | None:
    explained = [row for row in view.explained if row.phase == phase and row.measured_s.value > 0]
    names = _names(explained)
    if not names:
        return None
    has_runs = has_several_runs(row.run_label for row in explained)
    shown = explained[:MAX_ROWS]
    labels = [_label(row, has_runs=has_runs) for row in shown]
    rows = [
        bar
        for label, row in zip(labels, shown, strict=True)
        for bar in _bar_rows(row, names, label)
    ]
    lowest = min(0.0, *(row["from"] for row in rows))
    highest = max(100.0, *(row["to"] for row in rows))
    scale = alt.Scale(domain=[lowest, highest * 1.35], nice=False)
    x = alt.X(
        "from:Q",
        scale=scale,
        axis=alt.Axis(title="% of the measured median", values=[0, 20, 40, 60, 80, 100]),
    )
    y = label_axis(
        labels,
        _statistic(explained),
        "left of 0: the parts exceed what was measured" if lowest < 0 else "",
        n_all=len(explained),
    )
    totals: list[Row] = [
        {
            "label": label,
            "from": max(bar["to"] for bar in rows if bar["label"] == label),
            "text": format_duration(row.measured_s.value),
        }
        for label, row in zip(labels, shown, strict=True)
    ]
    colours = {name: COLOURS.get(name.replace(" ", "_"), OTHER_COLOUR) for name in names}
    return ChartSpec(
        chart_id=chart_id,
        title=title,
        finding=_finding(explained),
        spec=finished(
            stacked_layers(rows, totals, x, y, colours), height=rows_height(labels, row_height=24)
        ),
        header=("point", "measured ms", *(f"{name} ms" for name in names), "limited by"),
        rows=tuple(_cells(row, names, _label(row, has_runs=has_runs)) for row in explained),
    )


def _statistic(explained: Sequence[Explained]) -> str:
    """What the whole of each bar is.

    A median with its n, or the method of a number that came without samples of its own.
    """
    if any(row.measured_s.n_samples > 1 for row in explained):
        return statistic_text(row.measured_s for row in explained)
    return " · ".join(sorted({row.measured_s.method for row in explained}))


def _names(explained: Sequence[Explained]) -> list[str]:
    """The parts that take time anywhere, in the order given, the unexplained last."""
    found = list(
        dict.fromkeys(
            _words(part.name) for row in explained for part in row.parts if abs(part.duration_s) > 0
        )
    )
    return sorted(found, key=lambda name: name == "unexplained")


def _bar_rows(row: Explained, names: Sequence[str], label: str) -> list[Row]:
    """Positive parts stack to the right of 0, negative ones to its left."""
    seconds = {_words(part.name): part.duration_s for part in row.parts}
    bars: list[Row] = []
    right = left = 0.0
    for name in names:
        share = 100 * seconds.get(name, 0.0) / row.measured_s.value
        if share == 0:
            continue
        start = right if share > 0 else left
        right, left = (start + share, left) if share > 0 else (right, start + share)
        bars.append(
            {
                "label": label,
                "part": name,
                "share": share,
                "from": start,
                "to": start + share,
                "time": format_duration(seconds[name]),
            }
        )
    return [
        bar | {"from": min(bar["from"], bar["to"]), "to": max(bar["from"], bar["to"])}
        for bar in bars
    ]


def _finding(explained: Sequence[Explained]) -> str:
    """The largest part at the smallest and at the largest batch."""
    ends = [min(explained, key=_size), max(explained, key=_size)]
    parts: list[str] = []
    for row in ends if _size(ends[0]) != _size(ends[1]) else ends[:1]:
        largest = max(row.parts, key=lambda part: part.duration_s)
        share = format_number(100 * largest.duration_s / row.measured_s.value)
        parts.append(
            f"{_words(largest.name)} is {share} % at batch {row.batch_size}, prompt"
            f" {row.prompt_tokens}"
        )
    misses = [
        abs(part.duration_s) / row.measured_s.value
        for row in explained
        for part in row.parts
        if part.name == "unexplained"
    ]
    rest = (
        f"; at most {format_number(100 * max(misses))} % of a point is unexplained"
        if misses
        else ""
    )
    return f"The largest part of the time: {'; '.join(parts)}{rest}."


def _size(row: Explained) -> tuple[int, int]:
    return row.batch_size, row.prompt_tokens


def _label(row: Explained, *, has_runs: bool) -> str:
    label = f"{row.prompt_tokens} × {row.batch_size}"
    return f"{row.run_label} · {label}" if has_runs else label


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cells(row: Explained, names: Sequence[str], label: str) -> tuple[str, ...]:
    seconds = {_words(part.name): part.duration_s for part in row.parts}
    parts = (
        ABSENT_TEXT if seconds.get(name) is None else format_number(seconds[name] * 1e3)
        for name in names
    )
    whole = (
        estimate_cell(row.measured_s, 1e3)
        if row.measured_s.n_samples > 1
        else format_number(row.measured_s.value * 1e3)
    )
    return (label, whole, *parts, row.limited_by)
