"""How is a sweep run from its first point to its last, in spite of whatever happens between?

A point is stored as soon as it is measured. The same command given again goes on with what is
missing: after Ctrl-C, after ``kill -9``, after a full disk. A point that does not fit in memory is
an answer, and the sweep goes on.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self, TypeAlias

from inferometer import __version__
from inferometer.errors import EngineError, MeasureError, StoppedError
from inferometer.inputs.plans import visits_of
from inferometer.inputs.types import Caution, ModelSpec, SweepPlan, SweepPoint, SweepVisit
from inferometer.measure import ceilings, environments, host
from inferometer.measure.engines.protocol import (
    STEP_KINDS,
    Ceiling,
    Measure,
    ModelReference,
    OutOfMemory,
    Probed,
    Repeated,
    Repetition,
)
from inferometer.measure.engines.remote import RemoteEngine, WorkerSettings
from inferometer.measure.telemetry import Sampler, Telemetry
from inferometer.measure.time_left import OnProgress, Progress, TimeLeft
from inferometer.records.reading import read_run
from inferometer.records.run_folder import new_run_id, now_utc
from inferometer.records.store import RunWriter
from inferometer.records.tables import from_rows
from inferometer.records.types import (
    CeilingTable,
    EngineFacts,
    Phase,
    PointStatus,
    ProbeKind,
    Run,
    RunManifest,
    ServerSampleTable,
    StepTable,
    SweepTable,
)

# How is one point of a plan measured, whatever the engine does?


# Which rows of a record does one measured point make?


Row: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRepetition:
    """One repetition with the machine's telemetry."""

    repetition: Repetition
    telemetry: Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCeiling:
    """One ceiling, measured before repetition ``repetition`` or after the last.

    ``point_index`` -1 is outside all points.
    """

    point_index: int
    repetition: int
    ceiling: Ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """All measurements of one visit to a point of the plan."""

    visit: SweepVisit
    point: SweepPoint
    status: PointStatus
    repetitions: tuple[MeasuredRepetition, ...]
    ceilings: tuple[ProbedCeiling, ...]
    why: str | None
    """Why the status is not OK."""
    ended_ns: int = field(default_factory=time.perf_counter_ns)
    """End: the time at which this object is made."""


def sweep_table(measured: MeasuredPoint, *, start_ns: int) -> SweepTable:
    """One row per repetition; an abandoned point has one more, without times, with its status."""
    rows = [_sweep_row(measured, done, start_ns) for done in measured.repetitions]
    if measured.status is not PointStatus.OK:
        n_done = len(measured.repetitions)
        rows.append(
            _point_columns(measured)
            | {
                "repetition": measured.visit.first_repetition + n_done,
                "is_warmup": n_done < measured.visit.n_warmup,
                "status": measured.status,
                "started_ns": measured.ended_ns - start_ns,
                "n_decode_steps": 0,
            }
        )
    return from_rows(SweepTable, rows)


def step_table(measured: MeasuredPoint, *, start_ns: int) -> StepTable:
    """One row per step: the prefill of a repetition, then its decode steps."""
    return from_rows(
        StepTable,
        [
            row
            for done in measured.repetitions
            for row in _step_rows(measured, done.repetition, start_ns)
        ],
    )


def ceiling_table(measured: MeasuredPoint, *, start_ns: int) -> CeilingTable:
    """One row per probe."""
    return from_rows(
        CeilingTable,
        [
            {
                "point_index": probed.point_index,
                "repetition": probed.repetition,
                "started_ns": probed.ceiling.started_ns - start_ns,
                "kind": probed.ceiling.kind,
                "dtype": probed.ceiling.dtype,
                "footprint_bytes": probed.ceiling.footprint_bytes,
                "value_per_s": probed.ceiling.value_per_s,
            }
            for probed in measured.ceilings
        ],
    )


