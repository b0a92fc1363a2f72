"""Was the rate that was asked for offered?

Sessions whose users wait for answers and think may hold it below.
"""

from typing import Final

import numpy as np

from inferometer.inputs.workload.plan import NONE, DrawnWorkload
from inferometer.records.types import Caution
from inferometer.units import format_duration, format_number

_HELD_RATIO: Final = 0.9
"""Below it the difference is more than the scatter of a few hundred random arrivals."""


def held_back(workload: DrawnWorkload, offered_per_s: float | None) -> tuple[Caution, ...]:
    """A caution where later turns of sessions held the offered rate below ``--rate``."""
    plan, asked_per_s = workload.plan, workload.asked_rate_per_s
    n_later = int(np.count_nonzero(plan.follows != NONE))
    if (
        asked_per_s is None
        or not n_later
        or not offered_per_s
        or offered_per_s >= _HELD_RATIO * asked_per_s
    ):
        return ()
    spread = format_duration((plan.n_requests - 1) / offered_per_s)
    return (
        Caution(
            code="HELD_RATE",
            text=(
                f"{format_number(offered_per_s)} requests/s were offered of"
                f" {format_number(asked_per_s)} asked for: {n_later:,} of {plan.n_requests:,}"
                " requests are later turns, which wait for an answer and for their user, so that"
                f" all took {spread}"
            ),
            remedy=(
                "more --requests, until the run is long beside the users' pauses, or a longer --for"
            ),
        ),
    )
