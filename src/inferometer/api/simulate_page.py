"""What is there to read of a simulation: the answer and its verdict, then what it rests on?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from inferometer.api import cluster, simulated_record, simulation
from inferometer.inputs.objectives import METRICS
from inferometer.records import pitfalls, request_summaries, run_series
from inferometer.records.latencies import Latency
from inferometer.report import request_page, request_tables
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.tails import percentiles_chart
from inferometer.report.page import Chip, Number, Page, Section, lines_of, spanned
from inferometer.report.tables import ABSENT_TEXT, TextTable, known_cell, number_cell
from inferometer.report.views import FactGroup, Statement
from inferometer.simulate.simulated_run import Role
from inferometer.stats.estimate import Estimate
from inferometer.units import (
    counted,
    format_bytes,
    format_duration,
    format_number,
    format_request_rate,
)

_HEADLINE: Final[tuple[Latency, ...]] = ("ttft", "tpot")
_FRACTIONS: Final = (0.5, 0.9, 0.95, 0.99)
_OF_CLASSES: Final[tuple[Latency, ...]] = ("ttft", "tpot", "e2e")
_ROLES: Final[dict[Role, str]] = {"both": "all", "prefill": "prompts", "decode": "answers"}


def simulate_page(answer: simulation.SimulateAnswer) -> Page:
    """The whole answer."""
    likely, charts = answer.levels[0], _charts(answer)
    return Page(
        title=f"{_subject(answer)}: {request_page.answer_words(likely.summary)}",
        subtitle=_subtitle(answer),
        chips=_chips(answer),
        numbers=_numbers(answer),
        table=request_tables.brief_latency_table(likely.summary),
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", "\n".join(_why(answer))),
            ("ALSO", pitfalls.found_sentence(answer.checks) if answer.checks else ""),
            ("TRUST", _trust(answer)),
            ("ASSUME", "\n".join(answer.assumptions)),
            ("NEXT", answer.next_step or ""),
            ("DATA", answer.record or ""),
        ),
        cautions=answer.cautions,
        sections=_sections(answer, charts),
    )


def _charts(answer: simulation.SimulateAnswer) -> tuple[Chart, ...]:
    """Charts of TTFT and TPOT by percentile, with the uncertainty of step times."""
    likely, *others = answer.levels
    built = (
        percentiles_chart(
            latency,
            likely.summary,
            [level.summary for level in others],
            likely.judgement,
            ends=ends_words(answer.levels),
        )
        for latency in _HEADLINE
    )
    return tuple(chart for chart in built if chart is not None)


def _sections(answer: simulation.SimulateAnswer, charts: tuple[Chart, ...]) -> tuple[Section, ...]:
    tables = [_latencies(answer), _rates(answer)]
    tables += [_e2e_parts(answer.e2e_parts)] if answer.e2e_parts is not None else []
    tables += [_classes(answer.classes)] if answer.classes else []
    tables += [_groups(answer.groups)] if answer.groups else []
    tables += [request_tables.kv_pools_table(answer.kv_pools)] if answer.kv_pools else []
    tables += [_replicas(answer)] if answer.replicas else []
    facts = [*_origins(answer)]
    if answer.memory is not None:
        facts.append(("KV cache", _memory_words(answer.memory, answer.deployment)))
    evicted = [one.evictions for one in answer.levels if one.evictions is not None]
    if evicted:
        facts.append(("prefix cache", _eviction_words(evicted)))
    if answer.disaggregation is not None:
        facts += _transfer_facts(answer.disaggregation)
    bounded = likely_bound = answer.levels[0].summary.latency("ttft").n_bounded_below_only
    if bounded:
        facts.append(
            ("≥", f"{likely_bound:,} requests were not done: they took at least that long")
        )
    return (
        Section(
            id="latency",
            title="How fast, and how much?",
            nav="Latency",
            statements=_goodputs(answer),
            charts=charts,
            tables=tuple(tables),
        ),
        Section(
            id="rests-on",
            title="What does it rest on?",
            nav="Rests on",
            groups=(FactGroup(title="The simulation", facts=tuple(facts)),),
        ),
    )


def _subject(answer: simulation.SimulateAnswer) -> str:
    """``llama-3.1-8b on NVIDIA H100 SXM, 5 requests/s of chat``"""
    where = answer.deployment
    if answer.groups:
        return f"{_of_groups(answer.groups)}, {_traffic(answer)}"
    devices = f"{where.n_devices} × " if where.n_devices > 1 else ""
    layout = f" ({where.parallelism})" if where.n_devices > where.tensor_parallel_size else ""
    on = f" on {devices}{where.hardware}{layout}" if where.hardware else ""
    if answer.disaggregation is not None:
        on += (
            f", {counted(answer.disaggregation.prefill.n_replicas, 'replica')} for prompts and"
            f" {where.n_replicas} for answers"
        )
    elif where.n_replicas > 1:
        together = " that share experts" if where.data_parallel_size > 1 else ""
        on += f", {where.n_replicas} replicas{together} behind {where.router}"
    return f"{where.model_id}{on}, {_traffic(answer)}"


def _of_groups(groups: tuple[simulated_record.GroupView, ...]) -> str:
    """``2 × llama-3.1-8b on NVIDIA L4 (short) and 1 × llama-3.1-70b on 4 × NVIDIA H100 (long)``"""
    parts = list[str]()
    for one in groups:
        where = one.deployment
        n_devices = f"{where.n_devices} × " if where.n_devices > 1 else ""
        devices = f"{n_devices}{where.hardware}" if where.hardware else None
        parts.append(cluster.group_words(one.name, where.n_replicas, where.model_id, devices))
    return " and ".join(parts)


def _traffic(answer: simulation.SimulateAnswer) -> str:
    """``5 requests/s of chat``: the rate that was given, else that of the arrivals."""
    given_per_s, workload = answer.given_rate_per_s, answer.workload
    offered_per_s = _offered_per_s(answer) if given_per_s is None else given_per_s
    traffic = "" if offered_per_s is None else f"{format_request_rate(offered_per_s)} of "
    if offered_per_s is None and workload.n_requests > 1 and workload.rate_per_s is None:
        n_at_once = workload.n_requests - workload.n_followers
        traffic = (
            f"concurrency {n_at_once} of " if workload.n_followers else f"{n_at_once} at once of "
        )
    return f"{traffic}{answer.workload_name}"


def _subtitle(answer: simulation.SimulateAnswer) -> str:
    """The server in the engine's words, and how many requests were simulated."""
    where, likely = answer.deployment, answer.levels[0].summary
    weights = "" if where.quantization is None else f"{where.quantization} weights, else "
    cache = "" if where.kv_cache_dtype == where.dtype else f", KV cache {where.kv_cache_dtype}"
    knobs = [f"{name} {value}" for name in _KNOBS if (value := where.knobs.get(name)) is not None]
    n_simulated = counted(likely.n_requests, "request")
    return " · ".join(
        (
            where.engine,
            *([] if answer.groups else [f"{weights}{where.dtype}{cache}", *knobs]),
            f"{n_simulated} simulated, {format_duration(likely.span_s)}",
        )
    )


