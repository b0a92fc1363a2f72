"""How does a simulation look in the terminal: the answer, its latencies, then what it rests on?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.api import deployment_view, simulation
from inferometer.api.gate import gate_text
from inferometer.api.simulation import Level
from inferometer.records import latencies, request_summaries, step_memory
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import RequestSummary
from inferometer.report import request_tables
from inferometer.report.request_words import percentile_text, rate_text
from inferometer.simulate.replica_shares import Role
from inferometer.stats.estimate import Estimate
from inferometer.units import format_bytes, format_duration, format_number

_SHOWN: Final[tuple[tuple[latencies.Latency, str], ...]] = (
    ("ttft", "TTFT"),
    ("tpot", "TPOT"),
    ("e2e", "E2E"),
    ("queue", "queue"),
)
_FRACTIONS: Final = (0.5, 0.95, 0.99)
_HEADLINE: Final[tuple[latencies.Latency, ...]] = ("ttft", "tpot")
_OF_CLASSES: Final[tuple[latencies.Latency, ...]] = ("ttft", "tpot", "e2e")
_ABSENT: Final = "–"
_ROLES: Final[dict[Role, str]] = {"both": "all", "prefill": "prompts", "decode": "answers"}


def simulate_text(answer: simulation.SimulateAnswer) -> RenderableType:
    """The whole answer."""
    likely = answer.levels[0]
    parts: list[RenderableType] = [Text(_headline(answer), style="bold")]
    parts += [Text(line) for line in _verdict_lines(answer)]
    parts += [Text(""), _latencies(answer), Text(""), _rates(answer)]
    if answer.classes:
        parts += [Text(""), _classes(answer.classes)]
    if answer.replicas:
        parts += [Text(""), _replicas(answer)]
    if answer.disaggregation is not None:
        parts += [Text(""), *(Text(line) for line in _transfer_lines(answer.disaggregation))]
    if answer.memory is not None:
        parts += [Text(""), Text(_memory_line(answer.memory, answer.deployment.n_kv_blocks))]
    parts += [Text(line) for line in _promise_lines(answer)]
    parts += [Text(""), *(Text(line) for line in _origins(answer))]
    parts += [Text(f"CAUTION {caution.text} – {caution.remedy}") for caution in answer.cautions]
    if answer.record is not None:
        parts.append(Text(f"RECORD {answer.record}"))
    if likely.summary.latency("ttft").n_bounded_below_only:
        parts.append(
            Text(
                "≥ marks means and percentiles that belong to requests that were not done: they"
                " took at least so long"
            )
        )
    return Group(*parts)


def _headline(answer: simulation.SimulateAnswer) -> str:
    where, likely = answer.deployment, answer.levels[0].summary
    devices = f"{where.n_devices} x " if where.n_devices > 1 else ""
    layout = f" ({where.parallelism})" if where.n_devices > where.tensor_parallel_size else ""
    on = f" on {devices}{where.hardware}{layout}" if where.hardware else ""
    rate = f": {rate_text(likely.completed_requests_per_s, 'requests/s')}"
    offered_per_s = _offered_per_s(answer)
    offered = "" if offered_per_s is None else f" of {format_number(offered_per_s)} offered"
    ttft, tpot = (percentile_text(likely.latency(name).percentile(0.95)) for name in _HEADLINE)
    if answer.disaggregation is not None:
        on += (
            f", {answer.disaggregation.prefill.n_replicas} replicas for prompts and"
            f" {where.n_replicas} for answers"
        )
    elif where.n_replicas > 1:
        together = " that share experts" if where.data_parallel_size > 1 else ""
        on += f", {where.n_replicas} replicas{together} behind {where.router}"
    weights = "" if where.quantization is None else f"{where.quantization} weights, else "
    return (
        f"ANSWER {where.model_id} {weights}{where.dtype}{on},"
        f" {answer.workload_name}{rate}{offered}; p95 TTFT {ttft}, TPOT {tpot}"
    )


def _verdict_lines(answer: simulation.SimulateAnswer) -> list[str]:
    judged = [
        (level.step_times, level.judgement)
        for level in answer.levels
        if level.judgement is not None
    ]
    if answer.verdict is None or not judged:
        return []
    lines = [f"SLO    {answer.verdict}{_why_open(answer)}"]
    for pace, judgement in judged:
        if judgement.weakest is not None and pace != "draw":
            weakest = judgement.weakest
            lines.append(
                f"       {pace} step times: {judgement.verdict}; weakest {weakest.threshold.text}:"
                f" {weakest.why}"
            )
    lines += (
        [f"       draws: {verdicts_of_draws(answer.levels)}"] if are_draws(answer.levels) else []
    )
    lines.append(f"       {request_tables.goodput_text(judged[0][1])}")
    return [*lines, *([f"NEXT   {answer.next_step}"] if answer.next_step else [])]


def _why_open(answer: simulation.SimulateAnswer) -> str:
    """What would decide an open verdict: step times that are known better, or more requests?"""
    if answer.verdict != "undecided":
        return ""
    verdicts = {level.judgement.verdict for level in answer.levels if level.judgement is not None}
    if {"met", "missed"} <= verdicts:
        return (
            ": it is met or missed with how long steps take; a fit of this device and engine (--fit"
            " FILE) decides it"
        )
    return ": the simulated requests are too few to tell (a larger --requests)"


def _latencies(answer: simulation.SimulateAnswer) -> RenderableType:
    table = Table(
        "latency",
        "mean",
        *(f"p{fraction * 100:g}" for fraction in _FRACTIONS),
        f"p95, {ends_words(answer.levels)}",
        box=None,
        pad_edge=False,
    )
    likely = answer.levels[0].summary
    for name, label in _SHOWN:
        ends = " … ".join(
            _p95(level.summary, name) for level in ends_of_latency(answer.levels, name)
        )
        shown = (
            likely.latency(name).mean,
            *(likely.latency(name).percentile(fraction) for fraction in _FRACTIONS),
        )
        table.add_row(label, *(percentile_text(one) for one in shown), ends)
    return table


def _rates(answer: simulation.SimulateAnswer) -> RenderableType:
    table = Table("throughput", "likely", ends_words(answer.levels), box=None, pad_edge=False)

    def row(
        label: str, unit: str, of: Callable[[request_summaries.RequestSummary], Estimate | None]
    ) -> None:
        ends = (of(level.summary) for level in ends_of_rate(answer.levels, of))
        table.add_row(
            label,
            rate_text(of(answer.levels[0].summary), unit),
            " … ".join(_shown(end) for end in ends),
        )

    row("completed", "requests/s", lambda summary: summary.completed_requests_per_s)
    row("output", "tok/s", lambda summary: summary.output_tokens_per_s)
    row("input and output", "tok/s", lambda summary: summary.total_tokens_per_s)
    row("1 / median TPOT", "tok/s/user", lambda summary: summary.tokens_per_s_per_user)
    return table


def _classes(classes: tuple[request_summaries.RequestSummary, ...]) -> RenderableType:
    table = Table(
        "class", "requests", "p95 TTFT", "p95 TPOT", "p95 E2E", "output", box=None, pad_edge=False
    )
    for one in classes:
        latencies = [percentile_text(one.latency(name).percentile(0.95)) for name in _OF_CLASSES]
        table.add_row(
            one.name, f"{one.n_requests:,}", *latencies, rate_text(one.output_tokens_per_s, "tok/s")
        )
    return table


def _promise_lines(answer: simulation.SimulateAnswer) -> list[str]:
    """What each class was promised, and was it kept?"""
    lines = list[str]()
    for one in answer.promises:
        weakest = one.likely.weakest
        why = "" if weakest is None else f"; weakest {weakest.threshold.text}: {weakest.why}"
        lines.append(
            f"SLO    {one.name}: {one.verdict}{why}; {request_tables.goodput_text(one.likely)}"
        )
    return lines


def _replicas(answer: simulation.SimulateAnswer) -> RenderableType:
    table = Table(
        "replica",
        "for",
        "requests",
        "input tok",
        "cached",
        "output tok",
        "preempted",
        "busy",
        box=None,
        pad_edge=False,
    )
    for one in answer.replicas:
        cached = f"{one.cached_tokens / one.prompt_tokens:.0%}" if one.prompt_tokens else _ABSENT
        counts = (
            f"{one.n_requests:,}",
            f"{one.prompt_tokens:,}",
            cached,
            f"{one.output_tokens:,}",
            f"{one.n_preemptions:,}",
        )
        table.add_row(str(one.replica), _ROLES[one.role], *counts, f"{one.busy_fraction:.0%}")
    return table


def _memory_line(memory: step_memory.StepMemorySummary, n_kv_blocks: int) -> str:
    """How well was the KV cache used?"""
    line = (
        f"MEMORY {memory.mean_used_blocks:,} of {n_kv_blocks:,} KV blocks used on average,"
        f" {memory.peak_used_blocks:,} at most"
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
            f"and for {memory.waits_for_compaction_fraction:.0%} of the time somebody waited whom"
            " moving pieces would have let in"
        )
    return (
        line
        if memory.swapped_blocks is None
        else f"{line}; {memory.swapped_blocks:,} blocks swapped"
    )


def _transfer_lines(view: deployment_view.DisaggregationView) -> list[str]:
    """How did the KV caches travel?"""
    moved, link = (
        view.transfers,
        f"{format_number(view.link_bytes_per_s / 1e9)} GB/s, {view.link_from}",
    )
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
        f"prompts on {view.prefill.n_devices} devices each, {view.prefill.n_kv_blocks:,} KV blocks"
    )
    return [
        (
            f"MOVED  {moved.n_received:,} of {moved.n_transfers:,} KV caches,"
            f" {format_bytes(moved.moved_bytes)}; in the mean {waits}"
        ),
        (
            f"       from the prefill's end to the arrival {spread}; the busiest port was taken"
            f" {moved.busiest_port_fraction:.0%} of the time"
        ),
        f"LINK   {link}{' shared by all' if view.link_shape == 'shared' else ' at each replica'}",
        f"FIRST  token given by {view.answer_begins_at}; {prefill}, {view.prefill.kv_blocks_from}",
    ]


def _origins(answer: simulation.SimulateAnswer) -> list[str]:
    where, asked, likely = answer.deployment, answer.workload, answer.levels[0].summary
    offered_per_s = _offered_per_s(answer)
    rate = (
        f", concurrency {asked.n_requests - asked.n_followers}"
        if asked.rate_per_s is None and asked.n_followers
        else ""
    )
    rate = rate if offered_per_s is None else f", {format_number(offered_per_s)}/s offered"
    counts = ", ".join(f"{n:,} {status}" for status, n in likely.n_by_status)
    preempted = "" if likely.n_preemptions is None else f"{likely.n_preemptions:,} preemptions; "
    lengths = (
        f"prompts of {format_number(asked.prompt.mean_tokens)} tokens in the mean, outputs of"
        f" {format_number(asked.output.mean_tokens)}"
    )
    return [
        (
            f"ASKED  {asked.n_requests:,} requests{rate}: {lengths};"
            f" {asked.shared_prefix_fraction:.0%} of prompt tokens seen before"
        ),
        f"ENDED  {counts}; {preempted}{format_duration(likely.span_s)} in all",
        f"STEPS  {where.step_times_from}",
        f"KV     {where.n_kv_blocks:,} blocks, {where.kv_blocks_from}",
        f"RULES  {where.engine}",
        *([] if answer.gate is None else [f"GATE   {gate_text(answer.gate)}"]),
    ]


def _offered_per_s(answer: simulation.SimulateAnswer) -> float | None:
    """The offered rate; None of a closed loop, which offers what the server takes."""
    return (
        None
        if answer.workload.rate_per_s is None
        else answer.levels[0].summary.offered_requests_per_s
    )


def _p95(summary: request_summaries.RequestSummary, name: latencies.Latency) -> str:
    found = summary.latency(name).percentile(0.95)
    return (
        _ABSENT
        if found is None
        else f"{'≥ ' if found.is_lower_bound else ''}{format_duration(found.seconds.value)}"
    )


def _shown(estimate: Estimate | None) -> str:
    return _ABSENT if estimate is None else format_number(estimate.value)


# Which two of the servers that may be the one are the ends of a number, and what are they called?


def are_draws(levels: Sequence[Level]) -> bool:
    """Were servers drawn, or are these both ends of the step times?"""
    return any(level.step_times == "draw" for level in levels)


def ends_words(levels: Sequence[Level]) -> str:
    """What the ends are called at the head of a column."""
    return f"least … most of {len(levels) - 1} draws" if are_draws(levels) else "fast … slow"


def ends_of_latency(levels: Sequence[Level], name: Latency) -> list[Level]:
    """Where this latency's 95th percentile is least and most; at fast and slow step times where none were drawn."""
    return _ends(levels, partial(_p95_s, name=name))


def ends_of_rate(
    levels: Sequence[Level], of: Callable[[RequestSummary], Estimate | None]
) -> list[Level]:
    """The same of a rate."""
    return _ends(levels, lambda summary: _per_s(of(summary)))


def verdicts_of_draws(levels: Sequence[Level]) -> str:
    """How many draws keep the promise?"""
    drawn = Counter(
        level.judgement.verdict
        for level in levels
        if level.step_times == "draw" and level.judgement is not None
    )
    return ", ".join(f"{n} {verdict}" for verdict, n in drawn.most_common())


def _ends(levels: Sequence[Level], of: Callable[[RequestSummary], float]) -> list[Level]:
    others = list(levels[1:])
    if not are_draws(levels):
        return others
    ordered = sorted(others, key=lambda level: of(level.summary))
    return [ordered[0], ordered[-1]]


def _p95_s(summary: RequestSummary, name: Latency) -> float:
    found = summary.latency(name).percentile(0.95)
    return math.inf if found is None else found.seconds.value


def _per_s(estimate: Estimate | None) -> float:
    return -math.inf if estimate is None else estimate.value
