"""What is there to read of a grid: findings first, then a row for each point?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from inferometer.api.grid import GridAnswer, GridPoint, Value, value_text
from inferometer.inputs.objectives import percentile_name
from inferometer.report.charts.curves import (
    Beside,
    CurvePoint,
    NamedCurve,
    Ranked,
    curve_chart,
    ranked_chart,
)
from inferometer.report.charts.plot import Axis, Chart, Rule, Scale
from inferometer.report.page import Chip, Number, Page, Section, duration_number, number_of
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate
from inferometer.units import format_bytes, format_duration, format_fraction, format_number

_SUFFIXES: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("_tokens_per_s", " tok/s", format_number),
    ("requests_per_s", " req/s", format_number),
    ("_per_million_tokens", "/1M out", format_number),
    ("_bytes", "", format_bytes),
    ("_fraction", "", format_fraction),
    ("_users", " users", format_number),
    ("_devices", "", format_number),
    ("_replicas", "", format_number),
    ("_per_hour", "", format_number),
    ("_sequences", "", format_number),
    ("_s", "", format_duration),
)
_NAMES: Final = {
    "usd_per_million_tokens": "$/1M out",
    "mbu_fraction": "MBU",
    "mfu_fraction": "MFU",
    "n_devices": "devices",
    "n_replicas": "replicas",
    "usd_per_hour": "$/h",
}


class _Charted(NamedTuple):
    """A number that has a chart, and its unit there."""

    number: str
    title: str
    unit: str
    factor: float = 1.0


_CHARTED: Final = (
    _Charted("usd_per_hour", "cost per hour", "$"),
    _Charted("n_devices", "number of devices", "devices"),
    _Charted("decode_tokens_per_s", "decode throughput", "tok/s"),
    _Charted("tpot_s", "TPOT", "ms", 1e3),
    _Charted("ttft_s", "TTFT", "ms", 1e3),
    _Charted("usd_per_million_tokens", "cost", "$ per 1M output tokens"),
    _Charted("mbu_fraction", "MBU of decode", "%", 100.0),
    _Charted("output_tokens_per_s", "output throughput", "tok/s"),
    _Charted("tpot_p95_s", "p95 TPOT", "ms", 1e3),
    _Charted("ttft_p95_s", "p95 TTFT", "ms", 1e3),
    _Charted("e2e_p95_s", "p95 E2E", "s"),
    _Charted("capacity_requests_per_s", "capacity", "requests/s"),
    _Charted("capacity_users", "capacity", "users"),
)
"""The first that a grid has is its main chart; the second is set against it."""


class _Best(NamedTuple):
    """A number whose best point the first screen names."""

    number: str
    title: str
    unit: str = ""
    """'': a time."""
    is_most: bool = False


_BESTS: Final = (
    _Best("capacity_requests_per_s", "highest capacity", "req/s", is_most=True),
    _Best("capacity_users", "highest capacity", "users", is_most=True),
    _Best("requests_per_s", "most completed", "req/s", is_most=True),
    _Best("ttft_s", "lowest TTFT"),
    _Best("ttft_p95_s", "lowest p95 TTFT"),
    _Best("tpot_s", "lowest TPOT"),
    _Best("tpot_p95_s", "lowest p95 TPOT"),
    _Best("e2e_p95_s", "lowest p95 E2E"),
    _Best("decode_tokens_per_s", "most decode", "tok/s", is_most=True),
    _Best("total_tokens_per_s", "most in and out", "tok/s", is_most=True),
    _Best("usd_per_million_tokens", "lowest cost", "$/1M out"),
)
_CAPACITIES: Final = ("capacity_requests_per_s", "capacity_users")
_SPEEDS: Final = ("decode_tokens_per_s", *_CAPACITIES, "requests_per_s")
_INTERVALS: Final = {
    "predict": "90 % intervals",
    "simulate": "all step times, and the noise of the requests",
    "capacity": "all step times",
    "size": "all step times",
}
_MOST_NUMBERS: Final = 6
_MOST_TICKS: Final = 10
_LOG_FROM: Final = 20


def grid_page(answer: GridAnswer) -> Page:
    """A page of findings and points."""
    charts = _charts(answer)
    n_answered = sum(point.refused is None for point in answer.points)
    n_points = len(answer.points)
    refused = "" if n_answered == n_points else f"; {n_answered} of {n_points} points answered"
    return Page(
        title=f"{answer.title}{refused}",
        table=_table(answer),
        findings=tuple(finding.sentence for finding in answer.findings),
        chips=tuple(_chips(answer)),
        numbers=tuple(_best_numbers(answer)),
        has_numbers_in_table=True,
        chart=charts[0] if charts else None,
        sections=(
            Section(
                id="curves",
                title="How do the other numbers change?",
                nav="Curves",
                charts=tuple(charts[1:]),
            ),
            Section(id="points", title="Point by point", nav="Points", tables=(_table(answer),)),
        ),
    )


def _chips(answer: GridAnswer) -> list[Chip]:
    """How many points meet the SLO, fit in memory, and have an answer at all."""
    n_points = len(answer.points)
    answered = [point for point in answer.points if point.refused is None]
    chips = list[Chip]()
    counts = Counter(point.words.get("slo") for point in answered)
    if answer.objective is not None and set(counts) != {None}:
        order = ("met", "undecided", "missed")
        verdict = next((one for one in order if counts[one]), "missed")
        text = f"{counts['met']} of {n_points} points meet the SLO"
        open_ = f", {counts['undecided']} undecided" if counts["undecided"] else ""
        chips.append(Chip(verdict=verdict, text=f"{text}{open_}"))
    known = [point.words["fits"] for point in answered if point.words.get("fits")]
    if known:
        n_fitting = known.count("yes")
        verdict = "fits" if n_fitting == n_points else "open" if n_fitting else "missed"
        which = "all" if n_fitting == n_points else f"{n_fitting} of"
        chips.append(Chip(verdict=verdict, text=f"{which} {n_points} points fit in memory"))
    if not chips:
        n_done, words = len(answered), "answered"
        if answer.verb == "capacity":
            n_done, words = sum(_is_located(point) for point in answered), "have their capacity"
        text = f"{n_done} of {n_points} points {words}"
        chips.append(Chip(verdict="fits" if n_done == n_points else "open", text=text))
    return chips


def _is_located(point: GridPoint) -> bool:
    return any(point.numbers.get(name) is not None for name in _CAPACITIES)


def _best_numbers(answer: GridAnswer) -> list[Number]:
    """The best value of each number, and at which point: of those that fit and meet the SLO.

    Step times of different sources are not ranked: then of the points of the commonest source.
    """
    points = [one for one in answer.points if not one.refused and one.words.get("fits") != "no"]
    points = [one for one in points if one.words.get("slo") == "met"] or points
    sources = Counter(one.words.get("step_times") for one in points)
    if len(sources) > 1:
        commonest = sources.most_common(1)[0][0]
        points = [one for one in points if one.words.get("step_times") == commonest]
    numbers = list[Number]()
    for best in _BESTS:
        known = [(found, one) for one in points if (found := one.numbers.get(best.number))]
        if not known:
            continue
        pick = max if best.is_most else min
        estimate, point = pick(known, key=lambda pair: pair[0].value)
        note = ", ".join(_named_values(point, list(answer.axes)))
        numbers += (
            (number_of(best.title, estimate, best.unit, note=note),)
            if best.unit
            else duration_number(best.title, estimate, limit_s=_limit_s(answer, best), note=note)
        )
    return numbers[:_MOST_NUMBERS]


def _limit_s(answer: GridAnswer, best: _Best) -> float | None:
    """The SLO's limit of this latency."""
    metric, _, statistic = best.number.removesuffix("_s").partition("_")
    return next(
        (
            one.limit_s
            for one in (() if answer.objective is None else answer.objective.thresholds)
            if one.metric == metric
            and (not statistic or percentile_name(one.percentile_fraction or 0.0) == statistic)
        ),
        None,
    )


