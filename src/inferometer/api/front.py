"""The front door: one function for each question, for programs and notebooks.

Each takes the options of the command of its name as keyword arguments (``--max-num-seqs 32`` is
``max_num_seqs=32``, ``--for 60s`` is ``duration="60s"``, ``--set NAME=VALUE`` is
``set={"NAME": VALUE}``), and returns a typed answer. ``progress`` hears what is going on. Errors
are exceptions of ``inferometer.errors``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, overload

from inferometer.api import (
    capacity as capacities,
    catalog as catalogs,
    compare as comparisons,
    deploy as deployments,
    diagnose as diagnoses,
    explain as explanations,
    explore as explorations,
    explore_states,
    explored,
    export_run as exports,
    fit as fits,
    import_results as imports,
    ledger as ledgers,
    load as loads,
    load_sending,
    machine,
    predict as predictions,
    quality as qualities,
    report as reports,
    show as shows,
    simulate as simulations,
    size as sizings,
    sweep as quicks,
    timeline as timelines,
    tune as tunings,
    verify as verifications,
    watch as watches,
)
from inferometer.api.compare import CompareAnswer
from inferometer.api.decision_pages import CapacityAnswer
from inferometer.api.grid import GridAnswer, Verb, axes_of, grid
from inferometer.api.measured import MeasuredAnswer
from inferometer.api.model_options import Quick, with_engine
from inferometer.api.prediction import PredictAnswer
from inferometer.api.progress import Listener, called_as, heard_by
from inferometer.api.question import Field, by_field, fields_of, question_of, signature_of
from inferometer.api.simulation import SimulateAnswer
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.api.studies import CAPACITY, PREDICT, SIMULATE, STUDIES, study_options
from inferometer.api.tuning import MeasuredTune, PlannedTune, PresetAnswer, TuneAnswer
from inferometer.api.watch_state import WatchAnswer
from inferometer.errors import SpecError

Function = TypeVar("Function", bound=Callable[..., object])
One = str | float | bool | Path | dict[str, Any] | None
"""One value of an option; several make a grid."""
_VERBS: Final = {"read": "show", "import_results": "import"}
"""Commands that do not have the name of their function."""
Paths = str | Path | tuple[str | Path, ...] | list[str | Path]


def _takes(question: type[Any]) -> Callable[[Function], Function]:
    """Let editors and notebooks show what the function takes, and refuse more than that by name."""

    def shown(function: Function) -> Function:
        @wraps(function)
        def checked(*given: object, **options: object) -> object:
            _check_given(function, given, signature_of(question))
            options = {name: _plain(name, value) for name, value in options.items()}
            own = dict(zip(_positional(function), given, strict=False)) | options
            with called_as(words_of_call(function.__name__, question, own)):
                return function(*given, **options)

        checked.__signature__ = signature_of(question)  # type: ignore[attr-defined]
        return cast("Function", checked)

    return shown


def _plain(name: str, value: object) -> object:
    """A duration as text; a table of pandas or polars is refused, as only its file is read.

    Raises
    ------
    SpecError
        The value is such a table.
    """
    if hasattr(value, "columns"):
        raise SpecError(
            f"{name} is a table in memory",
            where=name,
            allowed="the path of a file",
            try_=f"frame.to_csv('trace.csv', index=False), then {name}='trace.csv'",
        )
    seconds = getattr(value, "total_seconds", None)  # of a timedelta
    return value if seconds is None else f"{seconds():.12g}s"


def words_of_call(name: str, question: type[Any], given: dict[str, object]) -> tuple[str, ...]:
    """The call as a command: its verb, arguments and flags."""
    values, words = by_field(question, given), list[str]()
    for field in sorted(fields_of(question), key=lambda one: not one.option.is_argument):
        value = values.get(field.name)
        if value is not None:
            words += _flags(field, value)
    return (_VERBS.get(name, name), *words)


def _flags(field: Field, value: object) -> list[str]:
    yes, _, no = max(field.flags, key=len).partition("/")
    if isinstance(value, bool):
        return [yes] if value else [no] if no else []
    if isinstance(value, Mapping):
        value = [f"{name}={one}" for name, one in value.items()]
    several = list(value) if isinstance(value, list | tuple | range) else [value]
    if not field.is_many:
        several = [",".join(map(str, several))]
    flag = [] if field.option.is_argument else [yes]
    return [word for one in several for word in (*flag, str(one))]


def _positional(function: Callable[..., object]) -> list[str]:
    parameters = signature(function, follow_wrapped=False).parameters.values()
    return [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]


def _check_given(
    function: Callable[..., object], given: tuple[object, ...], options: Signature
) -> None:
    """Options have names: ``predict("llama-3.1-8b", "h100")`` is refused with what to write."""
    names = _positional(function)
    if len(given) > len(names):
        first, beyond = ", ".join(map(repr, given[: len(names)])), given[len(names)]
        raise SpecError(
            f"{beyond!r} stands without the name of its option",
            where=f"{function.__name__}()",
            allowed=f"{', '.join(names)} without a name, all else by name",
            try_=(
                f"{function.__name__}({first}, hardware={beyond!r})"
                if "hardware" in options.parameters
                else None
            ),
        )


def _asked(verb: Verb, values: dict[str, object]) -> Any:  # noqa: ANN401 -- of the verb, or a grid
    """One answer, or a grid where options have several values."""
    values = by_field(verb.question, values)
    axes = axes_of(verb.question, values)
    if axes:
        return grid(verb, values, axes)
    return verb.answer(question_of(verb.question, values))


@overload
def predict(model: str, *, progress: Listener | None = None, **options: One) -> PredictAnswer: ...
@overload
def predict(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> PredictAnswer | GridAnswer: ...
@_takes(predictions.Predict)
def predict(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> PredictAnswer | GridAnswer:
    """What would this model do on a device: memory, bounds, TTFT, TPOT, throughput, cost?

    Several values of an option (``batch=[1, 8, 64]``) make a grid.

    Example
    -------
    >>> predict("llama-3.1-8b", hardware="h100_sxm", batch=32).basis
    'published'
    """
    with heard_by(progress):
        answer: PredictAnswer | GridAnswer = _asked(PREDICT, {"model": model, **options})
        return answer


@overload
def simulate(model: str, *, progress: Listener | None = None, **options: One) -> SimulateAnswer: ...
@overload
def simulate(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> SimulateAnswer | GridAnswer: ...
@_takes(simulations.Simulate)
def simulate(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> SimulateAnswer | GridAnswer:
    """What would happen if this server got this traffic?

    Several values of an option (``policy=["static", "vllm"]``) make a grid.
    """
    with heard_by(progress):
        answer: SimulateAnswer | GridAnswer = _asked(SIMULATE, {"model": model, **options})
        return answer


@overload
def capacity(model: str, *, progress: Listener | None = None, **options: One) -> CapacityAnswer: ...
@overload
def capacity(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> CapacityAnswer | GridAnswer: ...
@_takes(capacities.Capacity)
def capacity(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> CapacityAnswer | GridAnswer:
    """What is the highest load at which the SLO is met?

    Several values of an option (``tp=[1, 2, 4]``) make a grid.
    """
    with heard_by(progress):
        answer: CapacityAnswer | GridAnswer = _asked(CAPACITY, {"model": model, **options})
        return answer


def study(
    name: str, model: str, *, progress: Listener | None = None, **options: object
) -> GridAnswer:
    """How does an answer change with length, batch, tp, devices, precision, concurrency, policies?

    ``name`` is one of these; the options are those of ``predict``, or of ``simulate`` for the last
    two.
    """
    values = study_options(name, {"model": model, **options})
    verb = STUDIES[name].verb
    with heard_by(progress):
        return grid(verb, values, axes_of(verb.question, values))


@_takes(sizings.Size)
def size(model: str, *, progress: Listener | None = None, **options: object) -> SizeAnswer:
    """What must be bought to meet the SLO under some traffic?"""
    with heard_by(progress):
        return sizings.size(question_of(sizings.Size, {"model": model, **options}))


@_takes(quicks.Sweep)
def sweep(
    model: str, *, progress: Listener | None = None, **options: object
) -> MeasuredAnswer | quicks.PlannedSweep:
    """How fast are prefill and decode of this model here, over prompt lengths and batch sizes?"""
    with heard_by(progress):
        return quicks.sweep(question_of(quicks.Sweep, {"model": model, **options}))


@_takes(Quick)
def quick(model: str, *, progress: Listener | None = None, **options: object) -> MeasuredAnswer:
    """How fast is this model here, and what limits it, in the time there is?"""
    with heard_by(progress):
        return quicks.quick(with_engine(question_of(Quick, {"model": model, **options})))


@_takes(load_sending.LoadTest)
def load(url: str, *, progress: Listener | None = None, **options: object) -> loads.LoadAnswer:
    """How does the server at this URL do under this traffic?

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C; the same call resumes.
    """
    with heard_by(progress):
        ended = load_sending.send(question_of(load_sending.LoadTest, {"url": url, **options}))
        if ended is None:
            raise SpecError(
                "a dry run has no answer", where="dry_run", try_="inferometer load --dry-run"
            )
        answer, _, finish = loads.answer_of_test(ended)
        if finish is not None:
            finish()
        return answer


@_takes(qualities.Quality)
def quality(
    model: str, *, progress: Listener | None = None, **options: object
) -> qualities.QualityAnswer:
    """What does a lossy option cost in quality: perplexity, top-1 and greedy agreement?"""
    with heard_by(progress):
        return qualities.quality(question_of(qualities.Quality, {"model": model, **options}))


@_takes(verifications.Verify)
def verify(
    plan: str | Path, *, progress: Listener | None = None, **options: object
) -> verifications.VerifyAnswer:
    """Is it true what was predicted? Sealed before, measured after, in a ledger."""
    with heard_by(progress):
        return verifications.verify(question_of(verifications.Verify, {"plan": plan, **options}))


@_takes(fits.Fit)
def fit(runs: Paths, *, progress: Listener | None = None, **options: object) -> fits.FitAnswer:
    """Which step-time model do these runs carry; with ``load=True``, which server?"""
    with heard_by(progress):
        return fits.fit(question_of(fits.Fit, {"runs": runs, **options})).answer


@_takes(diagnoses.Diagnose)
def diagnose(
    target: str, *, progress: Listener | None = None, **options: object
) -> diagnoses.AnyDiagnosis:
    """What limits this running server, and which change would help?"""
    with heard_by(progress):
        return diagnoses.diagnose(question_of(diagnoses.Diagnose, {"target": target, **options}))


@_takes(watches.Watch)
def watch(
    urls: str | Sequence[str], *, progress: Listener | None = None, **options: object
) -> WatchAnswer:
    """In which regime are these servers, and what changes while they are watched?

    Bound it: ``duration="60s"``, or ``once=True``.
    """
    with heard_by(progress):
        return watches.watch(question_of(watches.Watch, {"urls": urls, **options})).answer


@_takes(tunings.Tune)
def tune(
    model: str, *, progress: Listener | None = None, **options: object
) -> TuneAnswer | MeasuredTune | PlannedTune | PresetAnswer:
    """Which changes of the settings help this server under its traffic, and by how much?"""
    with heard_by(progress):
        return tunings.tune(question_of(tunings.Tune, {"model": model, **options}))


@_takes(explanations.Explain)
def explain(
    runs: Paths, *, progress: Listener | None = None, **options: object
) -> explanations.AnyExplanation:
    """Where does the time of each measured point go, of a profiled device, or of traced requests?"""
    with heard_by(progress):
        return explanations.explain(question_of(explanations.Explain, {"runs": runs, **options}))


@_takes(explorations.Explore)
def explore(
    model: str, *, progress: Listener | None = None, **options: object
) -> explored.ExploreAnswer:
    """What would happen if this server got this traffic, and around it: loads, layouts, costs?"""
    with heard_by(progress):
        return explore_states.explore(
            question_of(explorations.Explore, {"model": model, **options})
        )


@_takes(shows.Show)
def read(runs: Paths, *, progress: Listener | None = None, **options: object) -> shows.ShowAnswer:
    """What do stored runs say?"""
    with heard_by(progress):
        return shows.show(question_of(shows.Show, {"runs": runs, **options})).answer


show = read


@_takes(timelines.Timeline)
def timeline(
    run: str | Path | None = None, *, progress: Listener | None = None, **options: object
) -> timelines.TimelineAnswer:
    """What does each request of the batch do in each step; without a run, of the tick model?"""
    with heard_by(progress):
        return timelines.timeline(question_of(timelines.Timeline, {"run": run, **options})).answer


@_takes(ledgers.Ledger)
def ledger(
    file: str | Path | None = None, *, progress: Listener | None = None, **options: object
) -> ledgers.LedgerAnswer:
    """How often were sealed predictions right?"""
    with heard_by(progress):
        return ledgers.ledger(question_of(ledgers.Ledger, {"file": file, **options})).answer


@_takes(imports.Import)
def import_results(
    files: Paths, *, progress: Listener | None = None, **options: object
) -> imports.ImportAnswer:
    """What do other tools' result files say? With ``out`` their runs are written there."""
    with heard_by(progress):
        return imports.imported(question_of(imports.Import, {"files": files, **options}))


