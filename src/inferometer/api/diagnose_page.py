"""What is there to read of a diagnosis: what limits, which change helps by how much, what does not?"""

from typing import Final

from inferometer import suggestions
from inferometer.api.diagnose_latencies import words_of
from inferometer.api.diagnose_source import LimitSource
from inferometer.api.diagnosis import CauseRow, DiagnoseAnswer
from inferometer.api.verify_view import METRICS
from inferometer.records.pitfalls import found_sentence
from inferometer.records.server_summaries import Level
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.predicted import Effect, effects_chart
from inferometer.report.page import Chip, Number, Page, Section, duration_number, lines_of
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number, format_request_rate

_WORTH_FRACTION: Final = 0.05
_TITLE_FRACTION: Final = 0.1
_SOURCES: Final[dict[LimitSource, str]] = {
    "known": "--known",
    "server": "the server itself",
    "command": "its command line",
    "metrics": "its metrics",
    "identified": "identified",
}
_HALF_OPEN: Final = "{low:,} or more"


def diagnose_page(answer: DiagnoseAnswer) -> Page:
    """A page with the verdict first, then the effect of the change, then every cause."""
    cause = next((one for one in answer.causes if one.name == answer.cause), None)
    return Page(
        title=_title(answer, cause),
        subtitle=(
            f"{_identity(answer)} · {answer.window_s:.0f} s of its metrics"
            f"{'' if answer.when is None else f' ({answer.when})'}, {answer.n_requests:,}"
            f" requests, {format_request_rate(answer.requests_per_s)} ·"
            f" {_mean(answer.in_flight)} running, {_mean(answer.in_queue)} waiting"
        ),
        chips=(_chip(answer),),
        numbers=_numbers(answer, cause),
        table=_causes(answer),
        chart=_chart(answer, cause),
        lines=lines_of(
            ("LIMIT", _outside(answer) if cause is None else _share(answer, cause)),
            ("OR", "" if cause is None else f"{cause.change}; costs: {cause.costs}"),
            ("ALSO", found_sentence([one for one in answer.checks if one.name != "outside"])),
            ("WHY", _ruled_out(answer)),
            ("CHECK", _check(answer)),
            ("TRUST", _trust(answer)),
            ("DATA", _probed(answer)),
            ("NEXT", _next(answer, cause)),
        ),
        lead_cautions=answer.cautions,
        sections=(
            *_then(answer),
            Section(
                id="limits",
                title="Which limits has the server?",
                nav="Limits",
                tables=(_limits(answer), _agreement(answer)),
            ),
            Section(
                id="checks",
                title="What do its metrics say directly?",
                nav="Checks",
                tables=(_checks(answer),),
            ),
        ),
    )


def _chart(answer: DiagnoseAnswer, cause: CauseRow | None) -> Chart | None:
    """Latency that each cause explains, of the first latency."""
    effects = [
        Effect(one.name, one.shares_s[0].scaled(1e3), _interval(one.shares_s[0]), one is cause)
        for one in answer.causes
    ]
    return effects_chart(
        effects,
        chart_id="causes",
        title=f"What each cause costs of {_first_latency(answer)}",
        finding=f"{_title(answer, cause)}.",
        axis=f"of {_first_latency(answer)}, ms",
        legend="filled: what limits · lines: intervals",
        row="cause",
    )


def _title(answer: DiagnoseAnswer, cause: CauseRow | None) -> str:
    if answer.cause == "outside":
        return f"{answer.target} is not what limits: the client, a proxy or the network is"
    check = next((one for one in answer.checks if one.name == answer.cause), None)
    if check is not None:
        return f"{answer.target}: {check.words}"
    if cause is None:
        met = "" if answer.objective is None else f", {answer.objective} is met"
        return f"{answer.target} is healthy{met}: {_no_setting(answer)}"
    if answer.finding == "undecided":
        return f"{answer.target}: undecided; it may be {cause.words}"
    return f"{answer.target} is limited by {cause.words}"


def _no_setting(answer: DiagnoseAnswer) -> str:
    """How much a setting costs of a healthy server's first latency."""
    tenth_s = _TITLE_FRACTION * answer.latencies[0].simulated_s.value
    shares = [(one.shares_s[0], one.name) for one in answer.causes if one.kind == "setting"]
    if all(_most(share) < tenth_s for share, _ in shares):
        return f"no setting costs a tenth of {_first_latency(answer)}"
    largest, name = max(shares, key=lambda one: one[0].value)
    if largest.value < tenth_s or (largest.low or 0) <= 0:
        return f"no setting surely costs a tenth of {_first_latency(answer)}"
    return f"{name} costs {_interval(largest)} of {_first_latency(answer)}"


def _may_help(answer: DiagnoseAnswer, cause: CauseRow) -> bool:
    """May its change shorten one of the latencies by a part that is worth it?"""
    rows = zip(cause.shares_s, answer.latencies, strict=True)
    return any(_most(share) >= _WORTH_FRACTION * row.simulated_s.value > 0 for share, row in rows)