def _charts(answer: GridAnswer) -> list[Chart]:
    """The verb's numbers over the first numeric axis, and the first two against each other."""
    over = [
        name
        for name, values in answer.axes.items()
        if len(values) > 1 and all(isinstance(one, int | float) for one in values)
    ]
    known = [
        one
        for one in _CHARTED
        if any(point.numbers.get(one.number) is not None for point in answer.points)
    ]
    if not over:
        rankable = [one for one in known if one.number != "mbu_fraction"]
        return [chart for one in rankable if (chart := _ranking(answer, one)) is not None]
    charts = [_over_axis(answer, axis, one) for axis in over for one in known]
    if over and len(known) > 1:
        charts.insert(1, _against(answer, over[0], known[1], known[0]))
    return charts


_LOWEST_FIRST: Final = ("tpot", "ttft", "usd", "e2e")
"""Beginnings of the names of numbers that are best where they are least."""


def _ranking(answer: GridAnswer, charted: _Charted) -> Chart | None:
    """The points in the order of a number, best first: of those that fit in memory."""
    sources = {one.words.get("step_times") for one in answer.points if not one.refused}
    is_mixed = len(sources) > 1  # then no point is called the best
    rows = [
        _ranked(point, estimate, charted.factor, has_source=is_mixed)
        for point in answer.points
        if (estimate := point.numbers.get(charted.number)) is not None
        and point.words.get("fits") != "no"
    ]
    if not rows:
        return None
    is_least = charted.number.startswith(_LOWEST_FIRST)
    rows.sort(key=lambda row: row.value if is_least else -row.value)
    n_left_out = len(answer.points) - len(rows)
    left_out = f"; {n_left_out} do not fit or have no answer" if n_left_out else ""
    first = rows[0]
    return ranked_chart(
        f"{charted.number.replace('_', '-')}-ranked",
        f"{charted.title[0].upper()}{charted.title[1:]}, best first{left_out}",
        ""
        if is_mixed
        else f"{'Least' if is_least else 'Most'} {charted.title}: {first.label},"
        f" {format_number(first.value)} {charted.unit}",
        rows,
        x=Axis(title=f"{charted.title}, {charted.unit}"),
        intervals=_INTERVALS[answer.verb],
    )


