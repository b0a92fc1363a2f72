import pytest

from inferometer.measure.time_left import TimeLeft
from inferometer.spec.types import EngineSpec, SweepPlan, SweepPoint


def plan_of(*points: SweepPoint) -> SweepPlan:
    return SweepPlan(model="m", engine=EngineSpec(), points=points, n_warmup=1, n_reps=2, seed=0)


SMALL = SweepPoint(prompt_tokens=16, batch_size=1, gen_tokens=8)
LARGE = SweepPoint(prompt_tokens=512, batch_size=8, gen_tokens=64)


def test_nothing_measured_is_absent():
    assert TimeLeft(plan_of(SMALL)).estimate_s([SMALL]) is None


def test_equal_points_take_equal_time():
    left = TimeLeft(plan_of(SMALL, SMALL, SMALL))
    left.measured(SMALL, 2.0)
    assert left.estimate_s([SMALL, SMALL]) == pytest.approx(4.0)


def test_larger_points_take_longer():
    left = TimeLeft(plan_of(SMALL, LARGE))
    left.measured(SMALL, 1.0)
    estimate_s = left.estimate_s([LARGE])
    assert estimate_s is not None
    assert estimate_s > 8.0


def test_nothing_left_takes_no_time():
    left = TimeLeft(plan_of(SMALL))
    left.measured(SMALL, 1.0)
    assert left.estimate_s([]) == 0
