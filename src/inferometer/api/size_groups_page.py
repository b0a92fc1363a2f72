"""What is there to read of a sizing of groups: how many of each, whether that holds, and what one less does?"""

from collections.abc import Sequence
from typing import Final

from inferometer.api.cluster import group_words
from inferometer.api.sized_fleets import ALL_GROUPS, GroupRow, SizedGroups, SpannedLatency
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.inputs.objectives import Metric, Threshold, parse_objective, percentile_name
from inferometer.report.page import (
    Chip,
    Number,
    Page,
    Section,
    duration_number,
    lines_of,
    slo_words,
    spanned,
)
from inferometer.report.request_tables import LATENCY_NAMES
from inferometer.report.tables import ABSENT_TEXT, TextTable, known_cell, number_cell
from inferometer.report.views import FactGroup
from inferometer.units import format_number, format_request_rate

_MS: Final = 1e3
_IN_EACH_CLASS: Final = " in each class"


def groups_page(answer: SizeAnswer, sized: SizedGroups) -> Page:
    """A page with the numbers first, then each group, then the basis."""
    return Page(
        title=_title(answer, sized),
        subtitle=_subtitle(sized),
        chips=(Chip(verdict=answer.verdict, text=_verdict(answer, sized)),),
        numbers=_numbers(answer, sized.whole),
        table=_latencies(sized),
        lines=lines_of(
            ("WHY", "\n".join([*_routing(answer, sized), *_why(sized.rows)])),
            ("TRUST", _trust(sized)),
            ("NEXT", sized.next_step or ""),
        ),
        cautions=answer.cautions,
        sections=(
            Section(
                id="groups",
                title="How many of each group, and why?",
                nav="Groups",
                tables=(_latencies(sized), _costs(sized), _fewer(sized)),
            ),
            Section(
                id="rests-on",
                title="What does it rest on?",
                nav="Rests on",
                groups=(FactGroup(title="Assumptions", facts=tuple(_facts(answer, sized))),),
            ),
        ),
    )


def _title(answer: SizeAnswer, sized: SizedGroups) -> str:
    rate = "" if answer.rate_per_s is None else f"{format_request_rate(answer.rate_per_s)} of "
    rate = rate if answer.users is None else f"{answer.users:,} users of "
    traffic = f"{answer.model_id}, {rate}{answer.workload_name}"
    without = [row.name for row in sized.rows if row.n_replicas is None]
    if without:
        found = "was shown to meet" if answer.verdict == "undecided" else "meets"
        return f"{traffic}: no number of {' and of '.join(without)} {found} {answer.objective}"
    used = [_group(row) for row in sized.rows if row.n_replicas]
    return f"{traffic} → {' and '.join(used)}"


def _group(row: GroupRow) -> str:
    """``2 × llama-3.1-8b on NVIDIA L4 (short)``"""
    n_replicas, n_devices = row.n_replicas or 1, row.n_devices or 1
    each = n_devices // n_replicas
    devices = f"{each} × {row.hardware}" if each > 1 else row.hardware
    return group_words(row.name, n_replicas, row.model_id, devices)


def _subtitle(sized: SizedGroups) -> str:
    who = {
        "rules": "each the smallest number for its own requests",
        "class": "each class where it costs least",
        "weighted": "classes, or parts of them, where they cost least",
    }
    parts = [f"groups of {sized.file}, {who[sized.routing]}"]
    parts += [f"{sized.n_requests:,} requests simulated together"] if sized.n_requests else []
    return " · ".join(parts)


def _verdict(answer: SizeAnswer, sized: SizedGroups) -> str:
    """Groups that meet the SLO, and on which servers."""
    words = slo_words(answer.verdict)
    if not sized.n_requests:
        return f"{words}: {answer.objective}"
    if answer.verdict == "met":
        return f"{words}: every group and all together, {_servers(sized)}"
    open_rows = [row.name for row in (*sized.rows, sized.whole) if row.verdict != "met"]
    return f"{words}: {', '.join(open_rows)} {_servers(sized)}"


def _servers(sized: SizedGroups) -> str:
    others = sized.n_servers - 1
    if sized.decided_by == "draws":
        return f"at likely step times and in 90 % of {others} draws"
    return "at fast, likely and slow step times" if others == 2 else f"in {others} draws"


def _numbers(answer: SizeAnswer, whole: GroupRow) -> tuple[Number, ...]:
    """The latencies of all requests against their limits, the devices and the cost."""
    limits = {one.metric: one for one in _objective(answer)}
    numbers = list[Number]()
    metrics: tuple[tuple[Metric, SpannedLatency | None], ...] = (
        ("ttft", whole.ttft),
        ("tpot", whole.tpot),
        ("e2e", whole.e2e),
    )
    for metric, found in metrics:
        limit = limits.get(metric)
        if found is None or (limit is None and metric == "e2e"):
            continue
        (number,) = duration_number(
            f"{LATENCY_NAMES[metric]} {percentile_name(found.seen.percentile_fraction)}",
            found.seen,
            limit_s=None if limit is None else limit.limit_s,
        )
        value = found.seen.seconds.value
        factor = number.value / value if value else 1.0
        numbers.append(spanned(number, [found.least_s * factor, found.most_s * factor]))
    if whole.n_devices is not None:
        note = f"{whole.n_replicas} replicas"
        numbers.append(Number(name="devices", value=whole.n_devices, unit="", note=note))
    if whole.usd_per_hour is not None:
        numbers.append(Number(name="cost", value=whole.usd_per_hour, unit="$/h"))
    return tuple(numbers)