_KNOBS: Final = ("max_num_seqs", "max_running_requests", "max_batch_size")


def _chips(answer: simulation.SimulateAnswer) -> tuple[Chip, ...]:
    """Verdicts over all plausible step times, the worst first."""
    chips = list[Chip]()
    for one in answer.every_slo:
        (chip,) = request_page.slo_chips(one.likely)
        if one.verdict == "undecided":
            chip = Chip(verdict="undecided", text=f"undecided{_why_open(one)}")
        chips.append(replace(chip, text=f"{one.name} {chip.text}".lstrip()))
    ordered = sorted(chips, key=lambda chip: chip.verdict != answer.verdict)
    is_overloaded = any(one.code == "overload" for one in answer.cautions)
    return (*ordered, *([_OVERLOADED] if is_overloaded else []))


_OVERLOADED: Final = Chip(
    verdict="missed",
    text="overloaded: more requests come than are completed, so latencies grow with the run's length",
)


def _numbers(answer: simulation.SimulateAnswer) -> tuple[Number, ...]:
    """Numbers of the likely run, with intervals that cover the uncertainty of step times."""
    numbers = request_page.summary_numbers(answer.levels[0].summary, answer.levels[0].judgement)
    others = [
        {one.name: one for one in request_page.summary_numbers(level.summary, level.judgement)}
        for level in answer.levels[1:]
    ]
    return tuple(
        spanned(
            number,
            [
                value
                for other in others
                if number.name in other
                and (value := other[number.name].value_in(number.unit)) is not None
            ],
        )
        for number in numbers
    )


