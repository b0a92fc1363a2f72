"""inferometer size --groups: how many replicas of each group of a file?"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from inferometer import suggestions
from inferometer.api import cluster, compute, fleet, groups, sizing_cautions, workload
from inferometer.api.progress import talk
from inferometer.api.question import fields_of
from inferometer.api.server import Server, origin_cautions
from inferometer.api.size_groups_rows import Sized, group_row, routes_of, whole_row
from inferometer.api.sized_fleets import GroupRow, Routing, SizedGroups
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.decide import (
    candidates,
    group_routing,
    group_sizing,
    group_splitting,
    group_whole,
    probing,
    sizing_types,
    traffic,
)
from inferometer.errors import SpecError
from inferometer.inputs import prices, types
from inferometer.inputs.workload.plan import I32, I64, NONE, RequestPlan
from inferometer.simulate.deployment import Deployment
from inferometer.stats.estimate import Verdict
from inferometer.units import format_number

CARRIED: Final = (
    "workload",
    "rate",
    "concurrency",
    "seed",
    "burstiness",
    "slo",
    "datasheet",
    "dtype",
    "kv_dtype",
    "link",
    "all_reduce_us",
    "enforce_eager",
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
"""Share of the time limit for single groups; the rest is for all together."""
_ROUTING_FRACTION: Final = 0.7
"""The same where it is looked for who serves whom."""
_QUICK_REQUESTS: Final = 500
"""Requests of a short run in a search for a routing; long runs have 4 times as many."""
_PART_FRACTION: Final = 0.5
"""Largest share of that time for one group with one set of requests."""


class SoughtGroups(NamedTuple):
    """Groups to size, and how to search."""

    path: Path
    server: Server
    """Server settings that groups share unless they set their own."""
    fleet: fleet.FleetOptions
    table: prices.PriceTable | None
    limit: compute.TimeLimit
    where: compute.Executor
    is_sure: bool
    is_likely: bool
    has_course: bool
    """Does the traffic vary over time?"""
    routing: Routing
    words: list[object]
    """Options that the command for their capacity takes too."""


def check_options(question: object) -> None:
    """Refuse options of one kind of replica, and of devices on offer."""
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
    """Replicas of each group, and their cost.

    Raises
    ------
    SpecError, ModelError
        The file cannot be read, a group cannot be, or the rules leave requests or groups out.
    """
    named, question = _question(sought, sizing)
    plan = traffic.plan_at(sizing.spec, sizing.offered_load, group_sizing.N_OF_SHARES)
    find = _by_rules if sought.routing == "rules" else _by_cost
    sized = find(sought, Sized(named, question), plan)
    known = [one.n_replicas for one in sized.found if one.n_replicas is not None]
    if len(known) < len(sized.found):
        return _answer(sought, sized)
    question = sized.question
    talk(f"all groups together, on {len(question.cases)} plausible servers")
    n_at_once = compute.n_at_once(sought.where, len(question.cases))
    searched = _SEARCH_FRACTION if sought.routing == "rules" else _ROUTING_FRACTION
    time_left_s = sought.limit.share(1 - searched)()
    with compute.opened(sought.where, "servers") as executor:
        means = group_whole.Means(executor.map, n_at_once, time_left_s)
        done = group_whole.confirmed(question, known, means)
    return _answer(sought, sized._replace(done=done))


def _in_turn(
    work: Callable[[group_whole.WholeTask], group_whole.WholeCase],
    tasks: Sequence[group_whole.WholeTask],
) -> list[group_whole.WholeCase]:
    return [work(one) for one in tasks]


def _by_rules(sought: SoughtGroups, sized: Sized, plan: RequestPlan) -> Sized:
    """Replicas of each group under the file's routing rules."""
    question = _with_shares(sized, plan, sought.path)
    n_groups = len(question.kinds)
    if _is_coupled(question.placement.group_of(plan), plan):
        talk(
            f"{n_groups} groups at once, whose requests wait for one another, at most"
            f" {sought.limit.limit_s:.3g} s of computing (the engine's rules are compiled once)"
        )
        time_left_s = sought.limit.share(_SEARCH_FRACTION)()
        means = group_whole.Means(_in_turn, 1, time_left_s)
        return sized._replace(question=question, found=group_whole.least_together(question, means))
    share = sought.limit.share(_SEARCH_FRACTION * compute.share_of_part(sought.where, n_groups))
    question = replace(question, sizing=replace(question.sizing, time_limit=share))
    talk(
        f"{n_groups} groups, each by its own requests, at most {sought.limit.limit_s:.3g} s of"
        " computing (the engine's rules are compiled once)"
    )
    tasks = [group_sizing.GroupTask(question, place) for place in range(n_groups)]
    with compute.opened(sought.where, "groups") as executor:
        found = executor.map(group_sizing.size_group, tasks)
    return sized._replace(question=question, found=found)