def _objective(answer: SizeAnswer) -> Sequence[Threshold]:
    return parse_objective(
        answer.objective.removesuffix(_IN_EACH_CLASS), has_workflows=True
    ).thresholds


def _routing(answer: SizeAnswer, sized: SizedGroups) -> list[str]:
    """Routing of the classes, and the saving from splitting a class."""
    if not sized.routes:
        return []
    gets = [f"{row.name} gets {row.rule}" for row in sized.rows if row.n_replicas != 0]
    tried = f"the cheapest way, {sized.n_ways_sized} sets of classes in groups sized"
    lines = [f"{'; '.join(gets)}: {tried}"]
    usd = sized.whole.usd_per_hour
    if sized.routing == "weighted" and answer.verdict != "missed":
        if sized.unsplit_usd_per_hour is None or usd is None:
            split = any(one.weight_fraction < 1 for one in sized.routes)
            lines += [] if split else ["no split of a class was found to cost less"]
        else:
            lines.append(f"without a split {sized.unsplit_usd_per_hour:.2f} $/h")
    return lines


def _why(rows: Sequence[GroupRow]) -> list[str]:
    """Nearest limit of each group, and the effect of one replica less."""
    lines = list[str]()
    for row in rows:
        if row.weakest is not None and row.n_replicas != 0:
            lead = "" if row.n_replicas is None else "nearest its limit "
            lines.append(f"{row.name}: {lead}{row.weakest}")
    return lines + [f"{row.name}: {text}" for row in rows if (text := _one_less(row))]


def _one_less(row: GroupRow) -> str:
    """``with 1: missed (likely step times: met); …``"""
    fewer = row.fewer
    if fewer is None:
        return ""
    likely = (
        ""
        if fewer.verdict == fewer.likely_verdict
        else f" (likely step times: {fewer.likely_verdict})"
    )
    return f"with {fewer.n_replicas}: {fewer.verdict}{likely}; {fewer.why}"


def _trust(sized: SizedGroups) -> str:
    if not sized.n_requests:
        return "simulated, not measured"
    return f"intervals: noise, and {_ends(sized)}; simulated, not measured"


def _ends(sized: SizedGroups) -> str:
    others = sized.n_servers - 1
    return "fast … slow step times" if others == 2 else f"least … most of {others} draws"


def _latencies(sized: SizedGroups) -> TextTable:
    header = ("group", "replicas", "devices", "$/h", "TTFT p95, ms", "TPOT p95, ms", "SLO")
    rows = [
        (
            row.name,
            known_cell(row.n_replicas, "{:,}".format),
            _devices(row),
            known_cell(row.usd_per_hour, "{:.2f}".format),
            _spanned(row.ttft),
            _spanned(row.tpot),
            row.verdict,
        )
        for row in (*sized.rows, sized.whole)
    ]
    return TextTable(
        caption="Group by group, all simulated together", header=header, rows=tuple(rows)
    )


def _costs(sized: SizedGroups) -> TextTable:
    has_users = sized.whole.users_load is not None
    header = (
        *("group", "gets", "share", "req/s", *(["users"] if has_users else [])),
        *("in flight each", "layout"),
    )
    rows = [
        (
            row.name,
            row.rule,
            f"{row.share_fraction:.1%}",
            number_cell(row.requests_per_s),
            *([number_cell(row.users_load)] if has_users else []),
            number_cell(row.in_flight_load),
            f"{row.parallelism} {row.weights_dtype}",
        )
        for row in (*sized.rows, sized.whole)
    ]
    return TextTable(caption="Whose requests", header=header, rows=tuple(rows))


def _fewer(sized: SizedGroups) -> TextTable:
    header = ("group", "one less", "SLO", "at likely step times", "why")
    rows = [
        (row.name, str(one.n_replicas), one.verdict, one.likely_verdict, one.why)
        for row in sized.rows
        if (one := row.fewer) is not None
    ]
    return TextTable(caption="With one replica less", header=header, rows=tuple(rows))


def _facts(answer: SizeAnswer, sized: SizedGroups) -> list[tuple[str, str]]:
    return [
        ("SLO", answer.objective),
        ("router", _router(sized)),
        ("servers", f"{sized.n_servers} plausible servers; decided {_decided(sized)}"),
        ("groups", sized.file),
    ]


def _router(sized: SizedGroups) -> str:
    rules = {
        "rules": "the first group whose rules let a request in",
        "class": "each class has its group",
        "weighted": "each class has its group, or several by weights",
    }
    return f"{rules[sized.routing]}; there the least loaded replica"


def _decided(sized: SizedGroups) -> str:
    words = {
        "likely": "at likely step times",
        "draws": "at likely step times and 90 % of the draws",
        "ends": "at likely step times and both ends of their interval",
    }
    return words[sized.decided_by]


def _spanned(found: SpannedLatency | None) -> str:
    """``444 [290, 783]``"""
    if found is None:
        return ABSENT_TEXT
    value, least, most = (
        format_number(one * _MS) for one in (found.seen.seconds.value, found.least_s, found.most_s)
    )
    return f"{'≥ ' if found.seen.is_lower_bound else ''}{value} [{least}, {most}]"


def _devices(row: GroupRow) -> str:
    if row.n_devices is None:
        return row.hardware
    return f"{row.n_devices:,}" + ("" if row.name == ALL_GROUPS else f" × {row.hardware}")
