"""What is shown of a run of requests: every surface (terminal, HTML) draws this one view."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from inferometer import __version__, suggestions
from inferometer.api import online_view, provenance, request_chart_views, server_device
from inferometer.api.run_titles import title_of
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.records import (
    latencies,
    request_summaries,
    run_series,
    server_summaries,
    slo_verdicts,
    slot_timeline,
    types,
)
from inferometer.report import online_tables, request_tables, request_views, server_tables, views
from inferometer.units import format_number

REPORT_NAME: Final = "report.html"
LEAD_CODES: Final = ("PARTIAL", "overload", "stuck", "livelock", "INVALID", "DAMAGED_RECORD")
"""Cautions of these codes stand before the answer, in this order: without them it would be
misread."""
TIMELINE_STEPS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQuestion:
    """What is asked of a run of requests, beside the run?"""

    objective: ObjectiveSpec | None = None
    class_names: tuple[str, ...] = ()
    """Of ``requests.class_index``; where they are not known, classes are numbered."""
    n_kv_blocks: int | None = None
    """Where the manifest does not say how many the engine had."""
    first_step: int = 0
    """Where the slot timeline begins."""
    n_steps: int = TIMELINE_STEPS
    device: server_device.ServerDevice | None = None
    """Of the server that was loaded."""


def request_view(
    run: types.Run,
    question: RequestQuestion | None = None,
    *,
    path: Path | None = None,
    report_path: Path | None = None,
) -> request_views.RequestReportView:
    """All that is to be shown of a run of requests.

    Raises
    ------
    RecordError
        The run has no requests, or no such step.
    """
    asked = RequestQuestion() if question is None else question
    whole = request_summaries.summarise_requests(run)
    judgement = (
        None if asked.objective is None else slo_verdicts.judge_objective(run, asked.objective)
    )
    online = online_view.online_view(run, asked.device)
    steady = None if online is None else online.steady
    parts = request_chart_views.first_token_parts(run, online)
    load = (
        None
        if run.steps is None or not len(run.steps.start_ns)
        else run_series.step_series(run.steps)
    )
    order = {code: rank for rank, code in enumerate(LEAD_CODES)}
    lead = tuple(
        sorted(
            (one for one in run.manifest.cautions if one.code in order),
            key=lambda one: order[one.code],
        )
    )
    return request_views.RequestReportView(
        title=title_of(run),
        subtitle=f"{run.manifest.origin} · {whole.n_requests:,} requests",
        five_lines=views.FiveLines(
            answer=_answer(whole, judgement),
            limit=_limit(load, whole, _n_kv_blocks(run, asked), online, parts),
            next=_next(lead, judgement, path, online, has_page=report_path is not None),
            trust=_trust(run, whole, online),
            report=_files(path, report_path),
        ),
        summaries=(
            whole,
            *online_view.steady_summaries(run, online),
            *_classes(run, asked.class_names),
        ),
        judgement=judgement,
        handovers=latencies.summarise_handovers(run),
        tails=request_chart_views.tails(run),
        history=request_chart_views.history(run, steady=steady),
        tpot_history=(
            None if online is None else request_chart_views.history(run, "tpot", steady=steady)
        ),
        load=load,
        memory=run_series.summarise_memory(run),
        holes=run_series.hole_series(run),
        swapped_blocks=run_series.swap_series(run),
        online=online,
        gaps=request_chart_views.gaps(run),
        ttft_parts=parts,
        concurrency=request_summaries.concurrency_of(run),
        n_kv_blocks=_n_kv_blocks(run, asked),
        timeline=(
            None
            if run.steps is None or run.parts is None or not len(run.steps.start_ns)
            else slot_timeline.slot_timeline(
                run, first_step=asked.first_step, n_steps=asked.n_steps
            )
        ),
        lead_cautions=lead,
        cautions=tuple(one for one in run.manifest.cautions if one not in lead),
        fact_groups=provenance.fact_groups(run, run.manifest.run_id),
        files=() if path is None else provenance.data_files(path),
        rerun_command=provenance.rerun_command(run),
        tool_version=__version__,
    )


def _classes(run: types.Run, names: Sequence[str]) -> tuple[request_summaries.RequestSummary, ...]:
    """Each class, where there is more than one."""
    index = request_chart_views.requests_of(run).class_index
    n_classes = int(index.max(initial=0)) + 1
    if len(np.unique(index)) < 2:
        return ()
    known = [names[i] if i < len(names) else f"class {i}" for i in range(n_classes)]
    return request_summaries.summarise_groups(run, index, known)


def _answer(
    whole: request_summaries.RequestSummary, judgement: slo_verdicts.Judgement | None
) -> str:
    sentence = request_tables.summary_sentence(whole)
    if judgement is None or judgement.weakest is None:
        return sentence
    weakest = judgement.weakest
    return (
        f"{judgement.verdict.upper()}: weakest is {weakest.threshold.text}, {weakest.why}."
        f" {sentence}"
    )


def _limit(
    load: run_series.StepSeries | None,
    whole: request_summaries.RequestSummary,
    n_kv_blocks: int | None,
    online: request_views.OnlineView | None,
    first_token: server_summaries.TtftParts | None,
) -> str:
    """What was measured of concurrency, queue and memory.

    It names no limit that it cannot see, and none from numbers of no use.
    """
    if online is not None and online.validity.verdict == "INVALID":
        return (
            f"not known: the run is INVALID ({online.validity.reasons[0].text}), so that its"
            " numbers show no limit of the server."
        )
    if load is None and online is not None and online.server is not None:
        said = server_tables.limit_sentence(online.server, online.ttft_parts)
        if said is not None:
            return said
    if load is None and online is not None and online.in_flight is not None:
        return (
            f"at most {online.in_flight.most.max():.0f} requests were in flight at once; what"
            " limits the server a client cannot see."
        )
    if load is None:
        return (
            "not known: the run has no steps"
            if first_token is None
            else f"{server_tables.largest_part(first_token)}."
        )
    running, waiting = float(np.nanmax(load.n_running_max)), float(np.nanmax(load.n_waiting_max))
    parts = [] if first_token is None else [server_tables.largest_part(first_token)]
    parts += [
        f"at most {format_number(running)} requests ran and {format_number(waiting)} waited at once"
    ]
    has_blocks = not bool(np.isnan(load.kv_blocks_max).all())
    if has_blocks:
        peak = float(np.nanmax(load.kv_blocks_max))
        parts.append(
            f"{peak:,.0f}{f' of {n_kv_blocks:,}' if n_kv_blocks else ''} KV blocks used at most"
        )
    parts += [] if whole.n_preemptions is None else [f"{whole.n_preemptions:,} preemptions"]
    return "; ".join(parts) + "."


def _next(
    lead: Sequence[types.Caution],
    judgement: slo_verdicts.Judgement | None,
    path: Path | None,
    online: request_views.OnlineView | None,
    *,
    has_page: bool,
) -> str:
    if lead:
        return lead[0].remedy
    if online is not None and online.validity.reasons[0].remedy:
        return online.validity.reasons[0].remedy
    if judgement is not None and judgement.verdict == "undecided":
        return "a longer run, or several: this one cannot tell"
    run = "RUN" if path is None else path
    if has_page and online is not None:
        return f"what would another load do here? {suggestions.command('fit', '--load', run)}"
    return suggestions.command("report", run)


def _trust(
    run: types.Run, whole: request_summaries.RequestSummary, online: request_views.OnlineView | None
) -> str:
    undone = whole.n_of(types.RequestStatus.UNFINISHED)
    refused = whole.n_of(types.RequestStatus.REJECTED, types.RequestStatus.FAILED)
    parts = [
        (
            f"{run.manifest.origin}; 95 % intervals, in which requests of one run are not taken to be"
            " independent"
        )
    ]
    parts += (
        [
            (
                f"{undone:,} of {whole.n_requests:,} requests were not done: where they matter"
                " percentiles are lower bounds (≥)"
            )
        ]
        if undone
        else []
    )
    parts += [f"{refused:,} were refused or failed and have no latency"] if refused else []
    parts += [] if online is None else [_continued(online_tables.steady_sentence(online.steady))]
    others = [caution.code for caution in run.manifest.cautions]
    parts += [f"cautions: {', '.join(dict.fromkeys(others))}"] if others else []
    return "; ".join(parts) + "."


def _continued(sentence: str) -> str:
    """The sentence within another."""
    return sentence[0].lower() + sentence[1:].rstrip(".")


def _files(path: Path | None, report_path: Path | None) -> str:
    shown = "none yet" if report_path is None else str(report_path)
    return shown + ("" if path is None else f"   DATA {path}")


def _n_kv_blocks(run: types.Run, asked: RequestQuestion) -> int | None:
    """Of all replicas together."""
    engine = run.manifest.engine
    of_each = (
        asked.n_kv_blocks if engine is None or engine.n_kv_blocks is None else engine.n_kv_blocks
    )
    n_replicas = 1 if run.steps is None else len(np.unique(run.steps.replica))
    return None if of_each is None else of_each * n_replicas
