"""Charts of trade-offs: speed for throughput, money for the SLO, replicas for traffic.

And where does it miss?
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from inferometer.report.charts.plot import (
    Axis,
    Chart,
    Dash,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    bar_of,
    colours_of,
    held_line,
    tip,
)
from inferometer.report.views import DecisionView, LimitCost
from inferometer.units import format_duration, format_number

_FAR_RATIO: Final = 10.0
"""Where margins without a number, and larger ones, are drawn."""
_DASHES: Final[tuple[Dash, ...]] = ("", "dashed", "dotted")


def pareto_chart(view: DecisionView) -> Chart | None:
    """Output per device against output per user: up and to the right is better."""
    if not view.trades:
        return None
    met = [point for point in view.trades if point.verdict == "met"]
    best = max(met or view.trades, key=lambda one: one.device_tokens_per_s.value)
    return Chart(
        chart_id="pareto",
        title="Throughput per device against speed per user",
        finding=(
            f"{'Within the SLO the' if met else 'The'} most output per device is"
            f" {format_number(best.device_tokens_per_s.value)} tok/s on {best.device}, at"
            f" {format_number(best.tokens_per_s_per_user.value)} tok/s per user."
        ),
        plots=(
            Plot(
                x=Axis(title="output tok/s per user (1 / median TPOT)", has_zero=True),
                y=Axis(title="output tok/s per device", has_zero=True),
                marks=tuple(_trade_marks(view)),
                legend="hollow: SLO not shown to be met",
            ),
        ),
        header=("device", "offered/s", "tok/s per user", "tok/s per device", "SLO"),
        rows=tuple(
            (
                point.device,
                format_number(point.offered_requests_per_s),
                format_number(point.tokens_per_s_per_user.value),
                format_number(point.device_tokens_per_s.value),
                point.verdict,
            )
            for point in view.trades
        ),
    )


def _trade_marks(view: DecisionView) -> Iterable[Mark]:
    """Each device's points from the slowest to the fastest user."""
    for device, colour in colours_of(point.device for point in view.trades).items():
        points = sorted(
            (point for point in view.trades if point.device == device),
            key=lambda one: one.tokens_per_s_per_user.value,
        )
        xs = [point.tokens_per_s_per_user.value for point in points]
        ys = [point.device_tokens_per_s.value for point in points]
        yield Line(xs=xs, ys=ys, name=device, colour=colour)
        yield Dots(
            xs=xs,
            ys=ys,
            name=device,
            colour=colour,
            bars=[bar_of(point.device_tokens_per_s) for point in points],
            is_hollow=[point.verdict != "met" for point in points],
            tips=[
                tip(
                    (f"{device}, {format_number(point.offered_requests_per_s)} requests/s", ""),
                    ("per user", f"{format_number(x)} tok/s"),
                    ("per device", f"{format_number(y)} tok/s"),
                    ("SLO", point.verdict),
                )
                for point, x, y in zip(points, xs, ys, strict=True)
            ],
        )


def limit_cost_chart(view: DecisionView) -> Chart | None:
    """Dollars per hour against how strict the SLO is."""
    priced = [one for one in view.limit_costs if one.usd_per_hour is not None]
    if not priced:
        return None
    first = priced[0].device
    ends = [one for one in priced if one.device == first]
    return Chart(
        chart_id="cost-vs-slo",
        title="Cost against the SLO",
        finding=(
            f"On {first} this traffic costs {ends[0].usd_per_hour:.2f} $/h at"
            f" {ends[0].limit_ratio:g} times the limits, {ends[-1].usd_per_hour:.2f} $/h at"
            f" {ends[-1].limit_ratio:g} times."
        ),
        plots=(
            Plot(
                x=Axis(
                    title="limits, times those of the SLO (log scale): stricter to the left",
                    scale="log",
                    ticks=tuple(sorted({one.limit_ratio for one in priced})),
                ),
                y=Axis(title="$ per hour for this traffic", has_zero=True),
                marks=tuple(
                    mark
                    for device, colour in colours_of(one.device for one in priced).items()
                    for mark in _cost_marks(
                        [one for one in priced if one.device == device], device, colour
                    )
                ),
                height=260,
                legend="located by short runs",
            ),
        ),
        header=("device", "limits", "SLO", "replicas", "$/h"),
        rows=tuple(
            (
                one.device,
                f"x {one.limit_ratio:g}",
                one.objective,
                str(one.n_replicas),
                f"{one.usd_per_hour:.2f}",
            )
            for one in priced
        ),
    )


def _cost_marks(costs: Sequence[LimitCost], device: str, colour: str) -> Iterable[Mark]:
    xs = [one.limit_ratio for one in costs]
    ys = [one.usd_per_hour or 0.0 for one in costs]
    tips = [
        tip(
            (device, one.objective),
            ("cost", f"{y:.2f} $/h"),
            ("replicas", str(one.n_replicas)),
        )
        for one, y in zip(costs, ys, strict=True)
    ]
    yield Line(xs=xs, ys=ys, name=device, colour=colour)
    yield Dots(xs=xs, ys=ys, name=device, colour=colour, tips=tips)


