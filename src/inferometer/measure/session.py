"""How are the missing visits to a plan's points made and stored, one after the other?"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from inferometer.errors import EngineError
from inferometer.measure.measuring import (
    MeasuredPoint,
    PointMeasurer,
    ceiling_table,
    step_table,
    sweep_table,
)
from inferometer.measure.time_left import OnProgress, Progress, TimeLeft
from inferometer.records.store import RunWriter
from inferometer.records.types import Caution, PointStatus
from inferometer.spec.sweep_plan import visits_of
from inferometer.spec.types import SweepPlan

_FEWEST_VISITS: Final = 2
"""So many are made however little time there is: of one nobody learns how times change."""


def measure_missing(
    plan: SweepPlan,
    measurer: PointMeasurer,
    writer: RunWriter,
    on_progress: OnProgress,
    *,
    until_s: float | None = None,
) -> tuple[Caution, ...]:
    """Measure and store what is not stored of each point; what went wrong on the way comes back.

    No visit is begun that would not be over at ``until_s`` of the monotonic clock, by those made so
    far.

    Raises
    ------
    EngineError
        The engine failed at the first point of the run, twice: it will at the others.
    RecordError
        A point could not be stored.
    """
    cautions: list[Caution] = []
    start_ns = time.perf_counter_ns() - writer.elapsed_ns
    for measured in _measured_points(plan, measurer, writer.done_parts, on_progress, until_s):
        if measured.status is PointStatus.FAILED:
            if not writer.done_parts:
                raise EngineError(
                    measured.why or "the engine failed",
                    where=f"the first point: {_words(measured)}",
                )
            cautions.append(_failure(measured))
        writer.append_part(
            measured.visit.number,
            sweep_table(measured, start_ns=start_ns),
            step_table(measured, start_ns=start_ns),
            ceiling_table(measured, start_ns=start_ns),
        )
    on_progress(
        Progress(
            n_done=len(writer.done_parts), n_visits=len(visits_of(plan)), point=None, left_s=0.0
        )
    )
    return (*cautions, *_left_out(plan, writer.done_parts, until_s), *measurer.cautions())


def _left_out(plan: SweepPlan, done: frozenset[int], until_s: float | None) -> tuple[Caution, ...]:
    """What was not measured for want of time, in words."""
    measured = {visit.point_index for visit in visits_of(plan) if visit.number in done}
    n_left = len(plan.points) - len(measured)
    if until_s is None or not n_left:
        return ()
    text = f"{n_left} of {len(plan.points)} points were left out: the time was over"
    return (Caution(code="TIME_OVER", text=text, remedy="a larger --budget, as NEXT has it"),)


def _measured_points(
    plan: SweepPlan,
    measurer: PointMeasurer,
    done: frozenset[int],
    on_progress: OnProgress,
    until_s: float | None,
) -> Iterator[MeasuredPoint]:
    """The missing visits, in the plan's order, as they are made; the first and the last carry the ceilings outside.

    A point that did not fit or failed is not visited again.
    """
    visits = visits_of(plan)
    missing = [visit for visit in visits if visit.number not in done]
    time_left, hopeless = TimeLeft(plan), set[int]()
    outside = measurer.probe_outside()
    n_done = len(visits) - len(missing)
    for i_missing, visit in enumerate(missing):
        if visit.point_index in hopeless:
            continue
        left_s = time_left.estimate_s(
            [later for later in missing[i_missing:] if later.point_index not in hopeless]
        )
        if (
            until_s is not None
            and i_missing >= _FEWEST_VISITS
            and time.monotonic() + (time_left.estimate_s([visit]) or 0.0) > until_s
        ):
            continue
        point = plan.points[visit.point_index]
        on_progress(Progress(n_done=n_done, n_visits=len(visits), point=point, left_s=left_s))
        begin_s = time.monotonic()
        measured = measurer.measure(visit)
        if measured.status is PointStatus.OK:
            time_left.measured(visit, time.monotonic() - begin_s)
        else:
            hopeless.add(visit.point_index)
        is_last = all(later.point_index in hopeless for later in missing[i_missing + 1 :])
        after = measurer.probe_outside() if is_last else ()
        n_done += 1
        yield replace(measured, ceilings=(*outside, *measured.ceilings, *after))
        outside = ()


def _failure(measured: MeasuredPoint) -> Caution:
    reason = (measured.why or "no reason known").splitlines()[0]
    return Caution(
        code="POINT_FAILED",
        text=f"{_words(measured)} failed: {reason}",
        remedy="measure this point alone, and read the engine's words",
    )


def _words(measured: MeasuredPoint) -> str:
    point = measured.point
    return f"prompt {point.prompt_tokens} x batch {point.batch_size} x {point.gen_tokens} tokens"
