"""What is shown of sweeps: every surface (terminal, HTML, JSON) draws this one view."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from inferometer import __version__, suggestions
from inferometer.api import ceiling_views, fit_views, provenance
from inferometer.api.analysis import Analysis
from inferometer.api.point_rows import point_rows
from inferometer.api.sentences import five_lines
from inferometer.records.findings import findings_of
from inferometer.records.noise import noise_cautions
from inferometer.report.views import Statement, SweepReportView

REPORT_NAME: Final = "report.html"
"""Of the report beside a run's data."""


def sweep_view(analyses: Sequence[Analysis], *, report_path: Path | None = None) -> SweepReportView:
    """One run, or several side by side: the first gives the five lines, all give points, curves and charts."""
    first = analyses[0]
    rows = [point_rows(analysis) for analysis in analyses]
    cautions = tuple(
        dict.fromkeys(
            c
            for analysis in analyses
            for c in (*analysis.run.manifest.cautions, *noise_cautions(analysis.run))
        )
    )
    is_single = len(analyses) == 1
    return SweepReportView(
        title=_title(first),
        subtitle=_subtitle(analyses),
        five_lines=five_lines(first, rows[0], cautions, files=_files_line(first, report_path)),
        points=tuple(row for group in rows for row in group),
        curves=tuple(curve for analysis in analyses for curve in fit_views.curves(analysis)),
        roofline=ceiling_views.roofline(tuple(analyses)),
        predictions=tuple(
            point for analysis in analyses for point in fit_views.predictions(analysis)
        ),
        explained=tuple(row for analysis in analyses for row in fit_views.explained(analysis)),
        ceilings=tuple(
            moment for analysis in analyses for moment in ceiling_views.ceiling_moments(analysis)
        ),
        statements=tuple(
            statement
            for analysis in analyses
            for statement in _statements(analysis, is_single=is_single)
        ),
        cautions=cautions,
        parameters=fit_views.parameters(first),
        held_out=tuple(row for analysis in analyses for row in fit_views.held_out_rows(analysis)),
        fact_groups=tuple(
            group
            for analysis in analyses
            for group in provenance.fact_groups(analysis.run, analysis.label)
        ),
        files=tuple(file for analysis in analyses for file in provenance.data_files(analysis.path)),
        rerun_command=provenance.rerun_command(first.run),
        tool_version=__version__,
    )


def _statements(analysis: Analysis, *, is_single: bool) -> list[Statement]:
    prefix = "" if is_single else f"{analysis.label}: "
    return [
        Statement(sentence=prefix + finding.sentence, support=finding.support)
        for finding in findings_of(analysis.run)
    ]


def _title(analysis: Analysis) -> str:
    model = analysis.run.manifest.model
    return model.model_id if model is not None else analysis.label


def _subtitle(analyses: Sequence[Analysis]) -> str:
    host = analyses[0].run.manifest.host
    where = "" if host is None else f" · {host.accelerator or host.cpu_model or 'this machine'}"
    threads = (
        f" ({host.n_threads_used} threads)"
        if host is not None and host.accelerator is None and host.n_threads_used
        else ""
    )
    if len(analyses) == 1 and analyses[0].label == _title(analyses[0]):
        return f"a table that names neither model nor engine{where}"
    return " against ".join(analysis.label for analysis in analyses) + where + threads


def _files_line(analysis: Analysis, report_path: Path | None) -> str:
    beside = analysis.path / REPORT_NAME
    shown = report_path or (beside if beside.is_file() else None)
    return (
        f"{shown or 'none yet: ' + suggestions.command('report', analysis.path)}\nDATA"
        f" {analysis.path}"
    )
