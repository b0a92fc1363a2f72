"""What is shown of a run of requests, and of the server that was loaded?

Every surface (terminal, HTML) draws this one view.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, get_args

import numpy as np

from inferometer import __version__, suggestions
from inferometer.api import provenance, run_titles
from inferometer.errors import RecordError, SpecError
from inferometer.fit.loads.load_tests import MIN_REQUESTS
from inferometer.inputs import catalog, synonyms
from inferometer.inputs.objectives import (
    ObjectiveSpec,
    check_workflows,
)
from inferometer.inputs.types import Caution, DType, HardwareSpec
from inferometer.records import (
    exchange_errors,
    kv_pools,
    latencies,
    request_summaries,
    run_series,
    server_summaries,
    slot_timeline,
    tool_views,
    types,
)
from inferometer.records.request_summaries import (
    RequestSummary,
    inter_token_summary,
    summarise_steady,
)
from inferometer.records.steady_state import SteadyState, steady_state
from inferometer.records.types import RequestTable, Run
from inferometer.records.validity import validity_of
from inferometer.report import online_tables, request_tables, views
from inferometer.report.views import LatencyHistory, LatencyTail, OnlineView, ServerUse
from inferometer.units import NS_PER_S, format_number

MAX_DOTS: Final = 600
"""More requests one by one tell nothing more and make pages heavy."""
TAILS: Final[tuple[latencies.Latency, ...]] = ("ttft", "tpot", "e2e")


def tails(run: Run) -> tuple[LatencyTail, ...]:
    """The tails of TTFT, TPOT and E2E, those that the run has."""
    at_ns = latencies.end_ns(run)
    found: list[LatencyTail] = []
    for latency in TAILS:
        samples = latencies.latency_samples(requests_of(run), latency, at_ns=at_ns)
        tail = latencies.tail_of(samples)
        if tail is not None:
            found.append(LatencyTail(latency=latency, n_samples=len(samples.rows), tail=tail))
    return tuple(found)


def history(
    run: Run, latency: latencies.Latency = "ttft", *, steady: SteadyState | None = None
) -> LatencyHistory | None:
    """A latency over the time of the run; None where no request has it."""
    requests = requests_of(run)
    samples = latencies.latency_samples(requests, latency, at_ns=latencies.end_ns(run))
    if not len(samples.rows):
        return None
    picked = np.unique(np.linspace(0, len(samples.rows) - 1, MAX_DOTS).astype(np.intp))
    return LatencyHistory(
        latency=latency,
        windows=run_series.latency_windows(requests, samples),
        n_requests=len(samples.rows),
        sent_s=requests.intended_send_ns[samples.rows[picked]] / NS_PER_S,
        lower_s=samples.lower_s[picked],
        is_bounded_below_only=np.isinf(samples.upper_s[picked]),
        steady_s=None if steady is None else (steady.start_ns / NS_PER_S, steady.end_ns / NS_PER_S),
    )


def gaps(run: Run) -> run_series.GapMap | None:
    """Gaps between tokens by request and time; None without recorded tokens."""
    if run.chunks is None and (run.steps is None or run.parts is None):
        return None
    return run_series.gap_map(requests_of(run), latencies.delivery_gaps(latencies.deliveries(run)))


def first_token_parts(run: Run, online: OnlineView | None) -> server_summaries.TtftParts | None:
    """Parts of TTFT.

    As the server's metrics say of a load test, as the engine recorded of another run.
    """
    return (
        server_summaries.engine_ttft_parts(requests_of(run))
        if online is None
        else online.ttft_parts
    )


def requests_of(run: Run) -> RequestTable:
    """The table of requests, which the run has."""
    if run.requests is None:
        raise ValueError("a run of requests has requests")
    return run.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDevice:
    """One of the server's accelerators, and the format in which it computes."""

    hardware: HardwareSpec
    dtype: DType = "bfloat16"


def server_device(text: str | None) -> ServerDevice | None:
    """The device that ``ID[:FORMAT]`` names.

    Raises
    ------
    SpecError
        The catalogue does not know it, or the format is none.
    """
    if text is None:
        return None
    name, has_format, dtype = text.partition(":")
    hardware = catalog.find_hardware(name)
    if not has_format:
        return ServerDevice(hardware=hardware)
    known = next((one for one in get_args(DType) if one == synonyms.known_format(dtype)), None)
    if known is None:
        raise SpecError(
            f"{dtype!r} is no number format",
            where="--server-hardware",
            allowed=", ".join(get_args(DType)),
        )
    return ServerDevice(hardware=hardware, dtype=known)


