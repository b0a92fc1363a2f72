"""Export of a run to other tools' formats."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, get_args

from inferometer.api import run_titles
from inferometer.api.analysis import analyse, table_rows
from inferometer.api.answer import Answer
from inferometer.api.question import Option, option
from inferometer.errors import RecordError, SpecError
from inferometer.inputs.objectives import parse_objective
from inferometer.records.exports import ExportFormat
from inferometer.records.exports.writing import exported_text
from inferometer.records.reading import read_run
from inferometer.records.request_summaries import judge_objective
from inferometer.records.run_folder import replace_file
from inferometer.records.sweep_csv import write_sweep_csv
from inferometer.records.types import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportAnswer(Answer):
    """The file that was written."""

    run: str
    format: ExportFormat
    file: str
    n_points: int | None
    """Points of a sweep; None for a run of requests."""
    n_requests: int | None
    """Requests of a run; None for a sweep."""
    n_good: int | None
    """Requests within every limit; None without --slo, or where the format has no place for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The run to export, and the format."""

    run: Annotated[Path, Option("", is_argument=True)]
    format: ExportFormat | None = option(
        None, "Format to write. [csv where FILE ends in .csv]", is_common=True
    )
    out: Annotated[Path, Option("File to write.", is_common=True, metavar="FILE")]
    slo: str | None = option(
        None,
        "Also report the goodput under this SLO: 'ttft:p95<500ms, tpot:p95<50ms'.",
        "Limits",
        is_common=True,
        metavar="TEXT",
    )
    given: frozenset[str] = frozenset()


def exported(question: Export) -> ExportAnswer:
    """Write the file.

    Raises
    ------
    RecordError
        The file is there already, or the run cannot be read or be of that format.
    """
    run, out = question.run, question.out
    if out.exists():
        raise RecordError(
            "the file is there already",
            where=str(out),
            allowed="a new file",
            try_="another name with --out",
        )
    format_ = question.format or _format_of(out)
    loaded = read_run(run)
    if loaded.requests is None:
        return _exported_sweep(loaded, run, format_, out)
    judgement = None
    if question.slo is not None and format_ not in {"csv", "scheduler-log"}:
        drawn = run_titles.fanned_out(loaded)
        objective = parse_objective(question.slo, has_workflows=drawn is not None)
        judgement = judge_objective(replace(loaded, drawn=drawn), objective)
    replace_file(out, exported_text(loaded, format_, judgement=judgement).encode())
    return ExportAnswer(
        run=str(run),
        format=format_,
        file=str(out),
        n_points=None,
        n_requests=len(loaded.requests.status),
        n_good=None if judgement is None else judgement.n_good,
    )


def _format_of(out: Path) -> ExportFormat:
    if out.suffix.lower() == ".csv":
        return "csv"
    formats = ", ".join(get_args(ExportFormat))
    raise SpecError(
        f"no format, and {out.name!r} does not end in .csv",
        where="--format, --out",
        allowed=formats,
        try_="--format csv",
    )


def _exported_sweep(run: Run, path: Path, format_: ExportFormat, out: Path) -> ExportAnswer:
    if run.sweep is None or format_ != "csv":
        raise RecordError(
            f"{format_} is a format of requests, and the run has none",
            where=str(path),
            allowed="--format csv for a sweep",
            try_="--format csv",
        )
    rows = table_rows(analyse(run, path, label=str(path)))
    write_sweep_csv(out, rows)
    return ExportAnswer(
        run=str(path),
        format=format_,
        file=str(out),
        n_points=len(rows),
        n_requests=None,
        n_good=None,
    )


def export_text(answer: ExportAnswer) -> str:
    """The written file, in one line."""
    good = "" if answer.n_good is None else f", {answer.n_good} of them within every limit"
    what = (
        f"{answer.n_requests} requests{good}"
        if answer.n_points is None
        else f"{answer.n_points} points"
    )
    return f"{what} -> {answer.file} ({answer.format})"
