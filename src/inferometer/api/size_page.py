"""What is there to read of a sizing: what to buy, why, what else, and what it rests on?"""

from collections.abc import Sequence
from typing import Final

from inferometer.api.cluster import gate_text
from inferometer.api.size_groups_page import groups_page
from inferometer.api.sized_fleets import best_use_page
from inferometer.api.sizing_answer import (
    Impossible,
    KindRow,
    OverTime,
    PaceRow,
    SizeAnswer,
    kv_blocks_words,
)
from inferometer.decide.probing import MOST_TOGETHER
from inferometer.inputs.objectives import Metric, parse_objective, percentile_name
from inferometer.records.request_summaries import Percentile
from inferometer.report.decision_page import decision_sections, rate_charts
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
from inferometer.report.request_tables import LATENCY_NAMES, share_cell
from inferometer.report.tables import ABSENT_TEXT, TextTable, estimate_cell, known_cell, number_cell
from inferometer.report.views import DecisionView, FactGroup
from inferometer.units import counted, format_duration, format_number, format_request_rate

_MAX_REFUSED: Final = 3
_MS: Final = 1e3


def size_page(answer: SizeAnswer, view: DecisionView | None = None) -> Page:
    """The whole answer; with ``view`` its charts too."""
    if answer.best_use is not None:
        return best_use_page(
            answer.best_use,
            f"{answer.model_id}, {answer.workload_name}",
            answer.objective,
            answer.sized_for,
            answer.cautions,
        )
    if answer.groups is not None:
        return groups_page(answer, answer.groups)
    shown = DecisionView() if view is None else view
    charts, pick = rate_charts(shown), answer.pick
    return Page(
        title=_title(answer),
        subtitle=_subtitle(answer),
        chips=_chips(answer),
        numbers=() if pick is None else _numbers(answer, pick),
        table=_devices(answer),
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", "\n".join(_why(answer))),
            ("OR", "\n".join(_others(answer))),
            (
                "TRUST",
                ""
                if pick is None
                else f"step times: {pick.step_times_from}{kv_blocks_words(pick)}; simulated, not measured",
            ),
            ("NEXT", _next(answer)),
        ),
        cautions=answer.cautions,
        sections=(
            *decision_sections(shown, size_tables(answer)),
            Section(
                id="rests-on",
                title="What does it rest on?",
                nav="Rests on",
                groups=(FactGroup(title="Assumptions", facts=tuple(_facts(answer))),),
            ),
        ),
    )


def _traffic(answer: SizeAnswer) -> str:
    if answer.users is not None or answer.rate_per_s is None:
        return f"{answer.users:,} user{'s' * (answer.users != 1)} of {answer.workload_name}"
    return f"{format_request_rate(answer.rate_per_s)} of {answer.workload_name}{answer.at_busiest}"


def _title(answer: SizeAnswer) -> str:
    question, pick = f"{answer.model_id}, {_traffic(answer)}", answer.pick
    if pick is not None:
        return (
            f"{question} → {pick.n_devices} × {pick.hardware}"
            f" ({counted(pick.n_replicas, 'replica')}{_prefill(answer)},"
            f" {pick.layout})"
        )
    nearest = f"; nearest: {_nearest(answer.impossible[0])}" if answer.impossible else ""
    if answer.n_unexamined:
        return f"{question}: nothing was shown to meet the SLO in time{nearest}"
    found = "on offer meets" if answer.verdict == "missed" else "was shown to meet"
    at = " at slow step times" if answer.sized_for == "slow" and nearest else ""
    return f"{question}: nothing {found} the SLO{nearest}{at}"


def _subtitle(answer: SizeAnswer) -> str:
    pick = answer.pick
    if pick is None:
        (_, tried), *_ = _tried(answer)
        return tried
    knobs = [f"{name} {value}" for name, value in pick.knobs[:1]]
    return " · ".join(
        (
            pick.engine,
            f"weights {pick.weights_dtype}, KV {pick.kv_cache_dtype}",
            *knobs,
            f"{answer.router} router",
            "simulated",
        )
    )


def _chips(answer: SizeAnswer) -> tuple[Chip, ...]:
    """Verdicts at fast, likely and slow step times; what decides an open one."""
    pick = answer.pick
    if pick is None:
        return (Chip(verdict=answer.verdict, text=f"{answer.verdict}: {answer.objective}"),)
    ends = ", ".join(
        f"{pace.served.verdict} at {pace.step_times}{_would_need(pace, pick)}"
        for pace in pick.paces
    )
    if len({pace.served.verdict for pace in pick.paces}) == 1:
        ends = "at fast, likely and slow step times"
    return (Chip(verdict=pick.verdict, text=f"{slo_words(pick.verdict)}: {ends}"),)


