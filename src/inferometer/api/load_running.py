"""How is a load test made: opened, sent, decoded, judged, stored?"""

from dataclasses import dataclass, replace
from pathlib import Path

from inferometer.api import load_run
from inferometer.api.load_request import LoadRequest
from inferometer.api.load_sending import SentLoad, send_load
from inferometer.api.progress import talk
from inferometer.errors import MeasureError
from inferometer.inputs.workload.plan import DrawnWorkload
from inferometer.measure.load import watch
from inferometer.records import reading, store, types


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """The run, and whether somebody stopped it before its end."""

    run: types.Run
    is_interrupted: bool = False


def run_load(
    request: LoadRequest,
    workload: DrawnWorkload,
    folder: Path,
    percentiles: tuple[float, ...],
) -> LoadedRun:
    """Make the test, or what is left of it, and store it. One that was made before is read.

    Raises
    ------
    MeasureError
        The server is not there, or a client process died; what came is kept.
    RecordError
        The folder cannot be written or holds another run.
    """
    return loaded_run(send_load(request, workload, folder), folder, percentiles)


def loaded_run(sent: SentLoad | None, folder: Path, percentiles: tuple[float, ...]) -> LoadedRun:
    """The run that was sent, stored; None: the one that was made before in this folder.

    Raises
    ------
    MeasureError
        A client process died; what came is kept.
    RecordError
        The folder cannot be read or written.
    """
    if sent is None:
        talk("the test had been made before: this is what was stored")
        return LoadedRun(run=reading.read_run(folder))
    with sent.held:
        _refuse_dead(sent.outcome, folder)
        run = load_run.run_of(folder, sent.asked, sent.workload, percentiles)
    run = replace(run, server=sent.server)
    if sent.outcome.is_interrupted:
        return LoadedRun(run=load_run.partial(run, sent.asked), is_interrupted=True)
    store.write_run(folder, run)
    return LoadedRun(run=replace(run, manifest=replace(run.manifest, is_complete=True)))


def _refuse_dead(outcome: watch.LoadOutcome, folder: Path) -> None:
    if outcome.dead_processes:
        raise MeasureError(
            f"a client process died: {'; '.join(outcome.dead_processes)}",
            where=str(folder),
            try_="the same command again: what ended before is stored, and it goes on from there",
        )
