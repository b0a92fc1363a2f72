"""How does a sizing look in the terminal: the answer, the tables of devices, why, and what it rests on?"""

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.api.best_use_view import best_use_text
from inferometer.api.size_tables import size_tables, which
from inferometer.api.sizing import Impossible, SizeAnswer
from inferometer.api.sizing_rows import KindRow, PaceRow
from inferometer.decide.candidate_probes import MOST_TOGETHER
from inferometer.records.request_summaries import Percentile
from inferometer.report.request_terminal import table_text
from inferometer.report.request_words import percentile_text, share_cell
from inferometer.units import format_duration, format_number

_MAX_REFUSED: Final = 3
_WORDS: Final = ("ANSWER", "FAILS", "WHY", "COST", "OWN")


def size_text(answer: SizeAnswer) -> RenderableType:
    """The whole answer."""
    if answer.best_use is not None:
        cautions = [f"{caution.text} – {caution.remedy}" for caution in answer.cautions]
        return best_use_text(
            answer.best_use, answer.model_id, answer.workload_name, answer.objective, cautions
        )
    parts: list[RenderableType] = [Text(_headline(answer), style="bold")]
    pick = answer.pick
    if pick is not None:
        parts += [
            Text(_doubt(pick)),
            Text(_reserve(pick)),
            *(Text(line) for line in _failure(answer)),
            *_tables(answer),
        ]
        parts.append(
            Text(f"WHY    {pick.asked.served.weakest or 'nothing was promised of a percentile'}")
        )
        parts += (
            [Text(f"BREAKS first under more traffic: {pick.asked.breaks_first}")]
            if pick.asked.breaks_first
            else []
        )
        parts += [Text(line) for line in _money(pick)]
    parts += [Text(f"NOT    {one.hardware}, {one.layout}: {one.why}") for one in answer.impossible]
    parts += [
        Text(line)
        for line in (
            *_refused(answer),
            *([] if pick or not answer.impossible else [_instead(answer)]),
            *_origins(answer),
        )
    ]
    parts += [Text(f"CAUTION {caution.text} – {caution.remedy}") for caution in answer.cautions]
    return Group(*parts)


def lead_lines(answer: SizeAnswer) -> list[tuple[str, str]]:
    """The answer, the verdict, the reserve and the weakest link in words, each with its name."""
    pick = answer.pick
    lines = [_headline(answer)] + (
        []
        if pick is None
        else [
            _doubt(pick),
            _reserve(pick),
            *_failure(answer),
            f"WHY    {pick.asked.served.weakest}",
            *_money(pick),
        ]
    )
    named = [line.partition(" ") for line in lines]
    return [
        (word.capitalize() if word in _WORDS else word, text.strip()) for word, _, text in named
    ]


def _headline(answer: SizeAnswer) -> str:
    asked = (
        f"{format_number(answer.rate_per_s)} request{'' if answer.rate_per_s == 1 else 's'}/s of"
        f" {answer.workload_name}"
    )
    pick = answer.pick
    if pick is None:
        nearest = f"; nearest: {_nearest(answer.impossible[0])}" if answer.impossible else ""
        question = f"{answer.objective} for {answer.model_id} at {asked}"
        if answer.n_unexamined:
            return f"ANSWER undecided: nothing was shown to meet {question} in time{nearest}"
        return f"ANSWER nothing on offer meets {question}{nearest}"
    served = pick.asked.served
    cost = "" if pick.usd_per_hour is None else f"; ${pick.usd_per_hour:.2f}/h"
    output_cost = pick.costs.usd_per_million_output_tokens
    per_token = "" if output_cost is None else f", ${output_cost:.2f} / 1M output tok"
    return (
        f"ANSWER {pick.n_devices} x {pick.hardware} ({_replicas(pick.n_replicas)}, {pick.layout})"
        f" serve {asked}: TTFT {_named(served.ttft)}, TPOT {_named(served.tpot)}{cost}{per_token}"
    )


def _nearest(nearest: Impossible) -> str:
    """``NVIDIA L4, TP2 bfloat16, 64 seats: 3.1 times a limit``"""
    beyond = (
        ""
        if nearest.margin_ratio is None
        else f", at {format_number(nearest.margin_ratio)} times its limit"
    )
    return f"{nearest.hardware}, {nearest.layout}{beyond}"


def _instead(answer: SizeAnswer) -> str:
    """What else could be asked, where nothing keeps the promise."""
    nearest = answer.impossible[0]
    longer = (
        ""
        if nearest.margin_ratio is None
        else f"limits {format_number(1.05 * nearest.margin_ratio)} times as long, "
    )
    return (
        f"NEXT   {longer}other devices (--gpus), more of them to a replica (--tp), or fewer bits"
        " (--quantization)"
    )


def _refused(answer: SizeAnswer) -> list[str]:
    """What cannot be, those of one device and reason together."""
    alike = dict[tuple[str, str], list[str]]()
    for one in answer.refused:
        alike.setdefault((one.hardware, one.why), []).append(one.what)
    lines = [f"NOT    {', '.join(what)}: {why}" for (_, why), what in alike.items()]
    more = (
        [f"       and {len(lines) - _MAX_REFUSED} more reasons (--json)"]
        if len(lines) > _MAX_REFUSED
        else []
    )
    return lines[:_MAX_REFUSED] + more


def _doubt(pick: KindRow) -> str:
    ends = ", ".join(
        f"{pace.step_times} step times: {pace.served.verdict}{_would_need(pace, pick)}"
        for pace in pick.paces
    )
    asked = pick.asked.served.verdict
    is_of_steps = pick.verdict == "undecided" and asked != "undecided"
    why = (
        "; what is open is how long steps take: --fit FILE decides it, --sure sizes for the"
        " slow end"
        if is_of_steps
        else ""
    )
    return f"SLO    {pick.verdict} ({ends}){why}"


