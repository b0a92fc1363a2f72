"""How does the answer of a sizing change: with the traffic, the engine, the format?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from inferometer.api import size as sizings
from inferometer.api.grid import (
    Axis,
    GridPoint,
    Headline,
    Value,
    Verb,
    between,
    exact,
    title_of,
    value_text,
)
from inferometer.api.grid_findings import curves_over, fits_findings, in_capital, point_name
from inferometer.api.sized_fleets import GroupRow, UseRow
from inferometer.api.sizing_answer import KindRow, SizeAnswer
from inferometer.records import curves
from inferometer.records.curves import CurveFinding
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number


def _of_size(answer: SizeAnswer) -> Headline:
    """What is bought; the interval is what other step times would need."""
    words: dict[str, str | None] = {"slo": answer.verdict}
    if answer.best_use is not None:
        best = answer.best_use.best
        numbers = {} if best is None else _of_best_use(best)
        return Headline(numbers, words | {"layout": None if best is None else best.layout}, {})
    if answer.groups is not None:
        return Headline(_of_groups(answer.groups.whole), words, {})
    pick = answer.pick
    if pick is None:
        return Headline({}, words, {})
    words |= {"layout": f"{pick.hardware_id} {pick.layout.partition(', ')[0]}"}
    return Headline(_of_pick(pick, has_pools=bool(answer.n_prefill_replicas)), words, {})


def _of_pick(pick: KindRow, *, has_pools: bool) -> dict[str, Estimate | None]:
    counts = [one.n_replicas for one in pick.paces if one.n_replicas is not None]
    is_whole = len(counts) == len(pick.paces) > 1 and not has_pools
    ends = (min(counts), max(counts)) if is_whole else None

    def spanned(value: float) -> Estimate:
        """Proportional to the number of replicas, which other step times change."""
        if ends is None:
            return exact(value)
        low, high = (value * one / pick.n_replicas for one in ends)
        low, high = min(low, value), max(high, value)
        if low == high:
            return exact(value)
        return replace(exact(value), low=low, high=high, method="all step times")

    cost = pick.costs.usd_per_million_output_tokens
    return {
        "n_devices": spanned(pick.n_devices),
        "n_replicas": spanned(pick.n_replicas),
        "usd_per_hour": None if pick.usd_per_hour is None else spanned(pick.usd_per_hour),
        "usd_per_million_tokens": None if cost is None else spanned(cost),
        "headroom_fraction": (
            None
            if pick.headroom_fraction is None
            else between(
                pick.headroom_fraction, pick.headroom_low_fraction, pick.headroom_high_fraction
            )
        ),
    }


def _of_best_use(best: UseRow) -> dict[str, Estimate | None]:
    name = "capacity_requests_per_s" if best.located_users is None else "capacity_users"
    found = between(best.located_load, best.met_load, best.missed_load)
    return {name: found, "n_devices": exact(best.n_devices)}


def _of_groups(whole: GroupRow) -> dict[str, Estimate | None]:
    named = {
        "n_devices": whole.n_devices,
        "n_replicas": whole.n_replicas,
        "usd_per_hour": whole.usd_per_hour,
    }
    return {name: None if one is None else exact(one) for name, one in named.items()}


def size_findings(
    axes: tuple[Axis, ...], points: tuple[GridPoint, ...]
) -> tuple[CurveFinding, ...]:
    """Findings: how devices and cost grow, where another layout is the pick, and the cheapest."""
    met = [point for point in points if point.words.get("slo") == "met"]
    grown = [
        in_capital(finding)
        for axis in axes
        for number, words in (("n_devices", "number of devices"), ("usd_per_hour", "cost per hour"))
        for curve in curves_over(axes, met, axis, number, words)
        if (finding := curves.growth(curve)) is not None
    ]
    return (*grown, *_changes_of_layout(axes, met), *_cheapest(axes, met), *fits_findings(points))


class _Kind(NamedTuple):
    """A kind of replica, and the values of an axis at which it is the pick."""

    layout: str
    values: list[Value]


def _changes_of_layout(axes: tuple[Axis, ...], met: Sequence[GridPoint]) -> list[CurveFinding]:
    """Where the pick is another device or another kind of replica, over the one numeric axis."""
    over = [axis for axis in axes if isinstance(axis.values[0], int | float)]
    if len(over) != 1 or len(axes) > 1:
        return []
    [axis] = over
    kinds = list[_Kind]()
    for point in sorted(met, key=lambda one: float(one.values[axis.name] or 0)):
        kind = point.words.get("layout") or ""
        if not kinds or kinds[-1].layout != kind:
            kinds.append(_Kind(kind, []))
        kinds[-1].values.append(point.values[axis.name])
    if len(kinds) < 2:
        return []
    name = axis.name.replace("_", " ")
    parts = [f"{kinds[0].layout} up to {name} {value_text(kinds[0].values[-1])}"]
    parts += [f"{kind.layout} from {value_text(kind.values[0])}" for kind in kinds[1:]]
    return [CurveFinding(code="LAYOUT", sentence=f"The pick changes: {', '.join(parts)}.")]


def _cheapest(axes: tuple[Axis, ...], met: Sequence[GridPoint]) -> list[CurveFinding]:
    """The cheapest of engines, formats or models; undecided where step times may turn the order."""
    if all(isinstance(axis.values[0], int | float) for axis in axes):
        return []
    costs = [(one, point) for point in met if (one := point.numbers.get("usd_per_hour"))]
    if len(costs) < 2:
        return []
    cost, best = min(costs, key=lambda pair: pair[0].value)
    most = cost.value if cost.high is None else cost.high
    ties = [
        point_name(point)
        for other, point in costs
        if point is not best and (other.value if other.low is None else other.low) <= most
    ]
    open_ = f"; undecided against {ties[0]}" if ties else ""
    open_ += f" and {len(ties) - 1} more" if len(ties) > 1 else ""
    text = f"Cheapest within the SLO: {point_name(best)} (${format_number(cost.value)}/h){open_}."
    return [CurveFinding(code="BEST", sentence=text)]


SIZE: Final = Verb("size", sizings.Size, sizings.size, _of_size, title_of, size_findings)
"""A sizing for each combination of the listed values."""
