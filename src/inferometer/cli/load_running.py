"""How is a load test made: opened, sent, decoded, judged, stored?"""

from dataclasses import dataclass, replace
from pathlib import Path

from inferometer.cli import load_record, load_run, load_scraped
from inferometer.cli.answer import talk
from inferometer.cli.load_options import LoadRequest
from inferometer.errors import MeasureError
from inferometer.measure.load import load_test, sessions, watch
from inferometer.records import reading, types, whole_run
from inferometer.spec.workload.plan import DrawnWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """The run, and whether somebody stopped it before its end."""

    run: types.Run
    is_interrupted: bool = False


def run_load(request: LoadRequest, workload: DrawnWorkload, folder: Path, percentiles: tuple[float, ...], *, as_json: bool) -> LoadedRun:
    """Make the test, or what is left of it, and store it. One that was made before is read.

    Raises
    ------
    MeasureError
        The server is not there, or a client process died; what came is kept.
    RecordError
        The folder cannot be written or holds another run.
    """
    if load_record.is_complete(folder, request.load):
        talk("the test had been made before: this is what was stored")
        return LoadedRun(run=reading.read_run(folder))
    with load_record.opened(folder, request.load) as opened:
        question = load_test.LoadQuestion(
            load=request.load,
            plan=workload.plan,
            past=sessions.past_of(folder),
            folder=folder,
            id_prefix=opened.run_id[-8:],
            secrets=request.secrets,
            limits=request.limits,
        )
        if question.past.n_sessions:
            talk(f"going on: {len(question.past.done):,} requests were made before")
        outcome, server = load_scraped.sent_and_scraped(question, as_json=as_json)
        _refuse_dead(outcome, folder)
        run = load_run.run_of(folder, opened, workload, percentiles)
    run = replace(run, server=server)
    if outcome.is_interrupted:
        return LoadedRun(run=run, is_interrupted=True)
    whole_run.write_run(folder, run)
    return LoadedRun(run=replace(run, manifest=replace(run.manifest, is_complete=True)))


def _refuse_dead(outcome: watch.LoadOutcome, folder: Path) -> None:
    if outcome.dead_processes:
        raise MeasureError(
            f"a client process died: {'; '.join(outcome.dead_processes)}",
            where=str(folder),
            try_="the same command again: what ended before is kept, and it goes on after it",
        )


__all__ = ["LoadedRun", "run_load"]
