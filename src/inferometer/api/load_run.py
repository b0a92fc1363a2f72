"""How is a load test made and read: sent, decoded, judged and stored?"""

import shlex
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from inferometer import __version__
from inferometer.api import load_sending, run_titles
from inferometer.api.load_request import LoadRequest
from inferometer.api.load_sending import OpenLoad, SentLoad, Traced, send_load
from inferometer.api.progress import talk
from inferometer.api.workload import held_back, left_alone
from inferometer.errors import MeasureError
from inferometer.inputs import spans
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import replay
from inferometer.inputs.workload.plan import DrawnWorkload, has_workflows
from inferometer.inputs.workload.types import ClosedArrivals
from inferometer.measure import host, otlp
from inferometer.measure.load import bodies, watch
from inferometer.records import (
    exchange_errors,
    load_decoding,
    raw_log,
    reading,
    request_spans,
    run_folder,
    store,
    types,
    validity,
)
from inferometer.units import NS_PER_S


def run_of(
    folder: Path,
    opened: OpenLoad,
    workload: DrawnWorkload,
    percentiles: tuple[float, ...],
    server: types.ServerSampleTable | None = None,
) -> types.Run:
    """The run of the raw logs and the server's metrics, with its validity.

    Raises
    ------
    RecordError
        A raw log cannot be read.
    """
    tokenizer = opened.load.tokenizer
    token_ends = None if tokenizer is None else bodies.token_ends_of(tokenizer)
    decoded = load_decoding.decode_load(folder, workload.plan, token_ends)
    manifest = types.RunManifest(
        run_id=opened.run_id,
        origin="measured",
        created_utc=opened.created_utc,
        command=opened.command,
        tool_version=__version__,
        plan=None,
        model=None,
        engine=None,
        host=host.host_facts(n_threads=opened.load.n_processes, uses_device=False),
        source=None,
        ended_utc=run_folder.now_utc(),
        cautions=(
            *workload.cautions,
            *held_back(workload, _offered_per_s(decoded)),
            *left_alone(workload, decoded.requests),
            *_seams(decoded),
            *_ran_out(decoded, opened, workload),
            *_told(decoded),
        ),
        load=opened.load,
        clocks=decoded.clocks,
        client_scheduling=tuple(
            sorted({frame.scheduled for frame in decoded.sessions if frame.scheduled})
        ),
    )
    run = types.Run(
        manifest=manifest,
        sweep=None,
        steps=None,
        ceilings=None,
        requests=decoded.requests,
        chunks=decoded.chunks,
        exchanges=decoded.exchanges,
        lags=decoded.lags,
        server=server,
    )
    judged = validity.validity_of(run, plan=workload.plan, percentiles=percentiles)
    drawn = workload.plan if has_workflows(workload.plan) else None
    return replace(run, manifest=replace(manifest, validity=judged), drawn=drawn)


def _offered_per_s(decoded: load_decoding.DecodedLoad) -> float | None:
    """Intended sends / time from the first to the last of them."""
    intended_ns = decoded.requests.intended_send_ns
    span_ns = int(intended_ns.max() - intended_ns.min()) if len(intended_ns) else 0
    return (len(intended_ns) - 1) / span_ns * NS_PER_S if span_ns else None


def partial(run: types.Run, opened: OpenLoad) -> types.Run:
    """The run with a caution that the test is unfinished, and the command that resumes it."""
    statuses = () if run.requests is None else run.requests.status
    n_open = sum(status == types.RequestStatus.UNFINISHED for status in statuses)
    text = (
        f"PARTIAL: the load test is not over; {len(statuses) - n_open:,} requests ended so far,"
        f" {n_open:,} were in flight"
    )
    caution = Caution(
        code="PARTIAL", text=text, remedy=f"the same command goes on: {shlex.join(opened.command)}"
    )
    return replace(
        run,
        manifest=replace(
            run.manifest, cautions=(caution, *run.manifest.cautions), is_complete=False
        ),
    )


def open_run(folder: Path) -> types.Run:
    """The run of an unfinished load test: what its raw logs hold so far.

    Raises
    ------
    RecordError
        There is nothing yet, or a raw log cannot be read.
    """
    opened = load_sending.open_load(folder)
    return partial(run_of(folder, opened, replay.draw_workload(opened.load.workload), ()), opened)


def _told(decoded: load_decoding.DecodedLoad) -> tuple[Caution, ...]:
    """The error texts of the server, or of the way to it, for requests that failed."""
    return tuple(
        Caution(
            code="ERROR_SAID",
            text=f"{code}: {words}",
            remedy=exchange_errors.EXCHANGE_ERRORS[code].remedy,
        )
        for code, words in decoded.error_words.items()
        if code in exchange_errors.EXCHANGE_ERRORS
    )