def _by_cost(sought: SoughtGroups, sized: Sized, plan: RequestPlan) -> Sized:
    """The cheapest routing, and the replicas of each group."""
    question = _with_contexts(sized.question)
    streams = _streams(sought, question, plan)
    limit = sought.limit.share(_ROUTING_FRACTION)
    part = limit.share(_PART_FRACTION)
    n_requests = min(question.sizing.n_requests, _QUICK_REQUESTS)
    quick = replace(question.sizing, time_limit=part, n_requests=n_requests)
    question = replace(question, sizing=quick)
    talk(
        f"{len(streams)} kinds of requests in {len(question.kinds)} groups, at most"
        f" {sought.limit.limit_s:.3g} s of computing (the engine's rules are compiled once)"
    )
    with compute.opened(sought.where, "ways") as executor:
        n_at_once = compute.n_at_once(sought.where, len(question.kinds))
        means = group_routing.SearchMeans(executor.map, n_at_once, limit.limit_s)
        table = group_routing.Table(question, streams, means)
        found = group_routing.cheapest_partition(table)
        if sought.routing == "weighted":
            found = group_splitting.cheaper_split(table, found) or found
    found = found._replace(is_late=table.is_late)
    routed = replace(found.question, sizing=sized.question.sizing)
    return sized._replace(question=routed, found=found.found, routed=found, streams=streams)


def _streams(
    sought: SoughtGroups, question: group_sizing.GroupsQuestion, plan: RequestPlan
) -> tuple[group_routing.Stream, ...]:
    """The kinds of requests that may each go somewhere else.

    Raises
    ------
    SpecError
        Some of them wait for others that may go somewhere else.
    """
    found = group_routing.streams_of(question, plan)
    is_split = sought.routing == "weighted" and not question.keeps_sessions
    follows = plan.follows != NONE
    if (is_split and follows.any()) or _is_coupled(found.number_of, plan):
        users = question.sizing.is_of_users
        raise SpecError(
            "users who wait for one class before they ask another, or who would be split"
            if users
            else "turns of a session that may go to different groups",
            where=f"--routing {sought.routing}, --workload, --groups {sought.path}",
            allowed="--routing rules, which sizes groups that wait for one another; or requests"
            " that wait only for others of one group"
            + (": each class with users of its own (concurrency = 32 in [[classes]])" * users),
            try_="keep_sessions = true in the file, or --routing rules",
        )
    return found.streams


def _is_coupled(place_of: I64 | I32, plan: RequestPlan) -> bool:
    """Does a request wait for one of another group?"""
    follows = plan.follows != NONE
    return bool((place_of != place_of[plan.follows])[follows].any())


