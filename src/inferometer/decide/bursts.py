"""Do requests come for long enough to tell whether their load can be kept up?

Any server takes in a burst that is over before a queue builds up, at whatever rate it comes.
"""

import math
from typing import NamedTuple

from inferometer.records import latencies
from inferometer.records.types import Run
from inferometer.units import format_number


class Burst(NamedTuple):
    """Requests within the limit that are over before a queue could build up."""

    n_requests: int
    n_lifetimes: float
    """For how many times as long as a request stays they come."""
    n_needed: int
    """Requests that would be a load that goes on."""

    @property
    def why(self) -> str:
        """Why nothing follows for a load that goes on."""
        return (
            f"{self.n_requests:,} requests are one burst, over after {format_number(self.n_lifetimes)}"
            f" times as long as one stays; {self.n_needed:,} would be a load that goes on"
        )


def lifetimes(run: Run) -> float:
    """For how many times as long as a request stays on average do requests come?"""
    requests = run.requests
    if requests is None:
        return math.inf
    is_done = latencies.is_one_of(requests, latencies.COMPLETED)
    stayed_ns = (requests.finished_ns - requests.intended_send_ns)[is_done]
    if not len(stayed_ns):
        return math.inf
    sent_ns = requests.intended_send_ns
    return float(sent_ns.max() - sent_ns.min()) / max(float(stayed_ns.mean()), 1.0)
