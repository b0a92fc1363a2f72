"""Where does the time go: of each point, and to the first token of requests?"""

from collections.abc import Sequence
from typing import Final

from inferometer.records.server_summaries import TtftParts
from inferometer.records.summaries import StepCause
from inferometer.report.charts.plot import MAX_ROWS, Axis, Chart, Part, rows_plot, stacked
from inferometer.report.request_tables import largest_part, named_parts
from inferometer.report.tables import (
    estimate_cell,
    has_several_runs,
    known_cell,
    point_label,
    statistic_text,
)
from inferometer.report.views import (
    Explained,
    PhaseName,
    RateView,
    RequestReportView,
    SweepReportView,
)
from inferometer.units import format_duration, format_number

PART_COLOURS: Final = {
    "client": "c6",
    "network": "c5",
    "queue": "c1",
    "prefill": "c0",
    "hand-over": "c3",
}
SHARE_NAMES: Final[dict[StepCause, str]] = {
    "weight bandwidth": "reading weights",
    "launch overhead": "launches",
    "compute": "computing",
}
SHARES: Final = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)


def ttft_parts_chart(view: RequestReportView) -> Chart | None:
    """The parts of the run's mean TTFT, as shares."""
    return None if view.ttft_parts is None else _parts_chart([("all requests", view.ttft_parts)])


def ttft_parts_rate_chart(view: RateView) -> Chart | None:
    """The parts of each run's mean TTFT, by offered rate or concurrency."""
    return _parts_chart(
        [(point.label, point.ttft_parts) for point in view.points if point.ttft_parts is not None]
    )


def _parts_chart(bars: Sequence[tuple[str, TtftParts]]) -> Chart | None:
    positive = [(label, parts) for label, parts in bars if parts.total_s > 0]
    shown = positive[:MAX_ROWS]
    if not shown:
        return None
    known = {name for _, parts in shown for name, value in named_parts(parts) if value is not None}
    names = [name for name in PART_COLOURS if name in known]
    ends = shown if len(shown) == 1 else (shown[0], shown[-1])
    plot = rows_plot(
        [label for label, _ in shown],
        Axis(title="% of the mean TTFT", low=0, high=112, ticks=SHARES),
        stacked(
            [(label, _first_token_parts(parts), parts.total_s) for label, parts in shown],
            {name: PART_COLOURS[name] for name in names},
        ),
        "mean TTFT, part by part",
        n_all=len(positive),
        rows="rows: runs by their traffic" if len(shown) > 1 else "",
    )
    return Chart(
        chart_id="ttft-parts",
        title="Where the time to the first token goes",
        finding=f"{'; '.join(_first_token_finding(label, parts) for label, parts in ends)}.",
        plots=(plot,),
        header=("run", "requests", "mean TTFT, ms", *(f"{name}, ms" for name in names)),
        rows=tuple(_first_token_cells(label, parts, names) for label, parts in shown),
    )


def _first_token_parts(parts: TtftParts) -> list[Part]:
    """Each part that takes time; a difference of means below 0 is in the table only."""
    found, start = list[Part](), 0.0
    for name, value_s in named_parts(parts):
        if value_s is not None and value_s > 0:
            end = start + 100 * value_s / parts.total_s
            found.append(Part(name, start, end, value_s))
            start = end
    return found


def _first_token_finding(label: str, parts: TtftParts) -> str:
    return f"{largest_part(parts)} ({format_duration(parts.total_s)}, {label})"


def _first_token_cells(label: str, parts: TtftParts, names: Sequence[str]) -> tuple[str, ...]:
    known = dict(named_parts(parts))
    found = (known[name] for name in names)
    cells = (known_cell(value_s, _ms) for value_s in found)
    return (label, f"{parts.n_requests:,}", format_number(1e3 * parts.total_s), *cells)


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


def step_shares_chart(view: SweepReportView) -> Chart | None:
    """One bar: the parts of a decode step of one sequence, by steps of two widths in turns."""
    shares = view.step_shares
    if shares is None:
        return None
    names = {part.cause: SHARE_NAMES[part.cause] for part in shares.parts}
    parts, start = list[Part](), 0.0
    for part in shares.parts:
        end = start + 100 * part.fraction.value
        duration_s = part.fraction.value * shares.step_s.value
        parts.append(Part(names[part.cause], start, end, duration_s))
        start = end
    label = f"one token of one sequence, {shares.n_rounds} paired rounds"
    colours = {names["weight bandwidth"]: "c0", names["launch overhead"]: "c4"}
    colours[names["compute"]] = "c1"
    plot = rows_plot(
        [label],
        Axis(title="% of the time of a step", low=0, high=112, ticks=SHARES),
        stacked([(label, parts, shares.step_s.value)], colours),
        n_all=1,
        rows="",
    )
    first = shares.parts[0]
    verdict = "the largest part" if shares.limited_by else "undecided; most"
    return Chart(
        chart_id="step-shares",
        title="What makes one token take its time",
        finding=f"{names[first.cause].capitalize()} is {verdict}:"
        f" {100 * first.fraction.value:.0f} % of a step.",
        plots=(plot,),
        header=("part", "% of a step", "ms"),
        rows=tuple(
            (
                names[part.cause],
                estimate_cell(part.fraction, 100),
                estimate_cell(part.fraction, 1e3 * shares.step_s.value),
            )
            for part in shares.parts
        ),
    )


def decode_time_chart(view: SweepReportView) -> Chart | None:
    """Parts of a decode step, as shares of the measured time."""
    return _time_chart(
        view, "decode", chart_id="time-decode", title="Where the time of a decode step goes"
    )


def prefill_time_chart(view: SweepReportView) -> Chart | None:
    """Parts of a prefill, as shares of the measured time."""
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
        (point_label(row, has_runs=has_runs), _parts(row, names), row.measured_s.value)
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
        rows=tuple(_cells(row, names, point_label(row, has_runs=has_runs)) for row in explained),
    )


def _statistic(explained: Sequence[Explained]) -> str:
    """The whole of each bar, in words.

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


def _words(name: str) -> str:
    return name.replace("_", " ")


def _ms(value_s: float) -> str:
    return format_number(1e3 * value_s)


def _cells(row: Explained, names: Sequence[str], label: str) -> tuple[str, ...]:
    seconds = {_words(part.name): part.duration_s for part in row.parts}
    parts = (known_cell(seconds.get(name), _ms) for name in names)
    whole = (
        estimate_cell(row.measured_s, 1e3)
        if row.measured_s.n_samples > 1
        else format_number(row.measured_s.value * 1e3)
    )
    return (label, whole, *parts, row.limited_by)