def _question(
    sought: SoughtGroups, sizing: sizing_types.SizingQuestion
) -> tuple[cluster.Groups, group_sizing.GroupsQuestion]:
    """The groups of the file, with their prices; their shares of the requests are still open."""
    _check_devices(sought)
    servers = fleet.servers_described(sought.path, sought.server, sought.fleet)
    drawn = fleet.fleets_of(sought.fleet, sizing.spec).drawn
    workload.check_answers(sizing.objective, drawn)
    named = servers.known(drawn).groups
    if named is None:
        raise ValueError("a file of groups gives groups")
    rents = _usd_per_hour(named, sought.table)
    kinds = tuple(
        group_sizing.GroupKind(
            name=one.name,
            deployment=one.deployment,
            rules=rules,
            share_fraction=1.0,
            load_fraction=1.0,
            device_usd_per_hour=rent,
        )
        for one, rules, rent in zip(named.groups, named.placement.groups, rents, strict=True)
    )
    is_known = all(one.deployment.step_times.basis != "datasheet" for one in named.groups)
    return named, group_sizing.GroupsQuestion(
        sizing=sizing,
        kinds=kinds,
        keeps_sessions=named.keeps_sessions,
        class_objectives=probing.class_objectives_of(drawn, sizing.objective),
        cases=named.cases,
        is_sure=sought.is_sure or (is_known and not sought.is_likely),
        routes=named.placement.routes if sought.routing == "rules" else (),
    )


def _with_contexts(question: group_sizing.GroupsQuestion) -> group_sizing.GroupsQuestion:
    """The groups, each closed to prompts that are too long for its contexts."""
    kinds = (
        replace(
            kind,
            rules=replace(kind.rules, max_context_tokens=kind.deployment.config.max_model_len),
        )
        for kind in question.kinds
    )
    return replace(question, kinds=tuple(kinds))


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


def _with_shares(sized: Sized, plan: RequestPlan, path: Path) -> group_sizing.GroupsQuestion:
    """The question with the share of the requests, or of the users, that goes to each group.

    Raises
    ------
    SpecError
        No request goes to one of them, or prompts are too long for theirs.
    """
    question = sized.question
    group_index = question.placement.group_of(plan)
    is_counted = plan.follows == NONE if question.sizing.is_of_users else plan.follows >= NONE
    kinds = list[group_sizing.GroupKind]()
    for place, (one, kind) in enumerate(zip(sized.named.groups, question.kinds, strict=True)):
        is_own = group_index == place
        if not is_own.any():
            raise SpecError(
                f"no request of {question.sizing.spec.name} goes to group {one.name}"
                f" ({one.rule_text})",
                where=str(path),
                allowed="rules that match requests which no earlier group takes",
                try_=f"the file without group {one.name}",
            )
        own = RequestPlan._make(column[is_own] for column in plan)
        sizing_cautions.check_prompts(
            question.sizing.spec, own, one.deployment.config.max_model_len
        )
        load_fraction = float((is_own & is_counted).sum() / is_counted.sum())
        share_fraction = float(is_own.mean())
        kinds.append(replace(kind, share_fraction=share_fraction, load_fraction=load_fraction))
    return replace(question, kinds=tuple(kinds))


def _answer(sought: SoughtGroups, sized: Sized) -> SizeAnswer:
    question, done = sized.question, sized.done
    sizing = question.sizing
    rows = tuple(group_row(sized, place) for place in range(len(question.kinds)))
    verdict: Verdict = "undecided" if any(not one.is_examined for one in sized.found) else "missed"
    whole = whole_row(sized, verdict if done is None else done.verdict)
    kinds = [one.deployment for one in sized.named.groups]
    likely = None if done is None else done.cases[0]
    has_draws = not isinstance(question.cases[-1], str)
    decided_by: Literal["likely", "draws", "ends"] = (
        "likely" if not question.is_sure else "draws" if has_draws else "ends"
    )
    return SizeAnswer(
        model_id=" and ".join(dict.fromkeys(one.model.model_id for one in kinds)),
        workload_name=sizing.spec.name,
        rate_per_s=whole.requests_per_s,
        users=round(sizing.offered_load) if sizing.is_of_users else None,
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
        cautions=_cautions(
            sought, question, kinds, is_late=sized.routed is not None and sized.routed.is_late
        ),
        groups=SizedGroups(
            file=str(sought.path),
            rows=rows,
            whole=whole,
            decided_by=decided_by,
            n_servers=len(question.cases),
            n_requests=0 if likely is None else likely.n_requests,
            next_step=_next(sought, sized, whole),
            routing=sought.routing,
            routes=routes_of(sized),
            n_ways_sized=0 if sized.routed is None else sized.routed.n_sized,
            is_late=sized.routed is not None and sized.routed.is_late,
            unsplit_usd_per_hour=(
                None if sized.routed is None else sized.routed.unsplit_usd_per_hour
            ),
        ),
    )


