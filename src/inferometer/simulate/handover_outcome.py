"""Where was each request when, and how did its KV cache travel, if prompts and answers are computed by different replicas?

Letters of shapes: N requests.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.records.columns import I64
from inferometer.records.types import ABSENT, VisitTable
from inferometer.simulate.outcome import Simulation, TransferTable
from inferometer.simulate.status import Stage


class HandoverFacts(NamedTuple):
    """What became of N requests between two replicas, in the workload's order.

    Of those that stayed where they were ``stage`` alone.
    """

    stage: I64
    """A ``Stage``."""
    source: I64
    replica: I64
    """Where it was last; -1 where none got it."""
    num_moved_blocks: I64
    arrived_ns: I64
    """At the source."""
    prefilled_ns: I64
    asked_ns: I64
    begun_ns: I64
    """May lie behind the end of the simulation, as the next."""
    received_ns: I64


def with_handovers(simulation: Simulation, facts: HandoverFacts) -> Simulation:
    """The same, with what is known of the KV caches that travelled, and two visits of each request whose cache arrived.

    The time between these visits is that of the transfer, what it waited for included.
    """
    return simulation._replace(
        visits=_visits(simulation, facts), transfers=_transfers(simulation, facts)
    )


def _transfers(simulation: Simulation, facts: HandoverFacts) -> TransferTable:
    rows = np.flatnonzero(facts.stage != Stage.ABSENT)
    is_asked = facts.asked_ns[rows] != ABSENT
    return TransferTable(
        request_index=rows.astype(np.int32),
        source=facts.source[rows].astype(np.int32),
        replica=facts.replica[rows].astype(np.int32),
        n_blocks=np.where(is_asked, facts.num_moved_blocks[rows], ABSENT),
        prefilled_ns=facts.prefilled_ns[rows],
        asked_ns=facts.asked_ns[rows],
        begun_ns=_until(facts.begun_ns[rows], simulation.end_ns),
        received_ns=_until(facts.received_ns[rows], simulation.end_ns),
    )


def _visits(simulation: Simulation, facts: HandoverFacts) -> VisitTable | None:
    once = simulation.visits
    if once is None:
        return None
    handed = facts.stage[once.request_index] != Stage.ABSENT
    received_ns = _until(facts.received_ns[once.request_index], simulation.end_ns)
    again = np.flatnonzero(handed & (received_ns != ABSENT))
    index = once.request_index
    visits = VisitTable(
        request_index=_both(index, index, again),
        replica=_both(
            np.where(handed, facts.source[index], once.replica).astype(np.int32),
            once.replica,
            again,
        ),
        arrived_ns=_both(
            np.where(handed, facts.arrived_ns[index], once.arrived_ns), received_ns, again
        ),
        left_ns=_both(
            np.where(handed, facts.prefilled_ns[index], once.left_ns), once.left_ns, again
        ),
    )
    order = np.argsort(visits.request_index, kind="stable")
    return VisitTable._make(column[order] for column in visits)


def _both(first: NDArray[Any], second: NDArray[Any], again: NDArray[np.intp]) -> NDArray[Any]:
    return np.concatenate([first, second[again]])


def _until(instants_ns: I64, end_ns: int) -> I64:
    return np.where(instants_ns > end_ns, ABSENT, instants_ns)