@_takes(exports.Export)
def export(
    run: str | Path, *, progress: Listener | None = None, **options: object
) -> exports.ExportAnswer:
    """Write a run for other tools."""
    with heard_by(progress):
        return exports.exported(question_of(exports.Export, {"run": run, **options}))


@_takes(deployments.Deploy)
def deploy(
    plan: str | Path, *, progress: Listener | None = None, **options: object
) -> deployments.DeployAnswer:
    """Write what runs, watches and checks a sizing."""
    with heard_by(progress):
        return deployments.deploy(question_of(deployments.Deploy, {"plan": plan, **options}))


@_takes(reports.Report)
def report(
    runs: Paths, *, progress: Listener | None = None, **options: object
) -> reports.ReportAnswer:
    """Write one offline page of stored runs."""
    with heard_by(progress):
        return reports.report(question_of(reports.Report, {"runs": runs, **options}))


@_takes(comparisons.Compare)
def compare(
    old: str | Path, new: str | Path, *, progress: Listener | None = None, **options: object
) -> CompareAnswer:
    """Is B better than A, worse, equivalent, or is that undecided?"""
    question = question_of(comparisons.Compare, {"old": old, "new": new, **options})
    with heard_by(progress):
        return comparisons.compare(question)


@_takes(catalogs.Catalog)
def catalog(
    kind: Literal["models", "hardware", "slos", "workloads"],
    name: str | None = None,
    *,
    tokenizer: Sequence[str] = (),
) -> catalogs.CatalogAnswer:
    """Which models, devices, SLOs and workloads are known, and from which sources?"""
    return catalogs.catalog(catalogs.Catalog(kind=kind, name=name, tokenizer=tuple(tokenizer)))


@_takes(machine.Doctor)
def doctor() -> machine.DoctorAnswer:
    """What would make numbers bad on this machine?"""
    return machine.doctor(machine.Doctor())


@_takes(machine.Engines)
def engines(*, progress: Listener | None = None, **options: object) -> machine.EnginesAnswer:
    """Which engines can be measured here?"""
    with heard_by(progress):
        return machine.engines(question_of(machine.Engines, options))