def _cautions(
    sought: SoughtGroups,
    question: group_sizing.GroupsQuestion,
    kinds: Sequence[Deployment],
    *,
    is_late: bool,
) -> tuple[types.Caution, ...]:
    found = list(dict.fromkeys(caution for one in kinds for caution in origin_cautions(one)))
    unpriced = [kind.name for kind in question.kinds if kind.device_usd_per_hour is None]
    if unpriced:
        text = f"price of the devices of {', '.join(unpriced)}: unknown"
        found.append(types.Caution(code="NO_PRICE", text=text, remedy="--prices FILE"))
    if is_late:
        text = "the time limit left out ways to serve the classes that may cost less"
        found.append(types.Caution(code="TIME_LIMIT", text=text, remedy="a longer --time-limit"))
    if unpriced and sought.routing != "rules":
        text = "the cheapest way is that of the fewest devices: not every price is known"
        found.append(types.Caution(code="BY_DEVICES", text=text, remedy="--prices FILE"))
    if sought.has_course:
        text = "groups are sized for the busiest window of the traffic, and stay as many"
        remedy = "inferometer size of one kind of replica, which comes and goes with the traffic"
        found.append(types.Caution(code="OVER_TIME", text=text, remedy=remedy))
    return tuple(found)


def _next(sought: SoughtGroups, sized: Sized, whole: GroupRow) -> str | None:
    """What decides an open verdict, or how much more all groups carry."""
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
    search = suggestions.command(
        "capacity", sought.server.model, "--groups", sought.path, *sought.words
    )
    return f"{_in_the_file(sized, done.numbers)}, the highest rate: {search}"


def _in_the_file(sized: Sized, numbers: Sequence[int]) -> str:
    """Lines for the groups' file, so that other verbs take the same numbers."""
    kinds, routes = sized.question.kinds, routes_of(sized)
    if not routes:
        found = ", ".join(f"{n} of {kind.name}" for kind, n in zip(kinds, numbers, strict=True))
        return f"with these numbers as replicas in the file ({found})"
    classes = [one.class_index for one in sized.streams]
    has_rules = len(set(classes)) < len(classes)
    words = list[str]()
    for kind, n_replicas in zip(kinds, numbers, strict=True):
        own = [one for one in routes if one.group == kind.name]
        weights = ", ".join(f"{_key(one.name)} = {one.weight_fraction:g}" for one in own)
        shares = "" if has_rules else f", weights = {{ {weights} }}"
        words.append(
            f"{kind.name}: replicas = {n_replicas}{shares}" if n_replicas else f"no {kind.name}"
        )
    rules = " and rules of who gets what" if has_rules else ""
    return f"with these numbers{rules} in the file ({'; '.join(words)})"


def _key(name: str) -> str:
    """The name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _instead(found: group_sizing.FoundGroup) -> str:
    if not found.is_examined:
        return "a longer --time-limit"
    longer = (
        ""
        if found.margin_ratio is None or not 1 < found.margin_ratio < float("inf")
        else f"limits {format_number(1.05 * found.margin_ratio)} times as long, "
    )
    return f"{longer}another device, more of them to a replica (tp), or fewer bits (quantization)"
