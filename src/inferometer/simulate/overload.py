"""Is there more to do than the replicas can, than one of them, or than one of two pools?"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import I64
from inferometer.records.types import ABSENT, Caution, RequestTable
from inferometer.simulate.disaggregation_config import DisaggregatedConfig
from inferometer.simulate.outcome import Simulation

_MIN_REQUESTS: Final = 30
"""With fewer nothing can be said about growth."""


class _Window(NamedTuple):
    """The second half of the time in which requests are sent."""

    start_ns: int
    end_ns: int


class _Growth(NamedTuple):
    n_arrived: int
    n_more: int
    """Arrivals less departures."""


def overload_cautions(
    simulation: Simulation, seats: Sequence[int], pools: DisaggregatedConfig | None
) -> tuple[Caution, ...]:
    """What grows without bound while this load goes on, on replicas with so many ``seats`` each, in ``pools`` where there are two?"""
    cautions, sent_ns = list[Caution](), simulation.requests.intended_send_ns
    if len(sent_ns) < _MIN_REQUESTS or sent_ns.max() == sent_ns.min():
        return ()
    window = _Window((int(sent_ns.min()) + int(sent_ns.max())) // 2, int(sent_ns.max()))
    growth = _growth(
        sent_ns,
        simulation.requests.finished_ns,
        window,
        min(sum(seats), _n_running(simulation.requests, window.end_ns)),
    )
    if growth is not None:
        text = (
            f"the queue grows without bound while this load goes on: {growth.n_arrived} requests"
            " came in the second half, "
        )
        text += f"{growth.n_arrived - growth.n_more} left"
        remedy = (
            "a lower rate or more replicas; averages over such a run say only how long it lasted"
        )
        cautions.append(Caution(code="overload", text=text, remedy=remedy))
    n_prefill = 0 if pools is None else pools.prefill.n_replicas
    if n_prefill > 0:
        cautions += _of_pools(simulation, window, seats, n_prefill)
    for first, last in ((0, n_prefill), (n_prefill, len(seats))):
        grows = [
            replica
            for replica in range(first, last)
            if _grows(simulation, window, seats, range(replica, replica + 1))
        ]
        if 0 < len(grows) < last - first:
            text = (
                f"the queue grows without bound on {len(grows)} of {last - first} replicas, not on"
                " the others: "
            )
            text += ", ".join(f"replica {replica}" for replica in grows)
            remedy = (
                "a router that looks at the load (least-loaded), or more replicas for these classes"
                " or prefixes"
            )
            cautions.append(Caution(code="uneven", text=text, remedy=remedy))
    return tuple(cautions)


def _n_running(requests: RequestTable, at_ns: int) -> int:
    """How many had been let into an engine by then, and had not left?

    Fewer than the seats where KV blocks are short.
    """
    has_left = (requests.finished_ns != ABSENT) & (requests.finished_ns <= at_ns)
    return int(
        np.sum((requests.admitted_ns != ABSENT) & (requests.admitted_ns <= at_ns) & ~has_left)
    )


def _of_pools(
    simulation: Simulation, window: _Window, seats: Sequence[int], n_prefill: int
) -> list[Caution]:
    """Where between the first prompt token and the last of the answer do requests pile up?

    KV caches that wait to be fetched keep their blocks: where more of them wait than prompts can be
    computed at once, they are what the prompts wait for.
    """
    moved, found = simulation.transfers, list[Caution]()
    n_stuck, is_link = 0, False
    if moved is not None:
        is_gone = (moved.received_ns != ABSENT) & (moved.received_ns <= window.end_ns)
        n_stuck = int(
            np.sum(
                (moved.prefilled_ns != ABSENT) & (moved.prefilled_ns <= window.end_ns) & ~is_gone
            )
        )
        is_link = (
            _growth(moved.prefilled_ns, moved.received_ns, window, sum(seats[n_prefill:]))
            is not None
        )
    is_prefill = _grows(simulation, window, seats, range(n_prefill))
    if is_link or (is_prefill and n_stuck > sum(seats[:n_prefill])):
        remedy = (
            "more replicas or KV blocks for the answers (--replicas), or a faster link (--kv-link)"
        )
        found.append(_bottleneck("of KV caches on their way from prompts to answers", remedy))
    elif is_prefill:
        found.append(
            _bottleneck(
                "before the replicas that compute prompts",
                "more prefill replicas (--prefill-replicas)",
            )
        )
    if _grows(simulation, window, seats, range(n_prefill, len(seats))):
        found.append(
            _bottleneck(
                "before the replicas that generate", "more replicas for the answers (--replicas)"
            )
        )
    return found


def _bottleneck(where: str, remedy: str) -> Caution:
    return Caution(code="bottleneck", text=f"what grows is the queue {where}", remedy=remedy)


def _grows(simulation: Simulation, window: _Window, seats: Sequence[int], replicas: range) -> bool:
    """Do more and more requests stay with these replicas?"""
    visits = simulation.visits
    if visits is None:
        return False
    is_there = (visits.replica >= replicas.start) & (visits.replica < replicas.stop)
    n_seats = sum(seats[replicas.start : replicas.stop])
    return (
        _growth(visits.arrived_ns[is_there], visits.left_ns[is_there], window, n_seats) is not None
    )


def _growth(came_ns: I64, left_ns: I64, window: _Window, n_served: int) -> _Growth | None:
    """By how much did the number of requests inside grow in the window?

    None where that may be chance.

    Below capacity that number has a limit, at capacity it wanders as the square root of the
    arrivals, above it grows with them: more than three square roots and those who are served
    together is no chance. Who has not come or not left is ``ABSENT``.
    """
    n_arrived, n_left = (
        int(np.sum((times_ns > window.start_ns) & (times_ns <= window.end_ns)))
        for times_ns in (came_ns, left_ns)
    )
    growth = _Growth(n_arrived=n_arrived, n_more=n_arrived - n_left)
    return growth if growth.n_more > 3 * math.sqrt(n_arrived) + n_served else None