def use_of(
    server: server_summaries.ServerSummary | None, device: ServerDevice | None
) -> ServerUse | None:
    """Share of the datasheet's peaks that the server uses.

    None where the device is not given, or the server's metrics were not read.
    """
    if server is None or device is None:
        return None
    peak = device.hardware.peak_flop_per_s(device.dtype)
    return ServerUse(
        device=device.hardware.name,
        dtype=device.dtype,
        flop_utilisation_fraction=(
            None if peak is None else server.flop_utilisation_fraction(peak.value)
        ),
        bandwidth_utilisation_fraction=server.bandwidth_utilisation_fraction(
            device.hardware.memory_bytes_per_s.value
        ),
    )


def online_view(run: Run, device: ServerDevice | None = None) -> OnlineView | None:
    """Data to show of a load test besides its requests; None for other runs."""
    validity = run.manifest.validity or validity_of(run)
    if validity is None or run.exchanges is None or run.chunks is None:
        return None
    requests = requests_of(run)
    server = _server(run)
    parts = None if server is None else server_summaries.ttft_parts(requests, server)
    return OnlineView(
        validity=validity,
        steady=steady_state(run),
        inter_token=inter_token_summary(run),
        errors=exchange_errors.error_counts(run.exchanges),
        tools=tool_views.tool_views(run),
        in_flight=run_series.in_flight(requests, run.exchanges, at_ns=latencies.end_ns(run)),
        lateness=run_series.lateness(requests, run.lags),
        server=server,
        server_use=use_of(server, device),
        # No cause is named from numbers that are not the server's, or of others' requests too.
        ttft_parts=(
            None if parts is None or parts.has_others or validity.verdict == "INVALID" else parts
        ),
    )


def _server(run: Run) -> server_summaries.ServerSummary | None:
    """The server's metrics over the whole run; None where they were not read, or not twice."""
    if run.server is None:
        return None
    try:
        return server_summaries.summarise_server(run.server)
    except RecordError:
        return None


def steady_summaries(run: Run, online: OnlineView | None) -> tuple[RequestSummary, ...]:
    """Summaries of the steady state; empty where it is the whole run."""
    steady = None if online is None else online.steady
    return (
        (summarise_steady(run, steady),)
        if steady is not None and (steady.n_warm_up or steady.n_drain)
        else ()
    )


LEAD_CODES: Final = (
    "PARTIAL",
    "overload",
    "behind",
    "stuck",
    "livelock",
    "INVALID",
    "DAMAGED_RECORD",
)
"""Cautions of these codes stand before the answer, in this order: without them it would be
misread."""
TIMELINE_STEPS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQuestion:
    """The options of a question about a run of requests."""

    objective: ObjectiveSpec | None = None
    class_names: tuple[str, ...] = ()
    """Names of ``requests.class_index``; unknown classes are numbered."""
    n_kv_blocks: int | None = None
    """KV blocks of the engine, where the manifest lacks them."""
    first_step: int = 0
    """First step of the slot timeline."""
    n_steps: int = TIMELINE_STEPS
    device: ServerDevice | None = None
    """Device of the loaded server."""


