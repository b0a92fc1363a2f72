"""What does a verb that measured give: the run, its table, its report, and all that they say?"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec

from inferometer import suggestions
from inferometer.api.analysis import Analysis
from inferometer.api.answer import Answer
from inferometer.api.sweep_table import CSV_NAME, table_rows
from inferometer.api.sweep_view import REPORT_NAME, sweep_view
from inferometer.errors import RecordError
from inferometer.inputs import resolve, types
from inferometer.records.sweep_csv import write_sweep_csv
from inferometer.report import html, views
from inferometer.report.page import Line, Page
from inferometer.report.sweep_page import page_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAnswer(Answer):
    """Where the measurements are, and what they say."""

    table: ClassVar[str | None] = "view.points"

    run: str
    csv: str
    report: str
    view: views.SweepReportView
    next_commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run is stored, and where its table is written."""

    run: Path
    csv: Path


def places_of(out: Path | None, default: Path) -> Places:
    """The places that ``--out`` names: a folder, or a table ``X.csv`` whose run is stored in ``X`` beside it.

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
    """Write the table and the report of a run, and say where they are."""
    folder, csv = places.run, places.csv
    write_sweep_csv(csv, table_rows(analysis))
    report = folder / REPORT_NAME
    view = sweep_view([analysis], report_path=report)
    html.write_page(page_of(view), report)
    next_commands = tuple(suggestions.command(verb, folder) for verb in ("explain", "fit", "show"))
    return MeasuredAnswer(
        run=str(folder), csv=str(csv), report=str(report), view=view, next_commands=next_commands
    )


def measured_page(answer: MeasuredAnswer) -> Page:
    """The page of the sweep, ending with its table and what to type next."""
    page = page_of(answer.view)
    return replace(
        page,
        lines=(
            *page.lines,
            Line(label="DATA", text=answer.csv),
            Line(label="NEXT", text="", command=answer.next_commands[0]),
        ),
    )


def default_folder(verb: str, plan: types.SweepPlan, model: resolve.ResolvedModel) -> Path:
    """Where a run goes if nobody says: the same question, the same folder, so that the same command resumes."""
    digest = hashlib.sha256(msgspec.json.encode(plan)).hexdigest()[:6]
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "-"
        for letter in model.spec.model_id.lower()
    )
    return Path("runs") / f"{verb}-{name}-{plan.engine.engine}-{plan.engine.dtype}-{digest}"
