"""How are the missing points of a plan measured and stored, one after the other?"""

import time
from collections.abc import Iterator
from dataclasses import replace

from inferometer.errors import EngineError
from inferometer.measure.measuring import PointMeasurer
from inferometer.measure.points import MeasuredPoint, ceiling_table, step_table, sweep_table
from inferometer.measure.time_left import OnProgress, Progress, TimeLeft
from inferometer.records.store import RunWriter
from inferometer.records.types import Caution, PointStatus
from inferometer.spec.types import SweepPlan


def measure_missing(plan: SweepPlan, measurer: PointMeasurer, writer: RunWriter, on_progress: OnProgress) -> tuple[Caution, ...]:
    """Measure and store every point that is not stored; what went wrong on the way comes back.

    Raises
    ------
    EngineError
        The engine failed at the first point of the run, twice: it will at the others.
    RecordError
        A point could not be stored.
    """
    cautions: list[Caution] = []
    start_ns = time.perf_counter_ns() - writer.elapsed_ns
    for measured in _measured_points(plan, measurer, writer.done_points, on_progress):
        if measured.status is PointStatus.FAILED:
            if not writer.done_points:
                raise EngineError(measured.why or "the engine failed", where=f"the first point: {_words(measured)}")
            cautions.append(_failure(measured))
        writer.append_point(
            measured.index,
            sweep_table(measured, start_ns=start_ns),
            step_table(measured, start_ns=start_ns),
            ceiling_table(measured, start_ns=start_ns),
        )
    on_progress(Progress(n_done=len(plan.points), n_points=len(plan.points), point=None, left_s=0.0))
    return (*cautions, *measurer.cautions())


def _measured_points(plan: SweepPlan, measurer: PointMeasurer, done: frozenset[int], on_progress: OnProgress) -> Iterator[MeasuredPoint]:
    """The missing points, in the plan's order, as they are measured; the first and the last carry the ceilings outside."""
    missing = [index for index in range(len(plan.points)) if index not in done]
    time_left = TimeLeft(plan)
    outside = measurer.probe_outside()
    for i_missing, index in enumerate(missing):
        left_s = time_left.estimate_s([plan.points[later] for later in missing[i_missing:]])
        on_progress(Progress(n_done=len(done) + i_missing, n_points=len(plan.points), point=plan.points[index], left_s=left_s))
        begin_s = time.monotonic()
        measured = measurer.measure(index)
        if measured.status is PointStatus.OK:
            time_left.measured(measured.point, time.monotonic() - begin_s)
        after = measurer.probe_outside() if i_missing == len(missing) - 1 else ()
        yield replace(measured, ceilings=(*outside, *measured.ceilings, *after))
        outside = ()


def _failure(measured: MeasuredPoint) -> Caution:
    reason = (measured.why or "no reason known").splitlines()[0]
    return Caution(
        code="POINT_FAILED", text=f"{_words(measured)} failed: {reason}", remedy="measure this point alone, and read the engine's words"
    )


def _words(measured: MeasuredPoint) -> str:
    point = measured.point
    return f"prompt {point.prompt_tokens} x batch {point.batch_size} x {point.gen_tokens} tokens"


__all__ = ["measure_missing"]