def _point_columns(measured: MeasuredPoint) -> Row:
    point = measured.point
    return {
        "point_index": measured.visit.point_index,
        "prompt_tokens": point.prompt_tokens,
        "batch_size": point.batch_size,
        "gen_tokens": point.gen_tokens,
    }


def _sweep_row(measured: MeasuredPoint, done: MeasuredRepetition, start_ns: int) -> Row:
    repetition, telemetry = done.repetition, done.telemetry
    return _point_columns(measured) | {
        "repetition": repetition.index,
        "is_warmup": repetition.is_warmup,
        "status": PointStatus.OK,
        "started_ns": repetition.started_ns - start_ns,
        "prefill_ns": repetition.prefill_ns,
        # A point of one token has no decode: absent, not zero.
        "decode_ns": sum(repetition.decode_step_ns) if repetition.decode_step_ns else None,
        "n_decode_steps": len(repetition.decode_step_ns),
        "reserved_bytes": repetition.reserved_bytes,
        "allocated_bytes": repetition.allocated_bytes,
        "cpu_fraction": telemetry.cpu_fraction,
        "device_fraction": telemetry.device_fraction,
        "energy_joule": telemetry.energy_joule,
        "power_watt": telemetry.power_watt,
        "minor_faults": telemetry.minor_faults,
        "major_faults": telemetry.major_faults,
    }


def _step_rows(measured: MeasuredPoint, repetition: Repetition, start_ns: int) -> Iterator[Row]:
    point = measured.point
    batch, prompt = point.batch_size, point.prompt_tokens
    # An engine that mixed phases took another number of steps; what each of them attended to, only
    # it knows.
    is_plain = len(repetition.decode_step_ns) == point.gen_tokens - 1
    at_ns = repetition.started_ns - start_ns
    shared: Row = {
        "point_index": measured.visit.point_index,
        "repetition": repetition.index,
        "is_warmup": repetition.is_warmup,
        "n_waiting_requests": 0,
        "n_preempted_requests": 0,
    }
    yield shared | {
        "phase": Phase.PREFILL if is_plain else Phase.MIXED,
        "start_ns": at_ns,
        "duration_ns": repetition.prefill_ns,
        "n_prefill_requests": batch,
        "n_decode_requests": 0,
        "prefill_tokens": batch * prompt,
        "prefill_context_product_tokens2": batch * prompt * (prompt + 1) // 2,
        "decode_context_tokens": 0,
    }
    at_ns += repetition.prefill_ns
    for i_step, duration_ns in enumerate(repetition.decode_step_ns):
        yield shared | {
            "phase": Phase.DECODE if is_plain else Phase.MIXED,
            "start_ns": at_ns,
            "duration_ns": duration_ns,
            "n_prefill_requests": 0,
            "n_decode_requests": batch,
            "prefill_tokens": 0,
            "prefill_context_product_tokens2": 0,
            "decode_context_tokens": batch * (prompt + 1 + i_step) if is_plain else None,
        }
        at_ns += duration_ns


OUTSIDE_KINDS: Final = (ProbeKind.READ, ProbeKind.COPY, ProbeKind.MATMUL)
"""Probed before the first point of a session and after the last."""
N_TRIES: Final = 2
"""A point whose engine died is tried once more, in a fresh process, before it counts as failed."""
_SAFE_VOCAB: Final = 256
"""Vocabulary size that every model has, where its own is unknown."""


