"""Does a search come to an end in time, with what it knows by then?"""

import math

import pytest

from inferometer.decide.capacity import OutOfTimeError, Phases, no_limit
from inferometer.simulate.hooks import check_poll


class Clock:
    """Seconds that pass as the test says."""

    def __init__(self, limit_s):
        self.left_s = limit_s

    def __call__(self):
        return self.left_s


def test_what_runs_beyond_its_phase_is_given_up_and_nothing_after_it():
    clock = Clock(10.0)
    phases = Phases(clock)
    with phases.until(0.5):
        check_poll()
        clock.left_s = 4.9
        assert phases.is_past(0.5)
        assert not phases.is_past(0.6)
        with pytest.raises(OutOfTimeError):
            check_poll()
    check_poll()
    with phases.until(1.2):
        clock.left_s = -1.9
        check_poll()


def test_without_a_limit_nothing_is_given_up():
    phases = Phases(no_limit)
    with phases.until(0.5):
        check_poll()
    assert not phases.is_past(0.0)
    assert math.isinf(phases.time_left_s())
