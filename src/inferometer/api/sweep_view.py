"""What is shown of sweeps: every surface (terminal, HTML, JSON) draws this one view."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from inferometer import __version__, suggestions
from inferometer.api import fit_views, provenance
from inferometer.api.analysis import Analysis
from inferometer.api.point_rows import decode_shape_of, point_rows, prefill_shape_of, work_of
from inferometer.api.sentences import five_lines
from inferometer.perfmodel.types import BatchShape
from inferometer.records.findings import findings_of
from inferometer.records.noise import noise_cautions
from inferometer.records.types import ProbeKind
from inferometer.report.views import (
    CeilingKind,
    CeilingMoment,
    PhaseName,
    RoofCeiling,
    RooflinePoint,
    RooflineView,
    Statement,
    SweepReportView,
)
from inferometer.stats.estimate import Estimate
from inferometer.units import NS_PER_S

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
        roofline=roofline(tuple(analyses)),
        predictions=tuple(
            point for analysis in analyses for point in fit_views.predictions(analysis)
        ),
        explained=tuple(row for analysis in analyses for row in fit_views.explained(analysis)),
        ceilings=tuple(moment for analysis in analyses for moment in ceiling_moments(analysis)),
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


# How are the ceilings of the machine shown: over the time of a run, and as roofs above its
# points?


def ceiling_moments(analysis: Analysis) -> tuple[CeilingMoment, ...]:
    """What the machine could do over the run."""
    table = analysis.run.ceilings
    if table is None:
        return ()
    names: dict[ProbeKind, CeilingKind] = {
        ProbeKind.READ: "read",
        ProbeKind.COPY: "copy",
        ProbeKind.MATMUL: "matmul",
    }
    return tuple(
        CeilingMoment(
            run_label=analysis.label,
            elapsed_s=started / NS_PER_S,
            kind=names[ProbeKind(kind)],
            value_per_s=value,
        )
        for started, kind, value in zip(
            table.started_ns.tolist(), table.kind.tolist(), table.value_per_s.tolist(), strict=True
        )
    )


def roofline(analyses: tuple[Analysis, ...]) -> RooflineView | None:
    """Each phase of each point under the measured roofs, and the datasheet's where named."""
    points = [point for analysis in analyses for point in _roofline_points(analysis)]
    roofs = [roof for analysis in analyses for roof in _roofs(analysis)]
    return RooflineView(ceilings=tuple(roofs), points=tuple(points)) if points and roofs else None


def _roofline_points(analysis: Analysis) -> list[RooflinePoint]:
    found: list[RooflinePoint] = []
    for summary in analysis.points:
        phases: tuple[tuple[PhaseName, Estimate | None, BatchShape], ...] = (
            ("prefill", summary.prefill_s, prefill_shape_of(summary.point)),
            ("decode", summary.decode_step_s, decode_shape_of(summary.point)),
        )
        for phase, taken_s, shape in phases:
            work = work_of(analysis, shape)
            if taken_s is None or work is None:
                continue
            found.append(
                RooflinePoint(
                    run_label=analysis.label,
                    phase=phase,
                    prompt_tokens=summary.point.prompt_tokens,
                    batch_size=summary.point.batch_size,
                    intensity_flop_per_byte=work.total_flop / work.memory_bytes,
                    achieved_flop_per_s=taken_s.inverted(work.total_flop),
                )
            )
    return found


def _roofs(analysis: Analysis) -> list[RoofCeiling]:
    roofs: list[RoofCeiling] = []
    reads = [
        summary.read_bytes_per_s.value for summary in analysis.points if summary.read_bytes_per_s
    ]
    matmuls = [
        summary.matmul_flop_per_s.value for summary in analysis.points if summary.matmul_flop_per_s
    ]
    if reads and matmuls:
        roofs.append(
            _roof(
                f"measured, {analysis.label}",
                "measured",
                float(np.median(reads)),
                float(np.median(matmuls)),
            )
        )
    plan, hardware = analysis.run.manifest.plan, analysis.hardware
    peak = (
        hardware.peak_flop_per_s(plan.engine.dtype)
        if hardware is not None and plan is not None
        else None
    )
    if hardware is not None and peak is not None:
        roofs.append(
            _roof(
                f"datasheet, {hardware.name}",
                "datasheet",
                hardware.memory_bytes_per_s.value,
                peak.value,
            )
        )
    return roofs


def _roof(label: str, kind: str, read_bytes_per_s: float, peak_flop_per_s: float) -> RoofCeiling:
    return RoofCeiling(
        label=label,
        kind="measured" if kind == "measured" else "datasheet",
        read_bytes_per_s=read_bytes_per_s,
        peak_flop_per_s=peak_flop_per_s,
    )