def _ranked(point: GridPoint, estimate: Estimate, factor: float, *, has_source: bool) -> Ranked:
    low, high = estimate.low, estimate.high
    source = [f"by {point.words.get('step_times')}"] if has_source else []
    return Ranked(
        ", ".join([*_named_values(point, list(point.values)), *source]),
        estimate.value * factor,
        None if low is None else low * factor,
        None if high is None or math.isinf(high) else high * factor,
    )


_NEAR: Final = 3.0
"""A limit that is further from all points than by this factor would flatten the curves."""


def _limits(
    answer: GridAnswer, charted: _Charted, curves: list[NamedCurve], *, is_vertical: bool = False
) -> list[Rule]:
    """The SLO's limits of this latency, where they are near the points."""
    metric, _, statistic = charted.number.removesuffix("_s").partition("_")
    values = [point.x if is_vertical else point.y for one in curves for point in one.points]
    return [
        Rule(at=one.limit_s * charted.factor, text=f"SLO: {one.text}", is_vertical=is_vertical)
        for one in (() if answer.objective is None else answer.objective.thresholds)
        if one.metric == metric
        and (not statistic or percentile_name(one.percentile_fraction or 0.0) == statistic)
        and min(values) / _NEAR <= one.limit_s * charted.factor <= _NEAR * max(values)
    ]


def _over_axis(answer: GridAnswer, axis: str, charted: _Charted) -> Chart:
    values = [value for value in answer.axes[axis] if isinstance(value, int | float)]
    name = _axis_name(axis)
    curves = _curves(answer, axis, lambda point: point.values[axis], charted)
    return curve_chart(
        f"{charted.number.replace('_', '-')}-over-{axis.replace('_', '-')}",
        f"{charted.title[0].upper()}{charted.title[1:]} over {name}",
        next(
            (
                one.sentence
                for one in answer.findings
                if charted.title.lower() in one.sentence.lower() and f" {name} " in one.sentence
            ),
            "",
        ),
        curves,
        x=Axis(
            title=name,
            scale="log2" if min(values) > 0 and max(values) >= 4 * min(values) else "linear",
            ticks=tuple(float(one) for one in values) if len(values) <= _MOST_TICKS else None,
        ),
        y=Axis(title=f"{charted.title}, {charted.unit}", scale=_scale(curves)),
        beside=_beside(answer, axis, _limits(answer, charted, curves)),
    )


def _against(answer: GridAnswer, axis: str, x: _Charted, y: _Charted) -> Chart:
    """One number against another, a point for each value of the axis."""

    def of_x(point: GridPoint) -> Value:
        estimate = point.numbers.get(x.number)
        return None if estimate is None else estimate.value * x.factor

    curves = [
        curve._replace(points=tuple(point._replace(low=None, high=None) for point in curve.points))
        for curve in _curves(answer, axis, of_x, y)
    ]
    xs = [point.x for curve in curves for point in curve.points]
    return curve_chart(
        f"{y.number.replace('_', '-')}-against-{x.number.replace('_', '-')}",
        f"{y.title[0].upper()}{y.title[1:]} against {x.title}, a point for each {_axis_name(axis)}",
        "",
        curves,
        x=Axis(
            title=f"{x.title}, {x.unit}", scale="log" if max(xs) > 20 * min(xs) > 0 else "linear"
        ),
        y=Axis(title=f"{y.title}, {y.unit}", scale=_scale(curves)),
        beside=_beside(
            answer,
            axis,
            [*_limits(answer, x, curves, is_vertical=True), *_limits(answer, y, curves)],
        ),
    )