def traffic_chart(view: DecisionView) -> Chart | None:
    """Requests per second of each window."""
    course = view.course
    if course is None:
        return None
    hours = [i * course.window_s / 3600 for i in range(len(course.rates_per_s))]
    return Chart(
        chart_id="traffic",
        title="Traffic over time",
        finding=(
            f"The traffic goes from {format_number(min(course.rates_per_s))} to"
            f" {format_number(max(course.rates_per_s))} requests/s, in windows of"
            f" {format_duration(course.window_s)}."
        ),
        plots=(
            Plot(
                x=_HOURS,
                y=Axis(title="requests/s", has_zero=True),
                marks=(held_line(hours, course.window_s / 3600, course.rates_per_s),),
                height=160,
                has_brush=True,
            ),
        ),
        header=("hour", "requests/s"),
        rows=tuple(
            (format_number(hour), format_number(rate))
            for hour, rate in zip(hours, course.rates_per_s, strict=True)
        ),
    )


def replicas_chart(view: DecisionView) -> Chart | None:
    """Ready replicas, by policy."""
    course = view.course
    if course is None:
        return None
    hours = [i * course.window_s / 3600 for i in range(len(course.rates_per_s))]
    marks = tuple(
        replace(
            held_line(hours, course.window_s / 3600, policy.n_replicas),
            name=policy.name,
            colour=f"c{rank}",
            dash=_DASHES[rank % len(_DASHES)],
        )
        for rank, policy in enumerate(course.policies)
    )
    cheapest = course.policies[0]
    cost = "" if cheapest.usd is None else f" for {cheapest.usd:.2f} $"
    return Chart(
        chart_id="replicas",
        title="Replicas over time",
        finding=(
            f"The cheapest policy is {cheapest.name}{cost}: it meets the SLO"
            f" {cheapest.slo_met_fraction:.1%} of the time."
        ),
        plots=(
            Plot(
                x=_HOURS,
                y=Axis(title="replicas that are ready", has_zero=True),
                marks=marks,
                height=220,
                has_brush=True,
            ),
        ),
        header=("policy", "replicas", "$", "SLO met, share of the time"),
        rows=tuple(
            (
                policy.name,
                f"{min(policy.n_replicas)} to {max(policy.n_replicas)}",
                "–" if policy.usd is None else f"{policy.usd:.2f}",
                f"{policy.slo_met_fraction:.1%}",
            )
            for policy in course.policies
        ),
    )


def probes_chart(view: DecisionView) -> Chart | None:
    """Every probe's margin against its load, with the limit and the bracket."""
    if not view.probes:
        return None
    names = ["short probe", "long probe"]
    heights = [
        min(_FAR_RATIO if probe.margin_ratio is None else probe.margin_ratio, _FAR_RATIO)
        for probe in view.probes
    ]
    return Chart(
        chart_id="probes",
        title="Every probe, and the bracket",
        finding=_bracket_words(view),
        plots=(
            Plot(
                x=Axis(title=f"load, {view.unit} (log scale)", scale="log"),
                y=Axis(title="seen / limit of the weakest link (log scale)", scale="log"),
                marks=tuple(_probe_marks(view, heights, names)),
                legend=(
                    f"at the top: {_FAR_RATIO:g} or more" if max(heights) == _FAR_RATIO else ""
                ),
            ),
        ),
        header=("probe", f"load, {view.unit}", "length", "verdict", "seen / limit", "weakest"),
        rows=tuple(
            (
                str(place),
                format_number(probe.offered_load),
                names[probe.effort > 0],
                probe.verdict,
                "–" if probe.margin_ratio is None else format_number(probe.margin_ratio),
                probe.why,
            )
            for place, probe in enumerate(view.probes, start=1)
        ),
    )


def _probe_marks(
    view: DecisionView, heights: Sequence[float], names: Sequence[str]
) -> Iterable[Mark]:
    """The limit, both ends of the bracket, and the probes."""
    yield Rule(at=1.0, text="the limit")
    if view.met_load is not None:
        words = f"{format_number(view.met_load)} meets it"
        yield Rule(at=view.met_load, text=words, is_vertical=True, tone="capacity")
    if view.missed_load is not None:
        words = f"{format_number(view.missed_load)} misses it"
        yield Rule(at=view.missed_load, text=words, is_vertical=True, tone="plain")
    for rank, name in enumerate(names):
        chosen = [
            (probe, height)
            for probe, height in zip(view.probes, heights, strict=True)
            if (probe.effort > 0) == bool(rank)
        ]
        yield Dots(
            xs=[probe.offered_load for probe, _ in chosen],
            ys=[height for _, height in chosen],
            name=name,
            colour=f"c{rank}",
            is_hollow=[probe.verdict == "missed" for probe, _ in chosen],
            tips=[
                tip(
                    (f"{format_number(probe.offered_load)} {view.unit}", probe.verdict),
                    (
                        "seen / limit",
                        "" if probe.margin_ratio is None else format_number(probe.margin_ratio),
                    ),
                    ("why", probe.why),
                )
                for probe, _ in chosen
            ],
        )


def _bracket_words(view: DecisionView) -> str:
    met = (
        "No load was shown to meet the SLO"
        if view.met_load is None
        else f"{format_number(view.met_load)} {view.unit} keep it"
    )
    broken = (
        "none was shown to break it"
        if view.missed_load is None
        else f"{format_number(view.missed_load)} break it"
    )
    return f"{met}, {broken}: lines stand at both; the dashed line is the limit."


_HOURS: Final = Axis(title="hours")


def decision_charts(view: DecisionView, names: Sequence[str]) -> tuple[Chart, ...]:
    """Those of the named charts for which the view has data."""
    builders = {
        "pareto": pareto_chart,
        "cost": limit_cost_chart,
        "traffic": traffic_chart,
        "replicas": replicas_chart,
        "probes": probes_chart,
    }
    return tuple(chart for name in names if (chart := builders[name](view)) is not None)
