"""Do a server's counts of requests agree with their times, as they must of one whole server?

Little's law (J. D. C. Little, Operations Research 9, 1961): requests in the server = requests/s times
the seconds that each stays. Of a window it holds but for the requests that are in the server at its
two ends. Where it fails the page is not of one server: gauges of one engine beside counters of all,
or each rank counted for itself.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.errors import ModelError

_ALLOWED_FRACTION: Final = 0.1
_SDS: Final = 3.0


class Balance(NamedTuple):
    """Requests in the server, on average over the window."""

    counted: float
    by_times: float
    """Requests that ended times the seconds that each stayed, over the window's length."""
    allowed: float
    """Largest allowed difference of the two."""

    @property
    def holds(self) -> bool:
        """Do both sides of Little's law agree?"""
        return abs(self.counted - self.by_times) <= self.allowed


def balance(window: ServerWindow) -> Balance | None:
    """Both counts; None where the server does not report how long requests stay.

    By how many more there are at the end than at the beginning the times of the ended ones miss up
    to the whole window, or nothing: a growing queue is judged by nothing but its own size. Else each
    that is there at an end was there for a part of its stay. Requests whose clients went away
    together, as at the end of a load test, leave no time behind: they count like those that stay.
    """
    stay = _stay(window)
    if stay is None:
        return None
    n_ended, stay_s = stay
    inside = window.running + window.waiting
    counted = float(np.trapezoid(inside, window.at_s)) / window.duration_s
    by_times = n_ended * stay_s / window.duration_s
    # Looked at now and then, requests that stay a moment are many or none by chance (Poisson).
    by_looks = _SDS * math.sqrt(max(counted, by_times) / len(inside))
    at_ends = float(inside[0] + inside[-1])
    longest_s = min(stay_s, window.duration_s)
    chance = _SDS * math.sqrt(at_ends) * longest_s / window.duration_s
    allowed = _ALLOWED_FRACTION * max(counted, by_times) + chance + by_looks
    gone = max(float((-np.diff(inside) - np.diff(window.finished)).max()), 0.0)
    return Balance(counted, by_times, allowed + abs(float(inside[-1] - inside[0]) + gone))


def check_balanced(window: ServerWindow) -> None:
    """Refuse a page that cannot be of one whole server.

    Raises
    ------
    ModelError
        Its counts and its times contradict each other.
    """
    found = balance(window)
    if found is not None and not found.holds:
        raise ModelError(
            f"inconclusive: {found.counted:.3g} requests are in the server by its gauges, and"
            f" {found.by_times:.3g} by how many end and how long each stays (Little's law)",
            where="its metrics",
            allowed=f"both within {found.allowed:.2g} of each other, as of one whole server",
            try_="the page of one server: its own port, with all its engines and one rank of each",
        )


def _stay(window: ServerWindow) -> tuple[float, float] | None:
    """Number of requests that ended, and their mean time in queue and batch (seconds).

    Where both parts are reported (vLLM) what passes before the scheduler does not count, as its
    gauges do not count it.
    """
    whole, queue, inference = (window.summary.time(name) for name in ("e2e", "queue", "inference"))
    if whole is None:
        return None
    if queue is None or inference is None:
        return float(whole.n), whole.mean_s
    return float(inference.n), queue.mean_s + inference.mean_s