def _why(answer: simulation.SimulateAnswer) -> list[str]:
    """The limit that is nearest; each pace where they disagree; classes' own limits."""
    judged = [
        (level.step_times, level.judgement)
        for level in answer.levels
        if level.judgement is not None
    ]
    is_open = len({judgement.verdict for _, judgement in judged}) > 1
    lines = list[str]()
    for pace, judgement in judged if is_open else judged[:1]:
        weakest = judgement.weakest
        if weakest is not None and pace != "draw":
            lead = f"{pace} step times: {judgement.verdict}; " if is_open else ""
            lines.append(f"{lead}nearest its limit {weakest.threshold.text}: {weakest.why}")
    for one in answer.every_slo:
        found = _at_levels(answer.levels, one)
        if not one.name:
            lines += [found] if are_draws(answer.levels) else []
            continue
        link = one.likely.weakest
        why = "" if link is None else f"; nearest its limit {link.threshold.text}: {link.why}"
        lines.append(f"{one.name}: {one.verdict}{why}{f'; {found}' if found else ''}")
    return lines


def _at_levels(levels: Sequence[simulation.Level], slo: simulation.ClassSlo) -> str:
    """The number of draws, or the step times, at which the SLO is met where they disagree."""
    if are_draws(levels):
        drawn = Counter(slo.verdicts[1:])
        return f"draws: {', '.join(f'{n} {verdict}' for verdict, n in drawn.most_common())}"
    if len(set(slo.verdicts)) == 1:
        return ""
    return ", ".join(
        f"{verdict} at {level.step_times} step times"
        for level, verdict in zip(levels, slo.verdicts, strict=True)
    )


def _goodputs(answer: simulation.SimulateAnswer) -> tuple[Statement, ...]:
    """Goodput of all requests, and of each class with limits of its own."""
    likely = answer.levels[0].judgement
    whole = [] if likely is None else [request_tables.goodput_text(likely)]
    classes = [request_tables.goodput_text(one.likely, one.name) for one in answer.slos]
    return tuple(Statement(sentence=one, support="supported") for one in (*whole, *classes))


def _trust(answer: simulation.SimulateAnswer) -> str:
    """Source of step times, and the effect of their uncertainty on the main number."""
    spread = f"; intervals: {ends_words(answer.levels)}" if len(answer.levels) > 1 else ""
    deployments = [one.deployment for one in answer.groups] or [answer.deployment]
    origins = dict.fromkeys(one.step_times_from for one in deployments)
    return f"step times: {'; '.join(origins)}{spread}"


def _why_open(slo: simulation.ClassSlo) -> str:
    """What would decide an open verdict: better-known step times, or more requests."""
    if slo.hangs_on_step_times:
        return (
            ": it is met or missed with how long steps take; a fit of this device and engine (--fit"
            " FILE) decides it"
        )
    return ": the simulated requests are too few to tell (a larger --requests)"


def _latencies(answer: simulation.SimulateAnswer) -> TextTable:
    rows = list[tuple[str, ...]]()
    likely = answer.levels[0].summary
    names: list[Latency] = [*METRICS]
    if all(one.latency != "workflow" for one in likely.latencies):
        names.remove("workflow")
    for name in names:
        ends = " … ".join(
            _p95(level.summary, name) for level in ends_of_latency(answer.levels, name)
        )
        shown = (
            likely.latency(name).mean,
            *(likely.latency(name).percentile(fraction) for fraction in _FRACTIONS),
        )
        words = request_tables.LATENCY_NAMES[name]
        rows.append((words, *(request_tables.percentile_text(one) for one in shown), ends))
    return TextTable(
        caption="Latency [95 % interval]",
        header=(
            "latency",
            "mean",
            *(f"p{fraction * 100:g}" for fraction in _FRACTIONS),
            f"p95, {ends_words(answer.levels)}",
        ),
        rows=tuple(rows),
    )


