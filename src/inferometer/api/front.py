"""The front door: one function for each question, for programs and notebooks.

Each takes the options of the command of its name as keyword arguments (``--max-num-seqs 32`` is
``max_num_seqs=32``, ``--for 60s`` is ``duration="60s"``, ``--set NAME=VALUE`` is
``set={"NAME": VALUE}``), and returns a typed answer. ``progress`` hears what is going on. Errors
are exceptions of ``inferometer.errors``.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from inferometer.api import (
    ab_pairs,
    capacity as capacities,
    capacity_measured,
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
from inferometer.api.progress import Listener, heard_by
from inferometer.api.python_calls import (
    called,
    dry_run_refused,
    option_values,
    pages_in_python,
    takes,
)
from inferometer.api.question import by_field, question_of
from inferometer.api.simulation import SimulateAnswer
from inferometer.api.size_grid import SIZE
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.api.studies import CAPACITY, PREDICT, SIMULATE, STUDIES, study_options
from inferometer.api.tuning import MeasuredTune, PlannedTune, PresetAnswer, TuneAnswer
from inferometer.api.watch_state import WatchAnswer

One = str | float | bool | Path | dict[str, Any] | None
"""One value of an option; several make a grid."""
Paths = str | Path | tuple[str | Path, ...] | list[str | Path]


def _functions() -> dict[str, object]:
    return globals()


_takes = partial(takes, functions=_functions)
"""Gives a function of this module the options of a question."""


worded = partial(pages_in_python, functions=_functions)
"""The pages of an answer, with keyword arguments where a terminal's have flags."""


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


@_takes(capacity_measured.ServerCapacity)
def _capacity(url: str, *, progress: Listener | None = None, **options: object) -> CapacityAnswer:
    """What is the highest load at which this server meets the SLO?"""
    with heard_by(progress):
        return capacity_measured.capacity_of_server(
            question_of(capacity_measured.ServerCapacity, {"url": url, **options})
        )


@overload
def capacity(model: str, *, progress: Listener | None = None, **options: One) -> CapacityAnswer: ...
@overload
def capacity(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> CapacityAnswer | GridAnswer: ...
@_takes(capacities.Capacity, of_servers=_capacity)
def capacity(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> CapacityAnswer | GridAnswer:
    """What is the highest load at which the SLO is met?

    Several values of an option (``tp=[1, 2, 4]``) make a grid. A URL in place of the model is a
    server that is measured: ``capacity("http://127.0.0.1:8000", slo=..., rate=2, out="runs/cap")``,
    with the options of ``load``, ``probe_for`` and ``max_probes``.
    """
    with heard_by(progress):
        answer: CapacityAnswer | GridAnswer = _asked(CAPACITY, {"model": model, **options})
        return answer


def study(
    name: str = "", model: str = "", *, progress: Listener | None = None, **options: object
) -> GridAnswer:
    """How does an answer change with length, batch, tp, devices, precision, concurrency, policies?

    ``name`` is one of these; the options are those of ``predict``, or of ``simulate`` for the last
    two. ``disaggregation`` answers whether splitting prefill and decode is worth it, with the
    options of ``capacity``.
    """
    question = STUDIES[name].verb.question if name in STUDIES else predictions.Predict
    with called(name="study", question=question, functions=_functions), heard_by(progress):
        values = study_options(name, option_values(question, {"model": model, **options}))
        verb = STUDIES[name].verb
        return grid(verb, values, axes_of(verb.question, values))


@overload
def size(model: str, *, progress: Listener | None = None, **options: One) -> SizeAnswer: ...
@overload
def size(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> SizeAnswer | GridAnswer: ...
@_takes(sizings.Size)
def size(
    model: str | list[str], *, progress: Listener | None = None, **options: object
) -> SizeAnswer | GridAnswer:
    """What must be bought to meet the SLO under some traffic?

    Several values of an option (``rate=[10, 20, 40]``) make a grid.
    """
    with heard_by(progress):
        answer: SizeAnswer | GridAnswer = _asked(SIZE, {"model": model, **options})
        return answer


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
        question = question_of(load_sending.LoadTest, {"url": url, **options})
        ended = None if question.dry_run else load_sending.send(question)
        if ended is None:
            raise dry_run_refused()
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


@_takes(ab_pairs.CompareServers)
def _compare(
    url: str, other_url: str | None = None, *, progress: Listener | None = None, **options: object
) -> CompareAnswer:
    """Is server B better than A?"""
    given = {"url": url, "other_url": other_url, "ab": True, **options}
    with heard_by(progress):
        answer = ab_pairs.compare_servers(question_of(ab_pairs.CompareServers, given))
    if answer is None:
        raise dry_run_refused()
    return answer


@_takes(comparisons.Compare, of_servers=_compare)
def compare(
    old: str | Path, new: str | Path, *, progress: Listener | None = None, **options: object
) -> CompareAnswer:
    """Is B better than A, worse, equivalent, or is that undecided?

    URLs in place of runs are servers that are loaded in turns, with the options of ``load`` and
    ``repeats``, the number of pairs.
    """
    question = question_of(comparisons.Compare, {"old": old, "new": new, **options})
    with heard_by(progress):
        return comparisons.compare(question)


@_takes(catalogs.Catalog)
def catalog(
    kind: Literal["models", "hardware", "slos", "workloads"],
    name: str | None = None,
    *,
    progress: Listener | None = None,
    **options: object,
) -> catalogs.CatalogAnswer:
    """Which models, devices, SLOs and workloads are known, and from which sources?"""
    with heard_by(progress):
        return catalogs.catalog(
            question_of(catalogs.Catalog, {"kind": kind, "name": name, **options})
        )


@_takes(machine.Doctor)
def doctor(*, progress: Listener | None = None) -> machine.DoctorAnswer:
    """What would make numbers bad on this machine?"""
    with heard_by(progress):
        return machine.doctor(machine.Doctor())


@_takes(machine.Engines)
def engines(*, progress: Listener | None = None, **options: object) -> machine.EnginesAnswer:
    """Which engines can be measured here?"""
    with heard_by(progress):
        return machine.engines(question_of(machine.Engines, options))