def _likely(pick: KindRow) -> PaceRow:
    """At likely step times, as ``simulate`` answers."""
    return next((pace for pace in pick.paces if pace.step_times == "likely"), pick.sized_pace)


def _sized_at(pick: KindRow) -> str:
    """Step times for which the replicas were counted, unless likely ones."""
    return "" if pick.sized_at == "likely" else f" at {pick.sized_at} step times"


def _headroom(row: KindRow) -> str:
    """Further traffic that the replicas can carry: ``45% [0%, 53%]``."""
    value = row.headroom_fraction
    low = row.headroom_low_fraction
    high = row.headroom_high_fraction
    if value is None or low is None:
        return ABSENT_TEXT
    return f"{value:.0%} or more" if high is None else f"{value:.0%} [{low:.0%}, {high:.0%}]"


_SERVED: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e", "workflow")


def _numbers(answer: SizeAnswer, pick: KindRow) -> tuple[Number, ...]:
    """Latencies with their limits, capacity, reserve, and cost."""
    served, served_at, numbers = _likely(pick).served, pick.sized_pace.served, list[Number]()
    limits = {
        one.metric: one for one in parse_objective(answer.objective, has_workflows=True).thresholds
    }
    for metric in _SERVED:
        found: Percentile | None = getattr(served, metric)
        limit = limits.get(metric)
        if found is not None and (limit is not None or metric not in {"e2e", "workflow"}):
            (number,) = duration_number(
                f"{LATENCY_NAMES[metric]} {which(found)}",
                found,
                limit_s=None if limit is None else limit.limit_s,
            )
            at_paces = [getattr(pace.served, metric) for pace in pick.paces]
            at_pace: Percentile | None = getattr(served_at, metric)
            noise = () if at_pace is None else (at_pace.seconds.low, at_pace.seconds.high)
            ends = [*(one.seconds.value for one in at_paces if one is not None), *noise]
            factor = number.value / found.seconds.value if found.seconds.value else 1.0
            numbers.append(spanned(number, [one * factor for one in ends if one is not None]))
    pace = pick.sized_pace
    if pace.carried is not None:
        carried = pace.carried
        numbers.append(
            Number(
                name="capacity",
                value=carried.load,
                unit="req/s" if answer.users is None else "users",
                low=carried.low if carried.high is not None else None,
                high=carried.high,
                is_at_least=carried.high is None,
                note=f"headroom {_headroom(pick)}{_sized_at(pick)}",
            )
        )
    numbers.append(
        Number(
            name="N+1",
            value=pick.n_replicas_if_one_fails,
            unit="replicas",
            note=_reserve(pick),
        )
    )
    if pick.usd_per_hour is not None:
        output = pick.costs.usd_per_million_output_tokens
        at = answer.at_busiest if answer.users is None else _sized_at(pick)
        costs = [] if output is None else [f"${output:.2f} / 1M output tok{at}"]
        costs += [f"{one.price.name}: ${one.usd_per_hour:.2f}/h" for one in pick.costs.apis]
        note = "; ".join(costs)
        numbers.append(Number(name="cost", value=pick.usd_per_hour, unit="$/h", note=note))
    return tuple(numbers)


def _reserve(pick: KindRow) -> str:
    """Result with one replica lost."""
    lost = pick.without_one
    if lost is None:
        is_group = pick.n_replicas > 1
        return "none can be lost: one group" if is_group else "one lost: nothing is left"
    return f"one lost: {lost.verdict} with {lost.n_replicas}"


def _why(answer: SizeAnswer) -> list[str]:
    pick = answer.pick
    if pick is None:
        return [f"{one.hardware}, {one.layout}: {one.why}" for one in answer.impossible]
    weakest = pick.sized_pace.served.weakest
    breaks_first = pick.sized_pace.breaks_first
    at = _sized_at(pick)
    lines = [f"nearest its limit{at}: {weakest}"] if weakest else []
    lines += [f"more traffic breaks first{at}: {breaks_first}"] if breaks_first else []
    return [*lines, *_failure(answer)]