class PointMeasurer:
    """Runs points of one plan on one engine, with ceilings and telemetry.

    Telemetry is sampled while it is open as a context.
    """

    def __init__(self, plan: SweepPlan, engine: RemoteEngine) -> None:
        self._plan = plan
        self._engine = engine
        self._vocab_size = (
            _SAFE_VOCAB if engine.model.spec is None else engine.model.spec.vocab_size
        )
        self._probes = ceilings.probe_settings(plan.engine, engine.facts())
        self._sampler = Sampler(
            lambda: engine.pid,
            n_cores=ceilings.n_threads_used(plan.engine),
            device=plan.engine.device,
            n_devices=plan.engine.tensor_parallel_size,
        )

    def __enter__(self) -> Self:
        """Begin sampling."""
        self._sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """End sampling."""
        self._sampler.__exit__()

    def device_samples(self, *, start_ns: int) -> ServerSampleTable | None:
        """Counters of the accelerators since the last call; None where not reported."""
        rows = [
            {
                "scraped_ns": at_ns - start_ns,
                "name": one.name,
                "labels": f'gpu="{one.device}"',
                "value": one.value,
            }
            for at_ns, one in self._sampler.taken_counters()
        ]
        return from_rows(ServerSampleTable, rows) if rows else None

    def measure(self, visit: SweepVisit) -> MeasuredPoint:
        """Run a point's repetitions of this visit.

        Want of memory and a failure of the engine, once repeated, are results.
        """
        why = ""
        for _ in range(N_TRIES):
            try:
                return self._attempt(visit)
            except EngineError as error:
                why = str(error)
        return self._result(visit, PointStatus.FAILED, why, [], [])

    def probe_outside(
        self, kinds: tuple[ProbeKind, ...] = OUTSIDE_KINDS
    ) -> tuple[ProbedCeiling, ...]:
        """The ceilings while no point is measured; none where the engine is gone."""
        if self._engine.pid is None or not kinds:
            return ()
        ceilings = self._engine.probe(replace(self._probes, kinds=kinds))
        return tuple(
            ProbedCeiling(point_index=-1, repetition=-1, ceiling=ceiling) for ceiling in ceilings
        )

    def cautions(self) -> tuple[Caution, ...]:
        """Cautions from telemetry so far."""
        reasons = self._sampler.throttle_reasons
        caution = Caution(
            code="THROTTLED",
            text=f"the accelerator ran below its clocks at times: {', '.join(reasons)}",
            remedy=(
                "cool it, raise its power limit, or lock its clocks lower, so that they stay the"
                " same"
            ),
        )
        return (caution,) if reasons else ()

    def _attempt(self, visit: SweepVisit) -> MeasuredPoint:
        done: list[MeasuredRepetition] = []
        ceilings: list[ProbedCeiling] = []
        try:
            for result in self._results(visit):
                if isinstance(result, Probed):
                    following = visit.first_repetition + len(done)
                    ceilings += [
                        ProbedCeiling(
                            point_index=visit.point_index, repetition=following, ceiling=each
                        )
                        for each in result.ceilings
                    ]
                    continue
                repetition = result.repetition
                end_ns = (
                    repetition.started_ns + repetition.prefill_ns + sum(repetition.decode_step_ns)
                )
                done.append(
                    MeasuredRepetition(
                        repetition=repetition,
                        telemetry=self._sampler.between(repetition.started_ns, end_ns),
                    )
                )
        except OutOfMemory as error:
            return self._result(visit, PointStatus.OUT_OF_MEMORY, str(error), done, ceilings)
        self._sampler.forget()
        return self._result(visit, PointStatus.OK, None, done, ceilings)

    def _results(self, visit: SweepVisit) -> Iterator[Repeated | Probed]:
        plan = self._plan
        return self._engine.measure(
            Measure(
                point=plan.points[visit.point_index],
                n_warmup=visit.n_warmup,
                n_reps=visit.n_reps,
                first_repetition=visit.first_repetition,
                seed=plan.seed,
                vocab_size=self._vocab_size,
                probes=self._probes,
            )
        )

    def _result(
        self,
        visit: SweepVisit,
        status: PointStatus,
        why: str | None,
        done: list[MeasuredRepetition],
        ceilings: list[ProbedCeiling],
    ) -> MeasuredPoint:
        return MeasuredPoint(
            visit=visit,
            point=self._plan.points[visit.point_index],
            status=status,
            repetitions=tuple(done),
            ceilings=tuple(ceilings),
            why=why,
        )


_FEWEST_POINTS: Final = 2
"""Points that are measured even when time is short: one shows no trend."""