def _rates(answer: simulation.SimulateAnswer) -> TextTable:
    rows = list[tuple[str, ...]]()

    def row(
        label: str, unit: str, of: Callable[[request_summaries.RequestSummary], Estimate | None]
    ) -> None:
        ends = (of(level.summary) for level in ends_of_rate(answer.levels, of))
        likely = request_tables.rate_text(of(answer.levels[0].summary), unit)
        rows.append(
            (
                label,
                likely,
                " … ".join(number_cell(None if end is None else end.value) for end in ends),
            )
        )
        rate = of(answer.levels[0].summary)
        if unit == "tok/s/user" and rate is not None:
            rows[-1] = (label, f"{likely}, {request_tables.reading_text(rate.value)}", rows[-1][2])

    row("completed", "requests/s", lambda summary: summary.completed_requests_per_s)
    row("output", "tok/s", lambda summary: summary.output_tokens_per_s)
    row("input and output", "tok/s", lambda summary: summary.total_tokens_per_s)
    row("1 / median TPOT", "tok/s/user", lambda summary: summary.tokens_per_s_per_user)
    header = ("throughput", "likely", ends_words(answer.levels))
    return TextTable(caption="Throughput [95 % interval]", header=header, rows=tuple(rows))


_PART_WORDS: Final = {
    "network": ("network, there and back", "not simulated: --network DURATION"),
    "front_end": ("front end: HTTP, tokenising", "not known of these step times"),
    "queue": ("queue at the engine", ""),
    "window": ("window", "none, or inseparable from the queue"),
    "prefill": ("prefill, preemptions included", ""),
    "handover": ("KV cache to the decode replica", ""),
    "decode": ("decode", ""),
    "post": ("post: detokenising, handing out", "not simulated: --post DURATION"),
}


def _e2e_parts(parts: run_series.E2eParts) -> TextTable:
    """Parts of the mean E2E; parts that were not simulated are named."""
    rows = list[tuple[str, ...]]()
    for name in run_series.PART_NAMES:
        words, absent = _PART_WORDS[name]
        seconds: float | None = getattr(parts, f"{name}_s")
        if seconds is None and not absent:
            continue  # nobody's answer is computed elsewhere
        if seconds is None:
            rows.append((words, ABSENT_TEXT, absent))
        else:
            share = seconds / parts.total_s if parts.total_s else 0.0
            rows.append((words, format_duration(seconds), f"{share:.0%}"))
    rows.append(("E2E", format_duration(parts.total_s), f"{parts.n_requests:,} requests"))
    return TextTable(
        caption="E2E, part by part", header=("part", "mean", "share"), rows=tuple(rows)
    )


def _classes(classes: tuple[request_summaries.RequestSummary, ...]) -> TextTable:
    rows = list[tuple[str, ...]]()
    for one in classes:
        latencies = [
            request_tables.percentile_text(one.latency(name).percentile(0.95))
            for name in _OF_CLASSES
        ]
        output = request_tables.rate_text(one.output_tokens_per_s, "tok/s")
        rows.append((one.name, f"{one.n_requests:,}", *latencies, output))
    header = ("class", "requests", "p95 TTFT", "p95 TPOT", "p95 E2E", "output")
    return TextTable(caption="Class by class", header=header, rows=tuple(rows))


def _groups(groups: tuple[simulated_record.GroupView, ...]) -> TextTable:
    rows = list[tuple[str, ...]]()
    for one in groups:
        where, found = one.deployment, one.summary
        latencies = [
            request_tables.percentile_text(
                None if found is None else found.latency(name).percentile(0.95)
            )
            for name in _OF_CLASSES
        ]
        output = request_tables.rate_text(
            None if found is None else found.output_tokens_per_s, "tok/s"
        )
        n_requests = "0" if found is None else f"{found.n_requests:,}"
        rows.append((one.name, str(where.n_replicas), one.rule, n_requests, *latencies, output))
    header = ("group", "replicas", "gets", "requests", "p95 TTFT", "p95 TPOT", "p95 E2E", "output")
    return TextTable(caption="Group by group", header=header, rows=tuple(rows))