def _others(answer: SizeAnswer) -> list[str]:
    """The next best devices, and those with which nothing meets the SLO."""
    lines = list[str]()
    for row in answer.kinds[1:3]:
        cost = "" if row.usd_per_hour is None else f", ${row.usd_per_hour:.2f}/h"
        lines.append(
            f"{row.n_devices} × {row.hardware} ({counted(row.n_replicas, 'replica')}, {row.layout}){cost}:"
            f" {row.verdict}"
        )
    if answer.pick is not None:
        lines += [f"not {one.hardware}, {one.layout}: {one.why}" for one in answer.impossible[:2]]
    return lines


def _nearest(nearest: Impossible) -> str:
    """``NVIDIA L4, TP2 bfloat16, max_num_seqs 64: 3.1 times a limit``"""
    beyond = (
        ""
        if nearest.margin_ratio is None
        else f", at {format_number(nearest.margin_ratio)} times its limit"
    )
    return f"{nearest.hardware}, {nearest.layout}{beyond}"


def _next(answer: SizeAnswer) -> str:
    """What decides an open verdict, or another question where nothing meets the SLO."""
    pick = answer.pick
    if answer.next_step is not None:
        return answer.next_step
    if pick is None:
        return _instead(answer) if answer.impossible else ""
    if pick.verdict == "undecided" and pick.sized_pace.served.verdict != "undecided":
        return (
            "what is open is how long steps take: --fit FILE decides it, --sure sizes for slow ones"
        )
    if answer.users is None or answer.rate_per_s is None:
        return ""
    return (
        f"they send {format_request_rate(answer.rate_per_s)}{_sized_at(pick)}; --out DIR writes the"
        " files that deploy it"
    )


def _instead(answer: SizeAnswer) -> str:
    """Another question, where nothing meets the SLO."""
    nearest = answer.impossible[0]
    longer = (
        ""
        if nearest.margin_ratio is None or nearest.margin_ratio <= 1
        else f"limits {format_number(1.05 * nearest.margin_ratio)} times as long, "
    )
    more = f"more of them to a replica (--tp {nearest.larger_tp}), " if nearest.larger_tp else ""
    return f"{longer}other devices (--gpus), {more}or fewer bits (--quantization)"


def _facts(answer: SizeAnswer) -> list[tuple[str, str]]:
    """Question, tried and refused replicas, sources of step times and prices."""
    facts = _tried(answer)
    pick = answer.pick
    if pick is None:
        return facts
    power = pick.costs.power_from
    bound = "" if power is None or power.kind == "measured" else " (an upper bound)"
    prices = [
        ("price", f"{one.basis}, {one.date_utc or 'undated'} ({one.source.where})")
        for one in (pick.rent, pick.owned)
        if one is not None
    ]
    return [
        ("model", f"{answer.model_id} on {pick.engine}, {pick.parallelism}"),
        (
            "lengths",
            (
                f"{format_number(pick.mean_prompt_tokens)} tokens in,"
                f" {format_number(pick.mean_output_tokens)} out on average"
            ),
        ),
        ("SLO", answer.objective),
        ("router", f"{answer.router}, {_together(answer, pick.n_replicas)}"),
        *([] if answer.gate is None else [("gate", gate_text(answer.gate))]),
        ("requests in flight", f"{format_number(pick.in_flight_load)} in each replica on average"),
        ("step times", pick.step_times_from),
        ("KV blocks", f"{pick.n_kv_blocks:,} a replica{kv_blocks_words(pick)}"),
        *((name, str(value)) for name, value in pick.knobs),
        *(("cost", line) for line in _money(pick)),
        *(prices or [("price", "not known")]),
        ("power", "not known" if power is None else f"{power.where}{bound}"),
        *facts,
    ]


def _tried(answer: SizeAnswer) -> list[tuple[str, str]]:
    """Numbers of tried and refused kinds of replica."""
    others = (
        ", the others cannot do with fewer devices"
        if answer.n_searched + answer.n_unexamined < answer.n_candidates
        else ""
    )
    left_out = (
        f", {answer.n_unexamined} not examined within the time limit (--time-limit)"
        if answer.n_unexamined
        else ""
    )
    return [
        (
            "tried",
            (
                f"{counted(answer.n_candidates, 'kind')} of replica, {answer.n_searched}"
                f" searched{others}{left_out}"
            ),
        ),
        *_refused(answer),
    ]