def _most(share: Estimate) -> float:
    return share.value if share.high is None else share.high


def _then(answer: DiagnoseAnswer) -> tuple[Section, ...]:
    """Both latencies with the change; empty where no setting is to be changed."""
    check = answer.check
    if check is None:
        return ()
    rows = tuple(
        (METRICS[one.metric].name, format_duration(one.predicted.value), _range(one.predicted))
        for one in check.claims
    )
    table = TextTable(
        caption="What is sealed of the change", header=("latency", "likely", "90 %"), rows=rows
    )
    title = "What would the change do?"
    return (Section(id="change", title=title, nav="Change", tables=(table,)),)


def _identity(answer: DiagnoseAnswer) -> str:
    """Model and version that the server reports."""
    engine = answer.server if answer.version is None else f"{answer.server} {answer.version}"
    return engine if answer.model is None else f"{engine} · {answer.model}"


def _mean(level: Level | None) -> str:
    return "?" if level is None else format_number(level.mean)


def _first_latency(answer: DiagnoseAnswer) -> str:
    """Name of the latency by which causes are compared, such as TTFT p95."""
    return words_of(answer.latencies[0].name)


def _chip(answer: DiagnoseAnswer) -> Chip:
    if answer.slo_verdict is not None:
        words = {"met": "meets", "missed": "misses", "undecided": "undecided:"}
        return Chip(
            verdict=answer.slo_verdict, text=f"{words[answer.slo_verdict]} {answer.objective}"
        )
    verdicts = {"healthy": "met", "limited": "missed", "undecided": "undecided"}
    return Chip(verdict=verdicts[answer.finding], text=answer.finding)


def _numbers(answer: DiagnoseAnswer, cause: CauseRow | None) -> tuple[Number, ...]:
    """Each latency now, and with the change."""
    numbers: list[Number] = []
    for index, row in enumerate(answer.latencies):
        low, high = row.measured_low_s, row.measured_high_s
        note = ""
        if low is not None and high is not None:
            note = f"measured: {format_duration(low)} to {_edge(high)}"
        numbers += duration_number(
            f"{words_of(row.name)} now", row.simulated_s, limit_s=row.limit_s, note=note
        )
        if cause is not None and cause.kind != "work":
            numbers += duration_number(
                f"{words_of(row.name)} then", cause.predicted_s[index], limit_s=row.limit_s
            )
    return tuple(numbers)


def _edge(high_s: float) -> str:
    return "…" if high_s == float("inf") else format_duration(high_s)


def _share(answer: DiagnoseAnswer, cause: CauseRow) -> str:
    now_s = answer.latencies[0].simulated_s.value
    share = cause.shares_s[0]
    part = f" ({share.value / now_s:.0%})" if now_s > 0 else ""
    return f"{cause.words}: {_interval(share)}{part} of {_first_latency(answer)}"


def _outside(answer: DiagnoseAnswer) -> str:
    found = [one for one in answer.outside if one.share is not None]
    if answer.cause != "outside" or not found:
        return ""
    worst = max(found, key=lambda one: one.share or 0)
    return (
        f"{format_duration(worst.outside_s or 0)} of a mean {worst.latency.upper()} of"
        f" {format_duration(worst.client_s)} pass outside the server: a buffering or busy proxy,"
        " the network, or a client that is late"
    )


def _interval(share: Estimate) -> str:
    return "none" if share.value == share.low == share.high == 0 else share.text(_signed)


def _signed(seconds: float) -> str:
    return f"-{format_duration(-seconds)}" if seconds < 0 else format_duration(seconds)


def _ruled_out(answer: DiagnoseAnswer) -> str:
    """Settings that would not help in any draw, those that may, and the evidence."""
    settings = [one for one in answer.causes if one.kind == "setting" and one.name != answer.cause]
    no_help = sorted(one.name for one in settings if not _may_help(answer, one))
    maybe = [
        f"{one.name} ({_interval(one.shares_s[0])})"
        for one in settings
        if (one.shares_s[0].low or 0) <= 0 and one.name not in no_help
    ]
    facts: list[str] = []
    if answer.kv_usage is not None:
        facts.append(f"KV cache at most {answer.kv_usage.highest:.0%} used")
    if answer.n_preemptions is not None:
        facts.append(f"{answer.n_preemptions:,} preemptions")
    facts += [
        one.evidence
        for one in answer.checks
        if one.finding == "ruled out" and one.name != "preemption_thrash"
    ]
    would_not = f"would not help: {', '.join(no_help)}" if no_help else ""
    may = f"may help or not: {', '.join(maybe)}" if maybe else ""
    return "; ".join(part for part in (would_not, may, ", ".join(facts)) if part)


def _trust(answer: DiagnoseAnswer) -> str:
    worst = max(
        (
            (max(seen, near) / max(min(seen, near), 1e-9), name, seen, near)
            for name, (seen, near) in answer.agreement.items()
            if max(seen, near) > 0
        ),
        default=None,
    )
    furthest = ""
    if worst is not None:
        _, name, seen, simulated = worst
        furthest = f"; furthest: {name} {format_number(simulated)} for {format_number(seen)}"
    loop = ", a closed loop" if answer.is_closed_loop else ""
    return (
        f"19 simulated servers that show what this one shows{loop}{furthest}; intervals: least …"
        " most of them"
    )


