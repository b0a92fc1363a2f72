"""inferometer size --groups: how many replicas of each group of a file?"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.api import cluster, compute, fleet, groups, sizing_cautions
from inferometer.api.progress import talk
from inferometer.api.question import fields_of
from inferometer.api.server import Server, origin_cautions
from inferometer.api.sizing_answer import (
    ALL_GROUPS,
    FewerRow,
    GroupRow,
    SizeAnswer,
    SizedGroups,
    SpannedLatency,
    served_row,
)
from inferometer.decide import candidates, group_sizing, probing, sizing_types, traffic
from inferometer.errors import SpecError
from inferometer.inputs import prices, types
from inferometer.inputs.workload.plan import NONE, RequestPlan
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import Percentile
from inferometer.simulate.deployment import Deployment
from inferometer.stats.estimate import Verdict
from inferometer.units import format_number

CARRIED: Final = (
    "workload",
    "rate",
    "seed",
    "burstiness",
    "slo",
    "datasheet",
    "dtype",
    "kv_dtype",
    "link",
    "all_reduce_us",
)
"""Parameters that ``inferometer capacity`` has too."""
_OF_A_GROUP: Final = (
    "gpus",
    "tp",
    "pp",
    "fit",
    "quantization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "set",
)
_OF_ONE_KIND: Final = ("total_gpus", "out", "force", "window", "start_up", "target")
_SEARCH_FRACTION: Final = 0.5
"""Of the time limit, for each group by itself; the rest is for all of them together."""


class SoughtGroups(NamedTuple):
    """Which groups, and how they are looked for."""

    path: Path
    server: Server
    """What groups are, but for their own settings."""
    fleet: fleet.FleetOptions
    table: prices.PriceTable | None
    limit: compute.TimeLimit
    where: compute.Executor
    is_sure: bool
    is_likely: bool
    has_course: bool
    """Does the traffic change?"""
    words: list[object]
    """Options that the command for their capacity takes too."""


def check_options(question: object) -> None:
    """Refuse options of one kind of replica, and of devices on offer.

    Raises
    ------
    SpecError
        One was given.
    """
    given: frozenset[str] = getattr(question, "given", frozenset())
    for field in fields_of(type(question)):
        if field.name in _OF_A_GROUP and field.name in given:
            raise SpecError(
                f"{field.flag} beside --groups",
                where=field.flag,
                allowed="the device and the settings of each group, in its file",
                try_='server = { hardware = "h100_sxm", tp = 2 } there, see docs/simulate.md',
            )
        if field.name in _OF_ONE_KIND and field.name in given:
            raise SpecError(
                f"{field.flag} beside --groups: it is for replicas of one kind",
                where=field.flag,
                allowed="--gpus with it, or --groups without",
                try_=f"the same command without {field.flag}; --json has the number of each group",
            )


def answer_of(sought: SoughtGroups, sizing: sizing_types.SizingQuestion) -> SizeAnswer:
    """How many replicas of each group, and what they cost.

    Raises
    ------
    SpecError, ModelError
        The file cannot be read, a group cannot be, or the rules leave requests or groups out.
    """
    named, question = _question(sought, sizing)
    n_groups = len(question.kinds)
    share = sought.limit.share(_SEARCH_FRACTION * compute.share_of_part(sought.where, n_groups))
    question = replace(question, sizing=replace(question.sizing, time_limit=share))
    talk(
        f"{n_groups} groups, each by its own requests, at most {sought.limit.limit_s:.3g} s of"
        " computing (the engine's rules are compiled once)"
    )
    tasks = [group_sizing.GroupTask(question, place) for place in range(n_groups)]
    with compute.opened(sought.where, "groups") as executor:
        found = executor.map(group_sizing.size_group, tasks)
    numbers = [one.n_replicas for one in found]
    known = [number for number in numbers if number is not None]
    done = None
    if len(known) == n_groups:
        talk(f"all groups together, on {len(question.cases)} servers that may be the one")
        n_at_once = compute.n_at_once(sought.where, len(question.cases))
        time_left_s = sought.limit.share(1 - _SEARCH_FRACTION)()
        with compute.opened(sought.where, "servers") as executor:
            done = group_sizing.confirmed(
                question, known, group_sizing.Means(executor.map, n_at_once, time_left_s)
            )
    return _answer(sought, _Sized(named, question, found, done))


def _question(
    sought: SoughtGroups, sizing: sizing_types.SizingQuestion
) -> tuple[cluster.Groups, group_sizing.GroupsQuestion]:
    """The groups of the file, with their prices and their shares of the requests."""
    _check_devices(sought)
    servers = fleet.servers_described(sought.path, sought.server, sought.fleet)
    drawn = fleet.fleets_of(sought.fleet, sizing.spec).drawn
    named = servers.known(drawn).groups
    if named is None:
        raise ValueError("a file of groups gives groups")
    plan = traffic.plan_at(sizing.spec, sizing.offered_load, group_sizing.N_OF_SHARES)
    counts = _counts(sizing, named, plan, sought.path)
    rents = _usd_per_hour(named, sought.table)
    kinds = tuple(
        group_sizing.GroupKind(
            name=one.name,
            deployment=one.deployment,
            rules=rules,
            share_fraction=count / plan.n_requests,
            device_usd_per_hour=rent,
        )
        for one, rules, count, rent in zip(
            named.groups, named.placement.groups, counts, rents, strict=True
        )
    )
    is_known = all(one.deployment.step_times.basis != "datasheet" for one in named.groups)
    return named, group_sizing.GroupsQuestion(
        sizing=sizing,
        kinds=kinds,
        keeps_sessions=named.keeps_sessions,
        class_objectives=probing.class_objectives_of(drawn, sizing.objective),
        cases=named.cases,
        is_sure=sought.is_sure or (is_known and not sought.is_likely),
    )


def _check_devices(sought: SoughtGroups) -> None:
    """Refuse a group without a device."""
    for one in groups.read_groups(sought.path).groups:
        if not {"hardware", "fit"} & one.server.keys():
            raise SpecError(
                f"nothing says which device group {one.name} is on",
                where=str(sought.path),
                allowed="hardware or fit in the server of each group",
                try_='server = { hardware = "h100_sxm" }',
            )


def _usd_per_hour(named: cluster.Groups, table: prices.PriceTable | None) -> list[float | None]:
    """The price of one device of each group, the lower of rent and ownership."""
    devices = {
        one.deployment.hardware.hardware_id: one.deployment.hardware
        for one in named.groups
        if one.deployment.hardware is not None
    }
    rents = zip(devices, prices.rents_of(list(devices.values()), table), strict=True)
    owned = {} if table is None else table.owned
    usd = {
        device: candidates.Offer(
            hardware=devices[device], price=rent, owned=owned.get(device)
        ).usd_per_hour
        for device, rent in rents
    }
    return [
        None if one.deployment.hardware is None else usd[one.deployment.hardware.hardware_id]
        for one in named.groups
    ]


def _counts(
    sizing: sizing_types.SizingQuestion, named: cluster.Groups, plan: RequestPlan, path: Path
) -> list[int]:
    """How many of these requests go to each group.

    Raises
    ------
    SpecError
        None go to one of them, prompts are too long for theirs, or requests of one group wait for
        those of another.
    """
    group_index = named.placement.group_of(plan)
    follows = plan.follows != NONE
    if sizing.is_of_users or bool((group_index != group_index[plan.follows])[follows].any()):
        users = sizing.is_of_users
        raise SpecError(
            "users who wait for answers of one group before they send to another"
            if users
            else "sessions whose turns go to different groups",
            where=f"{'--concurrency' if users else '--workload'}, --groups {path}",
            allowed="groups whose requests come whatever becomes of those of the others",
            try_="--rate 20" if users else "keep_sessions = true in the file",
        )
    counts: list[int] = np.bincount(group_index, minlength=len(named.groups)).tolist()
    for place, (one, count) in enumerate(zip(named.groups, counts, strict=True)):
        if not count:
            raise SpecError(
                f"no request of {sizing.spec.name} goes to group {one.name} ({one.rule_text})",
                where=str(path),
                allowed="rules that let some requests in which no group before takes",
                try_=f"the file without group {one.name}",
            )
        own = RequestPlan._make(column[group_index == place] for column in plan)
        sizing_cautions.check_prompts(sizing.spec, own, one.deployment.config.max_model_len)
    return counts


class _Sized(NamedTuple):
    """What was found."""

    named: cluster.Groups
    question: group_sizing.GroupsQuestion
    found: Sequence[group_sizing.FoundGroup]
    done: group_sizing.Confirmed | None
    """None where a group has no number."""


def _answer(sought: SoughtGroups, sized: _Sized) -> SizeAnswer:
    question, done = sized.question, sized.done
    sizing = question.sizing
    rows = tuple(_group_row(sized, place) for place in range(len(question.kinds)))
    verdict: Verdict = "undecided" if any(not one.is_examined for one in sized.found) else "missed"
    whole = _whole_row(sized, verdict if done is None else done.verdict)
    kinds = [one.deployment for one in sized.named.groups]
    likely = None if done is None else done.cases[0]
    has_draws = not isinstance(question.cases[-1], str)
    decided_by: Literal["likely", "draws", "ends"] = (
        "likely" if not question.is_sure else "draws" if has_draws else "ends"
    )
    return SizeAnswer(
        model_id=" and ".join(dict.fromkeys(one.model.model_id for one in kinds)),
        workload_name=sizing.spec.name,
        rate_per_s=sizing.offered_load,
        objective=sizing.objective.text + " in each class" * bool(question.class_objectives),
        router="least-loaded",
        sized_for="slow" if question.is_sure else "likely",
        verdict=whole.verdict,
        pick=None,
        kinds=(),
        impossible=(),
        refused=(),
        n_candidates=len(rows),
        n_searched=sum(one.n_probes > 0 for one in sized.found),
        n_unexamined=sum(not one.is_examined for one in sized.found),
        cautions=_cautions(sought, question, kinds),
        groups=SizedGroups(
            file=str(sought.path),
            rows=rows,
            whole=whole,
            decided_by=decided_by,
            n_servers=len(question.cases),
            n_requests=0 if likely is None else likely.n_requests,
            next_step=_next(sought, sized, whole),
        ),
    )


def _group_row(sized: _Sized, place: int) -> GroupRow:
    group, kind = sized.named.groups[place], sized.question.kinds[place]
    found, done = sized.found[place], sized.done
    n_replicas = found.n_replicas if done is None else done.numbers[place]
    served = [] if done is None else [case.groups[place] for case in done.cases]
    fewer = found.fewer if done is None else done.fewer[place] or found.fewer
    verdict: Verdict = "missed" if found.is_examined and n_replicas is None else "undecided"
    return _row(
        GroupRow(
            name=group.name,
            rule=group.rule_text,
            share_fraction=kind.share_fraction,
            requests_per_s=sized.question.sizing.offered_load * kind.share_fraction,
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


def _hardware(group: cluster.Group) -> str:
    return (
        "an unknown device" if group.deployment.hardware is None else group.deployment.hardware.name
    )


def _whole_row(sized: _Sized, verdict: Verdict) -> GroupRow:
    question, done = sized.question, sized.done
    numbers = () if done is None else done.numbers
    row = GroupRow(
        name=ALL_GROUPS,
        rule="all requests",
        share_fraction=1.0,
        requests_per_s=question.sizing.offered_load,
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
    return _row(row, [] if done is None else [case.whole for case in done.cases])


def _row(row: GroupRow, served: Sequence[sizing_types.ServedBy | None]) -> GroupRow:
    """The row with its latencies: those of the likely step times first."""
    rows = [None if one is None else served_row(one) for one in served]
    if not rows or rows[0] is None or served[0] is None:
        return row
    known = [one for one in rows if one is not None]

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
        weakest=rows[0].weakest or row.weakest,
    )


def _cautions(
    sought: SoughtGroups, question: group_sizing.GroupsQuestion, kinds: Sequence[Deployment]
) -> tuple[types.Caution, ...]:
    found = list(dict.fromkeys(caution for one in kinds for caution in origin_cautions(one)))
    unpriced = [kind.name for kind in question.kinds if kind.device_usd_per_hour is None]
    if unpriced:
        text = f"price of the devices of {', '.join(unpriced)}: unknown"
        found.append(types.Caution(code="NO_PRICE", text=text, remedy="--prices FILE"))
    if sought.has_course:
        text = "groups are sized for the busiest window of the traffic, and stay as many"
        remedy = "inferometer size of one kind of replica, which comes and goes with the traffic"
        found.append(types.Caution(code="OVER_TIME", text=text, remedy=remedy))
    return tuple(found)


def _next(sought: SoughtGroups, sized: _Sized, whole: GroupRow) -> str | None:
    """What else to ask: what decides an open verdict, or how much more all groups carry."""
    done, question = sized.done, sized.question
    if done is None:
        missed = [
            f"group {kind.name}: {_instead(one)}"
            for kind, one in zip(question.kinds, sized.found, strict=True)
            if one.n_replicas is None
        ]
        return "; ".join(missed)
    if whole.verdict == "undecided" and not question.is_sure:
        return (
            "what is open is how long steps take: a fit of each group decides it, --sure sizes for"
            " the slow end"
        )
    if whole.verdict == "undecided":
        return "a longer --time-limit, or more --requests, decides what noise leaves open"
    numbers = ", ".join(
        f"{n} of {kind.name}" for kind, n in zip(question.kinds, done.numbers, strict=True)
    )
    search = suggestions.command(
        "capacity", sought.server.model, "--groups", sought.path, *sought.words
    )
    return f"with these numbers as replicas in the file ({numbers}), the highest rate: {search}"


def _instead(found: group_sizing.FoundGroup) -> str:
    if not found.is_examined:
        return "a longer --time-limit"
    longer = (
        ""
        if found.margin_ratio is None or not 1 < found.margin_ratio < float("inf")
        else f"limits {format_number(1.05 * found.margin_ratio)} times as long, "
    )
    return f"{longer}another device, more of them to a replica (tp), or fewer bits (quantization)"