def request_view(
    run: types.Run,
    question: RequestQuestion | None = None,
    *,
    path: Path | None = None,
    report_path: Path | None = None,
) -> views.RequestReportView:
    """Data to show of a run of requests.

    Raises
    ------
    RecordError
        The run has no requests, or no such step.
    SpecError
        A limit for workflows, of which the record knows none.
    """
    options, page = question or RequestQuestion(), report_path or provenance.page_beside(path)
    run = _with_workflows(run, options.objective)
    whole = request_summaries.summarise_requests(run)
    online, judged = online_view(run, options.device), _judged(run, options.objective)
    steady, parts = None if online is None else online.steady, first_token_parts(run, online)
    load, lead, n_kv_blocks = _step_series(run), _leading_cautions(run), _n_kv_blocks(run, options)
    lines = views.FiveLines(
        answer=_answer(whole, judged),
        limit=_limit(load, whole, n_kv_blocks, online, parts),
        next=_next(run, lead, judged.whole, path, online, has_page=page is not None),
        trust=_trust(run, whole, online),
        report=_files(path, page),
    )
    return views.RequestReportView(
        title=run_titles.title_of(run),
        subtitle=f"{run.manifest.origin} · {whole.n_requests:,} requests",
        five_lines=lines,
        summaries=(whole, *_parts(run, online, options.class_names)),
        judgement=judged.whole,
        class_judgements=judged.of_classes,
        handovers=latencies.summarise_handovers(run),
        tails=tails(run),
        history=history(run, steady=steady),
        tpot_history=None if online is None else history(run, "tpot", steady=steady),
        load=load,
        memory=run_series.summarise_memory(run),
        kv_pools=kv_pools.kv_pool_views(run),
        holes=run_series.hole_series(run),
        swapped_blocks=run_series.swap_series(run),
        online=online,
        gaps=gaps(run),
        ttft_parts=parts,
        concurrency=request_summaries.concurrency_of(run),
        class_users=run_titles.class_users_of(run),
        n_kv_blocks=n_kv_blocks,
        timeline=_timeline(run, options),
        lead_cautions=lead,
        cautions=tuple(one for one in run.manifest.cautions if one not in lead),
        fact_groups=provenance.fact_groups(run, run.manifest.run_id),
        files=() if path is None else provenance.data_files(path),
        rerun_command=provenance.rerun_command(run),
        tool_version=__version__,
    )


def _with_workflows(run: types.Run, objective: ObjectiveSpec | None) -> types.Run:
    """The run with its requests as drawn, where recorded (simulations have none)."""
    if run.drawn is None:
        run = replace(run, drawn=run_titles.fanned_out(run))
    if objective is not None:
        check_workflows(objective, has_workflows=run.drawn is not None)
    return run


def _parts(
    run: types.Run, online: views.OnlineView | None, class_names: Sequence[str]
) -> tuple[request_summaries.RequestSummary, ...]:
    """The steady state, and each class."""
    names = class_names or run_titles.class_names_of(run)
    classes = request_summaries.summarise_classes(run, names)
    return (*steady_summaries(run, online), *classes)


class _Judged(NamedTuple):
    """Verdicts by the SLO of all requests, and by those of classes with their own."""

    whole: request_summaries.Judgement | None
    of_classes: tuple[views.ClassJudgement, ...]


def _judged(run: types.Run, objective: ObjectiveSpec | None) -> _Judged:
    """Verdicts of all requests, and of the classes that have requests."""
    whole = None if objective is None else request_summaries.judge_objective(run, objective)
    load, requests = run.manifest.load, requests_of(run)
    if load is None or load.workload.replay is not None:
        return _Judged(whole, ())
    found = list[views.ClassJudgement]()
    for name, own, index in load.workload.class_objectives:
        rows = requests.class_index == index
        if rows.any():
            judgement = request_summaries.judge_objective(run, own, rows=rows)
            found.append(views.ClassJudgement(name=name, judgement=judgement))
    return _Judged(whole, tuple(found))


def _timeline(run: types.Run, options: RequestQuestion) -> slot_timeline.SlotTimeline | None:
    if run.steps is None or run.parts is None or not len(run.steps.start_ns):
        return None
    return slot_timeline.slot_timeline(run, first_step=options.first_step, n_steps=options.n_steps)


def _step_series(run: types.Run) -> run_series.StepSeries | None:
    if run.steps is None or not len(run.steps.start_ns):
        return None
    return run_series.step_series(run.steps)


def _leading_cautions(run: types.Run) -> tuple[Caution, ...]:
    """Cautions to show above the numbers, the gravest first."""
    lead = (one for one in run.manifest.cautions if one.code in LEAD_CODES)
    return tuple(sorted(lead, key=lambda one: LEAD_CODES.index(one.code)))


def _answer(whole: request_summaries.RequestSummary, judged: _Judged) -> str:
    """Sentences: on the SLO, on each class with its own, on the measurement."""
    named = [] if judged.whole is None else [("", judged.whole)]
    named += [(f"{one.name}: ", one.judgement) for one in judged.of_classes]
    verdicts = [
        f"{name}{one.verdict.upper()}: weakest is {one.weakest.threshold.text}, {one.weakest.why}."
        for name, one in named
        if one.weakest is not None
    ]
    return " ".join((*verdicts, request_tables.summary_sentence(whole)))


