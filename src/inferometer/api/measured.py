"""How does a verb measure, and what does it answer: the run, its table, its report?"""

import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inferometer import suggestions
from inferometer.api import provenance, sweep_view
from inferometer.api.analysis import CSV_NAME, Analysis, analyse, label_runs, table_rows
from inferometer.api.answer import Answer
from inferometer.api.progress import command_line, talk
from inferometer.errors import RecordError
from inferometer.inputs import resolve, types
from inferometer.measure import host
from inferometer.measure.engines.protocol import ModelReference
from inferometer.measure.sweep import run_sweep
from inferometer.measure.time_left import Progress
from inferometer.records.sweep_csv import write_sweep_csv
from inferometer.report import html, sweep_page, views
from inferometer.report.page import Line, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAnswer(Answer):
    """Folder and results of a measurement."""

    table = "view.points"

    run: str
    csv: str
    report_file: str
    view: views.SweepReportView
    next_commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folder of a run, and file of its table."""

    run: Path
    csv: Path


def places_of(out: Path | None, default: Path) -> Places:
    """Places that ``--out`` names: a folder, or a table ``X.csv`` with the run in ``X``.

    Raises
    ------
    RecordError
        The table would overwrite a file that is not of that run.

    Example
    -------
    >>> places = places_of(Path("runs/x.csv"), Path("runs/default"))
    >>> places.run.name, places.csv.name
    ('x', 'x.csv')
    """
    folder = out or default
    if folder.suffix.lower() == ".csv" and not folder.is_dir():
        run = folder.with_suffix("")
        if folder.exists() and not run.exists():
            raise RecordError(
                "the file is there already, and no run of it",
                where=str(folder),
                allowed="a new file",
                try_="another --out",
            )
        return Places(run=run, csv=folder)
    return Places(run=folder, csv=folder / CSV_NAME)


def measured_answer(analysis: Analysis, places: Places) -> MeasuredAnswer:
    """Write the table and the report of a run."""
    folder, csv = places.run, places.csv
    write_sweep_csv(csv, table_rows(analysis))
    report = folder / provenance.REPORT_NAME
    view = sweep_view.sweep_view([analysis], report_path=report)
    html.write_page(sweep_page.page_of(view), report)
    next_commands = tuple(suggestions.command(verb, folder) for verb in ("explain", "fit", "show"))
    return MeasuredAnswer(
        run=str(folder),
        csv=str(csv),
        report_file=str(report),
        view=view,
        next_commands=next_commands,
    )


def measured_page(answer: MeasuredAnswer) -> Page:
    """The page of the sweep, ending with its table and the next command."""
    page = sweep_page.page_of(answer.view)
    return replace(
        page,
        lines=(
            *page.lines,
            Line(label="DATA", text=answer.csv),
            Line(label="NEXT", text="", command=answer.next_commands[0]),
        ),
    )


def default_folder(verb: str, plan: types.SweepPlan, model: resolve.ResolvedModel) -> Path:
    """Default folder of a run: the same for the same question, so that the same command resumes."""
    digest = hashlib.sha256(msgspec.json.encode(plan)).hexdigest()[:6]
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "-"
        for letter in model.spec.model_id.lower()
    )
    return Path("runs") / f"{verb}-{name}-{plan.engine.engine}-{plan.engine.dtype}-{digest}"


def in_seconds(budget_s: float) -> float:
    """The monotonic instant at which a budget that begins now ends; its purpose is logged."""
    talk(
        f"within about {budget_s:.0f} s: a look at this machine, loading, then as many points as"
        " there is time for, two at least"
    )
    return time.monotonic() + budget_s


def measure(
    plan: types.SweepPlan,
    model: resolve.ResolvedModel,
    folder: Path,
    *,
    until_s: float | None = None,
) -> Analysis:
    """Measure the missing points of the plan, and analyse the run.

    Ctrl-C and kill -9 lose at most the point in progress.
    """
    for caution in host.examine_machine():
        talk(f"CAUTION {caution.text}; {caution.remedy}")
    talk(f"{what_will_happen(plan, model)}; into {folder}")
    reported: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        reported.append(progress)
        talk(progress)

    run = run_sweep(
        plan,
        reference_to(model),
        folder,
        on_progress,
        command=command_line(),
        until_s=until_s,
    )
    if until_s is not None and time.monotonic() > until_s:
        talk(
            f"{time.monotonic() - until_s:.0f} s more than the budget: loading and two points took"
            " longer, as beside other work"
        )
    if not reported:
        talk("nothing was measured now: this is what was stored before")
    return analyse(run, folder, label=label_runs([run])[0])


def what_will_happen(plan: types.SweepPlan, model: resolve.ResolvedModel) -> str:
    """The measurement in one sentence."""
    engine = plan.engine
    weights = "random weights" if engine.load_format == "dummy" else "real weights"
    counts = ((plan.n_warmup, "warm-up"), (plan.n_reps, "repetition"), (len(plan.points), "point"))
    n_warmups, n_reps, n_points = (f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counts)
    rounds = f" in {plan.n_rounds} rounds" if plan.n_rounds > 1 else ""
    repeats = f"{n_warmups} and {n_reps} of {n_points}{rounds}"
    return (
        f"{model.spec.model_id} ({weights}) on {engine.engine} {engine.mode} {engine.dtype}"
        f" {engine.device}: {repeats}"
    )


def reference_to(model: resolve.ResolvedModel) -> ModelReference:
    """The model that the engine's process loads."""
    if model.path is None:
        return ModelReference(kind="spec", location=None, spec=model.spec)
    return ModelReference(
        kind="gguf" if model.kind == "gguf" else "folder",
        location=str(model.path.resolve()),
        spec=model.spec,
    )