def measure_missing(
    plan: SweepPlan,
    measurer: PointMeasurer,
    writer: RunWriter,
    on_progress: OnProgress,
    *,
    until_s: float | None = None,
) -> tuple[Caution, ...]:
    """Measure and store what each point lacks; returns cautions.

    No point is begun whose visits, and those that points begun before still need, would not all be
    over at ``until_s`` of the monotonic clock, by those made so far.

    Raises
    ------
    EngineError
        The engine failed at the first point of the run, twice: it will at the others.
    RecordError
        A point could not be stored.
    """
    cautions: list[Caution] = []
    start_ns = time.perf_counter_ns() - writer.elapsed_ns
    for measured in _measured_points(plan, measurer, writer.done_parts, on_progress, until_s):
        if measured.status is PointStatus.FAILED:
            if not writer.done_parts:
                raise EngineError(
                    measured.why or "the engine failed",
                    where=f"the first point: {_words(measured)}",
                )
            cautions.append(_failure(measured))
        writer.append_part(
            measured.visit.number,
            sweep_table(measured, start_ns=start_ns),
            step_table(measured, start_ns=start_ns),
            ceiling_table(measured, start_ns=start_ns),
            measurer.device_samples(start_ns=start_ns),
        )
    on_progress(
        Progress(
            n_done=len(writer.done_parts), n_visits=len(visits_of(plan)), point=None, left_s=0.0
        )
    )
    return (*cautions, *_left_out(plan, writer.done_parts, until_s), *measurer.cautions())


def _left_out(plan: SweepPlan, done: frozenset[int], until_s: float | None) -> tuple[Caution, ...]:
    """Points that were not measured for lack of time, in words."""
    measured = {visit.point_index for visit in visits_of(plan) if visit.number in done}
    n_left = len(plan.points) - len(measured)
    if until_s is None or not n_left:
        return ()
    text = f"{n_left} of {len(plan.points)} points were left out: the time was over"
    return (Caution(code="TIME_OVER", text=text, remedy="a larger --budget, as NEXT has it"),)


def _measured_points(
    plan: SweepPlan,
    measurer: PointMeasurer,
    done: frozenset[int],
    on_progress: OnProgress,
    until_s: float | None,
) -> Iterator[MeasuredPoint]:
    """Measure the missing visits in the plan's order; the first and last have the outer ceilings.

    A point that did not fit or failed is not visited again.
    """
    visits = visits_of(plan)
    missing = [visit for visit in visits if visit.number not in done]
    time_left, hopeless, dropped = TimeLeft(plan), set[int](), set[int]()
    begun = {visit.point_index for visit in visits if visit.number in done}
    # Steps in turns tell launches from weights. A look within a budget may have few points, and has
    # them between all while it lasts: on two cores 20 rounds of SmolLM2 take five seconds.
    outside = measurer.probe_outside()
    n_done = len(visits) - len(missing)
    for i_missing, visit in enumerate(missing):
        if visit.point_index in hopeless | dropped:
            continue
        left_s = time_left.within_s(
            [later for later in missing[i_missing:] if later.point_index not in hopeless | dropped],
            until_s,
        )
        promised = (begun | {visit.point_index}) - hopeless
        rest = [later for later in missing[i_missing:] if later.point_index in promised]
        if len(promised) > _FEWEST_POINTS and time_left.is_over(rest, until_s):
            dropped |= {visit.point_index} - begun
            continue
        begun.add(visit.point_index)
        point = plan.points[visit.point_index]
        on_progress(Progress(n_done=n_done, n_visits=len(visits), point=point, left_s=left_s))
        begin_s = time.monotonic()
        if not i_missing or (until_s is not None and time.monotonic() < until_s):
            outside += measurer.probe_outside(STEP_KINDS)
        measured = measurer.measure(visit)
        if measured.status is PointStatus.OK:
            time_left.measured(visit, time.monotonic() - begin_s)
        else:
            hopeless.add(visit.point_index)
        is_last = all(later.point_index in hopeless | dropped for later in missing[i_missing + 1 :])
        after = measurer.probe_outside((*OUTSIDE_KINDS, *STEP_KINDS)) if is_last else ()
        n_done += 1
        yield replace(measured, ceilings=(*outside, *measured.ceilings, *after))
        outside = ()


