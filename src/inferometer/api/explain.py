"""inferometer explain: where does the time of each measured point go, or of a profiled device?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from inferometer import suggestions
from inferometer.api.analysis import Analysis
from inferometer.api.answer import Answer
from inferometer.api.explain_spans import SpansAnswer, explain_spans
from inferometer.api.explain_trace import (
    CountersAnswer,
    TraceAnswer,
    explain_counters,
    explain_traces,
)
from inferometer.api.fit_views import explained, fitted_beside, held_out_rows, single_decode
from inferometer.api.runs import Runs, analyses_of, load_sweeps, shown_of, stated_facts
from inferometer.errors import ModelError, SpecError
from inferometer.inputs.spans import is_spans_file
from inferometer.perfmodel.types import prefill_shape
from inferometer.records import device_time, device_trace, pitfalls, summaries
from inferometer.report import sweep_page, tables
from inferometer.report.charts.time_parts import (
    SHARE_NAMES,
    decode_time_chart,
    prefill_time_chart,
)
from inferometer.report.page import Page, Section, lines_of
from inferometer.report.views import Explained, FiveLines, HeldOutRow, SweepReportView
from inferometer.units import format_duration, format_fraction

_LAUNCHES: Final = "launch"
_SHORT_NAMES: Final = {
    "attention": "attn",
    "per_sequence": "seqs",
    "communication": "comm",
    "unexplained": "rest",
    "kv": "KV",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainAnswer(Answer):
    """Parts of each step's time, and the held-out error of the model behind them."""

    table = "explained"

    explained: tuple[Explained, ...]
    held_out: tuple[HeldOutRow, ...]
    checks: tuple[pitfalls.CheckRow, ...]
    """Pitfalls that the steps of all points show together."""
    paired: summaries.StepShares | None
    """One sequence's decode step by paired rounds, which tell launches from weights: better
    evidence of it than the fit of ``explained``. None where none were measured, or of several runs."""
    without_ceilings: tuple[str, ...] = ()
    """Runs without a measured bandwidth: points alone hardly tell launches from weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain:
    """The sweeps whose steps are explained, traces of a profiler, spans of requests, or device counters."""

    runs: Runs
    given: frozenset[str] = frozenset()


AnyExplanation: TypeAlias = ExplainAnswer | TraceAnswer | SpansAnswer | CountersAnswer


def explain(question: Explain) -> AnyExplanation:
    """Parts of the time of each measured point, of a profiled device, or of traced requests.

    Of a trace of the PyTorch profiler or of Nsight Systems: which kernels, and which idle time.
    Of OpenTelemetry spans: schedule delay, network, router, queue, prefill, decode.
    Of device counters (DCGM, dmon): SM and DRAM activity, bytes over PCIe and NVLink.

    Raises
    ------
    RecordError, SpecError
        A run or trace cannot be read, or is none of a sweep.
    ModelError
        There are too few points for a model.
    """
    for kind, is_one, explained_as in _FILES:
        files = [path for path in question.runs.runs if is_one(path)]
        if files and len(files) == len(question.runs.runs):
            _check_plain(question.runs, kind)
            return explained_as(question.runs.runs)
        if files:
            raise SpecError(
                f"{files[0]} is {kind}, and others are not",
                where="RUN...",
                allowed="runs of sweeps, or traces of profilers, files of spans or of counters",
                try_=suggestions.command("explain", files[0]),
            )
    request = shown_of(question.runs)
    analyses = analyses_of(request, load_sweeps(request, otherwise="inferometer show"))
    for analysis in analyses:
        if analysis.model is None:
            raise ModelError(
                f"no model can be fitted: {analysis.why_no_model}",
                where=str(analysis.path),
                try_="a sweep with more points"
                if analysis.run.manifest.model
                else "for a table: --model MODEL --dtype FORMAT",
            )
    rows = tuple(row for analysis in analyses for row in explained(analysis))
    return ExplainAnswer(
        explained=rows,
        held_out=tuple(row for analysis in analyses for row in held_out_rows(analysis)),
        checks=(launch_check(rows, analyses), logits_check(analyses)),
        paired=analyses[0].steps if len(analyses) == 1 else None,
        without_ceilings=tuple(
            str(one.path) for one in analyses if one.run.ceilings is None and one.hardware is None
        ),
    )


def _check_plain(options: Runs, kind: str) -> None:
    """Refuse options of sweeps for a file that has nothing for them."""
    stated = list(stated_facts(options))
    stated += ["--hardware"] * (options.hardware is not None)
    stated += ["--skip-damaged"] * options.skip_damaged
    if stated:
        raise SpecError(
            f"{stated[0]} is of sweeps, and {options.runs[0]} is {kind}",
            where=", ".join(stated),
            allowed="the file alone",
            try_=suggestions.command("explain", *options.runs),
        )


def launch_check(rows: Sequence[Explained], analyses: Sequence[Analysis] = ()) -> pitfalls.CheckRow:
    """Launches of the decode time of all points; *not reported* where their model has none.

    Its interval is that of the launches of a step, in each run's model.
    """
    decode = [row for row in rows if row.phase == "decode"]
    parts = [
        (row.run_label, part.duration_s)
        for row in decode
        for part in row.parts
        if part.name == _LAUNCHES
    ]
    if not parts:
        return pitfalls.judged("launch_bound", None)
    whole_s = sum(row.measured_s.value for row in decode)
    share = sum(part_s for _, part_s in parts) / whole_s
    ends = {one.label: _launches_ends(one) for one in analyses}
    low, high = (
        sum(part_s * ends.get(label, (1.0, 1.0))[end] for label, part_s in parts) / whole_s
        for end in (0, 1)
    )
    if low == high:
        return pitfalls.judged("launch_bound", share)
    low, high = min(low, 1.0), min(high, 1.0)
    evidence = f"{share:.0%} of the time [{low:.0%} to {high:.0%}]"
    return pitfalls.judged("launch_bound", share, evidence, interval=(low, high))


def _launches_ends(analysis: Analysis) -> tuple[float, float]:
    """Ends of the interval of a step's launches, over their estimate."""
    fitted = () if analysis.model is None else analysis.model.parameters
    for one in fitted:
        seconds = one.estimate
        if one.name == "launch_s" and seconds.low is not None and seconds.high is not None:
            return seconds.low / seconds.value, seconds.high / seconds.value
    return 1.0, 1.0