def _limit(
    load: run_series.StepSeries | None,
    whole: request_summaries.RequestSummary,
    n_kv_blocks: int | None,
    online: views.OnlineView | None,
    first_token: server_summaries.TtftParts | None,
) -> str:
    """Measured concurrency, queue and memory, in words.

    It names a limit only where the measurements show it.
    """
    if online is not None and online.validity.verdict == "INVALID":
        return (
            f"not known: the run is INVALID ({online.validity.reasons[0].text}), so that its"
            " numbers show no limit of the server."
        )
    if load is None and online is not None and online.server is not None:
        sentence = request_tables.limit_sentence(online.server, online.ttft_parts)
        if sentence is not None:
            return sentence
    if load is None and online is not None and online.in_flight is not None:
        return (
            f"at most {online.in_flight.most.max():.0f} requests were in flight at once; what"
            " limits the server a client cannot see."
        )
    if load is None:
        return (
            "not known: the run has no steps"
            if first_token is None
            else f"{request_tables.largest_part(first_token)}."
        )
    running, waiting = float(np.nanmax(load.n_running_max)), float(np.nanmax(load.n_waiting_max))
    parts = [] if first_token is None else [request_tables.largest_part(first_token)]
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
    run: types.Run,
    lead: Sequence[Caution],
    judgement: request_summaries.Judgement | None,
    path: Path | None,
    online: views.OnlineView | None,
    *,
    has_page: bool,
) -> str:
    if lead:
        return lead[0].remedy
    limits = () if judgement is None else judgement.objective.thresholds
    longer = provenance.longer_command(run, [one.percentile_fraction for one in limits])
    worst = None if online is None else online.validity.reasons[0]
    remedy = "" if worst is None else worst.remedy
    if worst is not None and remedy and worst.check in _OF_LENGTH:
        return f"{remedy} {longer}".strip()
    is_undecided = judgement is not None and judgement.verdict == "undecided"
    if is_undecided and (worst is None or worst.verdict != "INVALID"):
        first = f"{remedy}; and " if remedy else ""
        weakest = None if judgement is None else judgement.weakest
        is_seen = weakest is None or weakest.seen is not None
        what = f"a longer run, or several: this one cannot tell {longer}" if is_seen else _UNSEEN
        return f"{first}{what}".strip()
    if remedy:
        return remedy
    folder = "RUN" if path is None else path
    if not has_page:
        return suggestions.command("report", folder)
    return _after_the_page(run, folder, is_of_a_server=online is not None)


def _after_the_page(run: types.Run, folder: Path | str, *, is_of_a_server: bool) -> str:
    if (is_of_a_server or run.manifest.origin == "published") and _are_enough_for_a_fit(run):
        return f"what would another load do here? {suggestions.command('fit', '--load', folder)}"
    longer = provenance.longer_command(run, [_TAIL_FRACTION]) if is_of_a_server else ""
    if longer:
        return f"what are its tails? {longer}"
    return f"does another run differ? {suggestions.command('compare', folder, 'OTHER_RUN')}"


def _are_enough_for_a_fit(run: types.Run) -> bool:
    """Has the load test the requests with first tokens that `fit --load` needs?"""
    table = requests_of(run)
    is_ended = latencies.is_one_of(table, latencies.COMPLETED)
    n_seen = np.count_nonzero(is_ended & (table.first_token_ns != types.ABSENT))
    return bool(n_seen >= MIN_REQUESTS)


_TAIL_FRACTION: Final = 0.95


_UNSEEN: Final = "a limit on E2E, or streamed answers: no longer run shows this latency"
_OF_LENGTH: Final = frozenset({"requests", "warm-up", "steady state"})
"""Checks of a load test that a longer run passes."""


def _trust(
    run: types.Run, whole: request_summaries.RequestSummary, online: views.OnlineView | None
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


def _n_kv_blocks(run: types.Run, options: RequestQuestion) -> int | None:
    """KV blocks of all replicas together."""
    engine = run.manifest.engine
    of_each = (
        options.n_kv_blocks if engine is None or engine.n_kv_blocks is None else engine.n_kv_blocks
    )
    n_replicas = 1 if run.steps is None else len(np.unique(run.steps.replica))
    return None if of_each is None else of_each * n_replicas
