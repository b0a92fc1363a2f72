"""Which ceiling is a repetition compared with, and would a steady machine give the same?

Ceilings are probed between repetitions, because a shared machine drifts. The ceiling that judges a
repetition is the larger of the last probe before it and the first after it: what the machine could
do at that time, at least.

Points are measured at different times, so a difference between two of them may be the machine's.
How far a step's time follows the machine's memory or its matmul rate is not known here, but it
follows neither more than in proportion: what holds of the times as measured, of the times at steady
memory and of the times at steady matmul rate does not rest on drift.
"""

from typing import Final

import numpy as np

from inferometer.records import tables
from inferometer.records.columns import F64
from inferometer.records.repetitions import PointRepetitions, repetitions_of
from inferometer.records.types import CeilingTable, ProbeKind, Run

_SAME_FOOTPRINT_RATIO: Final = 0.5
"""Probes that touch less than this share of the largest footprint may live in a cache, and are
no ceiling of the memory."""


def steady_views(run: Run) -> tuple[tuple[PointRepetitions, ...], ...]:
    """The points that have repetitions.

    As measured, then (where it was probed throughout) at steady memory and at steady matmul rate.
    """
    points = tuple(point for point in repetitions_of(run) if point.n_reps)
    views = [points]
    for probes in (probes_of(run.ceilings, ProbeKind.READ), matmul_probes_of(run)):
        ceilings = [judging_ceilings_per_s(point, probes) for point in points]
        if probes is not None and ceilings and not np.isnan(np.concatenate(ceilings)).any():
            usual_per_s = float(np.median(np.concatenate(ceilings)))
            views.append(
                tuple(
                    point.at_speed(per_s / usual_per_s)
                    for point, per_s in zip(points, ceilings, strict=True)
                )
            )
    return tuple(views)


def matmul_probes_of(run: Run) -> CeilingTable | None:
    """The matmul probes in the engine's number format where that was probed, else in whichever was."""
    if run.ceilings is None or run.manifest.plan is None:
        return probes_of(run.ceilings, ProbeKind.MATMUL)
    own = probes_of(run.ceilings, ProbeKind.MATMUL, dtype=run.manifest.plan.engine.dtype)
    return probes_of(run.ceilings, ProbeKind.MATMUL) if own is None else own


def judging_ceilings_per_s(point: PointRepetitions, probes: CeilingTable | None) -> F64:
    """The ceiling of each repetition (R values), NaN where there is no probe.

    ``probes`` are of one kind (``probes_of``).
    """
    if probes is None or tables.n_rows(probes) == 0:
        return np.full(point.n_reps, np.nan)
    order = np.argsort(probes.started_ns, kind="stable")
    started_ns, value_per_s = probes.started_ns[order], probes.value_per_s[order]
    padded = np.concatenate(([np.nan], value_per_s, [np.nan]))
    ended_ns = point.started_ns + np.nan_to_num(point.total_s * 1e9).astype(np.int64)
    before = padded[np.searchsorted(started_ns, point.started_ns, side="right")]
    after = padded[np.searchsorted(started_ns, ended_ns, side="left") + 1]
    return np.fmax(before, after)


def probes_of(
    ceilings: CeilingTable | None, kind: ProbeKind, *, dtype: str | None = None
) -> CeilingTable | None:
    """The probes of one kind (and number format) with the large footprint; None without any."""
    if ceilings is None:
        return None
    is_kept = (ceilings.kind == kind) & ~np.isnan(ceilings.value_per_s)
    if dtype is not None:
        is_kept &= ceilings.dtype == dtype
    if kind is not ProbeKind.MATMUL and is_kept.any():
        is_kept &= ceilings.footprint_bytes >= _SAME_FOOTPRINT_RATIO * int(
            ceilings.footprint_bytes[is_kept].max()
        )
    return tables.select(ceilings, is_kept) if is_kept.any() else None