def _would_need(pace: PaceRow, pick: KindRow) -> str:
    if pace.n_replicas is None:
        return ", no number of replicas meets it" if pace.is_examined else ""
    return "" if pace.n_replicas <= pick.n_replicas else f", {_replicas(pace.n_replicas)} needed"


def _reserve(pick: KindRow) -> str:
    headroom = "not known" if pick.headroom_fraction is None else f"{pick.headroom_fraction:.0%}"
    lost = pick.without_one
    if lost is None:
        left = "loses its one replica -> nothing is left"
    else:
        left = (
            f"loses one replica -> {lost.verdict} with {lost.n_replicas} (TTFT {_named(lost.ttft)},"
            f" TPOT {_named(lost.tpot)})"
        )
    return (
        f"N+1    headroom {headroom}; {left}; to lose one and keep it:"
        f" {_replicas(pick.n_replicas_if_one_fails)}"
    )


def _failure(answer: SizeAnswer) -> list[str]:
    """The minutes after one replica dies."""
    said, pick = answer.failure, answer.pick
    if said is None:
        is_left_out = pick is not None and pick.n_replicas > 1
        return (
            [
                (
                    "FAILS  not examined: too many requests for one simulation, or they follow one"
                    " another"
                )
            ]
            if is_left_out
            else []
        )
    end_s = said.kept_again_s
    again = (
        "not kept again before the simulation ends"
        if end_s is None
        else f"kept again {format_duration(end_s)} after"
    )
    kept = f"the promise is {'kept throughout' if end_s == 0 else again}"
    shares = [share_cell(one) for one in (said.good, said.good_otherwise) if one is not None]
    within = (
        f"; of {said.n_until_started:,} until another answers ({format_duration(said.start_up_s)})"
        f" {' instead of '.join(shares)} are "
    )
    return [
        (
            f"FAILS  one dies: {said.n_cut_off} requests are cut off and come again{within}within every"
            f" limit; {kept}"
        )
    ]


def _tables(answer: SizeAnswer) -> list[RenderableType]:
    """One under the other; that of the policies with what it is of."""
    parts: list[RenderableType] = [Text(""), *(table_text(table) for table in size_tables(answer))]
    said = answer.over_time
    if said is not None:
        span_s = said.window_s * len(said.rates_per_s)
        rates = (
            f"{format_number(min(said.rates_per_s))} to {format_number(max(said.rates_per_s))}"
            " requests/s"
        )
        windows = f"{len(said.rates_per_s)} windows of {format_duration(said.window_s)}"
        how = (
            f"a start takes {format_duration(said.start_up_s)}, policies that react aim at"
            f" {said.target_fraction:.0%} of what is carried"
        )
        parts.append(
            Text(
                f"OVER   {format_duration(span_s)} at {rates}, {windows}, all requests at their"
                f" instants; {how}"
            )
        )
    return parts


def _money(pick: KindRow) -> list[str]:
    """Prompts and output apart, bought or rented, and somebody else's tokens."""
    lines = list[str]()
    if pick.usd_per_hour is not None:
        share = f"{pick.costs.prompt_time_fraction:.0%} of the time is the prompts'"
        lines.append(
            f"COST   {share}: so $/1M in and out; '$/1M out, all' lets output pay for everything,"
            " under this traffic"
        )
    if pick.owned is not None and pick.rent is not None:
        used = pick.owned_break_even_fraction
        even = (
            "never cheaper" if used is None else f"cheaper from {used:.0%} of its hours in use on"
        )
        lines.append(
            f"OWN    ${pick.owned.usd_per_hour:.2f}/h a device bought,"
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
            f"API    {api.price.name}: ${api.usd_per_hour:.2f}/h for the same tokens{even}{carried}"
            f" ({api.price.date_utc})"
        )
    return lines


def _origins(answer: SizeAnswer) -> list[str]:
    pick = answer.pick
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
    lines = [
        (
            f"TRIED  {answer.n_candidates} kinds of replica, {answer.n_searched}"
            f" searched{others}{left_out}"
        )
    ]
    if pick is None:
        return lines
    lengths = (
        f"{format_number(pick.mean_prompt_tokens)} tokens in,"
        f" {format_number(pick.mean_output_tokens)} out on average"
    )
    who = f"{answer.model_id} on {pick.engine}"
    asked = (
        f"ASKED  {who}, {lengths}; {answer.objective}; {answer.router} router,"
        f" {_together(pick.n_replicas)}"
    )
    power = pick.costs.power_from
    price = [
        f"PRICE  {one.basis}, {one.date_utc or 'undated'} ({one.source.where})"
        for one in (pick.rent, pick.owned)
        if one is not None
    ]
    lines = [
        asked,
        *lines,
        f"STEPS  {pick.step_times_from}",
        f"KV     {pick.n_kv_blocks:,} blocks a replica",
        *(price or ["PRICE  nobody says"]),
    ]
    bound = "" if power is None or power.kind == "measured" else " (an upper bound)"
    return [*lines, f"POWER  {'nobody says' if power is None else power.where}{bound}"]


def _named(percentile: Percentile | None) -> str:
    return f"{which(percentile)} {percentile_text(percentile)}".strip()


def _together(n_replicas: int) -> str:
    n_together = min(n_replicas, MOST_TOGETHER)
    return (
        "all replicas simulated together"
        if n_together == n_replicas
        else f"{n_together} replicas simulated with their part of the load"
    )


def _replicas(n_replicas: int) -> str:
    return f"{n_replicas} replica{'s' if n_replicas > 1 else ''}"
