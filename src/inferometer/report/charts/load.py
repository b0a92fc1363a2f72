"""Charts of what limits the load: max_num_seqs, memory or compute.

Requests that run and wait, KV blocks and preemptions over time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from inferometer.records.columns import F64
from inferometer.records.run_series import StepSeries
from inferometer.report.charts.plot import (
    Axis,
    Chart,
    Line,
    Mark,
    Plot,
    Rule,
    held_band,
    held_line,
)
from inferometer.report.views import RequestReportView
from inferometer.units import format_duration, format_fraction, format_number


def queue_chart(view: RequestReportView) -> Chart | None:
    """Requests in the batch and waiting: mean of each window of time, and up to its largest."""
    load = view.load
    if load is None:
        return None
    lines = {
        "running": (load.n_running_mean, load.n_running_max),
        "waiting": (load.n_waiting_mean, load.n_waiting_max),
    }
    peak = int(_peak(load.n_waiting_max))
    return Chart(
        chart_id="load-queue",
        title="Requests running and waiting",
        finding=(
            f"At most {int(_peak(load.n_running_max))} requests ran and {peak} waited at once;"
            f" {_means(lines, load)}."
        ),
        plots=(_plot(load, lines, "requests", height=190),),
        header=(
            "from, s",
            "steps",
            "running, mean",
            "running, most",
            "waiting, mean",
            "waiting, most",
        ),
        rows=_table(load, lines),
    )


def served_chart(
    at_s: Sequence[float], running: Sequence[float], waiting: Sequence[float]
) -> Chart | None:
    """Requests in a server's batch and waiting at each scrape; None where it reports neither.

    A scrape without an answer is NaN.
    """
    lines = {"running": running, "waiting": waiting}
    seen = {
        name: [value for value in values if not math.isnan(value)] for name, values in lines.items()
    }
    if not any(seen.values()):
        return None
    most = " and ".join(f"{int(max(values)):,} {name}" for name, values in seen.items() if values)
    marks = [
        Line(
            xs=at_s,
            ys=values,
            name=name,
            colour=f"c{rank}",
            dash="dashed" if rank else "",
            is_stepped=True,
        )
        for rank, (name, values) in enumerate(lines.items())
        if seen[name]
    ]
    every = 1 + len(at_s) // 24
    rows = zip(at_s[::every], running[::every], waiting[::every], strict=True)
    return Chart(
        chart_id="served",
        title="Requests running and waiting in the window",
        finding=f"At most {most} at once.",
        plots=(
            Plot(
                x=Axis(title="s since the start of the window", low=at_s[0], high=at_s[-1]),
                y=Axis(title="requests", has_zero=True),
                marks=tuple(marks),
                height=190,
                has_brush=True,
                legend="at each scrape",
            ),
        ),
        header=("at, s", "running", "waiting"),
        rows=tuple(
            (f"{at:.1f}", *("–" if math.isnan(one) else format_number(one) for one in values))
            for at, *values in rows
        ),
    )


def kv_chart(view: RequestReportView) -> Chart | None:
    """KV blocks used, of how many."""
    load = view.load
    if load is None or not any(not math.isnan(value) for value in load.kv_blocks_max.tolist()):
        return None
    lines = {"KV blocks used": (load.kv_blocks_mean, load.kv_blocks_max)}
    limit = view.n_kv_blocks
    whole = () if not limit else (Rule(at=limit, text=f"all {limit:,} blocks"),)
    peak = _peak(load.kv_blocks_max)
    share = f" of {limit:,} ({format_fraction(peak / limit)})" if limit else ""
    return Chart(
        chart_id="load-kv",
        title="KV blocks used",
        finding=f"At most {int(peak):,} KV blocks{share} were in use at once.",
        plots=(_plot(load, lines, "KV blocks used", *whole),),
        header=("from, s", "steps", "KV blocks, mean", "KV blocks, most"),
        rows=_table(load, lines),
    )


def holes_chart(view: RequestReportView) -> Chart | None:
    """Free KV cache memory and its largest piece, where each request has one piece."""
    load, holes = view.load, view.holes
    if load is None or holes is None:
        return None
    lines = {
        "free": (holes.free.mean, holes.free.most),
        "in the largest hole": (holes.largest.mean, holes.largest.most),
    }
    free, largest = (
        sum(value for value in column.mean.tolist() if not math.isnan(value))
        for column in holes[:2]
    )
    share = (
        f"{format_fraction(1 - largest / free)} of the free blocks"
        if free
        else "None of the free blocks"
    )
    debt = int(_peak(holes.debt.most))
    moved = "" if holes.n_moved is None else f" {holes.n_moved:,} were moved in the background."
    return Chart(
        chart_id="load-holes",
        title="Free KV blocks, and the largest hole",
        finding=(
            f"{share} lay outside the largest hole on average; at most {debt:,} had to be moved for"
            f" the largest request that waited.{moved}"
        ),
        plots=(_plot(load, lines, "KV blocks"),),
        header=(
            "from, s",
            "steps",
            "free, mean",
            "free, most",
            "largest hole, mean",
            "largest hole, most",
        ),
        rows=_table(load, lines),
    )


def swap_chart(view: RequestReportView) -> Chart | None:
    """Swapped blocks before each step."""
    load, swapped = view.load, view.swapped_blocks
    if load is None or swapped is None:
        return None
    lines = {"swapped": (swapped.mean, swapped.most)}
    return Chart(
        chart_id="load-swaps",
        title="KV blocks swapped before a step",
        finding=(
            f"At most {int(_peak(swapped.most)):,} blocks were copied to the host or back before"
            " one step."
        ),
        plots=(_plot(load, lines, "KV blocks a step", height=120),),
        header=("from, s", "steps", "swapped, mean", "swapped, most"),
        rows=_table(load, lines),
    )


def preemption_chart(view: RequestReportView) -> Chart | None:
    """Preemptions in each window of time."""
    load = view.load
    if load is None:
        return None
    total = int(load.n_preempted.sum())
    starts, counts = load.start_s.tolist(), load.n_preempted.tolist()
    when = [x for x, n in zip(starts, counts, strict=True) if n]
    plot = Plot(
        x=_time_axis(load),
        y=Axis(
            title=f"preemptions per {format_duration(load.width_s)}",
            low=0,
            high=max(1.0, 1.1 * max(counts)),
        ),
        marks=(replace(held_line(starts, load.width_s, counts), colour="c1"),),
        height=110,
        has_brush=True,
    )
    text = (
        f"{total} preemptions, the first after {format_duration(max(0.0, when[0]))}"
        if when
        else "No request was preempted"
    )
    return Chart(
        chart_id="load-preemptions",
        title="Preemptions",
        finding=f"{text}.",
        plots=(plot,),
        header=("windows", "length", "preemptions", "most in a window"),
        rows=(
            (
                str(len(starts)),
                format_duration(load.width_s),
                str(total),
                str(int(load.n_preempted.max())),
            ),
        ),
    )


def _plot(
    load: StepSeries,
    lines: Mapping[str, tuple[F64, F64]],
    unit: str,
    *more: Mark,
    height: int = 160,
) -> Plot:
    """The mean of each window as a line, and a shade up to its largest."""
    marks, starts = list[Mark](), load.start_s.tolist()
    for rank, (name, (mean, most)) in enumerate(lines.items()):
        colour = f"c{rank}"
        shown = [
            (x, low, high)
            for x, low, high in zip(starts, mean.tolist(), most.tolist(), strict=True)
            if not math.isnan(low)
        ]
        if shown:
            begins, ends = [x for x, *_ in shown], [(low, high) for _, low, high in shown]
            marks.append(held_band(begins, load.width_s, ends, colour=colour, name=name))
        marks.append(
            replace(
                held_line(starts, load.width_s, mean.tolist()),
                name=name,
                colour=colour,
                dash="dashed" if rank else "",
            )
        )
    return Plot(
        x=_time_axis(load),
        y=Axis(title=unit, has_zero=True),
        marks=(*more, *marks),
        height=height,
        has_brush=True,
        legend=f"line: mean of {format_duration(load.width_s)} · shade: up to the most",
    )


def _time_axis(load: StepSeries) -> Axis:
    return Axis(
        title="s since the start of the run",
        low=float(load.start_s[0]),
        high=float(load.start_s[-1]) + load.width_s,
    )


def _peak(column: F64) -> float:
    return max((value for value in column.tolist() if not math.isnan(value)), default=0.0)


def _means(lines: Mapping[str, tuple[F64, F64]], load: StepSeries) -> str:
    """Means over the windows in which steps ran."""
    parts: list[str] = []
    for name, (mean, _) in lines.items():
        present = [value for value in mean.tolist() if not math.isnan(value)]
        parts.append(f"{format_number(sum(present) / len(present))} {name}")
    idle = int((load.n_steps == 0).sum())
    rest = f"; no step began in {idle} of {len(load.n_steps)} windows" if idle else ""
    return f"on average {' and '.join(parts)}{rest}"


def _table(load: StepSeries, lines: Mapping[str, tuple[F64, F64]]) -> tuple[tuple[str, ...], ...]:
    """Some two dozen of the windows."""
    rows: list[tuple[str, ...]] = []
    for i in range(0, len(load.start_s), 1 + len(load.start_s) // 24):
        numbers = [float(column[i]) for pair in lines.values() for column in pair]
        shown = ("–" if math.isnan(number) else format_number(number) for number in numbers)
        rows.append((f"{load.start_s[i]:.2f}", str(load.n_steps[i]), *shown))
    return tuple(rows)