def logits_check(analyses: Sequence[Analysis]) -> pitfalls.CheckRow:
    """Share of prefill time for logits that are not sampled.

    *Not reported* where the memory that prefills took does not show them: on a CPU nothing does.
    """
    whole_s = unwanted_s = 0.0
    for analysis in analyses:
        if analysis.model is None or not analysis.model.computes_all_logits:
            continue
        wanted = replace(analysis.model, computes_all_logits=False)
        for row in explained(analysis):
            if row.phase == "prefill":
                shape = prefill_shape(batch_size=row.batch_size, prompt_tokens=row.prompt_tokens)
                predicted = [
                    one.predict(shape).duration_s.value for one in (analysis.model, wanted)
                ]
                unwanted_s += predicted[0] - predicted[1]
                whole_s += row.measured_s.value
    return pitfalls.judged("all_logits", unwanted_s / whole_s if whole_s else None)


_FILES: Final[
    tuple[tuple[str, Callable[[Path], bool], Callable[[tuple[Path, ...]], AnyExplanation]], ...]
] = (
    ("a file of spans", is_spans_file, explain_spans),
    ("a file of device counters", device_time.is_counters_file, explain_counters),
    ("a profiler's trace", device_trace.is_trace, explain_traces),
)


def explain_page(answer: ExplainAnswer) -> Page:
    """A page with the largest parts first, then each point, then the model's error."""
    held_out = tables.held_out_text(answer.held_out) or "too few points to tell"
    view = SweepReportView(
        title="",
        subtitle="",
        five_lines=FiveLines(answer="", limit="", next="", trust="", report=""),
        points=(),
        explained=answer.explained,
    )
    charts = tuple(
        chart for build in (decode_time_chart, prefill_time_chart) if (chart := build(view))
    )
    paired = answer.paired
    fitted = "" if paired is None else fitted_beside(single_decode(answer.explained))
    return Page(
        title=headline(answer.explained) if paired is None else _paired_headline(answer, paired),
        numbers=sweep_page.share_numbers(paired),
        table=explained_table(answer.explained),
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("LIMIT", "" if paired is None else summaries.limit_sentence(paired)),
            ("WHY", f"{fitted}; the table has it for every point." if fitted else ""),
            ("ALSO", "; ".join(_pitfalls(answer))),
            ("TRUST", f"error of the model on points held out: {held_out}{_no_ceilings(answer)}"),
        ),
        sections=(Section(id="time", title="Where does the time go?", nav="Time", charts=charts),),
    )


