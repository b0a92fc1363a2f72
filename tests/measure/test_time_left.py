import time

import pytest

from inferometer.inputs.types import EngineSpec, SweepPlan, SweepPoint, SweepVisit
from inferometer.measure.time_left import TimeLeft


def plan_of(*points: SweepPoint) -> SweepPlan:
    return SweepPlan(model="m", engine=EngineSpec(), points=points, n_warmup=1, n_reps=2, seed=0)


SMALL = SweepPoint(prompt_tokens=16, batch_size=1, gen_tokens=8)
LARGE = SweepPoint(prompt_tokens=512, batch_size=8, gen_tokens=64)


def visit_to(index: int, n_reps: int = 2) -> SweepVisit:
    return SweepVisit(
        number=index, point_index=index, first_repetition=0, n_warmup=1, n_reps=n_reps
    )


def test_nothing_measured_is_absent():
    assert TimeLeft(plan_of(SMALL)).estimate_s([visit_to(0)]) is None


def test_equal_points_take_equal_time():
    left = TimeLeft(plan_of(SMALL, SMALL, SMALL))
    left.measured(visit_to(0), 2.0)
    assert left.estimate_s([visit_to(1), visit_to(2)]) == pytest.approx(4.0)
    assert left.estimate_s([visit_to(1, n_reps=8)]) == pytest.approx(6.0)


def test_larger_points_take_longer():
    left = TimeLeft(plan_of(SMALL, LARGE))
    left.measured(visit_to(0), 1.0)
    estimate_s = left.estimate_s([visit_to(1)])
    assert estimate_s is not None
    assert estimate_s > 8.0


def test_a_limit_ends_the_wait():
    left = TimeLeft(plan_of(SMALL, SMALL))
    assert left.within_s([visit_to(1)], time.monotonic() + 1) is None
    left.measured(visit_to(0), 500.0)
    assert left.within_s([visit_to(1)], None) == pytest.approx(500.0)
    assert 99 < left.within_s([visit_to(1)], time.monotonic() + 100) <= 100
    assert left.within_s([visit_to(1)], time.monotonic() - 1) == 0


def test_nothing_left_takes_no_time():
    left = TimeLeft(plan_of(SMALL))
    left.measured(visit_to(0), 1.0)
    assert left.estimate_s([]) == 0