def _probed(answer: DiagnoseAnswer) -> str:
    """Load that the probe sent, and what it identified."""
    probe = answer.probe
    if probe is None:
        return ""
    low, high = probe.least_budget_tokens, probe.most_budget_tokens
    found = [
        "" if probe.max_num_seqs is None else f"max_num_seqs {probe.max_num_seqs:,}",
        "" if low is None or high is None else f"a step budget of {low:,} to {high:,} tokens",
        ""
        if probe.idle_ttft_s is None
        else f"a TTFT at ease of {format_duration(probe.idle_ttft_s)}",
    ]
    words = ", ".join(one for one in found if one) or "no limit: it reached none"
    return (
        f"the probe sent {probe.n_requests:,} requests, {probe.most_tokens:,} tokens at most, and"
        f" identified {words}"
    )


def _check(answer: DiagnoseAnswer) -> str:
    """Sealed prediction of the change."""
    check = answer.check
    if check is None:
        return ""
    claims = [
        f"{METRICS[one.metric].name} {_range(one.predicted)}"
        for one in check.claims
        if not one.metric.endswith("_mean_s")
    ]
    claims += [f"{one.objective} {one.predicted}" for one in check.promises]
    return f"sealed for another {answer.window_s:.0f} s of this traffic: {', '.join(claims)}"


def _range(predicted: Estimate) -> str:
    return f"{format_duration(predicted.low or 0)} to {format_duration(predicted.high or 0)}"


def _next(answer: DiagnoseAnswer, cause: CauseRow | None) -> str:
    if answer.check is not None:
        return (
            f"change it, then see whether the sealed prediction came true: {answer.check.command}"
        )
    slo = [] if answer.objective is None else ["--slo", answer.objective]
    again = suggestions.command("diagnose", answer.target, *slo)
    if cause is not None and answer.finding == "undecided" and cause.decided_by:
        return cause.decided_by
    if answer.cause == "outside":
        return "the same load test from the server's own host decides whether it is the way there"
    if cause is None or "://" not in answer.target or answer.when is not None:
        return ""
    if answer.finding == "undecided":
        return _what_decides(answer, slo)
    return f"change it, and see whether the prediction was true: {again}"


def _what_decides(answer: DiagnoseAnswer, slo: list[str]) -> str:
    """The command that may decide what this window left open."""
    if _is_budget_open(answer) and answer.probe is not None:
        return "the step budget does, which the server's start command has (--known)"
    if _is_budget_open(answer):
        probed = suggestions.command("diagnose", answer.target, *slo, "--probe")
        return f"--known max_num_batched_tokens=N if you know it, or a small load: {probed}"
    longer = suggestions.command("diagnose", answer.target, *slo, "--for", "5min")
    return f"a longer window decides: {longer}"


def _is_budget_open(answer: DiagnoseAnswer) -> bool:
    """May a larger step budget help, and is the server's own not known?"""
    small = any(one.name == "small_step_budget" and _may_help(answer, one) for one in answer.causes)
    return small and any(
        one.name == "max_num_batched_tokens" and one.low != one.high for one in answer.limits
    )


def _causes(answer: DiagnoseAnswer) -> TextTable:
    rows = tuple(
        (
            one.name,
            *(_interval(share) for share in one.shares_s),
            one.change if _may_help(answer, one) else "would not help",
        )
        for one in answer.causes
    )
    header = ("cause", *(f"of {words_of(row.name)}" for row in answer.latencies), "change")
    return TextTable(caption="What each cause costs", header=header, rows=rows)


def _checks(answer: DiagnoseAnswer) -> TextTable:
    rows = tuple(
        (
            one.name,
            one.finding,
            one.evidence,
            f"{format_number(one.limit_ratio)}: {one.why}",
            one.change,
        )
        for one in answer.checks
    )
    return TextTable(
        caption="What is read off its metrics",
        header=("check", "finding", "number", "limit", "change"),
        rows=rows,
    )


def _limits(answer: DiagnoseAnswer) -> TextTable:
    rows = tuple(
        (
            one.name,
            _HALF_OPEN.format(low=one.low)
            if one.high is None
            else f"{one.low:,}"
            if one.low == one.high
            else f"{one.low:,} to {one.high:,}",
            _SOURCES[one.source],
        )
        for one in answer.limits
    )
    return TextTable(
        caption="Limits, reported or identified", header=("limit", "value", "by"), rows=rows
    )


def _agreement(answer: DiagnoseAnswer) -> TextTable:
    rows = tuple(
        (name, format_number(seen), format_number(near))
        for name, (seen, near) in answer.agreement.items()
    )
    header = ("mean", "measured", "nearest simulated server")
    return TextTable(caption="Does a simulated server show the same?", header=header, rows=rows)
