import math
import time
from dataclasses import replace

import pytest

from inferometer.inputs.types import EngineSpec, SweepPlan, SweepPoint, SweepVisit
from inferometer.measure import sweep
from inferometer.measure.engines.protocol import Ceiling, Repetition
from inferometer.measure.sweep import (
    MeasuredPoint,
    MeasuredRepetition,
    ProbedCeiling,
    ceiling_table,
    step_table,
    sweep_table,
)
from inferometer.measure.telemetry import Telemetry
from inferometer.records.types import ABSENT, Phase, PointStatus, ProbeKind

POINT = SweepPoint(prompt_tokens=10, batch_size=4, gen_tokens=3)
REPETITION = Repetition(
    started_ns=1_000,
    prefill_ns=500,
    decode_step_ns=(70, 80),
    reserved_bytes=None,
    allocated_bytes=12,
    output_ids=((1, 2, 3),) * 4,
    is_warmup=True,
    index=0,
    ended_ns=1_700,
)


VISIT = SweepVisit(number=7, point_index=7, first_repetition=0, n_warmup=2, n_reps=1)


def measured(repetition=REPETITION, status=PointStatus.OK, **changes):
    done = (MeasuredRepetition(repetition=repetition, telemetry=Telemetry(cpu_fraction=0.5)),)
    fields = {
        "visit": VISIT,
        "point": POINT,
        "status": status,
        "repetitions": done,
        "ceilings": (),
        "why": None,
    } | changes
    return MeasuredPoint(**fields)


def test_a_repetition_is_a_row():
    table = sweep_table(measured(), start_ns=900)
    assert table.point_index.tolist() == [7]
    assert table.started_ns.tolist() == [100]
    assert table.prefill_ns.tolist() == [500]
    assert table.decode_ns.tolist() == [150]
    assert table.n_decode_steps.tolist() == [2]
    assert table.reserved_bytes.tolist() == [ABSENT]
    assert table.cpu_fraction.tolist() == [0.5]
    assert math.isnan(table.energy_joule[0])


def test_no_decode_is_absent_and_not_zero():
    table = sweep_table(
        measured(
            REPETITION.__class__(
                **{name: getattr(REPETITION, name) for name in REPETITION.__slots__}
                | {"decode_step_ns": ()}
            )
        ),
        start_ns=0,
    )
    assert table.decode_ns.tolist() == [ABSENT]


def test_a_point_that_was_given_up_keeps_what_was_measured_and_says_how_it_ended():
    table = sweep_table(measured(status=PointStatus.OUT_OF_MEMORY, ended_ns=5_000), start_ns=0)
    assert table.status.tolist() == [PointStatus.OK, PointStatus.OUT_OF_MEMORY]
    assert table.repetition.tolist() == [0, 1]
    assert table.is_warmup.tolist() == [True, True]
    assert table.prefill_ns.tolist() == [500, ABSENT]
    assert table.started_ns.tolist() == [1_000, 5_000]


def test_a_later_visit_goes_on_with_the_count():
    later = SweepVisit(number=27, point_index=7, first_repetition=4, n_warmup=1, n_reps=2)
    table = sweep_table(
        measured(repetition=replace(REPETITION, index=4), visit=later, status=PointStatus.FAILED),
        start_ns=0,
    )
    assert table.point_index.tolist() == [7, 7]
    assert table.repetition.tolist() == [4, 5]
    assert table.is_warmup.tolist() == [True, False]


def test_steps_say_what_they_contained():
    table = step_table(measured(), start_ns=0)
    assert table.phase.tolist() == [Phase.PREFILL, Phase.DECODE, Phase.DECODE]
    assert table.start_ns.tolist() == [1_000, 1_500, 1_570]
    assert table.prefill_tokens.tolist() == [40, 0, 0]
    # 4 prompts of 10: 4 * (1 + 2 + ... + 10); then each of 4 sequences attends to 11, then 12
    # tokens.
    assert table.prefill_context_product_tokens2.tolist() == [4 * 55, 0, 0]
    assert table.decode_context_tokens.tolist() == [0, 44, 48]


def test_ceilings_keep_their_place():
    ceiling = Ceiling(
        kind=ProbeKind.MATMUL, started_ns=50, dtype="bfloat16", footprint_bytes=9, value_per_s=2.0
    )
    table = ceiling_table(
        measured(ceilings=(ProbedCeiling(point_index=-1, repetition=-1, ceiling=ceiling),)),
        start_ns=20,
    )
    assert table.point_index.tolist() == [-1]
    assert table.started_ns.tolist() == [30]
    assert table.dtype.tolist() == ["bfloat16"]


class Noted:
    """A measurer without an engine, which notes what is probed and measured."""

    def __init__(self):
        self.did = ""

    def probe_outside(self, kinds=sweep.OUTSIDE_KINDS):
        self.did += "s" if sweep.STEP_KINDS[0] in kinds else ""
        return ()

    def measure(self, visit):
        self.did += str(visit.point_index)
        return measured(visit=visit)


@pytest.mark.parametrize(
    ("left_s", "did"), [(None, "s0110s"), (3600.0, "s0s1s1s0s"), (-1.0, "s0110s")]
)
def test_steps_in_turns_stand_between_all_points_of_a_look_while_its_budget_lasts(left_s, did):
    """Bouts of up to 5 s each came between the points after a budget of 10 s was spent."""
    points = (POINT, replace(POINT, batch_size=8))
    rounds = {"n_warmup": 0, "n_reps": 2, "n_rounds": 2}
    plan = SweepPlan(model="tiny", engine=EngineSpec(), points=points, seed=1, **rounds)
    noted, until_s = Noted(), None if left_s is None else time.monotonic() + left_s
    list(sweep._measured_points(plan, noted, frozenset(), lambda _: None, until_s))
    assert noted.did == did
