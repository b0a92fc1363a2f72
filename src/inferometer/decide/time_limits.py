"""When does a search stop, and when is a simulation that is still running given up?

The clock is a callable that comes from outside. A search begins no new work in a phase whose share
of the time is over; a simulation already under way may take somewhat longer, but not without bound:
it looks at the clock between its pieces.
"""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

from inferometer.simulate.hooks import polled

TimeLeft: TypeAlias = Callable[[], float]
"""The seconds that are left; negative when the time is over."""


class OutOfTimeError(Exception):
    """A simulation was given up because its time was over."""


def no_limit() -> float:
    """Infinite: no time limit."""
    return math.inf


class Phases:
    """The time for a piece of work, in phases that each end at a fraction of it."""

    def __init__(self, time_left_s: TimeLeft) -> None:
        self.time_left_s = time_left_s
        self._all_s = time_left_s()

    def is_past(self, fraction: float) -> bool:
        """Is more than this fraction of the time over?"""
        return self._all_s - self.time_left_s() > fraction * self._all_s

    @contextmanager
    def until(self, fraction: float) -> Generator[None]:
        """Give up simulations in here that still run when this fraction of the time is over.

        Raises
        ------
        OutOfTimeError
            One was given up. The fraction may be above 1.
        """
        over_s = (1 - fraction) * self._all_s if math.isfinite(self._all_s) else 0.0

        def poll() -> None:
            if self.time_left_s() < over_s:
                raise OutOfTimeError

        with polled(poll):
            yield