def _seams(decoded: load_decoding.DecodedLoad) -> tuple[Caution, ...]:
    """Cautions on interruptions of the run, and what was lost there."""
    begins = sorted({frame.begins_ns / NS_PER_S for frame in decoded.sessions if frame.begins_ns})
    found: list[Caution] = []
    if begins:
        at = ", ".join(f"{begin_s:.1f} s" for begin_s in begins)
        found.append(
            Caution(
                code="RESUMED",
                text=(
                    f"the run was interrupted and went on at {at}: the server had a pause there,"
                    " and prompts hold new words from there on"
                ),
                remedy="for a run without a seam, another folder with --out",
            )
        )
    ended = Counter(frame.process_index for frame in decoded.ends)
    lost = sorted((Counter(frame.process_index for frame in decoded.sessions) - ended).elements())
    if lost:
        found.append(
            Caution(
                code="CLIENT_DIED",
                text=(
                    f"client process {', '.join(map(str, lost))} did not live to its end: what it"
                    " had in flight was asked again"
                ),
                remedy="for a run without a seam, another folder with --out",
            )
        )
    if decoded.n_left_bytes:
        found.append(
            Caution(
                code="CUT_LOG",
                text=(
                    f"{decoded.n_left_bytes:,} bytes of the raw log were cut when a process was"
                    " killed"
                ),
                remedy="none: their requests were sent again",
            )
        )
    return tuple(found)


def _ran_out(
    decoded: load_decoding.DecodedLoad, opened: OpenLoad, workload: DrawnWorkload
) -> tuple[Caution, ...]:
    """A caution where a closed loop sent all requests before its time was over."""
    load, n_made = opened.load, len(decoded.requests.sent_ns)
    if (
        load.for_s is None
        or not isinstance(load.workload.arrivals, ClosedArrivals)
        or n_made < workload.plan.n_requests
    ):
        return ()
    last_s = int(decoded.requests.intended_send_ns[-1]) / NS_PER_S
    return (
        Caution(
            code="RAN_OUT",
            text=(
                f"all {n_made:,} requests had been sent after {last_s:.3g} s of {load.for_s:g} s:"
                " the users were then idle"
            ),
            remedy="a shorter --for, or more --requests without it",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """The run, and whether it was stopped early."""

    run: types.Run
    is_interrupted: bool = False


def run_load(
    request: LoadRequest,
    workload: DrawnWorkload,
    folder: Path,
    percentiles: tuple[float, ...],
) -> LoadedRun:
    """Run or resume the test, and store it; read it if it is complete.

    Raises
    ------
    MeasureError
        The server is not there, or a client process died; what came is kept.
    RecordError
        The folder cannot be written or holds another run.
    """
    return loaded_run(send_load(request, workload, folder), folder, percentiles)


def loaded_run(sent: SentLoad | None, folder: Path, percentiles: tuple[float, ...]) -> LoadedRun:
    """The run that was just sent, stored; with None, the one that is already in this folder.

    Raises
    ------
    MeasureError
        A client process died; what came is kept.
    RecordError
        The folder cannot be read or written.
    """
    if sent is None:
        talk(
            "the test had been made before: this is what was stored (another --out measures again)"
        )
        run = reading.read_run(folder)
        return LoadedRun(run=replace(run, drawn=run_titles.fanned_out(run)))
    with sent.held:
        _refuse_dead(sent.outcome, folder)
        run = run_of(folder, sent.opened, sent.workload, percentiles, sent.server)
    run = replace(run, manifest=replace(run.manifest, engine=sent.engine))
    if sent.outcome.is_interrupted:
        return LoadedRun(run=partial(run, sent.opened), is_interrupted=True)
    store.write_run(folder, run)
    return LoadedRun(run=replace(run, manifest=replace(run.manifest, is_complete=True)))


def _refuse_dead(outcome: watch.LoadOutcome, folder: Path) -> None:
    if outcome.dead_processes:
        raise MeasureError(
            f"a client process died: {'; '.join(outcome.dead_processes)}",
            where=str(folder),
            try_="the same command again: finished requests are stored, and it continues from there",
        )


def send_telemetry(traced: Traced, run: types.Run, folder: Path) -> None:
    """Send the spans of a run that is stored, and its metrics where the collector takes any.

    The same command sends the same ones again.

    Raises
    ------
    MeasureError
        The collector does not take the spans.
    RecordError
        A raw log cannot be read.
    """
    ids = spans.span_ids(run.manifest.run_id, sample_fraction=traced.sample_fraction)
    sessions = raw_log.session_frames(folder)
    n_sent = traced.sender.send(request_spans.request_spans(run, sessions, ids))
    traced.sender.close()
    talk(f"{n_sent:,} spans, trace {ids.trace_id:032x}")
    points = request_spans.request_metrics(run, sessions)
    try:
        n_metrics = otlp.send_metrics(traced.endpoint, otlp.LOAD_SERVICE, points)
    except MeasureError as problem:  # there are collectors for traces alone
        talk(f"without metrics: {problem.what} ({otlp.METRICS_EXPORTER}=none: they are not sent)")
    else:
        if n_metrics:
            talk(f"{n_metrics} metrics of the GenAI conventions")