def _replicas(answer: simulation.SimulateAnswer) -> TextTable:
    rows = list[tuple[str, ...]]()
    for one in answer.replicas:
        cached = (
            f"{one.cached_tokens / one.prompt_tokens:.0%}" if one.prompt_tokens else ABSENT_TEXT
        )
        counts = (
            f"{one.n_requests:,}",
            f"{one.prompt_tokens:,}",
            cached,
            f"{one.output_tokens:,}",
            f"{one.n_preemptions:,}",
        )
        rows.append((str(one.replica), _ROLES[one.role], *counts, f"{one.busy_fraction:.0%}"))
    header = (
        *("replica", "for", "requests", "input tok", "cached", "output tok", "preempted"),
        "busy",
    )
    return TextTable(caption="Replica by replica", header=header, rows=tuple(rows))


def _eviction_words(found: list[simulation.Evictions]) -> str:
    """Rate of evictions from the prefix cache, at likely and at other step times."""
    likely, rates = found[0], [one.blocks_per_s for one in found]
    if not max(rates):
        return "evicted nothing: what was cached stayed"
    ends = f"{format_number(min(rates))}, {format_number(max(rates))}"
    interval = f" [{ends}]" if len(rates) > 1 else ""
    return (
        f"{format_number(likely.blocks_per_s)}{interval} KV blocks/s evicted for others"
        f" ({format_bytes(likely.bytes_per_s)}/s), {likely.n_blocks:,} in all"
    )


def _memory_words(
    memory: run_series.StepMemorySummary, deployment: simulated_record.DeploymentView
) -> str:
    """Use of the KV cache, in words."""
    n_blocks, block_bytes = deployment.n_kv_blocks, deployment.kv_block_bytes
    mean, peak = memory.mean_used_blocks, memory.peak_used_blocks
    line = (
        f"{mean:,} of {n_blocks:,} KV blocks used on average ({format_bytes(mean * block_bytes)}"
        f" of {format_bytes(n_blocks * block_bytes)}), {peak:,} at most,"
        f" {format_bytes((n_blocks - peak) * block_bytes)} always free"
    )
    if (
        memory.mean_fragmented_fraction is not None
        and memory.waits_for_compaction_fraction is not None
    ):
        line += (
            f"; {memory.mean_fragmented_fraction:.0%} of what was free lay outside the largest"
            " hole, "
        )
        line += (
            f"and for {memory.waits_for_compaction_fraction:.0%} of the time a request waited that"
            " compaction would have admitted"
        )
    if memory.moved_blocks is not None:
        line += (
            f"; {memory.moved_blocks:,} blocks ({format_bytes(memory.moved_blocks * block_bytes)})"
            " moved in the background"
        )
    return (
        line
        if memory.swapped_blocks is None
        else f"{line}; {memory.swapped_blocks:,} blocks swapped"
    )


def _block_words(view: simulated_record.DeploymentView) -> str:
    low, high = view.n_kv_blocks_low, view.n_kv_blocks_high
    return f"{view.n_kv_blocks:,}" + f" [{low:,}, {high:,}]" * (low < high)


def _transfer_facts(view: simulated_record.DisaggregationView) -> list[tuple[str, str]]:
    """Facts on KV transfers."""
    moved = view.transfers
    link = f"{format_number(view.link_bytes_per_s / 1e9)} GB/s, {view.link_from}"
    means = (
        (moved.mean_room_wait_s, "for room"),
        (moved.mean_link_wait_s, "for the link"),
        (moved.mean_moving_s, "moving"),
    )
    waits = ", ".join(
        f"{format_duration(seconds)} {what}" for seconds, what in means if seconds is not None
    )
    percentiles = () if view.handovers is None else view.handovers.percentiles
    spread = ", ".join(
        f"p{one.percentile_fraction * 100:g} {format_duration(one.seconds.value)}"
        for one in percentiles
    )
    prefill = (
        f"prompts on {counted(view.prefill.n_devices, 'device')} each,"
        f" {_block_words(view.prefill)} KV blocks"
    )
    shape = "shared by all" if view.link_shape == "shared" else "at each replica"
    return [
        (
            "KV caches moved",
            (
                f"{moved.n_received:,} of {moved.n_transfers:,}, {format_bytes(moved.moved_bytes)};"
                f" in the mean {waits}; from the prefill's end to the arrival {spread}; the busiest"
                f" port was taken {moved.busiest_port_fraction:.0%} of the time"
            ),
        ),
        ("link", f"{link} {shape}"),
        (
            "first token",
            f"given by {view.answer_begins_at}; {prefill}, {view.prefill.kv_blocks_from}",
        ),
    ]


