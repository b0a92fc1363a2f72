"""Of what is a request's time made: network, front end, queue, window, prefill, decode, post-processing?

Means over the requests that finished, which add up to their mean E2E. ``window`` is the wait until
the window of the request's class opens; before a server that runs whole batches, the wait while it
stands idle: nothing holds the request back there but its window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.records.columns import F64, I32, I64
from inferometer.records.types import ABSENT, RequestTable, StepTable
from inferometer.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Constant times of each request outside the scheduler; None: nobody said, and not in E2E."""

    front_end_s: float | None = None
    network_s: float | None = None
    """There and back."""
    post_s: float | None = None
    """Detokenising, and handing out."""

    @property
    def added_s(self) -> float:
        """What is added to each latency."""
        return (self.front_end_s or 0.0) + (self.network_s or 0.0) + (self.post_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class E2eParts:
    """Mean parts of E2E, in the order in which they happen but ``post_s``. None: not known."""

    n_requests: int
    total_s: float
    network_s: float | None
    front_end_s: float | None
    queue_s: float
    window_s: float | None
    """None: no windows, or of those that cannot be told from the queue."""
    prefill_s: float
    decode_s: float
    post_s: float | None


PART_NAMES: Final = ("network", "front_end", "queue", "window", "prefill", "decode", "post")


def e2e_parts(
    requests: RequestTable, around: Around, window_ns: F64 | None = None
) -> E2eParts | None:
    """The parts of the requests that finished; None without any.

    ``window_ns`` (N): how much of each wait was the window (``idle_ns``, ``gathered_ns``).
    """
    rows = np.flatnonzero(
        (requests.finished_ns != ABSENT)
        & (requests.first_token_ns != ABSENT)
        & (requests.admitted_ns != ABSENT)
    )
    if not rows.size:
        return None
    waited_ns = requests.admitted_ns[rows] - arrived_ns(requests, around)[rows]
    window_s = None if window_ns is None else _seconds(np.minimum(window_ns[rows], waited_ns))
    return E2eParts(
        n_requests=len(rows),
        total_s=_seconds(requests.finished_ns[rows] - requests.intended_send_ns[rows]),
        network_s=around.network_s,
        front_end_s=around.front_end_s,
        queue_s=_seconds(waited_ns) - (window_s or 0.0),
        window_s=window_s,
        prefill_s=_seconds(requests.first_token_ns[rows] - requests.admitted_ns[rows]),
        decode_s=_seconds(requests.finished_ns[rows] - requests.first_token_ns[rows]),
        post_s=around.post_s,
    )


def arrived_ns(requests: RequestTable, around: Around) -> I64:
    """When each request came to the gate or the scheduler."""
    return np.asarray(requests.intended_send_ns + round(around.added_s * NS_PER_S), dtype=np.int64)


def idle_ns(requests: RequestTable, around: Around, steps: StepTable) -> F64:
    """How much of each wait lies in no step of the only replica? 0 of those never admitted."""
    ends_ns = (steps.start_ns + steps.duration_ns).astype(np.float64)
    instants_ns = np.column_stack([steps.start_ns.astype(np.float64), ends_ns]).ravel()
    total_ns = np.cumsum(steps.duration_ns)
    busy_ns = np.column_stack([total_ns - steps.duration_ns, total_ns]).ravel()
    since_ns = arrived_ns(requests, around)
    until_ns = np.maximum(requests.admitted_ns, since_ns)
    before, after = (
        np.interp(at.astype(np.float64), instants_ns, busy_ns) for at in (since_ns, until_ns)
    )
    return np.asarray((until_ns - since_ns) - (after - before), dtype=np.float64)


def gathered_ns(since_ns: I64, class_index: I32, windows: Sequence[tuple[int, int]]) -> F64:
    """How long does each request wait until the window of its class opens?

    ``windows``: of each class, how long (ns) and how many requests it gathers at most; 0: no window,
    any number.
    """
    found = np.zeros(len(since_ns), dtype=np.float64)
    for i_class, (window_ns, size) in enumerate(windows):
        rows = np.flatnonzero(class_index == i_class)
        rows = rows[np.argsort(since_ns[rows], kind="stable")]
        while window_ns and rows.size:
            last_ns = since_ns[rows[0]] + window_ns
            n_in = int(np.searchsorted(since_ns[rows], last_ns, side="right"))
            if size and n_in >= size:
                n_in, last_ns = size, since_ns[rows[size - 1]]
            found[rows[:n_in]] = last_ns - since_ns[rows[:n_in]]
            rows = rows[n_in:]
    return found


def _seconds(durations_ns: I64 | F64) -> float:
    return float(durations_ns.mean()) / NS_PER_S
