"""How is a load test opened and sent?

Whatever is needed only to answer is not imported here: the first request would wait for it.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from inferometer.api import load_record
from inferometer.api.load_request import LoadRequest
from inferometer.cli import load_scraped
from inferometer.cli.terminal import talk
from inferometer.measure.executors import ray_cluster
from inferometer.measure.load import load_test, preflight, ray_clients, sessions, watch
from inferometer.records.load_types import ServerSampleTable
from inferometer.spec.workload.plan import DrawnWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class SentLoad:
    """A test that was sent: what came over the wire is in its folder."""

    asked: load_record.OpenLoad
    workload: DrawnWorkload
    folder: Path
    outcome: watch.LoadOutcome
    server: ServerSampleTable | None
    held: ExitStack
    """Nobody else can write to the folder until it is closed."""


def send_load(
    request: LoadRequest, workload: DrawnWorkload, folder: Path, *, as_json: bool
) -> SentLoad | None:
    """Send the test, or what is left of it; None where it was made before.

    Raises
    ------
    MeasureError
        The server is not there, or refuses what the run will ask.
    RecordError
        The folder cannot be written or holds another run.
    """
    if load_record.is_complete(folder, request.load):
        return None
    if request.is_asked_before:
        _ask_before(request)
    with ExitStack() as held:
        asked = held.enter_context(load_record.opened(folder, request.load))
        question = load_test.LoadQuestion(
            load=request.load,
            plan=workload.plan,
            past=sessions.past_of(folder),
            folder=folder,
            id_prefix=asked.run_id[-8:],
            secrets=request.secrets,
            limits=request.limits,
        )
        if question.past.n_sessions:
            talk(f"going on: {len(question.past.done):,} requests were made before")
        with ExitStack() as sending:
            if request.is_on_ray:
                cluster = sending.enter_context(ray_cluster.joined(request.ray_address))
                question = replace(question, start_clients=partial(ray_clients.started, cluster))
            outcome, server = load_scraped.sent_and_scraped(
                question, request.metrics, as_json=as_json
            )
        return SentLoad(
            asked=asked,
            workload=workload,
            folder=folder,
            outcome=outcome,
            server=server,
            held=held.pop_all(),
        )


def _ask_before(request: LoadRequest) -> None:
    problem = preflight.check_server(
        request.load, request.secrets, request.limits, load_test.resolved(request.load)
    )
    if problem is not None:
        talk(f"before the run, {problem}; going on")
