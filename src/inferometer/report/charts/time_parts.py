"""Where does the time of each point go?"""

from collections.abc import Sequence
from typing import Final

from inferometer.report.cells import ABSENT_TEXT, estimate_cell, has_several_runs, statistic_text
from inferometer.report.charts.bars import MAX_ROWS, Part, rows_plot, stacked
from inferometer.report.charts.first_token import SHARES
from inferometer.report.charts.plot import Axis, Chart
from inferometer.report.views import Explained, PhaseName, SweepReportView
from inferometer.units import format_number

COLOURS: Final = {
    "launch": "c4",
    "weights": "c0",
    "kv": "c6",
    "matmul": "c1",
    "attention": "c3",
    "logits": "c2",
    "per_sequence": "c5",
    "communication": "c7",
    "unexplained": "idle",
}


def decode_time_chart(view: SweepReportView) -> Chart | None:
    """The parts of a decode step, as shares of what was measured."""
    return _time_chart(
        view, "decode", chart_id="time-decode", title="Where the time of a decode step goes"
    )


def prefill_time_chart(view: SweepReportView) -> Chart | None:
    """The parts of a prefill, as shares of what was measured."""
    return _time_chart(
        view, "prefill", chart_id="time-prefill", title="Where the time of a prefill goes"
    )


def _time_chart(
    view: SweepReportView, phase: PhaseName, *, chart_id: str, title: str
) -> Chart | None:
    explained = [row for row in view.explained if row.phase == phase and row.measured_s.value > 0]
    names = _names(explained)
    if not names:
        return None
    has_runs = has_several_runs(row.run_label for row in explained)
    rows = [
        (_label(row, has_runs=has_runs), _parts(row, names), row.measured_s.value)
        for row in explained[:MAX_ROWS]
    ]
    shares = [share for _, parts, _ in rows for part in parts for share in (part.start, part.end)]
    lowest, highest = min(0.0, *shares), max(100.0, *shares)
    plot = rows_plot(
        [label for label, _, _ in rows],
        Axis(title="% of the measured median", low=lowest, high=highest * 1.12, ticks=SHARES),
        stacked(rows, {name: COLOURS.get(name.replace(" ", "_"), "c5") for name in names}),
        _statistic(explained),
        "left of 0: the parts exceed what was measured" if lowest < 0 else "",
        n_all=len(explained),
    )
    return Chart(
        chart_id=chart_id,
        title=title,
        finding=_finding(explained),
        plots=(plot,),
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


def _parts(row: Explained, names: Sequence[str]) -> list[Part]:
    """Positive parts stack to the right of 0, negative ones to its left."""
    seconds = {_words(part.name): part.duration_s for part in row.parts}
    parts, right, left = list[Part](), 0.0, 0.0
    for name in names:
        share = 100 * seconds.get(name, 0.0) / row.measured_s.value
        if share > 0:
            parts.append(Part(name, right, right + share, seconds[name]))
            right += share
        elif share < 0:
            parts.append(Part(name, left + share, left, seconds[name]))
            left += share
    return parts


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
