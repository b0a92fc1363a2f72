"""Which is the smallest number of replicas that is enough: by short runs, then by long ones?

More replicas do no worse, as a rule, so that the number is bracketed. Users who send requests of
one length stay in step: how many of their prompts meet at one replica depends on how their number
divides, and a greater number of replicas may do worse. There the next numbers are tried too.
"""

import math
from collections.abc import Callable
from typing import Final

from inferometer.decide.capacity import OutOfTimeError, Phases
from inferometer.stats.estimate import Verdict

COUNTED_FRACTION: Final = 0.7
"""Share of a device's time at which the refinement by long runs ends."""
MOST_RATIO: Final = 2
"""Long runs may show that this many times the replicas are needed that short runs found."""
_NEXT_FRACTIONS: Final = (0.0, 1 / 16, 1 / 8)
"""Of a number of replicas, how much greater the next numbers are that must not be worse."""


def fewest_in_short_runs(
    least: int, start: int, is_enough: Callable[[int], bool], is_idle: Callable[[int], bool]
) -> int | None:
    """The smallest number from ``least`` on that is enough; None where not even idle ones are."""
    too_few, enough = least - 1, max(least, start)
    while not is_enough(enough):
        too_few, enough = enough, max(enough + 1, math.ceil(enough * 1.5))
        if is_idle(too_few):
            return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def fewest_in_long_runs(
    first: int,
    verdict_of: Callable[[int], Verdict],
    phases: Phases,
    verdict_at_once: Callable[[int], Verdict] | None = None,
    is_far: Callable[[int], bool] | None = None,
) -> int | None:
    """Smallest sufficient number, searched from ``first``; None where twice that is too few.

    ``verdict_at_once``: that of a single long run. Where it is given, a greater number may be worse,
    and the next ones may not miss. Out of time the smallest that was shown, or ``first`` where there
    was no time for a single run. ``is_far``: is the SLO met by so much that half may be enough?

    Raises
    ------
    OutOfTimeError
        The time is over, and the runs showed only that ``first`` are too few.
    """
    shown = dict[int, bool]()

    def is_enough(n_replicas: int) -> bool:
        shown[n_replicas] = verdict_of(n_replicas) == "met"
        return shown[n_replicas]

    def is_late() -> bool:
        return phases.is_past(COUNTED_FRACTION)

    try:
        enough = fewest_shown(first, is_enough, is_late, is_far)
        if verdict_at_once is None or enough is None:
            return enough
        most = MOST_RATIO * first
        return first_that_lasts(enough, most, verdict_at_once, is_late) or enough
    except OutOfTimeError:
        if shown and not any(shown.values()):
            raise
        return min((n for n, is_shown in shown.items() if is_shown), default=first)


def first_that_lasts(
    enough: int, most: int, verdict_of: Callable[[int], Verdict], is_late: Callable[[], bool]
) -> int | None:
    """The smallest number up to ``most`` that meets the SLO, and none of the next ones misses it.

    ``enough`` is the smallest that meets it. None where there is none, or no time to find it.
    """
    while enough <= most and not is_late():
        nexts = {enough + 1 + math.ceil(enough * fraction) for fraction in _NEXT_FRACTIONS}
        missed = [n for n in sorted(nexts) if verdict_of(n) == "missed"]
        if not missed:
            return enough
        enough = missed[-1] + 1
        while enough <= most and not is_late() and verdict_of(enough) != "met":
            enough += 1
    return None


def fewest_shown(
    first: int,
    is_enough: Callable[[int], bool],
    is_late: Callable[[], bool],
    is_far: Callable[[int], bool] | None = None,
) -> int | None:
    """Smallest sufficient number, searched from ``first``; None where twice that is too few."""
    too_few, enough, step = 0, first, max(1, first // 16)
    if is_enough(first):
        while enough - too_few > 1 and not is_late():
            is_halved = is_far is not None and is_far(enough)
            fewer = max(enough // 2 if is_halved else enough - step, 1)
            if is_enough(fewer):
                enough, step = fewer, 2 * step
            else:
                too_few = fewer
                break
    else:
        while not is_enough(enough):
            too_few, enough, step = enough, enough + step, max(2 * step, first // 8)
            if too_few >= first * MOST_RATIO + 1:
                return None
    while enough - too_few > 1 and not is_late():
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough
