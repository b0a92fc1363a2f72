"""How is a load test opened and sent, and what does its folder hold while it is not over?

``load.json`` holds the plan, ``raw/`` what came over the wire; a complete run has its tables and
manifest too.

Whatever is needed only to answer is not imported here: the first request would wait for it.
"""

import importlib
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import msgspec

from inferometer.api import progress, run_titles
from inferometer.api.load_request import Load, LoadRequest, arrivals_of, request_of
from inferometer.api.question import SERVER, Option, option
from inferometer.errors import MeasureError, RecordError, SpecError
from inferometer.inputs import foreign_bytes, objectives
from inferometer.inputs.plans import LoadPlan, body_value_without_secrets, without_secrets
from inferometer.inputs.workload import plan, replay
from inferometer.measure import otlp, scrape, server_identity
from inferometer.measure.executors import ray_cluster
from inferometer.measure.load import (
    load_test,
    messages,
    preflight,
    ray_clients,
    schedule,
    target,
    watch,
)
from inferometer.records import run_folder, types
from inferometer.records.exports import RequestFormat

_DOOR: Final = foreign_bytes.own_files("description of the load", "another folder with --out")

_NO_SECRET: Final = re.compile(r"(?:(?:Bearer|Basic|Token) )?\$(?:\w+|\{\w+\})")
"""A header's value whose secret stands in a variable."""
_TRACEPARENT: Final = "traceparent"
OPEN_NAME: Final = run_folder.OPEN_LOAD_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """An unfinished load test and its start.

    Later sessions keep the first one's name and command.
    """

    load: LoadPlan
    run_id: str
    created_utc: str
    command: tuple[str, ...]


@contextmanager
def opened(folder: Path, load: LoadPlan) -> Generator[OpenLoad]:
    """The load test of this folder, new or resumed, locked against other writers.

    Raises
    ------
    RecordError
        The folder cannot be written, is being written, or holds another question's test.
    """
    run_folder.make_folder(folder)
    lock = run_folder.WriterLock.acquire(folder / run_folder.LOCK_NAME)
    try:
        yield _opened(folder, load)
    finally:
        lock.release()


def is_complete(folder: Path, load: LoadPlan) -> bool:
    """Did this same test already run to its end here?

    Raises
    ------
    RecordError
        The folder holds another run.
    """
    if not (folder / run_folder.MANIFEST_NAME).exists():
        return False
    if not (folder / OPEN_NAME).exists() or _read(folder / OPEN_NAME).load != without_secrets(load):
        raise _another(folder)
    return True


def is_open(folder: Path) -> bool:
    """Is there an unfinished load test in the folder?"""
    return (folder / OPEN_NAME).is_file() and not (folder / run_folder.MANIFEST_NAME).exists()


def open_load(folder: Path) -> OpenLoad:
    """The question stored in this folder.

    Raises
    ------
    RecordError
        The file cannot be read.
    """
    return _read(folder / OPEN_NAME)


def _opened(folder: Path, plan: LoadPlan) -> OpenLoad:
    path, load = folder / OPEN_NAME, without_secrets(plan)
    if path.exists():
        stored = _read(path)
        if stored.load != load:
            raise _another(folder)
        return stored
    created_utc = run_folder.now_utc()
    new = OpenLoad(
        load=load,
        run_id=run_folder.new_run_id(created_utc),
        created_utc=created_utc,
        command=redacted(progress.command_line()),
    )
    run_folder.replace_file(path, msgspec.json.format(msgspec.json.encode(new), indent=2) + b"\n")
    return new


def _read(path: Path) -> OpenLoad:
    return _DOOR.json(_DOOR.bytes_of(path), OpenLoad, where=str(path))


def _another(folder: Path) -> RecordError:
    return RecordError(
        "the folder holds another run",
        where=str(folder),
        allowed="the same command, which goes on",
        try_="another folder with --out",
    )


# How is a command line stored: without the values of headers, bodies and proxies?


def redacted(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line without values of headers and credentials of proxies."""
    before = ("", *arguments)
    return tuple(
        _redacted(flag, argument) for flag, argument in zip(before, arguments, strict=False)
    )


def _redacted(before: str, argument: str) -> str:
    """An argument without its secret, if it has one; ``before`` is the preceding one."""
    flag, is_joined, value = argument.partition("=")
    if is_joined and flag in _SECRET:
        return f"{flag}={_SECRET[flag](value)}"
    return _SECRET[before](argument) if before in _SECRET else argument


def _valueless(header: str) -> str:
    name, _, value = header.partition(":")
    return header if _NO_SECRET.fullmatch(value.strip()) else f"{name}: …"


def _textless(key: str) -> str:
    """``--body`` without texts; only the name where it is not JSON."""
    name, _, value = key.partition("=")
    try:
        return f"{name}={body_value_without_secrets(value)}"
    except msgspec.DecodeError:
        return f"{name}=…"


_SECRET: Final[dict[str, Callable[[str], str]]] = {
    **dict.fromkeys(("--header", "--b-header"), _valueless),
    **dict.fromkeys(("--body", "--b-body"), _textless),
    **dict.fromkeys(("--proxy", "--metrics-url", "--otlp-endpoint"), target.shown_url),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """A load test of a server, and how its answer is wanted."""

    url: Annotated[str, Option("", is_argument=True, parse=SERVER)]
    load: Load = field(default_factory=Load)
    slo: str | None = option(
        None,
        "The SLO: 'ttft:p95<500ms, tpot:p95<50ms'. Exit 0 met, 10 missed, 11 undecided.",
        "Limits",
        is_common=True,
        metavar="TEXT",
    )
    out: Path | None = option(
        None, "Folder of the run; the same one resumes it.", is_common=True, metavar="DIR"
    )
    export: tuple[RequestFormat, ...] = option(
        (), "Also write the run in this format of another tool, into its folder."
    )
    report: bool = option(
        True,
        "Write the page report.html into the folder.",
        is_common=True,
        flags=("--report/--no-report",),
    )
    otlp_endpoint: str | None = option(
        None,
        "Send a span of each traced request and the run's metrics to this OpenTelemetry collector"
        " (OTLP over HTTP) after the run, and the header traceparent to the server.",
        metavar="URL",
    )
    otlp_sample: float = option(
        1.0, "Share of requests that are traced.", metavar="FRACTION", least=0, most=1
    )
    dry_run: bool = option(False, "Print what would be sent, and send nothing.", is_common=True)
    metrics_port: int | None = option(
        None,
        "Port of 127.0.0.1 on which to serve the counts and latencies so far as Prometheus metrics.",
        is_common=True,
        least=1,
        most=65535,
    )
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Collector of spans and metrics, and the share of requests with spans."""

    sender: otlp.SpanSender
    endpoint: str
    sample_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLoad:
    """A test that is over, and how its answer is wanted."""

    sent: "SentLoad | None"
    """None: it was made before."""
    folder: Path
    class_names: tuple[str, ...]
    objective: objectives.ObjectiveSpec | None
    exports: tuple[RequestFormat, ...]
    has_report: bool
    traced: "Traced | None" = None


def send(question: LoadTest) -> EndedLoad | None:
    """Send the requests; None for ``dry_run``.

    Raises
    ------
    SpecError
        The question is impossible.
    MeasureError
        The server is not there, or refuses what the run will ask.
    RecordError
        The folder cannot be written or holds another run.
    """
    request, traced = _traced(request_of(question.url, question.load), question)
    objective = (
        None
        if question.slo is None
        else objectives.parse_objective(question.slo, has_workflows=True)
    )
    run_titles.check_size(request.load)
    drawn = replay.draw_workload(request.load.workload)
    if objective is not None:
        objectives.check_workflows(objective, has_workflows=plan.has_workflows(drawn.plan))
    run_titles.check_prompts(request.load, drawn)
    folder = question.out or run_titles.default_folder(request.load)
    given = {**arrivals_of(question.load), "max_concurrency": question.load.max_concurrency}
    default = run_titles.default_traffic(request.load, given)
    if default is not None:
        progress.talk(default)
    progress.talk(f"{run_titles.what_will_happen(request.load, drawn)}; into {folder}")
    if question.dry_run:
        return None
    if traced is not None:
        traced.sender.check()
    return EndedLoad(
        sent=send_load(request, drawn, folder, metrics_port=question.metrics_port),
        folder=folder,
        class_names=drawn.class_names,
        objective=objective,
        exports=tuple(dict.fromkeys(question.export)),
        has_report=question.report,
        traced=traced,
    )


def _traced(request: LoadRequest, question: LoadTest) -> tuple[LoadRequest, Traced | None]:
    """The request with the header ``traceparent``, where spans are wanted.

    Raises
    ------
    SpecError
        The SDK is missing, the URL is none, or the header is given by hand too.
    """
    if question.otlp_endpoint is None:
        return request, None
    names = request.load.header_names
    if any(name.lower() == _TRACEPARENT for name in names):
        raise SpecError(
            "the header traceparent is given twice",
            where="--header, --otlp-endpoint",
            allowed="one of them: with --otlp-endpoint each request has one of its own",
        )
    fraction = question.otlp_sample
    traced = Traced(
        sender=otlp.SpanSender(question.otlp_endpoint, otlp.LOAD_SERVICE),
        endpoint=question.otlp_endpoint,
        sample_fraction=fraction,
    )
    load = replace(request.load, header_names=tuple(sorted((*names, _TRACEPARENT))))
    return replace(request, load=load, sample_fraction=fraction), traced


@dataclass(frozen=True, slots=True, kw_only=True)
class SentLoad:
    """A load test that was sent; its traffic is recorded in its folder."""

    opened: OpenLoad
    workload: plan.DrawnWorkload
    folder: Path
    outcome: watch.LoadOutcome
    server: types.ServerSampleTable | None
    engine: types.EngineFacts | None
    """Facts that the server reports; None: not reported."""
    held: ExitStack
    """Lock of the folder, until it is closed."""


def send_load(
    request: LoadRequest,
    workload: plan.DrawnWorkload,
    folder: Path,
    *,
    metrics_port: int | None = None,
) -> SentLoad | None:
    """Send or resume the test; None where it is complete.

    Raises
    ------
    MeasureError
        The server is not there, or refuses what the run will ask.
    RecordError
        The folder cannot be written or holds another run.
    """
    if is_complete(folder, request.load):
        return None
    if request.is_asked_before:
        _ask_before(request)
    with ExitStack() as held:
        stored = held.enter_context(opened(folder, request.load))
        question = load_test.LoadQuestion(
            load=request.load,
            plan=workload.plan,
            past=schedule.past_of(folder),
            folder=folder,
            id_prefix=stored.run_id[-8:],
            secrets=request.secrets,
            limits=request.limits,
            tracing=None
            if request.sample_fraction is None
            else messages.Tracing(run_name=stored.run_id, sample_fraction=request.sample_fraction),
        )
        if question.past.n_sessions:
            progress.talk(f"going on: {len(question.past.done):,} requests were made before")
        with ExitStack() as sending:
            if request.is_on_ray:
                cluster = sending.enter_context(ray_cluster.joined(request.ray_address))
                question = replace(question, start_clients=ray_clients.of(cluster))
            hear = sending.enter_context(_exported(metrics_port, question))
            outcome, server, engine = sent_and_scraped(question, request.metrics, hear)
        return SentLoad(
            opened=stored,
            workload=workload,
            folder=folder,
            outcome=outcome,
            server=server,
            engine=engine,
            held=held.pop_all(),
        )


def _ask_before(request: LoadRequest) -> None:
    secrets = request.secrets
    if request.sample_fraction is not None:  # this one is none of the run's, and not traced
        untraced = (_TRACEPARENT, otlp.untraced())
        secrets = replace(secrets, headers=(*secrets.headers, untraced))
    problem = preflight.check_server(
        request.load, secrets, request.limits, load_test.resolved(request.load)
    )
    if problem is not None:
        progress.talk(f"before the run, {problem}; going on")


# How is a server loaded and watched at once?


def sent_and_scraped(
    question: load_test.LoadQuestion,
    source: scrape.MetricsSource,
    hear: watch.OnProgress = progress.talk,
) -> tuple[watch.LoadOutcome, types.ServerSampleTable | None, types.EngineFacts | None]:
    """Run the load test and scrape the server's metrics meanwhile; then read its identity.

    Raises
    ------
    MeasureError
        The server is not there, or has no metrics where the option says.
    """
    with ExitStack() as stack:
        scraper = _scraper(question, source, stack)
        outcome = load_test.run_session(question, hear)
    if scraper is None or scraper.kind is None:
        return outcome, None, None
    table, engine = scraper.table(), server_identity.server_identity(source, scraper.kind).facts
    table = table._replace(scraped_ns=table.scraped_ns - outcome.origin_monotonic_ns)
    return outcome, table, engine


def _scraper(
    question: load_test.LoadQuestion, source: scrape.MetricsSource, stack: ExitStack
) -> scrape.Scraper | None:
    """Started, until the stack ends.

    Its clock begins at 0: when the run does is known afterwards.
    """
    try:
        return stack.enter_context(scrape.scraping(source, started_ns=0))
    except MeasureError as error:
        if question.load.metrics_url is not None:
            raise
        progress.talk(f"without the server's own numbers: {error.what}")
        return None


@contextmanager
def _exported(port: int | None, question: load_test.LoadQuestion) -> Generator[watch.OnProgress]:
    """Progress callback: to the listener, and as Prometheus metrics at ``port``.

    What decodes answers is imported where it is wanted: a test without it does not wait for it.
    """
    if port is None:
        yield progress.talk
        return
    exporter = importlib.import_module("inferometer.measure.load.exporter")
    with exporter.exporting(port, question) as hear:
        progress.talk(f"metrics: http://127.0.0.1:{port}/metrics")

        def on_progress(now: watch.LoadProgress) -> None:
            hear(now)
            progress.talk(now)

        yield on_progress
