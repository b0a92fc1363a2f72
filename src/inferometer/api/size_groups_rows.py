"""Rows of a sizing of groups of replicas."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from inferometer.api import cluster
from inferometer.api.sized_fleets import (
    ALL_GROUPS,
    FewerRow,
    GroupRow,
    RoutedClass,
    SpannedLatency,
)
from inferometer.api.sizing_answer import served_row
from inferometer.decide import group_routing, group_sizing, group_whole, sizing_types
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import Percentile
from inferometer.stats.estimate import Verdict


class Sized(NamedTuple):
    """Results of sizing groups."""

    named: cluster.Groups
    question: group_sizing.GroupsQuestion
    found: Sequence[group_sizing.FoundGroup] = ()
    done: group_whole.Confirmed | None = None
    """None where a group has no number."""
    routed: group_routing.Routed | None = None
    """None where the file's rules say who serves whom."""
    streams: tuple[group_routing.Stream, ...] = ()
    """Streams of these routes."""


def routes_of(sized: Sized) -> tuple[RoutedClass, ...]:
    """Group of each class or part of a class; empty where the file decides."""
    names = [group.name for group in sized.named.groups]
    parts = () if sized.routed is None else sized.routed.parts
    return tuple(
        RoutedClass(
            name=sized.named.class_names[stream.class_index],
            group=names[one.group],
            weight_fraction=one.weight,
            takers=tuple(names[place] for place in stream.groups),
        )
        for one in parts
        for stream in [sized.streams[one.stream]]
    )


def _rule_text(sized: Sized, place: int) -> str:
    """Requests of a group, in words."""
    group = sized.named.groups[place]
    if sized.routed is None:
        return group.rule_text
    routes = routes_of(sized)
    streams = [stream.class_index for stream in sized.streams]
    words = list[str]()
    for part, one in zip(sized.routed.parts, routes, strict=True):
        if part.group == place:
            whose = f"class {one.name}" if len(sized.named.class_names) > 1 else "all requests"
            text = whose if one.weight_fraction == 1 else f"{one.weight_fraction:.0%} of {whose}"
            if streams.count(sized.streams[part.stream].class_index) > 1:
                text += f" that {' or '.join(one.takers)} can take"
            words.append(text)
    return ", ".join(words) or "nothing"


def group_row(sized: Sized, place: int) -> GroupRow:
    """One group: replicas, and results of its own requests when all groups run."""
    group, kind = sized.named.groups[place], sized.question.kinds[place]
    found, done = sized.found[place], sized.done
    n_replicas = found.n_replicas if done is None else done.numbers[place]
    served = [] if done is None else [case.groups[place] for case in done.cases]
    fewer = found.fewer if done is None else done.fewer[place] or found.fewer
    verdict: Verdict = "missed" if found.is_examined and n_replicas is None else "undecided"
    return _row(
        GroupRow(
            name=group.name,
            rule=_rule_text(sized, place),
            share_fraction=kind.share_fraction,
            requests_per_s=_requests_per_s(sized, kind.share_fraction, served),
            users_load=_users(sized, kind.load_fraction),
            model_id=group.deployment.model.model_id,
            hardware=_hardware(group),
            parallelism=group.deployment.parallelism,
            weights_dtype=group.deployment.engine.quantization or group.deployment.engine.dtype,
            n_replicas=n_replicas,
            n_devices=None if n_replicas is None else kind.devices_of(n_replicas),
            usd_per_hour=None if n_replicas is None else kind.usd_per_hour_of(n_replicas),
            verdict=verdict if done is None else done.group_verdicts[place],
            ttft=None,
            tpot=None,
            e2e=None,
            in_flight_load=None,
            weakest=found.why,
            fewer=None
            if fewer is None
            else FewerRow(
                n_replicas=fewer.n_replicas,
                verdict=fewer.verdict,
                likely_verdict=fewer.likely_verdict,
                why=fewer.why,
            ),
        ),
        served,
    )


def _requests_per_s(
    sized: Sized, share_fraction: float, served: Sequence[sizing_types.ServedBy | None]
) -> float | None:
    """Arrival rate; in a closed loop the completed rate at likely step times."""
    sizing = sized.question.sizing
    if not sizing.is_of_users:
        return sizing.offered_load * share_fraction
    likely = served[0] if served else None
    return None if likely is None else likely.users_requests_per_s


def _users(sized: Sized, load_fraction: float) -> float | None:
    sizing = sized.question.sizing
    return sizing.offered_load * load_fraction if sizing.is_of_users else None


def _hardware(group: cluster.Group) -> str:
    return (
        "an unknown device" if group.deployment.hardware is None else group.deployment.hardware.name
    )


def whole_row(sized: Sized, verdict: Verdict) -> GroupRow:
    """All groups together."""
    question, done = sized.question, sized.done
    numbers = () if done is None else done.numbers
    served = [] if done is None else [case.whole for case in done.cases]
    row = GroupRow(
        name=ALL_GROUPS,
        rule="all requests",
        share_fraction=1.0,
        requests_per_s=_requests_per_s(sized, 1.0, served),
        users_load=_users(sized, 1.0),
        model_id=" and ".join(
            dict.fromkeys(one.deployment.model.model_id for one in question.kinds)
        ),
        hardware=" and ".join(dict.fromkeys(_hardware(one) for one in sized.named.groups)),
        parallelism=" and ".join(
            dict.fromkeys(one.deployment.parallelism for one in question.kinds)
        ),
        weights_dtype=" and ".join(
            dict.fromkeys(
                one.deployment.engine.quantization or one.deployment.engine.dtype
                for one in question.kinds
            )
        ),
        n_replicas=sum(numbers) or None,
        n_devices=question.devices_of(numbers) if numbers else None,
        usd_per_hour=question.usd_per_hour_of(numbers) if numbers else None,
        verdict=verdict,
        ttft=None,
        tpot=None,
        e2e=None,
        in_flight_load=None,
        weakest=None,
        fewer=None,
    )
    return _row(row, served)


def _row(row: GroupRow, served: Sequence[sizing_types.ServedBy | None]) -> GroupRow:
    """The row with its latencies, at likely step times first."""
    rows = [None if one is None else served_row(one) for one in served]
    if not rows or rows[0] is None or served[0] is None:
        return row
    known = [one for one in rows if one is not None]
    nearest = None if served[0].nearest is None else served[0].nearest.why

    def spanned(metric: Latency) -> SpannedLatency | None:
        seen: list[Percentile] = [one for row in known if (one := getattr(row, metric)) is not None]
        if not seen:
            return None
        likely = seen[0].seconds
        ends = [one.seconds.value for one in seen]
        ends += [one for one in (likely.low, likely.high) if one is not None]
        return SpannedLatency(seen=seen[0], least_s=min(ends), most_s=max(ends))

    return replace(
        row,
        ttft=spanned("ttft"),
        tpot=spanned("tpot"),
        e2e=spanned("e2e"),
        in_flight_load=served[0].in_flight_load,
        weakest=nearest or rows[0].weakest or row.weakest,
    )
