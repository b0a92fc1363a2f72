"""What must be given up for what: speed for throughput, money for a promise, replicas for traffic.

And where does a promise break?
"""

from collections.abc import Sequence
from typing import Final

import altair as alt

from inferometer.report.charts.frame import (
    INK,
    MUTED,
    ChartSpec,
    Row,
    finished,
    interval_fields,
    log_axis_domain,
    measured_lines,
    series_channels,
    values,
    y_axis,
)
from inferometer.report.decision_views import DecisionView, TradePoint
from inferometer.units import format_duration, format_number

_LIMIT_DASH: Final = [4, 3]
_FAR_RATIO: Final = 10.0
"""Where margins without a number, and larger ones, are drawn."""


def pareto_chart(view: DecisionView) -> ChartSpec | None:
    """Output per device against output per user: up and to the right is better."""
    if not view.trades:
        return None
    rows = _trade_rows(view.trades)
    x = alt.X(
        "x:Q",
        axis=alt.Axis(title="output tok/s per user (1 / median TPOT)", tickCount=6, grid=False),
        scale=alt.Scale(zero=True),
    )
    title = ("output tok/s per device", "hollow: promise not shown to be kept")
    y = alt.Y("value:Q", scale=alt.Scale(zero=True), axis=y_axis(*title, tick_count=5))
    tooltip = [
        alt.Tooltip("series:N"),
        alt.Tooltip("x:Q", title="tok/s/user", format=".3~r"),
        alt.Tooltip("value:Q", format=".4~r"),
    ]
    kept = [point for point in view.trades if point.verdict == "met"]
    best = max(kept or view.trades, key=lambda one: one.device_tokens_per_s.value)
    return ChartSpec(
        chart_id="pareto",
        title="Throughput per device against speed per user",
        finding=(
            f"{'Within the promise the' if kept else 'The'} most output per device is"
            f" {format_number(best.device_tokens_per_s.value)} tok/s on {best.device}, at"
            f" {format_number(best.tokens_per_s_per_user.value)} tok/s per user."
        ),
        spec=finished(measured_lines(rows, x, y, tooltip=tooltip, has_curve=False), height=300),
        header=("device", "offered/s", "tok/s per user", "tok/s per device", "promise"),
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


def _trade_rows(trades: Sequence[TradePoint]) -> list[Row]:
    """Each device's points from the slowest to the fastest user."""
    devices = list(dict.fromkeys(point.device for point in trades))
    return [
        {
            "series": point.device,
            "x": point.tokens_per_s_per_user.value,
            "flags": "" if point.verdict == "met" else point.verdict,
            **interval_fields(point.device_tokens_per_s, 1.0),
        }
        for point in sorted(
            trades, key=lambda one: (devices.index(one.device), one.tokens_per_s_per_user.value)
        )
    ]


def limit_cost_chart(view: DecisionView) -> ChartSpec | None:
    """Dollars per hour against how strict the promise is."""
    priced = [one for one in view.limit_costs if one.usd_per_hour is not None]
    if not priced:
        return None
    rows: list[Row] = [
        {"series": one.device, "x": one.limit_ratio, "value": one.usd_per_hour, "flags": ""}
        for one in priced
    ]
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(zero=True),
        axis=y_axis("$ per hour for this traffic", "located by short runs", tick_count=5),
    )
    tooltip = [
        alt.Tooltip("series:N"),
        alt.Tooltip("x:Q", title="limits x"),
        alt.Tooltip("value:Q", title="$/h", format=".4~r"),
    ]
    first = priced[0].device
    ends = [one for one in priced if one.device == first]
    return ChartSpec(
        chart_id="cost-vs-slo",
        title="Cost against the promise",
        finding=(
            f"On {first} this traffic costs {ends[0].usd_per_hour:.2f} $/h at"
            f" {ends[0].limit_ratio:g} times the limits, {ends[-1].usd_per_hour:.2f} $/h at"
            f" {ends[-1].limit_ratio:g} times."
        ),
        spec=finished(
            measured_lines(rows, _limits_axis(rows), y, tooltip=tooltip, has_curve=False),
            height=260,
        ),
        header=("device", "limits", "promise", "replicas", "$/h"),
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


def _limits_axis(rows: Sequence[Row]) -> alt.X:
    ratios = sorted({row["x"] for row in rows})
    scale = alt.Scale(type="log", domain=log_axis_domain(ratios, margin_ratio=1.1), nice=False)
    axis = alt.Axis(
        title="limits, times those of the promise (log scale): stricter to the left",
        values=ratios,
        format="~r",
        grid=False,
    )
    return alt.X("x:Q", scale=scale, axis=axis)


def traffic_chart(view: DecisionView) -> ChartSpec | None:
    """Requests per second of each window."""
    course = view.course
    if course is None:
        return None
    rows: list[Row] = [
        {"x": i * course.window_s / 3600, "value": rate}
        for i, rate in enumerate(course.rates_per_s)
    ]
    y = alt.Y("value:Q", scale=alt.Scale(zero=True), axis=y_axis("requests/s", tick_count=4))
    line = (
        alt.Chart(values(rows))
        .mark_line(interpolate="step-after", color=INK, strokeWidth=1.5)
        .encode(x=_hours(), y=y)
    )
    return ChartSpec(
        chart_id="traffic",
        title="Traffic over time",
        finding=(
            f"The traffic goes from {format_number(min(course.rates_per_s))} to"
            f" {format_number(max(course.rates_per_s))} requests/s, in windows of"
            f" {format_duration(course.window_s)}."
        ),
        spec=finished([line], height=160),
        header=("hour", "requests/s"),
        rows=tuple((format_number(row["x"]), format_number(row["value"])) for row in rows),
    )


def replicas_chart(view: DecisionView) -> ChartSpec | None:
    """Replicas that are ready, by policy."""
    course = view.course
    if course is None:
        return None
    rows: list[Row] = [
        {"series": policy.name, "x": i * course.window_s / 3600, "value": n}
        for policy in course.policies
        for i, n in enumerate(policy.n_replicas)
    ]
    names = [policy.name for policy in course.policies]
    channels = series_channels(names)
    dash = alt.StrokeDash(
        "series:N",
        scale=alt.Scale(domain=names, range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]),
        legend=None,
    )
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(zero=True),
        axis=y_axis("replicas that are ready", tick_count=4, counts=True),
    )
    mark = alt.Chart(values(rows)).mark_line(interpolate="step-after", strokeWidth=2, opacity=0.85)
    cheapest = course.policies[0]
    cost = "" if cheapest.usd is None else f" for {cheapest.usd:.2f} $"
    return ChartSpec(
        chart_id="replicas",
        title="Replicas over time",
        finding=(
            f"The cheapest policy is {cheapest.name}{cost}: it keeps the promise"
            f" {cheapest.kept_fraction:.1%} of the time."
        ),
        spec=finished(
            [mark.encode(x=_hours(), y=y, color=channels["color"], strokeDash=dash)], height=220
        ),
        header=("policy", "replicas", "$", "kept, share of the time"),
        rows=tuple(
            (
                policy.name,
                f"{min(policy.n_replicas)} to {max(policy.n_replicas)}",
                "–" if policy.usd is None else f"{policy.usd:.2f}",
                f"{policy.kept_fraction:.1%}",
            )
            for policy in course.policies
        ),
    )