def _failure(measured: MeasuredPoint) -> Caution:
    reason = (measured.why or "no reason known").splitlines()[0]
    return Caution(
        code="POINT_FAILED",
        text=f"{_words(measured)} failed: {reason}",
        remedy="measure this point alone, and read the engine's words",
    )


def _words(measured: MeasuredPoint) -> str:
    point = measured.point
    return f"prompt {point.prompt_tokens} x batch {point.batch_size} x {point.gen_tokens} tokens"


def run_sweep(
    plan: SweepPlan,
    model: ModelReference,
    directory: Path,
    on_progress: OnProgress,
    *,
    command: tuple[str, ...] = (),
    settings: WorkerSettings | None = None,
    until_s: float | None = None,
) -> Run:
    """Measure the missing points of the plan, store each, and return the run.

    ``until_s`` of the monotonic clock: points that would not be over by then are left out.

    Raises
    ------
    SpecError
        The engine cannot do what is asked.
    StoppedError
        It was interrupted. What was measured is stored.
    MeasureError
        The engine fails at whatever is tried.
    RecordError
        The folder cannot be written, or holds another run.
    """
    # Before minutes of loading: is there anything to do, and may we write?
    with RunWriter.create_or_resume(directory, new_manifest(plan, model.spec, command)) as writer:
        is_complete = writer.is_complete
    if not is_complete:
        settings = settings or WorkerSettings(
            python=str(environments.find_environment(plan.engine.engine).python)
        )
        with RemoteEngine(plan.engine, model, settings) as engine:
            begun = new_manifest(plan, model.spec, command, _load(engine))
            with RunWriter.create_or_resume(directory, begun) as writer:
                try:
                    _measure(plan, engine, writer, on_progress, until_s)
                except KeyboardInterrupt:
                    n_visits = len(plan.points) * plan.n_rounds
                    what = f"interrupted: {len(writer.done_parts)} of {n_visits} visits to points"
                    raise StoppedError(
                        f"{what} are stored", where=str(directory), command=command
                    ) from None
    return read_run(directory)


def _load(engine: RemoteEngine) -> EngineFacts:
    try:
        return engine.facts()
    except OutOfMemory as error:
        raise MeasureError(
            f"the model does not fit: {error}",
            where=engine.model.location,
            try_="a smaller --dtype or model, or --tp over more devices",
        ) from None


def _measure(
    plan: SweepPlan,
    engine: RemoteEngine,
    writer: RunWriter,
    on_progress: OnProgress,
    until_s: float | None,
) -> None:
    with PointMeasurer(plan, engine) as measurer:
        cautions = measure_missing(plan, measurer, writer, on_progress, until_s=until_s)
    writer.finish(cautions, now_utc(), None if engine.pid is None else engine.facts())


# What is known about a run before it begins?


def new_manifest(
    plan: SweepPlan,
    model: ModelSpec | None,
    command: tuple[str, ...],
    engine: EngineFacts | None = None,
) -> RunManifest:
    """The manifest of a run that starts now; problems of the machine are in its cautions."""
    created_utc = now_utc()
    is_beginning = engine is not None
    return RunManifest(
        run_id=new_run_id(created_utc),
        origin="measured",
        created_utc=created_utc,
        command=command,
        tool_version=__version__,
        plan=plan,
        model=model,
        engine=engine,
        host=host.host_facts(
            n_threads=ceilings.n_threads_used(plan.engine),
            uses_device=plan.engine.device == "cuda",
        ),
        # Our own engine, once it computes, is no caution: the machine is examined before.
        cautions=() if is_beginning else host.examine_machine(),
    )
