"""How are the ceilings of the machine shown: over the time of a run, and as roofs above its points?"""

import numpy as np

from inferometer.api.analysis import Analysis
from inferometer.api.point_rows import decode_shape_of, prefill_shape_of, work_of
from inferometer.perfmodel.types import BatchShape
from inferometer.records.types import ProbeKind
from inferometer.report.views import (
    CeilingKind,
    CeilingMoment,
    PhaseName,
    RoofCeiling,
    RooflinePoint,
    RooflineView,
)
from inferometer.stats.estimate import Estimate
from inferometer.units import NS_PER_S


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
    """Every phase of every point under the roofs that were measured around it, and the datasheet's where one was named."""
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
