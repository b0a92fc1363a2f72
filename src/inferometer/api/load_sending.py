"""How is a load test opened and sent?

Whatever is needed only to answer is not imported here: the first request would wait for it.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from inferometer.api import load_record, load_sentences
from inferometer.api.load_request import Load, LoadRequest, arrivals_of, request_of
from inferometer.api.progress import talk
from inferometer.api.question import Option
from inferometer.errors import MeasureError
from inferometer.inputs.objectives import ObjectiveSpec, parse_objective
from inferometer.inputs.workload import replay
from inferometer.inputs.workload.plan import DrawnWorkload
from inferometer.measure.executors import ray_cluster
from inferometer.measure.load import load_test, preflight, ray_clients, sessions, watch
from inferometer.measure.metrics_page import MetricsSource
from inferometer.measure.scrape import Scraper, scraping
from inferometer.records.exports import writing
from inferometer.records.types import ServerSampleTable


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """A load test of a server, and how its answer is wanted."""

    url: Annotated[str, Option("", is_argument=True)]
    load: Load = field(default_factory=Load)
    slo: Annotated[
        str | None,
        Option(
            "The SLO: 'ttft:p95<500ms, tpot:p95<50ms'. Exit 0 met, 10 missed, 11 undecided.",
            heading="Limits",
            is_common=True,
            metavar="TEXT",
        ),
    ] = None
    out: Annotated[
        Path | None,
        Option("Folder of the run; the same one resumes it.", is_common=True, metavar="DIR"),
    ] = None
    export: Annotated[
        tuple[writing.RequestFormat, ...],
        Option("Also for other tools, in the run's folder."),
    ] = ()
    report: Annotated[
        bool,
        Option(
            "Write the page report.html into the folder.",
            is_common=True,
            flags=("--report/--no-report",),
        ),
    ] = True
    dry_run: Annotated[bool, Option("Say what would be sent.", is_common=True)] = False
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLoad:
    """A test that is over, and how its answer is wanted."""

    sent: "SentLoad | None"
    """None: it was made before."""
    folder: Path
    class_names: tuple[str, ...]
    objective: ObjectiveSpec | None
    exports: tuple[writing.RequestFormat, ...]
    has_report: bool


def send(question: LoadTest) -> EndedLoad | None:
    """Send the requests; None where ``dry_run`` only wanted to know which.

    Raises
    ------
    SpecError
        The question cannot be answered as it is asked.
    MeasureError
        The server is not there, or refuses what the run will ask.
    RecordError
        The folder cannot be written or holds another run.
    """
    request = request_of(question.url, question.load)
    objective = None if question.slo is None else parse_objective(question.slo)
    load_sentences.check_size(request.load)
    drawn = replay.draw_workload(request.load.workload)
    load_sentences.check_prompts(request.load, drawn)
    folder = question.out or load_sentences.default_folder(request.load)
    default = load_sentences.default_traffic(request.load, arrivals_of(question.load))
    if default is not None:
        talk(default)
    talk(f"{load_sentences.what_will_happen(request.load, drawn)}; into {folder}")
    if question.dry_run:
        return None
    return EndedLoad(
        sent=send_load(request, drawn, folder),
        folder=folder,
        class_names=drawn.class_names,
        objective=objective,
        exports=tuple(dict.fromkeys(question.export)),
        has_report=question.report,
    )


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


def send_load(request: LoadRequest, workload: DrawnWorkload, folder: Path) -> SentLoad | None:
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
            outcome, server = sent_and_scraped(question, request.metrics)
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


# How is a server loaded and watched at once?


def sent_and_scraped(
    question: load_test.LoadQuestion, source: MetricsSource
) -> tuple[watch.LoadOutcome, ServerSampleTable | None]:
    """Send while the server's own numbers are scraped, where it shows any.

    Raises
    ------
    MeasureError
        The server is not there, or shows no numbers where it was said to.
    """
    with ExitStack() as stack:
        scraper = _scraper(question, source, stack)
        outcome = load_test.run_session(question, talk)
    if scraper is None:
        return outcome, None
    table = scraper.table()
    return outcome, table._replace(scraped_ns=table.scraped_ns - outcome.origin_monotonic_ns)


def _scraper(
    question: load_test.LoadQuestion, source: MetricsSource, stack: ExitStack
) -> Scraper | None:
    """Started, until the stack ends.

    Its clock begins at 0: when the run does is known afterwards.
    """
    try:
        return stack.enter_context(scraping(source, started_ns=0))
    except MeasureError as error:
        if question.load.metrics_url is not None:
            raise
        talk(f"without the server's own numbers: {error.what}")
        return None
