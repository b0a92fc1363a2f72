"""How is a sweep run from its first point to its last, in spite of whatever happens between?

A point is stored as soon as it is measured. The same command given again goes on with what is
missing: after Ctrl-C, after ``kill -9``, after a full disk. A point that does not fit in memory is
an answer, and the sweep goes on.
"""

from pathlib import Path

from inferometer import __version__
from inferometer.errors import MeasureError
from inferometer.inputs.types import ModelSpec, SweepPlan
from inferometer.measure import run_names
from inferometer.measure.ceilings import n_threads_used
from inferometer.measure.engines.protocol import ModelReference, OutOfMemory
from inferometer.measure.engines.remote import RemoteEngine, WorkerSettings
from inferometer.measure.environments import find_environment
from inferometer.measure.host import examine_machine, host_facts
from inferometer.measure.run_names import new_run_id, now_utc
from inferometer.measure.session import PointMeasurer, measure_missing
from inferometer.measure.time_left import OnProgress
from inferometer.records.reading import read_run
from inferometer.records.store import RunWriter
from inferometer.records.types import EngineFacts, Run, RunManifest


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
    """Measure what is missing of the plan, store it point by point, and give back the whole run.

    ``until_s`` of the monotonic clock: points that would not be over by then are left out.

    Raises
    ------
    SpecError
        The engine cannot do what is asked.
    MeasureError
        It was interrupted, or the engine fails at whatever is tried. What was measured is stored.
    RecordError
        The folder cannot be written, or holds another run.
    """
    # Before minutes of loading: is there anything to do, and may we write?
    with RunWriter.create_or_resume(directory, new_manifest(plan, model.spec, command)) as writer:
        is_complete = writer.is_complete
    if not is_complete:
        settings = settings or WorkerSettings(
            python=str(find_environment(plan.engine.engine).python)
        )
        with RemoteEngine(plan.engine, model, settings) as engine:
            begun = new_manifest(plan, model.spec, command, _load(engine))
            with RunWriter.create_or_resume(directory, begun) as writer:
                _measure(plan, engine, writer, on_progress, directory, until_s)
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
    directory: Path,
    until_s: float | None,
) -> None:
    try:
        with PointMeasurer(plan, engine) as measurer:
            cautions = measure_missing(plan, measurer, writer, on_progress, until_s=until_s)
        writer.finish(cautions, run_names.now_utc(), None if engine.pid is None else engine.facts())
    except KeyboardInterrupt:
        raise MeasureError(
            f"interrupted: {len(writer.done_parts)} of {len(plan.points) * plan.n_rounds} visits to"
            " points are stored",
            where=str(directory),
            try_="the same command again: it goes on with what is missing",
        ) from None


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
        host=host_facts(
            n_threads=n_threads_used(plan.engine), uses_device=plan.engine.device == "cuda"
        ),
        source=None,
        # Our own engine, once it computes, is no caution: the machine is examined before.
        cautions=() if is_beginning else examine_machine(),
    )