def _refused(answer: SizeAnswer) -> list[tuple[str, str]]:
    """Refused kinds of replica, those of one device and reason together."""
    alike = dict[tuple[str, str], list[str]]()
    for one in answer.refused:
        alike.setdefault((one.hardware, one.why), []).append(one.what)
    lines = [("not", f"{', '.join(what)}: {why}") for (_, why), what in alike.items()]
    more = (
        [("not", f"{len(lines) - _MAX_REFUSED} more reasons (--json)")]
        if len(lines) > _MAX_REFUSED
        else []
    )
    return lines[:_MAX_REFUSED] + more


def _would_need(pace: PaceRow, pick: KindRow) -> str:
    if pace.n_replicas is None:
        return ", no number of replicas meets it" if pace.is_examined else ""
    if pace.n_replicas > pick.n_replicas:
        return f", {counted(pace.n_replicas, 'replica')} needed"
    return f" with {pace.n_replicas:,} too" if pace.n_replicas < pick.n_replicas else ""


def _failure(answer: SizeAnswer) -> list[str]:
    """The minutes after one replica dies."""
    found, why_not = answer.failure, answer.failure_why_not
    if found is None:
        return [] if why_not is None else [f"a failing replica: not examined: {why_not}"]
    end_s = found.slo_met_again_s
    again = (
        "not met again before the simulation ends"
        if end_s is None
        else f"met again {format_duration(end_s)} after"
    )
    kept = f"the SLO is {'met throughout' if end_s == 0 else again}"
    shares = [share_cell(one) for one in (found.good, found.good_otherwise) if one is not None]
    within = (
        f"; of {found.n_until_started:,} until another answers ({format_duration(found.start_up_s)})"
        f" {' instead of '.join(shares)} are "
    )
    return [
        (
            f"if one replica dies: {found.n_cut_off} requests are cut off and come again{within}within every"
            f" limit; {kept}"
        )
    ]


def _money(pick: KindRow) -> list[str]:
    """Costs of prompts and of output, bought or rented, and by an API."""
    lines = list[str]()
    if pick.usd_per_hour is not None:
        share = f"{pick.costs.prompt_time_fraction:.0%} of the time is the prompts'"
        lines.append(
            f"{share}: so $/1M in and out; '$/1M out, all' lets output pay for everything,"
            " under this traffic"
        )
    if pick.owned is not None and pick.rent is not None:
        used = pick.owned_break_even_fraction
        even = (
            "never cheaper" if used is None else f"cheaper from {used:.0%} of its hours in use on"
        )
        lines.append(
            f"${pick.owned.usd_per_hour:.2f}/h a device bought,"
            f" ${pick.rent.usd_per_hour:.2f}/h rented: bought is {even}"
        )
    for api in pick.costs.apis:
        even = (
            ""
            if api.break_even_requests_per_s is None
            else f"; break-even at {format_number(api.break_even_requests_per_s)} req/s"
        )
        carried = "" if api.is_carried is not False else ", which these replicas do not carry"
        lines.append(
            f"{api.price.name}: ${api.usd_per_hour:.2f}/h for the same tokens{even}{carried}"
            f" ({api.price.date_utc})"
        )
    return lines


def size_tables(answer: SizeAnswer) -> tuple[TextTable, ...]:
    """Tables of the devices; empty where nothing meets the SLO."""
    if not answer.kinds:
        return ()
    over = () if answer.over_time is None else (policy_table(answer.over_time),)
    return _latencies(answer), _rates(answer), _prices(answer), *over


def _devices(answer: SizeAnswer) -> TextTable | None:
    """The devices side by side in few columns; of one device the policies over time, if any."""
    if answer.over_time is not None:
        return policy_table(answer.over_time)
    if len(answer.kinds) < 2:
        return None
    rows = tuple(
        (
            row.hardware_id,
            f"{row.n_replicas} x {row.parallelism} {row.weights_dtype}",
            str(row.n_devices),
            _capacity(row.sized_pace),
            _usd(row.usd_per_hour),
            _usd(row.costs.usd_per_million_output_tokens),
            row.verdict,
        )
        for row in answer.kinds
    )
    return TextTable(
        caption="The best of each device",
        header=("device", "layout", "devices", _most(answer), "$/h", "$/1M out", "SLO"),
        rows=rows,
    )