def _origins(answer: simulation.SimulateAnswer) -> list[tuple[str, str]]:
    where, workload, likely = answer.deployment, answer.workload, answer.levels[0].summary
    counts = ", ".join(f"{n:,} {status}" for status, n in likely.n_by_status)
    preempted = "" if likely.n_preemptions is None else f"; {likely.n_preemptions:,} preemptions"
    lengths = (
        f"{workload.n_requests:,} requests, prompts of {format_number(workload.prompt.mean_tokens)} tokens"
        f" in the mean, outputs of {format_number(workload.output.mean_tokens)};"
        f" {workload.shared_prefix_fraction:.0%} of prompt tokens seen before"
    )
    servers = [(f" ({one.name})", one.deployment) for one in answer.groups] or [("", where)]
    return [
        ("requested", lengths),
        ("ended", f"{counts}{preempted}"),
        *((f"step times{name}", one.step_times_from) for name, one in servers),
        *(
            (
                f"KV blocks{name}",
                f"{_block_words(one)} ({one.n_kv_tokens:,} tokens), {one.kv_blocks_from}",
            )
            for name, one in servers
        ),
        ("scheduler", where.engine),
        *([] if answer.gate is None else [("gate", cluster.gate_text(answer.gate))]),
    ]


def _offered_per_s(answer: simulation.SimulateAnswer) -> float | None:
    """The offered rate; None in a closed loop, whose rate is a result."""
    return (
        None
        if answer.workload.rate_per_s is None
        else answer.levels[0].summary.offered_requests_per_s
    )


def _p95(summary: request_summaries.RequestSummary, name: Latency) -> str:
    return known_cell(
        summary.latency(name).percentile(0.95),
        lambda found: (
            f"{'≥ ' if found.is_lower_bound else ''}{format_duration(found.seconds.value)}"
        ),
    )


# Which two of the plausible servers are the ends of a number, and what are they called?


def are_draws(levels: Sequence[simulation.Level]) -> bool:
    """Are these draws of servers (not the two ends of the step times)?"""
    return any(level.step_times == "draw" for level in levels)


def ends_words(levels: Sequence[simulation.Level]) -> str:
    """Column headings of the two ends."""
    return f"least … most of {len(levels) - 1} draws" if are_draws(levels) else "fast … slow"


def ends_of_latency(levels: Sequence[simulation.Level], name: Latency) -> list[simulation.Level]:
    """Levels with the lowest and the highest p95 of this latency."""
    return _ends(levels, partial(_p95_s, name=name))


def ends_of_rate(
    levels: Sequence[simulation.Level],
    of: Callable[[request_summaries.RequestSummary], Estimate | None],
) -> list[simulation.Level]:
    """Levels with the lowest and the highest rate."""
    return _ends(levels, lambda summary: _per_s(of(summary)))


def _ends(
    levels: Sequence[simulation.Level], of: Callable[[request_summaries.RequestSummary], float]
) -> list[simulation.Level]:
    others = list(levels[1:])
    if not are_draws(levels):
        return others
    ordered = sorted(others, key=lambda level: of(level.summary))
    return [ordered[0], ordered[-1]]


def _p95_s(summary: request_summaries.RequestSummary, name: Latency) -> float:
    found = summary.latency(name).percentile(0.95)
    return math.inf if found is None else found.seconds.value


def _per_s(estimate: Estimate | None) -> float:
    return -math.inf if estimate is None else estimate.value
