"""How long may a search compute? What it has not looked at by then, the answer names.

The clock is that of the process's own computing (CPU time): on a machine that others use too, the
answer is that of a free one, later.
"""

import time
from dataclasses import dataclass

from inferometer.api.question import DURATION, Option


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant on this process's clock."""

    at_s: float

    def __call__(self) -> float:
        """The seconds that are left; negative when it has passed."""
        return self.at_s - time.process_time()


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Seconds of computing, which begin where the work begins."""

    limit_s: float

    def __call__(self) -> Deadline:
        """It begins now."""
        return Deadline(time.process_time() + self.limit_s)

    def share(self, fraction: float) -> "TimeLimit":
        """A part of it."""
        return TimeLimit(self.limit_s * fraction)


def time_limit_field(default: str) -> Option:
    """The option of a search, whose default is this."""
    return Option(
        "Of computing: the search ends then with what is known, and names what it did not"
        f" examine. [{default}]",
        heading="Limits",
        is_common=True,
        metavar="DURATION",
        shows_default=False,
        parse=DURATION,
    )