def _latencies(answer: SizeAnswer) -> TextTable:
    first = answer.kinds[0].sized_pace.served
    header = (
        "device",
        "layout",
        f"TTFT {which(first.ttft)}, ms",
        f"TPOT {which(first.tpot)}, ms",
        "verdict",
    )
    rows = [
        (
            row.hardware_id,
            f"{row.n_replicas} x {row.parallelism} {row.weights_dtype}",
            _ms(row.sized_pace.served.ttft),
            _ms(row.sized_pace.served.tpot),
            row.verdict,
        )
        for row in answer.kinds
    ]
    return TextTable(
        caption=f"Latency under this traffic{_sized_at(answer.kinds[0])} [95 % interval]",
        header=header,
        rows=tuple(rows),
    )


def _rates(answer: SizeAnswer) -> TextTable:
    header = (
        "device",
        "in flight each",
        "req/s each",
        "req/s/device",
        _most(answer),
        "headroom",
        "N+1",
    )
    rows = [
        (
            row.hardware_id,
            format_number(row.in_flight_load),
            number_cell(row.instance_requests_per_s),
            number_cell(row.device_requests_per_s),
            _capacity(row.sized_pace),
            _headroom(row),
            str(row.n_replicas_if_one_fails),
        )
        for row in answer.kinds
    ]
    return TextTable(caption="What it carries within the SLO", header=header, rows=tuple(rows))


def _prices(answer: SizeAnswer) -> TextTable:
    header = ("device", "devices", "$/h", "$/1M in", "$/1M out", "$/1M out, all", "J/tok out")
    rows = [
        (
            row.hardware_id,
            str(row.n_devices),
            _usd(row.usd_per_hour),
            _usd(row.costs.input_usd_per_million_tokens),
            _usd(row.costs.output_usd_per_million_tokens),
            _usd(row.costs.usd_per_million_output_tokens),
            number_cell(row.costs.output_joule_per_token),
        )
        for row in answer.kinds
    ]
    return TextTable(caption="Cost under this traffic", header=header, rows=tuple(rows))


def policy_table(over_time: OverTime) -> TextTable:
    """Each policy: replicas, cost, how often the SLO is met."""
    header = ("policy", "replicas", "$", "SLO met, time", "requests in limits", "verdict")
    rows = [
        (
            row.name + ("" if row.has_converged else " (not settled)"),
            _span(row.n_replicas),
            _usd(row.usd),
            f"{row.slo_met_fraction:.1%}",
            known_cell(row.good, lambda good: f"{good.value:.2%}"),
            row.verdict,
        )
        for row in over_time.policies
    ]
    span_s = over_time.window_s * len(over_time.rates_per_s)
    caption = (
        f"Policies over {format_duration(span_s)} at {format_number(min(over_time.rates_per_s))} to"
        f" {format_number(max(over_time.rates_per_s))} requests/s, in windows of"
        f" {format_duration(over_time.window_s)}; a start takes {format_duration(over_time.start_up_s)},"
        f" policies that react aim at {over_time.target_fraction:.0%} of what is carried"
    )
    return TextTable(caption=caption, header=header, rows=tuple(rows))


def which(percentile: Percentile | None) -> str:
    """``p95``"""
    return "" if percentile is None else percentile_name(percentile.percentile_fraction)


def _ms(percentile: Percentile | None) -> str:
    """``444 [290, 783]``"""
    if percentile is None:
        return ABSENT_TEXT
    return f"{'≥ ' if percentile.is_lower_bound else ''}{estimate_cell(percentile.seconds, _MS)}"


def _capacity(pace: PaceRow) -> str:
    """Capacity of all replicas: highest rate shown to meet the SLO, lowest shown to miss it."""
    if pace.carried is None:
        return ABSENT_TEXT
    _, met, missed = pace.carried
    return f"{format_number(met)}{'' if missed is None else f'–{format_number(missed)}'}"


def _most(answer: SizeAnswer) -> str:
    return "max req/s" if answer.users is None else "max users"


def _usd(value: float | None) -> str:
    return known_cell(value, "{:.2f}".format)


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"


def _together(answer: SizeAnswer, n_replicas: int) -> str:
    is_whole = answer.gate is not None or answer.n_prefill_replicas is not None
    n_together = n_replicas if is_whole else min(n_replicas, MOST_TOGETHER)
    return (
        "all replicas simulated together"
        if n_together == n_replicas
        else f"{n_together} replicas simulated with their part of the load"
    )


def _prefill(answer: SizeAnswer) -> str:
    n_prefill = answer.n_prefill_replicas
    return f" and {n_prefill} that compute prompts" if n_prefill else ""