def _curves(
    answer: GridAnswer, axis: str, of_x: Callable[[GridPoint], Value], charted: _Charted
) -> list[NamedCurve]:
    lines = dict[str, list[CurvePoint]]()
    for point in answer.points:
        estimate, x = point.numbers.get(charted.number), of_x(point)
        if estimate is None or not isinstance(x, int | float):
            continue
        high = estimate.high
        lines.setdefault(_line_of(answer, axis, point), []).append(
            CurvePoint(
                x=float(x),
                y=estimate.value * charted.factor,
                low=None if estimate.low is None else estimate.low * charted.factor,
                high=None if high is None or math.isinf(high) else high * charted.factor,
                label=f"{_axis_name(axis)} {value_text(point.values[axis])}",
            )
        )
    return [NamedCurve(name, tuple(points)) for name, points in lines.items()]


def _beside(answer: GridAnswer, axis: str, rules: list[Rule]) -> Beside:
    names = [_line_of(answer, axis, point) for point in answer.points]
    return Beside(rules, names, _INTERVALS[answer.verb])


def _line_of(answer: GridAnswer, axis: str, point: GridPoint) -> str:
    """The name of the line through a point: its values on the other axes."""
    others = [one for one in answer.axes if one != axis and len(answer.axes[one]) > 1]
    return ", ".join(_named_values(point, others))


def _named_values(point: GridPoint, axes: Sequence[str]) -> list[str]:
    """The point's values on these axes, numbers with the axis' name."""
    return [
        str(point.values[name])
        if isinstance(point.values[name], str)
        else f"{_axis_name(name)} {value_text(point.values[name])}"
        for name in axes
    ]


def _axis_name(name: str) -> str:
    return "TP" if name == "tp" else name.replace("_", " ")


def _scale(curves: list[NamedCurve]) -> Scale:
    """Logarithms where the numbers span more than a factor of 20."""
    ys = [point.y for curve in curves for point in curve.points]
    return "log" if min(ys) > 0 and max(ys) > _LOG_FROM * min(ys) else "linear"


def _table(answer: GridAnswer) -> TextTable:
    numbers = _names_of([point.numbers for point in answer.points])
    words = _names_of([point.words for point in answer.points])
    if len({point.words.get("step_times") for point in answer.points if not point.refused}) < 2:
        words = [name for name in words if name != "step_times"]
    has_refused = any(point.refused for point in answer.points)
    header = (
        *(_axis_name(name) for name in answer.axes),
        *(_heading(name) for name in numbers),
        *(name.replace("_", " ") for name in words),
        *(("no answer because",) if has_refused else ()),
    )
    points = (
        sorted(answer.points, key=_rank) if list(answer.axes) == ["hardware"] else answer.points
    )
    rows = (_row(point, numbers, words, has_refused=has_refused) for point in points)
    *_, last = answer.axes.values()
    return TextTable(
        caption="Point by point",
        header=header,
        rows=tuple(map(tuple, rows)),
        n_in_block=0 if points is not answer.points else len(last),
    )


def _rank(point: GridPoint) -> tuple[bool, bool, float]:
    """Devices by speed: those on which it fits first, those without an answer last."""
    speed = next(
        (found.value for name in _SPEEDS if (found := point.numbers.get(name)) is not None), 0.0
    )
    return point.refused is not None, point.words.get("fits") == "no", -speed


def _names_of(rows: list[dict[str, Estimate | None]] | list[dict[str, str | None]]) -> list[str]:
    """Names that at least one point has a value of."""
    return list(dict.fromkeys(name for row in rows for name, one in row.items() if one is not None))


def _heading(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    suffix, unit, _ = next(one for one in _SUFFIXES if name.endswith(one[0]))
    words = name.removesuffix(suffix).replace("_", " ").strip()
    for short in ("ttft", "tpot", "e2e"):
        words = words.replace(short, short.upper())
    return f"{words}{unit}".strip()


def _row(point: GridPoint, numbers: list[str], words: list[str], *, has_refused: bool) -> list[str]:
    cells = [value_text(value) for value in point.values.values()]
    cells += [_number(name, point.numbers.get(name)) for name in numbers]
    cells += [point.words.get(name) or "–" for name in words]
    return [*cells, *([point.refused or ""] if has_refused else [])]


def _number(name: str, estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    form = next(form for suffix, _, form in _SUFFIXES if name.endswith(suffix))
    return estimate.text(form)