def _pitfalls(answer: ExplainAnswer) -> list[str]:
    """Sentences of the pitfalls that are found, then of those that are undecided."""
    found = pitfalls.found_sentence(answer.checks)
    return [found] * bool(found) + [
        f"undecided whether {one.words}: {one.evidence} (limit {one.limit_ratio:.0%})"
        for one in answer.checks
        if one.finding == "undecided"
    ]


def _no_ceilings(answer: ExplainAnswer) -> str:
    """Why a table answers otherwise than the run that it was made of."""
    if not answer.without_ceilings:
        return ""
    run = suggestions.command("explain", "runs/NAME")
    return (
        f"; {', '.join(answer.without_ceilings)} lacks the memory bandwidth that a sweep measures"
        " beside its points, which tells launches from weights: the folder of the run has it"
        f" ({run})"
    )


def _paired_headline(answer: ExplainAnswer, paired: summaries.StepShares) -> str:
    """The measured shares of one sequence's step first, then the fitted ones of all points."""
    first = paired.parts[0]
    is_clear = "is mostly" if paired.limited_by else "has no cause clearly ahead, most is"
    share = f"{format_fraction(first.fraction.value)} in {paired.n_rounds} paired rounds"
    return (
        f"decode of one sequence {is_clear} {SHARE_NAMES[first.cause]} ({share}); by the fitted"
        f" model {headline(answer.explained)}"
    )


def explained_table(explained: Sequence[Explained]) -> tables.TextTable:
    """Parts of each point's time: a column for each, as a share of the measured time."""
    names = list(
        dict.fromkeys(part.name for row in explained for part in row.parts if part.duration_s)
    )
    has_runs = tables.has_several_runs(row.run_label for row in explained)
    rows = list[tuple[str, ...]]()
    for row in explained:
        seconds = {part.name: part.duration_s for part in row.parts}
        shares = (
            tables.ABSENT_TEXT
            if (part_s := seconds.get(name)) is None
            else f"{part_s / row.measured_s.value:z.0%}"
            for name in names
        )
        where = f"{row.prompt_tokens}×{row.batch_size}"
        run = (row.run_label,) if has_runs else ()
        rows.append((*run, row.phase, where, format_duration(row.measured_s.value), *shares))
    return tables.TextTable(
        caption="Where the time goes",
        header=(
            *(("run",) if has_runs else ()),
            *("phase", "in×batch", "measured"),
            *(_SHORT_NAMES.get(name, name) for name in names),
        ),
        rows=tuple(rows),
    )


def headline(explained: Sequence[Explained]) -> str:
    """The largest part of each phase, at its smallest and its largest point."""
    has_runs = tables.has_several_runs(row.run_label for row in explained)
    phases = dict[str, list[Explained]]()
    for row in explained:
        phases.setdefault(f"{row.run_label}: {row.phase}" if has_runs else row.phase, []).append(
            row
        )
    return "; ".join(f"{phase} is mostly {_ends(rows)}" for phase, rows in phases.items())


def _ends(rows: Sequence[Explained]) -> str:
    """``launch overhead (51 % of 54 ms) at 32×1, KV cache (37 % of 108 ms) at 1024×4``"""
    by_size = sorted(rows, key=lambda row: (row.prompt_tokens * row.batch_size, row.batch_size))
    return ", ".join(_largest(row) for row in dict.fromkeys((by_size[0], by_size[-1])))


def _largest(row: Explained) -> str:
    part = max(row.parts, key=lambda part: part.duration_s)
    share = format_fraction(part.duration_s / row.measured_s.value)
    return (
        f"{part.name} ({share} of {format_duration(row.measured_s.value)}) at"
        f" {row.prompt_tokens}×{row.batch_size}"
    )