def probes_chart(view: DecisionView) -> ChartSpec | None:
    """Every probe's margin against its load, with the limit and the bracket."""
    if not view.probes:
        return None
    names = ["short probe", "long probe"]
    rows: list[Row] = [
        {
            "series": names[probe.effort > 0],
            "x": probe.offered_load,
            "value": min(
                _FAR_RATIO if probe.margin_ratio is None else probe.margin_ratio, _FAR_RATIO
            ),
            "verdict": probe.verdict,
            "place": place,
        }
        for place, probe in enumerate(view.probes, start=1)
    ]
    return ChartSpec(
        chart_id="probes",
        title="Every probe, and the bracket",
        finding=_bracket_words(view),
        spec=finished(_probe_layers(view, rows, names), height=280),
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


def _probe_layers(view: DecisionView, rows: Sequence[Row], names: Sequence[str]) -> list[alt.Chart]:
    """The limit, both ends of the bracket, and the probes."""
    x_scale = alt.Scale(type="log", domain=log_axis_domain([row["x"] for row in rows]), nice=False)
    x = alt.X(
        "x:Q",
        scale=x_scale,
        axis=alt.Axis(
            title=f"load, {view.unit} (log scale)", format=".3~r", tickCount=5, grid=False
        ),
    )
    y_scale = alt.Scale(
        type="log", domain=log_axis_domain([1.0, *(row["value"] for row in rows)]), nice=False
    )
    far = (
        f"at the top: {_FAR_RATIO:g} or more"
        if any(row["value"] == _FAR_RATIO for row in rows)
        else ""
    )
    y = alt.Y(
        "value:Q",
        scale=y_scale,
        axis=y_axis("seen / limit of the weakest link (log scale)", far, tick_count=5),
    )
    tooltip = [
        alt.Tooltip("place:Q", title="probe"),
        alt.Tooltip("x:Q", format=".4~r"),
        alt.Tooltip("verdict:N"),
    ]
    points = (
        alt.Chart(values(rows))
        .mark_point(filled=True, size=70, opacity=0.9)
        .encode(x=x, y=y, **series_channels(names), tooltip=tooltip)
    )
    limit = (
        alt.Chart(values([{"value": 1.0}]))
        .mark_rule(strokeDash=_LIMIT_DASH, color=MUTED)
        .encode(y=y)
    )
    bracket = [{"x": load} for load in (view.kept_load, view.broken_load) if load is not None]
    return [
        limit,
        *(
            [alt.Chart(values(bracket)).mark_rule(color=INK, strokeWidth=1.2).encode(x=x)]
            if bracket
            else []
        ),
        points,
    ]


def _bracket_words(view: DecisionView) -> str:
    kept = (
        "No load was shown to keep the promise"
        if view.kept_load is None
        else f"{format_number(view.kept_load)} {view.unit} keep it"
    )
    broken = (
        "none was shown to break it"
        if view.broken_load is None
        else f"{format_number(view.broken_load)} break it"
    )
    return f"{kept}, {broken}: lines stand at both; the dashed line is the limit."


def _hours() -> alt.X:
    return alt.X(
        "x:Q", axis=alt.Axis(title="hours", tickCount=6, grid=False), scale=alt.Scale(nice=False)
    )


def decision_charts(view: DecisionView, names: Sequence[str]) -> tuple[ChartSpec, ...]:
    """Those of these that the view has something for."""
    builders = {
        "pareto": pareto_chart,
        "cost": limit_cost_chart,
        "traffic": traffic_chart,
        "replicas": replicas_chart,
        "probes": probes_chart,
    }
    return tuple(chart for name in names if (chart := builders[name](view)) is not None)
